// What to change: savings of time, and plans that fit into memory.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ns_dist/cost.h"
#include "ns_dist/report.h"

namespace ns_dist {

inline constexpr std::size_t kImprovements = 3;  // as many as a report shows

// Savings worth more than 0.2 % of the step. First changes of the plan that fit into memory, each simulated, the best
// of its kind, largest first; when they are fewer than kImprovements, then limits: the graph scheduled again without a
// cause.
std::vector<Improvement> improvements(const Scenario& scenario, const ExecutionGraph& graph,
                                      const std::vector<Forecast>& forecasts, const ComputeCost& compute,
                                      const NetworkCost& network, const Breakdown& parts, Seconds step);

// The plan nearest to the scenario's own that fits into the GPU's memory: on as few more GPUs as possible, then by what
// each change usually costs. Empty when nothing that was tried fits.
std::optional<MemoryRemedy> memory_remedy(const Scenario& scenario);

// `extrapolated`, `tp_across_nodes`, `idle_gpus`, ... in a fixed order.
std::vector<Warning> warnings(const Scenario& scenario, const ExecutionGraph& graph,
                              const std::vector<Forecast>& forecasts, const CriticalPath& path,
                              const MemoryBudget& memory);

}  // namespace ns_dist
