// The time of a training step: a scenario becomes a program, its work items get durations, and an event queue runs it.
//
//   NS_TRY(const Session session, Session::make(scenario));
//   NS_TRY(const Prediction prediction, predict(scenario, session));
//   prediction.step / units::s
//
// step_time gives the step alone, predict also where the time goes, advise what would help, outline what each stage
// does over time, unfold every kernel of every microbatch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ns_dist/cost.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/forecast.h"
#include "ns_dist/network_model.h"
#include "ns_dist/outline.h"
#include "ns_dist/report.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/step_program.h"
#include "ns_dist/timeline.h"
#include "ns_dist/trace_sink.h"

namespace ns_dist {

// What a work item uses on a GPU while it runs alone, as shares from 0 to 1.
struct Demand {
  std::vector<double> ports;     // collectives, messages: of each level's port, innermost first; in and out alike
  double sms = 0;                // collectives, messages: of the SMs
  double memory = 0;             // collectives, messages: of the memory bandwidth
  Bound bound = Bound::kLaunch;  // kernels: what slows them, kCompute: fewer SMs; kMemory: less memory bandwidth
};

// Durations and demands of the work items of a program. Stages whose ranks have the same places in the cluster share
// one row.
struct ProgramCosts {
  struct Row {                        // by WorkId
    std::vector<Forecast> forecasts;  // latency: what the work takes alone
    std::vector<Demand> demands;      // empty: work that overlaps does not slow down
  };
  std::vector<Row> rows;
  std::vector<std::uint32_t> row_of_actor;
  const Row& row(std::size_t actor) const { return rows[row_of_actor[actor]]; }
};

// One step and why it takes that long.
struct Prediction {
  StepProgram program;
  ProgramCosts costs;
  MemoryBudget memory;
  Seconds step;
  Folding folding;
  Breakdown breakdown;
  std::vector<PathEntry> critical_path;  // by work; the seconds sum to the step
};

// The step alone. Kernels and collectives are those of the session's machine, network and calibrations, whatever the
// scenario says: ask Session::serves first where they may differ. Errors: a plan that contradicts its model, does not
// fit on the cluster, or is too large.
Result<Seconds> step_time(const Scenario& scenario, const Session& session);

// The step, where its time goes, and what it keeps in memory. Errors: as step_time.
Result<Prediction> predict(const Scenario& scenario, const Session& session);

// The 90 % interval of how much longer `to` takes than `from`: two steps of `scenario`'s model, of which the step and
// the critical path are read. Forecasts of one operator family err together, in both steps alike; what no forecast
// explains lengthens both in the same proportion, and each of them by itself.
Interval step_difference(const Scenario& scenario, const Prediction& from, const Prediction& to);

// How much longer the second step takes than the first one, for as many tokens. The interval is that of step_difference
// where both have the same model, GPU, framework and calibrations; otherwise both steps err independently. One plan on
// two networks does not err by itself. A second of `to` counts `weight` times, as where its GPUs cost more.
StepDifference compare(const Scenario& from, const Prediction& one, const Scenario& to, const Prediction& other,
                       double weight = 1);
// The same, and both steps are forecast; `session` is of `to`. Errors: as predict.
Result<StepDifference> compare(const Scenario& from, const Scenario& to, const Session& session);

// Changes that save more than 0.2 % of the step, at most `most` of them. First come changes of the plan that fit into
// memory: the best of each kind, largest first. If there are fewer than `most`, limits follow: the step without one
// cause. Every saving is the difference of two simulated steps. `fitting`: of a plan that does not fit, one that does;
// several changes at once may go on from it.
inline constexpr std::size_t kMostAdvice = 3;
std::vector<Improvement> advise(const Scenario& scenario, const Prediction& prediction, const Session& session,
                                std::size_t most = kMostAdvice, const Scenario* fitting = nullptr);

// What a step has in addition to the kernels and collectives that benchmarks measure: clocks under load, the slowest
// GPU, launches, sharing, embedding and loss, optimizer.
std::vector<Addition> additions(const Scenario& scenario, const Prediction& prediction, const Session& session);

// The explanation of a step: its additions, the parts of its interval, and the longest work on the critical path.
Explanation explain(const Scenario& scenario, const Prediction& prediction, const Session& session);

// What is known of a step that predict() has timed, with its interval, FLOPs, energy and warnings. `improvements`:
// those of advise(), or none.
Report report(const Scenario& scenario, const Prediction& prediction, std::vector<Improvement> improvements);

// All of it, with advice, which times many other plans: it takes a hundred times as long as step_time, and predict five
// times as long. Errors: as predict; a session that does not serve the scenario.
Result<Report> simulate(const Scenario& scenario);
Result<Report> simulate(const Scenario& scenario, const Session& session);

// The passes and waits of each stage over time, without repetitions. No piece is shorter than the outline's length
// divided by `pieces` (from 1). Errors: as predict.
Result<StepOutline> outline(const Scenario& scenario, const Session& session, std::size_t pieces);

// Every kernel, collective and message of the step, with its time.
struct UnfoldedStep {
  ExecutionGraph graph;
  std::vector<Forecast> forecasts;  // by WorkId
  Timeline timeline;                // its step is that of step_time, bit by bit
};
// `every_wait`: where the host launches kernels faster than they run, its waits are nodes, too, of no time: on another
// GPU they may take some. Errors: as step_time, and a step of more than kMostNodes nodes.
Result<UnfoldedStep> unfold(const Scenario& scenario, const Session& session, bool every_wait = false);
inline constexpr std::uint64_t kMostNodes = 16'000'000;  // about 100 bytes each

// By WorkId: what a kernel takes by itself on the slowest of the plan's GPUs, under the load of training: without what
// the plan adds (uneven experts, a slow stage, collectives beside it). Zero of all else; empty where the session has
// models of the caller's. Errors: those of the compute model.
Result<std::vector<Seconds>> kernels_alone(const Scenario& scenario, const Session& session,
                                           const ExecutionGraph& graph);

// Calls begin, span for every node, finish.
Result<void> write_timeline(const UnfoldedStep& step, TraceSink& sink);

// ---- Graphs ----

// Each node starts when its dependencies and the node before it on its lane have ended. `durations` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations);

// The same, with sharing. Collectives and messages that overlap on a GPU share its ports, max-min fairly (Bertsekas and
// Gallager 1992, s.6.5.2). Kernels have the SMs, or the memory bandwidth, that collectives at the same time do not use.
// `durations` are the times alone. Rates change when a collective starts or ends.
// A message takes from the ports out of its sender and into its receiver. `demands` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations, std::span<const Demand> demands);

// The settings as options of make_network_model. They are not strict: messages and all-to-alls have one algorithm only,
// so they ignore an algorithm that is set for reductions.
NetworkModelOptions network_options(const NetworkSettings& settings);

}  // namespace ns_dist
