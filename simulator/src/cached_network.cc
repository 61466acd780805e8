#include "cached_network.h"

#include <bit>
#include <utility>

#include "ns_dist/hash.h"
#include "ns_dist/internal/set_cache.h"

namespace ns_dist {
namespace {

std::uint64_t hash_of(const Collective& call) {
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

class CachedNetwork final : public NetworkCost {
 public:
  explicit CachedNetwork(std::unique_ptr<NetworkCost> cost) : cost_(std::move(cost)), forecasts_(kEntries) {}

  Result<Forecast> forecast(const Collective& call) const override {
    return forecasts_.find_or_make(call, hash_of(call), [&] { return cost_->forecast(call); });
  }

  Result<Explanation> explain(const Collective& call) const override { return cost_->explain(call); }

 private:
  static constexpr std::size_t kEntries = 1024;

  std::unique_ptr<NetworkCost> cost_;
  SetCache<Collective, Forecast> forecasts_;
};

}  // namespace

std::unique_ptr<NetworkCost> make_cached_network(std::unique_ptr<NetworkCost> cost) {
  return std::make_unique<CachedNetwork>(std::move(cost));
}

}  // namespace ns_dist
