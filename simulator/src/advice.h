// What to change and what to doubt: plans that fit into memory, warnings.
#pragma once

#include <optional>
#include <vector>

#include "ns_dist/report.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

struct FittingPlan {
  Scenario scenario;
  MemoryRemedy remedy;
};

// The fastest plan near the scenario's own that fits into the GPU's memory, on as few more GPUs as possible. Those
// whose changes usually cost least are tried. Empty when nothing that was tried fits.
std::optional<FittingPlan> memory_remedy(const Scenario& scenario, const Session& session);

// `extrapolated`, `tp_across_nodes`, `idle_gpus`, ... in a fixed order. Of the report all but these must be known.
std::vector<Warning> warnings(const Report& report, const Prediction& prediction);

}  // namespace ns_dist
