#include "ns_dist/cached_cost.h"

#include <utility>

#include "ns_dist/internal/set_cache.h"

namespace ns_dist {
namespace {

class CachedCost final : public ComputeCost {
 public:
  CachedCost(std::unique_ptr<ComputeCost> cost, std::size_t slots) : cost_(std::move(cost)), forecasts_(slots) {}

  Result<Forecast> forecast(const Operator& op) const override {
    return forecasts_.find_or_make(op, hash_of(op), [&] { return cost_->forecast(op); });
  }

  Result<Explanation> explain(const Operator& op) const override { return cost_->explain(op); }

 private:
  std::unique_ptr<ComputeCost> cost_;
  SetCache<Operator, Forecast> forecasts_;
};

}  // namespace

std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots) {
  return std::make_unique<CachedCost>(std::move(cost), slots);
}

}  // namespace ns_dist
