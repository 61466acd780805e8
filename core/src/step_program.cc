#include "ns_dist/step_program.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string_view>
#include <utility>

#include "ns_dist/hash.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value + 0.0); }  // -0 equals 0

// Of numbers that differ between most work items of one name.
struct WorkHash {
  std::uint64_t operator()(const Operator& op) const { return hash_of(op); }
  std::uint64_t operator()(const Collective& collective) const { return bits(collective.size / units::B); }
  std::uint64_t operator()(const Message& message) const {
    return mix_hash(mix_hash(bits(message.size / units::B), static_cast<std::uint64_t>(message.from_stage)),
                    static_cast<std::uint64_t>(message.to_stage));
  }
};

std::size_t hash_of(const WorkItem& item) {
  const std::uint64_t name = std::hash<std::string_view>{}(item.name);
  const std::uint64_t kind = static_cast<std::uint64_t>(item.category);
  return static_cast<std::size_t>(mix_hash(mix_hash(name, kind), std::visit(WorkHash{}, item.work)));
}

}  // namespace

WorkTable::WorkTable(std::shared_ptr<const WorkTable> base) : base_(std::move(base)), shared_(base_->size()) {
  NS_EXPECTS(base_->base_ == nullptr);
}

void Bodies::insert(BodyId body, const Instruction& instruction) {
  const std::size_t next = index(body) + std::size_t{1};
  const std::size_t end = next < firsts_.size() ? firsts_[next] : instructions_.size();
  instructions_.insert(instructions_.begin() + static_cast<std::ptrdiff_t>(end), instruction);
  for (std::size_t behind = next; behind < firsts_.size(); ++behind) ++firsts_[behind];
}

bool operator==(const WorkTable& a, const WorkTable& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t work = 0; work < a.size(); ++work) {
    if (!(a[work] == b[work])) return false;
  }
  return true;
}

void WorkTable::grow() {
  constexpr std::size_t kLeastSlots = 128;
  slots_.assign(std::max(kLeastSlots, 2 * slots_.size()), 0);
  items_.reserve(slots_.size() / 2);
  hashes_.reserve(slots_.size() / 2);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t item = 0; item < hashes_.size(); ++item) {
    std::size_t slot = hashes_[item] & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<std::uint32_t>(item + 1);
  }
}

std::optional<WorkId> WorkTable::find(const WorkItem& item, std::size_t hash) const {
  if (slots_.empty()) return std::nullopt;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const std::uint32_t known = slots_[slot] - 1;
    if (hashes_[known] == hash && items_[known] == item) return WorkId{static_cast<std::uint32_t>(shared_) + known};
  }
  return std::nullopt;
}

WorkId WorkTable::insert(WorkItem item, std::size_t hash) {
  if (2 * items_.size() >= slots_.size()) grow();
  items_.push_back(std::move(item));
  hashes_.push_back(hash);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<std::uint32_t>(items_.size());
  return WorkId{static_cast<std::uint32_t>(size() - 1)};
}

WorkId WorkTable::intern(WorkItem item) {
  const std::size_t hash = hash_of(item);
  if (base_ != nullptr) {
    if (const auto known = base_->find(item, hash)) return *known;
  }
  if (const auto known = find(item, hash)) return *known;
  return insert(std::move(item), hash);
}

WorkId WorkTable::add(WorkItem item) {
  const std::size_t hash = hash_of(item);
  return insert(std::move(item), hash);
}

}  // namespace ns_dist
