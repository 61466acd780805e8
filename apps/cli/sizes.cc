#include "sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>

#include "ns_dist/internal/divisors.h"
#include "terminal.h"

namespace ns_dist::cli {

std::vector<std::int64_t> numbers_of(const SearchRequest& request, std::string_view field) {
  std::vector<std::int64_t> numbers;
  const auto add = [&](std::string_view name, std::span<const std::string> texts) {
    for (const std::string& text : texts) {
      const auto number = read_whole_number(text, 1, kMostOfAField);
      if (name == field && number) numbers.push_back(*number);
    }
  };
  for (const Assignment& each : request.fixed.assignments) add(each.field, {&each.text, 1});
  for (const FieldValues& each : request.listed) add(each.field, each.values);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<Cluster> searched_cluster(const SearchRequest& request, const Catalog& catalog) {
  ScenarioSpec spec;
  for (const Assignment& each : request.fixed.assignments) {
    if (decides_machine(each.field)) spec.assignments.push_back(each);
  }
  NS_TRY(Scenario machine, resolve(spec, catalog, request.from.get()));
  return std::move(machine.cluster);
}

SearchRequest without(SearchRequest request, std::string_view field) {
  std::erase_if(request.fixed.assignments, [field](const Assignment& each) { return each.field == field; });
  return request;
}

SearchRequest with_gpus(SearchRequest request, std::int64_t gpus) {
  request = without(std::move(request), "machine/nodes");
  request.gpus = gpus;
  return request;
}

Result<Sizes> Sizes::make(SearchRequest request, const Catalog& catalog, const SearchWatch& watch) {
  NS_TRY(const Cluster cluster, searched_cluster(request, catalog));
  Sizes sizes(std::move(request), catalog, watch);
  for (const std::string_view degree : {"plan/tp", "plan/cp", "plan/pp", "plan/dp"}) {
    const auto values = numbers_of(sizes.request_, degree);
    if (!values.empty()) sizes.given_ = std::min(sizes.given_ * std::min(values.front(), kMostSearched), kMostSearched);
  }
  const std::int64_t node = cluster.gpus_per_node();
  sizes.unit_ = sizes.full_ = std::lcm(node, sizes.given_);
  if (const std::int64_t used = used_of_node(node, power_of_two_up_to(node)); used > 0) {
    sizes.unit_ = std::min(sizes.full_, std::lcm(used, sizes.given_));
  }
  if (sizes.unit_ > kMostSearched) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("whole replicas on whole nodes of {} need {} GPUs", node, with_commas(sizes.unit_)),
                 "--dp",
                 fmt::format("degrees that whole nodes hold: at most {} GPUs are searched", with_commas(kMostSearched)),
                 "leave out the degrees that may be searched"});
  }
  sizes.batches_ = numbers_of(sizes.request_, kGlobalBatch);
  if (sizes.batches_.empty()) {
    NS_TRY(const SearchSpace space, sizes.space(sizes.unit_));
    sizes.batches_ = {space.base().training.global_batch};
  }
  const auto micro_batches = numbers_of(sizes.request_, kMicroBatch);
  const bool has_replicas = sizes.request_.gives("plan/dp");
  for (std::int64_t& batch : sizes.batches_) {
    if (!micro_batches.empty()) batch = std::max<std::int64_t>(1, batch / micro_batches.front());
    if (has_replicas) batch = 1;
  }
  return sizes;
}

std::int64_t Sizes::replica(std::int64_t gpus) const {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t batch : batches_) fewest = std::min(fewest, gpus / std::gcd(gpus / given_, batch));
  return fewest;
}

Result<std::optional<std::int64_t>> Sizes::best(std::int64_t low, std::int64_t high, std::int64_t near) const {
  constexpr std::ptrdiff_t kMostTried = 3;
  const auto half = [](std::int64_t number) { return number & -number; };  // how often it can be halved
  const auto rank = [&](std::int64_t gpus) {
    const std::int64_t each = replica(gpus);
    return std::tuple(static_cast<double>(each) * static_cast<double>(each / half(each)), std::abs(gpus - near), gpus);
  };
  const std::int64_t step = std::gcd(unit_, full_);
  std::vector<std::int64_t> sizes;
  for (std::int64_t gpus = (low + step - 1) / step * step; gpus < high; gpus += step) {
    if (gpus % unit_ == 0 || gpus % full_ == 0) sizes.push_back(gpus);
  }
  if (sizes.empty()) return std::nullopt;
  const std::int64_t roundest =
      *std::max_element(sizes.begin(), sizes.end(), [&](std::int64_t a, std::int64_t b) { return half(a) < half(b); });
  const auto end = sizes.begin() + std::min(kMostTried, std::ssize(sizes));
  std::partial_sort(sizes.begin(), end, sizes.end(), [&](std::int64_t a, std::int64_t b) { return rank(a) < rank(b); });
  sizes.erase(end, sizes.end());
  sizes.push_back(roundest);  // the machine may have groups of nodes that others do not fill
  std::optional<Error> error;
  bool any = false;
  for (const std::int64_t gpus : sizes) {
    const auto sized = space(gpus);
    if (sized && sized->may_share_batch()) return gpus;
    any = any || sized;
    if (!sized) error = sized.error();
  }
  if (error && !any) return fail(*std::move(error));
  return std::nullopt;
}

}  // namespace ns_dist::cli
