// Costs that remember their forecasts, for callers that ask for the same operators or collectives many times.
#pragma once

#include <cstddef>
#include <memory>

#include "ns_dist/cost.h"

namespace ns_dist {

// Answers as `cost` does and remembers about the last `slots` forecasts (rounded up to a power of two). Errors are not
// remembered. Any number of threads may call it at once.
std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots = 16'384);
std::unique_ptr<NetworkCost> make_cached_cost(std::unique_ptr<NetworkCost> cost, std::size_t slots = 1'024);

}  // namespace ns_dist
