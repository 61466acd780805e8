// When does everything happen? Durations are put on an execution graph, and time follows.
//
//   NS_TRY(const Simulation simulation, simulate(scenario));
//   simulation.report.step / units::s
#pragma once

#include <span>
#include <vector>

#include "ns_dist/cost.h"
#include "ns_dist/critical_path.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/forecast.h"
#include "ns_dist/network_model.h"
#include "ns_dist/report.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/timeline.h"
#include "ns_dist/trace_sink.h"

namespace ns_dist {

// Each node starts when its dependencies and the node before it on its lane have ended. `durations` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations);

// What a work item takes of a GPU while it runs alone, as shares from 0 to 1.
struct Demand {
  std::vector<double> ports;     // collectives, messages: of each level's port, innermost first; in and out alike
  double sms = 0;                // collectives, messages: of the SMs
  double memory = 0;             // collectives, messages: of the memory bandwidth
  Bound bound = Bound::kLaunch;  // kernels: what slows them, kCompute: fewer SMs; kMemory: less memory bandwidth
};

// The same, where what runs at the same time on a GPU shares it: collectives and messages the ports, max-min fairly
// (Bertsekas and Gallager 1992, s.6.5.2); kernels run on the SMs, or with the memory bandwidth, that collectives beside
// them leave over. A node's duration is what it takes alone. Rates change when a collective starts or ends.
// A message takes from the ports out of its sender and into its receiver. `demands` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations, std::span<const Demand> demands);

// Demands on `cluster` of works forecast so: network_model's footprint. With `contention` off ports are free, with
// `compute_slowdown` off SMs and memory are. Errors: a group that does not lie on the cluster.
Result<std::vector<Demand>> demands_of(const ExecutionGraph& graph, std::span<const Forecast> forecasts,
                                       const Cluster& cluster, bool contention, bool compute_slowdown);

// What each distinct work item takes, by WorkId. A message is a send and receive between the representatives of its
// two stages.
Result<std::vector<Forecast>> forecast_works(const ExecutionGraph& graph, const ComputeCost& compute,
                                             const NetworkCost& network);

// What the settings say to make_network_model. Not strict: messages and all-to-alls have one algorithm, whatever the
// reductions are told to use.
NetworkModelOptions network_options(const NetworkSettings& settings);

// One step and everything that explains it.
struct Simulation {
  ExecutionGraph graph;
  std::vector<Forecast> forecasts;  // by WorkId
  Timeline timeline;
  CriticalPath critical_path;
  Report report;
};

// Errors: a plan that contradicts its model, does not fit on the cluster, or is too large to be simulated.
Result<Simulation> simulate(const Scenario& scenario);

// The same with the caller's own cost models.
Result<Simulation> simulate(const Scenario& scenario, const ComputeCost& compute, const NetworkCost& network);

// Calls begin, span for every node, finish.
Result<void> write_timeline(const Simulation& simulation, TraceSink& sink);

}  // namespace ns_dist
