// What the works of a program take on a machine.
#pragma once

#include <vector>

#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Forecasts of every work, and, where works share ports, SMs or memory bandwidth, what they take
// of these. Stages whose ranks lie alike in the cluster share a row. Errors: those of the session's models, with the
// work's name.
Result<ProgramCosts> costs_of(const StepProgram& program, const Scenario& scenario, const Session& session);

// Ranks whose distance is a multiple of this lie alike in the cluster: all levels but the outermost repeat.
std::int64_t period_of(const Cluster& cluster);

// What one work takes alone. A message is a send and receive between the representatives of its two stages. Errors:
// those of the models, with the work's name.
Result<Forecast> forecast_work(const WorkItem& item, const Mesh& mesh, const ComputeCost& compute,
                               const NetworkCost& network);

// Seconds of each actor's works that count, alone and one after another.
std::vector<double> seconds_alone(const StepProgram& program, const ProgramCosts& costs,
                                  bool (*counts)(const WorkItem&));

// What a work that is forecast so takes of a GPU on `cluster`: network_model's footprint. With `contention` off ports
// are free, with `compute_slowdown` off SMs and memory are. Errors: a group that does not lie on the cluster.
Result<Demand> demand_of(const WorkItem& item, const Mesh& mesh, const Forecast& forecast, const Cluster& cluster,
                         bool contention, bool compute_slowdown);

}  // namespace ns_dist
