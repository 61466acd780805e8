// The time of a step without its report, as it is and as it would be.
#pragma once

#include <functional>

#include "ns_dist/simulator.h"

namespace ns_dist {

// The scenario in which nothing that overlaps shares anything: its step is a lower bound, and fast to compute.
Scenario without_sharing(Scenario scenario);

// The step of a program that is planned and priced. Errors: too many events.
Result<Seconds> step_of(const StepProgram& program, const ProgramCosts& costs, const Scenario& scenario,
                        const Session& session);
// The step when kernels run at `kernel_efficiency` times the rates that are forecast, but not below their floors.
Result<Seconds> step_time(const Scenario& scenario, const Session& session, double kernel_efficiency);
// The step when every work takes `latency(item, forecast)`. Work that takes no time takes nothing else either.
Result<Seconds> step_with(const Prediction& prediction, const Scenario& scenario, const Session& session,
                          const std::function<Seconds(const WorkItem&, const Forecast&)>& latency);

}  // namespace ns_dist
