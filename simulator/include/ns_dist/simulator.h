// When does everything happen? A scenario becomes a program, its works get durations, and time follows.
//
//   NS_TRY(const Session session, Session::make(scenario));
//   NS_TRY(const Prediction prediction, predict(scenario, session));
//   prediction.step / units::s
//
// Ask for what you need: step_time for a search, predict for where the time goes, advise for what would help, outline
// for a picture, unfold for every kernel of every microbatch.
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

// What a work item takes of a GPU while it runs alone, as shares from 0 to 1.
struct Demand {
  std::vector<double> ports;     // collectives, messages: of each level's port, innermost first; in and out alike
  double sms = 0;                // collectives, messages: of the SMs
  double memory = 0;             // collectives, messages: of the memory bandwidth
  Bound bound = Bound::kLaunch;  // kernels: what slows them, kCompute: fewer SMs; kMemory: less memory bandwidth
};

// What the works of a program take. Stages whose ranks lie alike in the cluster share one row.
struct ProgramCosts {
  struct Row {                        // by WorkId
    std::vector<Forecast> forecasts;  // latency: what the work takes alone
    std::vector<Demand> demands;      // empty: nothing shares anything
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

// The step alone. Errors: a plan that contradicts its model, does not fit on the cluster, or is too large.
Result<Seconds> step_time(const Scenario& scenario, const Session& session);

// The step, where its time goes, and what it keeps in memory. Errors: as step_time.
Result<Prediction> predict(const Scenario& scenario, const Session& session);

// Changes worth more than 0.2 % of the step. First changes of the plan that fit into memory, the best of its kind,
// largest first; when they are fewer than `most`, then limits: the step without a cause. Every saving is the difference
// of two steps by the same clock.
std::vector<Improvement> advise(const Scenario& scenario, const Prediction& prediction, const Session& session,
                                std::size_t most = 3);

// What a step has beside its kernels: clocks under load, the slowest GPU, launches, sharing, first and last stage,
// optimizer.
std::vector<Addition> additions(const Scenario& scenario, const Prediction& prediction, const Session& session);

// How the step came about: these additions, the parts of its interval, and what is longest on the critical path.
Explanation explain(const Scenario& scenario, const Prediction& prediction, const Session& session);

Report report(const Scenario& scenario, const Prediction& prediction, std::vector<Improvement> improvements);

// All of it. Errors: as predict.
Result<Report> simulate(const Scenario& scenario);
Result<Report> simulate(const Scenario& scenario, const Session& session);

// What each stage does when, in passes and waits, without what repeats. No piece is shorter than the outline's length
// divided by `pieces` (from 1). Errors: as predict.
Result<StepOutline> outline(const Scenario& scenario, const Session& session, std::size_t pieces);

// Every kernel, collective and message of the step, with its time.
struct UnfoldedStep {
  ExecutionGraph graph;
  std::vector<Forecast> forecasts;  // by WorkId
  Timeline timeline;                // its step is that of step_time, bit by bit
};
// Errors: as step_time, and a step of more than kMostNodes nodes.
Result<UnfoldedStep> unfold(const Scenario& scenario, const Session& session);
inline constexpr std::uint64_t kMostNodes = 16'000'000;  // about 100 bytes each

// Calls begin, span for every node, finish.
Result<void> write_timeline(const UnfoldedStep& step, TraceSink& sink);

// ---- Graphs ----

// Each node starts when its dependencies and the node before it on its lane have ended. `durations` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations);

// The same, where what runs at the same time on a GPU shares it: collectives and messages the ports, max-min fairly
// (Bertsekas and Gallager 1992, s.6.5.2); kernels run on the SMs, or with the memory bandwidth, that collectives beside
// them leave over. A node's duration is what it takes alone. Rates change when a collective starts or ends.
// A message takes from the ports out of its sender and into its receiver. `demands` by WorkId.
Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations, std::span<const Demand> demands);

// The settings as options of make_network_model. Not strict: messages and all-to-alls have one algorithm, whatever the
// reductions are told to use.
NetworkModelOptions network_options(const NetworkSettings& settings);

}  // namespace ns_dist
