// Plans that recompute whole layers need not recompute all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ns_dist/simulator.h"

namespace ns_dist {

struct FewerLayers {
  ParallelPlan plan;
  MemoryBudget memory;
};

// The plan of `scenario` with the fewest layers of each chunk, from `least` to below `end`, that it recomputes in full
// and for which `suits(memory)`. Nothing: none of these numbers does.
std::optional<FewerLayers> fewest_layers(const Scenario& scenario, const Session& session, std::int64_t least,
                                         std::int64_t end, const std::function<bool(const MemoryBudget&)>& suits);
// The layers of each chunk, where all have as many.
inline std::int64_t layers_of_chunk(const Scenario& scenario) {
  return scenario.model.layers / (scenario.plan.pp * scenario.plan.vpp);
}

// The plan of `scenario`, which recomputes all layers in full, with the fewest layers of each chunk for which its
// memory still fits; with fragmentation and communicators, too, if all of it did. `before`: the scenario whose
// framework's limits hold. Nothing: no fewer fit.
std::optional<FewerLayers> recomputing_fewer_layers(const Scenario& scenario, const Scenario& before,
                                                    const Session& session);

}  // namespace ns_dist
