#include <fmt/format.h>

#include <cmath>

#include "advice.h"
#include "clock.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/network_model.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

// Layers times microbatches: about 30 nodes of 130 bytes each, so this is 1.5 GB and some ten seconds.
constexpr std::int64_t kMostLayerPasses = 400'000;
// Tokens of a microbatch: products of the largest dimensions stay below 2^63.
constexpr std::int64_t kMostTokens = 100'000'000;

Result<void> check_magnitude(const Scenario& scenario) {
  const Training& training = scenario.training;
  if (training.sequence > kMostTokens || training.micro_batch > kMostTokens / training.sequence) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("a microbatch of {} sequences of {} tokens is too large to be forecast",
                             training.micro_batch, training.sequence),
                 "--micro-batch, --seq",
                 fmt::format("at most {} tokens a microbatch", kMostTokens),
                 "write a smaller --micro-batch or --seq",
                 {}});
  }
  const std::int64_t microbatches = microbatches_of(scenario.plan, training);
  if (microbatches > kMostLayerPasses / scenario.model.layers) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} microbatches of {} layers are too many to be simulated one by one", microbatches,
                             scenario.model.layers),
                 "--global-batch, --micro-batch, --dp",
                 fmt::format("at most {} layer passes in a step", kMostLayerPasses),
                 "write a larger --dp or --micro-batch, or a smaller --global-batch",
                 {}});
  }
  return {};
}

// What kernels and collectives do not explain of a measured step: framework overhead, jitter between ranks, kernels
// that the plan does not know. 5th and 95th percentile of measured over forecast step, 137 published configurations of
// six publications (A100, H100, B200; Megatron-LM, Megatron-DeepSpeed, NeMo), each publication with one vote;
// `ns-dist validate --suite runs --data FILE` prints them. Read off once, for all models and GPUs; in sample.
constexpr double kShortestStep = 0.962, kLongestStep = 1.448;

// The interval of the step: the path's own deviations, and what lies outside the model, as independent errors.
Interval step_interval(Seconds step, const Interval& path) {
  const double below = std::hypot((step - path.low) / step, 1 - kShortestStep);
  const double above = std::hypot((path.high - step) / step, kLongestStep - 1);
  return {max((1 - below) * step, 0.01 * step), (1 + above) * step};
}

// Positive numbers, so that nothing below divides by zero before check_plan has had its say.
Result<void> check_positive(const Scenario& scenario) {
  const auto refuse = [](const char* where, std::int64_t value) {
    return fail(
        {ErrorCode::kInvalidInput, fmt::format("{} is not positive", value), where, "a whole number from 1", "", {}});
  };
  if (scenario.training.sequence < 1) return refuse("--seq", scenario.training.sequence);
  if (scenario.training.micro_batch < 1) return refuse("--micro-batch", scenario.training.micro_batch);
  if (scenario.training.global_batch < 1) return refuse("--global-batch", scenario.training.global_batch);
  if (scenario.plan.vpp < 1) return refuse("--vpp", scenario.plan.vpp);
  if (scenario.plan.ep < 1) return refuse("--ep", scenario.plan.ep);
  if (scenario.model.layers < 1) return refuse("model, layers", scenario.model.layers);
  return {};
}

Result<void> check_room(const Scenario& scenario, std::int64_t ranks) {
  const std::int64_t gpus = scenario.cluster.gpu_count();
  if (gpus == 0 || ranks <= gpus) return {};
  return fail({ErrorCode::kInfeasible,
               fmt::format("the plan has {} ranks, the cluster {} GPUs", ranks, gpus),
               "--nodes",
               "tp x cp x pp x dp ranks on as many GPUs",
               fmt::format("write --nodes {}, or smaller degrees",
                           (ranks + scenario.cluster.gpus_per_node() - 1) / scenario.cluster.gpus_per_node()),
               {}});
}

Report report_of(const Scenario& scenario, const Simulation& simulation, const ComputeCost& compute,
                 const NetworkCost& network, MemoryBudget memory) {
  Report report;
  report.scenario = scenario;
  report.ranks = simulation.graph.mesh().ranks();
  report.microbatches = microbatches_of(scenario.plan, scenario.training);
  report.nodes = simulation.graph.node_count();
  report.works = simulation.graph.works().size();

  const double seconds = simulation.timeline.step / units::s;
  const Interval interval = step_interval(
      simulation.timeline.step, path_interval(simulation.graph, simulation.critical_path, simulation.forecasts));
  report.step = simulation.timeline.step;
  report.step_low = interval.low;
  report.step_high = interval.high;

  const Training& training = scenario.training;
  const auto ranks = static_cast<double>(report.ranks);
  report.tokens_per_second = static_cast<double>(training.global_batch * training.sequence) / seconds;
  const StepFlops flops = step_flops(scenario.model, scenario.plan, training);
  const FlopsPerSecond peak = scenario.cluster.gpu.matrix_peak(training.dtype);
  report.model_flops_per_second = flops.model / units::FLOP / ranks / seconds;
  if (peak > FlopsPerSecond()) {
    report.mfu = flops.model / (ranks * report.step * peak);
    report.hfu = flops.hardware / (ranks * report.step * peak);
  }

  report.memory = std::move(memory);
  report.fits = report.memory.peak() <= scenario.cluster.gpu.memory;
  if (!report.fits) report.remedy = memory_remedy(scenario);

  report.breakdown = breakdown(simulation.graph, simulation.timeline);
  report.critical_path = hotspots(simulation.graph, simulation.critical_path, simulation.timeline);
  report.improvements =
      improvements(scenario, simulation.graph, simulation.forecasts, compute, network, report.breakdown, report.step);
  report.warnings = warnings(scenario, simulation.graph, simulation.forecasts, simulation.critical_path, report.memory);
  return report;
}

}  // namespace

NetworkModelOptions network_options(const NetworkSettings& settings) {
  NetworkModelOptions options;
  options.model = settings.model;
  options.algorithm = settings.algorithm;
  options.protocol = settings.protocol;
  options.strict = false;
  if (settings.calibration) {
    options.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*settings.calibration));
  }
  return options;
}

Result<Simulation> simulate(const Scenario& scenario, const ComputeCost& compute, const NetworkCost& network) {
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  if (auto positive = check_positive(scenario); !positive) return fail(positive.error());
  if (auto plan = check_plan(scenario.model, scenario.plan, scenario.training); !plan) return fail(plan.error());
  if (auto room = check_room(scenario, ranks); !room) return fail(room.error());
  if (auto magnitude = check_magnitude(scenario); !magnitude) return fail(magnitude.error());

  NS_TRY(MemoryBudget memory, memory_budget(scenario.model, scenario.plan, scenario.training));
  Simulation simulation;
  NS_TRY(simulation.graph, plan_step(scenario.model, scenario.plan, scenario.training));
  NS_TRY(simulation.forecasts, forecast_works(simulation.graph, compute, network));
  std::vector<Seconds> durations;
  for (const Forecast& forecast : simulation.forecasts) durations.push_back(forecast.latency);
  NS_TRY(std::vector<Demand> demands, demands_of(simulation.graph, simulation.forecasts, scenario.cluster,
                                                 scenario.network.contention, scenario.network.compute_slowdown));
  simulation.timeline = Clock(simulation.graph, std::move(demands)).timeline(durations);
  simulation.critical_path = critical_path(simulation.graph, simulation.timeline);
  simulation.report = report_of(scenario, simulation, compute, network, std::move(memory));
  return simulation;
}

Result<Simulation> simulate(const Scenario& scenario) {
  ComputeModelOptions kernels;
  if (scenario.kernel_calibration) {
    kernels.calibration = std::make_shared<const KernelCalibration>(*scenario.kernel_calibration);
  }
  NS_TRY(const auto compute, make_compute_model(scenario.cluster.gpu, kernels));
  NS_TRY(const auto network, make_network_model(scenario.cluster, network_options(scenario.network)));
  return simulate(scenario, *compute, *network);
}

}  // namespace ns_dist
