// Plans that recompute whole layers need not recompute all of them.
#pragma once

#include <optional>

#include "ns_dist/simulator.h"

namespace ns_dist {

struct FewerLayers {
  Scenario scenario;
  MemoryBudget memory;
};

// `scenario`, which recomputes all layers in full, with the fewest layers of each chunk for which its memory still
// fits; with fragmentation and communicators, too, if all of it did. `before`: the scenario whose framework's limits
// hold. Nothing: no fewer fit.
std::optional<FewerLayers> recomputing_fewer_layers(const Scenario& scenario, const Scenario& before,
                                                    const Session& session);

}  // namespace ns_dist
