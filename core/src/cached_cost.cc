#include "ns_dist/cached_cost.h"

#include <bit>
#include <utility>

#include "ns_dist/hash.h"
#include "ns_dist/internal/set_cache.h"

namespace ns_dist {
namespace {

std::uint64_t key_of(const Operator& op) { return hash_of(op); }

// Calls that differ in other members are rare: merely slower.
std::uint64_t key_of(const Collective& call) {
  std::uint64_t hash = static_cast<std::uint64_t>(call.kind);
  const auto add = [&](std::uint64_t next) { hash = mix_hash(hash, next); };
  add(std::bit_cast<std::uint64_t>(call.size / units::B));
  add(static_cast<std::uint64_t>(call.group.first));
  for (const Stride& stride : call.group.strides) {
    add(static_cast<std::uint64_t>(stride.count));
    add(static_cast<std::uint64_t>(stride.stride));
  }
  return hash;
}

template <class Cost, class Asked>
class Cached final : public Cost {
 public:
  Cached(std::unique_ptr<Cost> cost, std::size_t slots) : cost_(std::move(cost)), forecasts_(slots) {}

  Result<Forecast> forecast(const Asked& asked) const override {
    return forecasts_.find_or_make(asked, key_of(asked), [&] { return cost_->forecast(asked); });
  }

  Result<Explanation> explain(const Asked& asked) const override { return cost_->explain(asked); }

 private:
  std::unique_ptr<Cost> cost_;
  SetCache<Asked, Forecast> forecasts_;
};

}  // namespace

std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots) {
  return std::make_unique<Cached<ComputeCost, Operator>>(std::move(cost), slots);
}

std::unique_ptr<NetworkCost> make_cached_cost(std::unique_ptr<NetworkCost> cost, std::size_t slots) {
  return std::make_unique<Cached<NetworkCost, Collective>>(std::move(cost), slots);
}

}  // namespace ns_dist
