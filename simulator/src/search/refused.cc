#include "search/refused.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace ns_dist {

static constexpr std::string_view kGlobalBatch = "training/global_batch";

bool RefusedPlans::Example::before(const Example& other) const {
  return std::tie(sequences, group, leaf) < std::tie(other.sequences, other.group, other.leaf);
}

void RefusedPlans::Example::pack(Packer& to) const {
  to.put(sequences);
  to.put(group);
  to.put(leaf);
  to.put(message);
}

void RefusedPlans::Example::unpack(Unpacker& from) {
  from.get(sequences);
  from.get(group);
  from.get(leaf);
  from.get(message);
}

void RefusedPlans::refuse(const Error& error, const Scenario& plan, std::uint32_t group, std::uint32_t leaf,
                          std::uint64_t count) {
  const std::string reason = error.where.substr(0, error.where.find(','));
  const std::int64_t sequences = reason == kGlobalBatch ? plan.training.micro_batch * plan.plan.dp : 0;
  refuse(reason, {sequences, group, leaf, {}}, count, [&] { return error.message; });
}

void RefusedPlans::refuse(Bytes held, Bytes capacity, std::uint32_t group, std::uint32_t leaf, std::uint64_t count) {
  least_memory_ = std::min(least_memory_, held / units::B);
  refuse("memory", {0, group, leaf, {}}, count,
         [&] { return fmt::format("{:.1f} GiB of {:.1f} GiB", held / units::GiB, capacity / units::GiB); });
}

template <class Message>
void RefusedPlans::refuse(const std::string& reason, Example example, std::uint64_t count, const Message& message) {
  count_[reason] += count;
  const auto [known, is_new] = examples_.try_emplace(reason);
  if (!is_new && !example.before(known->second)) return;
  example.message = message();
  known->second = std::move(example);
}

void RefusedPlans::add(const RefusedPlans& others) {
  for (const auto& [reason, count] : others.count_) count_[reason] += count;
  for (const auto& [reason, example] : others.examples_) {
    const auto [known, is_new] = examples_.try_emplace(reason, example);
    if (!is_new && example.before(known->second)) known->second = example;
  }
  least_memory_ = std::min(least_memory_, others.least_memory_);
}

void RefusedPlans::tell(SearchResult& result) const {
  result.infeasible = count_;
  if (least_memory_ < std::numeric_limits<double>::infinity()) result.least_memory = least_memory_ * units::B;
  for (const auto& [reason, example] : examples_) {
    result.examples[reason] = example.message;
    if (reason == kGlobalBatch) result.least_sequences = example.sequences;
  }
}

void RefusedPlans::pack(Packer& to) const {
  to.put(count_);
  to.put(examples_);
  to.put(least_memory_);
}

void RefusedPlans::unpack(Unpacker& from) {
  from.get(count_);
  from.get(examples_);
  from.get(least_memory_);
}

}  // namespace ns_dist
