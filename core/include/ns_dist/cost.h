// The two seams between the clock and the workshops. Implementations are immutable after construction and may be
// asked from any thread.
#pragma once

#include "ns_dist/collective.h"
#include "ns_dist/forecast.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

class ComputeCost {
 public:
  virtual ~ComputeCost() = default;
  // Errors: an invalid operator, or a number format that this GPU does not have.
  virtual Result<Forecast> forecast(const Operator& op) const = 0;
  virtual Result<Explanation> explain(const Operator& op) const = 0;
};

class NetworkCost {
 public:
  virtual ~NetworkCost() = default;
  // Errors: a group that does not lie on the cluster, one rank, a negative or non-finite size.
  virtual Result<Forecast> forecast(const Collective& collective) const = 0;
  virtual Result<Explanation> explain(const Collective& collective) const = 0;
};

}  // namespace ns_dist
