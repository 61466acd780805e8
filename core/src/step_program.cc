#include "ns_dist/step_program.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string_view>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

// A number that differs between most work items of one name.
struct Size {
  std::uint64_t operator()(const Operator& op) const { return std::visit(*this, op.kind); }
  std::uint64_t operator()(const Collective& collective) const { return bits(collective.size / units::B); }
  std::uint64_t operator()(const Message& message) const {
    return bits(message.size / units::B) ^ count(message.from_stage) ^ (count(message.to_stage) << 16u);
  }
  std::uint64_t operator()(const Gemm& gemm) const {
    return count(gemm.batch) ^ (count(gemm.m) * count(gemm.n) + count(gemm.k));
  }
  std::uint64_t operator()(const GroupedGemm& gemm) const { return count(gemm.rows) ^ (count(gemm.n) + count(gemm.k)); }
  std::uint64_t operator()(const Elementwise& op) const { return count(op.elements); }
  std::uint64_t operator()(const OptimizerStep& step) const { return count(step.parameters); }
  std::uint64_t operator()(const Normalization& norm) const { return count(norm.rows); }
  std::uint64_t operator()(const Copy& copy) const { return bits(copy.bytes / units::B); }
  std::uint64_t operator()(const Attention& op) const { return count(op.query_length) + count(op.key_length); }
  std::uint64_t operator()(const Softmax& op) const { return count(op.rows); }
  std::uint64_t operator()(const Embedding& op) const { return count(op.tokens); }
  std::uint64_t operator()(const CrossEntropy& op) const { return count(op.rows); }
  std::uint64_t operator()(const MixtureOfExperts& op) const { return count(op.tokens); }
  std::uint64_t operator()(const Convolution& op) const { return count(op.batch); }
  std::uint64_t operator()(const UnknownOperator& op) const { return bits(op.flops / units::FLOP); }

 private:
  static std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
  static std::uint64_t count(std::int64_t value) { return static_cast<std::uint64_t>(value); }
};

std::size_t hash_of(const WorkItem& item) {
  constexpr std::uint64_t kMix = 0x9e3779b97f4a7c15u;
  const std::uint64_t kind = (static_cast<std::uint64_t>(item.category) << 8u) ^ item.work.index();
  const std::uint64_t size = std::visit(Size{}, item.work);
  const std::uint64_t name = std::hash<std::string_view>{}(item.name);
  const std::uint64_t mixed = (name ^ kind ^ (size * kMix >> 17u)) * kMix;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32u));
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
