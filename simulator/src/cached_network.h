// A network model that remembers its answers: plans of a search run the same collectives again and again.
#pragma once

#include <memory>

#include "ns_dist/cost.h"

namespace ns_dist {

// About the last thousand answers of `cost` are remembered, errors are not. Any number of threads may ask at once.
std::unique_ptr<NetworkCost> make_cached_network(std::unique_ptr<NetworkCost> cost);

}  // namespace ns_dist
