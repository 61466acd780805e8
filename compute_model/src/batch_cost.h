// A compute model that answers many operators in less time than one after another.
#pragma once

#include <memory>
#include <span>

#include "ns_dist/compute_model.h"

namespace ns_dist {

class BatchCost : public ComputeCost {
 public:
  // The same as forecast() of each. Contract: results.size() is ops.size().
  virtual void forecast_all(std::span<const Operator> ops, std::span<Result<Forecast>> results) const = 0;
};

// What make_compute_model(gpu, options) makes, with the same errors.
Result<std::unique_ptr<BatchCost>> make_batch_model(const Gpu& gpu, const ComputeModelOptions& options);

}  // namespace ns_dist
