// What to change: savings of time, and plans that fit into memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ns_dist/report.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

// The fastest plan near the scenario's own that fits into the GPU's memory, on as few more GPUs as possible. Those
// whose changes usually cost least are tried. Empty when nothing that was tried fits.
std::optional<MemoryRemedy> memory_remedy(const Scenario& scenario, const Session& session);

// The same, and nothing that overlaps shares anything: its step is a lower bound, and fast to compute.
Scenario without_sharing(Scenario scenario);

// `extrapolated`, `tp_across_nodes`, `idle_gpus`, ... in a fixed order. Of the report all but these must be known.
std::vector<Warning> warnings(const Report& report, const Prediction& prediction);

// The step of a program that is planned and priced. Errors: too many events.
Result<Seconds> step_of(const StepProgram& program, const ProgramCosts& costs, const Scenario& scenario,
                        const Session& session);
// The step when kernels run at `kernel_efficiency` times the rates that are forecast, but not below their floors.
Result<Seconds> step_time(const Scenario& scenario, const Session& session, double kernel_efficiency);
// The step when every work takes `latency(item, forecast)`. Work that takes no time takes nothing else either.
Result<Seconds> step_with(const Prediction& prediction, const Scenario& scenario, const Session& session,
                          const std::function<Seconds(const WorkItem&, const Forecast&)>& latency);

}  // namespace ns_dist
