// A compute model that remembers its forecasts, for callers that ask for the same operators many times.
#pragma once

#include <cstddef>
#include <memory>

#include "ns_dist/cost.h"

namespace ns_dist {

// A model that answers as `cost` does and remembers about the last `slots` forecasts (rounded up to a power of two).
// Errors are not remembered. Any number of threads may call it at once.
std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots = 16'384);

}  // namespace ns_dist
