// The two interfaces that the simulator asks for durations: of operators on a GPU, and of collectives on a cluster.
// Implementations are immutable after construction. Any number of threads may call them at once.
#pragma once

#include "ns_dist/collective.h"
#include "ns_dist/forecast.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

class ComputeCost {
 public:
  virtual ~ComputeCost() = default;
  // The time of one operator on the GPU, in the model's mode: alone (burst) or back to back (sustained). Errors: an
  // invalid operator, or a number format that this GPU does not have.
  virtual Result<Forecast> forecast(const Operator& op) const = 0;
  // The same forecast with the steps that led to it. Errors: as forecast.
  virtual Result<Explanation> explain(const Operator& op) const = 0;
};

class NetworkCost {
 public:
  virtual ~NetworkCost() = default;
  // The time of one collective alone on the cluster. Errors: a group with ranks that the cluster does not have, a group
  // of one rank, a negative or non-finite size.
  virtual Result<Forecast> forecast(const Collective& collective) const = 0;
  // The same forecast with the steps that led to it. Errors: as forecast.
  virtual Result<Explanation> explain(const Collective& collective) const = 0;
};

}  // namespace ns_dist
