// A compute model that remembers its answers: for callers that ask for the same operators again and again, as a
// simulator's event loop does.
#pragma once

#include <cstddef>
#include <memory>

#include "ns_dist/cost.h"

namespace ns_dist {

// Answers of `cost`, of which about the last `slots` are remembered (rounded up to a power of two). Errors are not
// remembered. Any number of threads may ask at once.
std::unique_ptr<ComputeCost> make_cached_cost(std::unique_ptr<ComputeCost> cost, std::size_t slots = 16'384);

}  // namespace ns_dist
