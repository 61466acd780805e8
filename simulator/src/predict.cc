#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "advice.h"
#include "clocks/pass_clock.h"
#include "clocks/program_queue.h"
#include "costs.h"
#include "host_waits.h"
#include "ns_dist/energy.h"
#include "ns_dist/names.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"
#include "step_analysis.h"
#include "step_interval.h"
#include "step_times.h"
#include "stragglers.h"

namespace ns_dist {
namespace {

// Events of a step that does not repeat itself: about 20 s, and up to 3.2 GB for its history (100 stages of 100 chunks
// with 300 and 400 microbatches; most of it are the spans of kernels).
constexpr std::uint64_t kMostEvents = 15'000'000;

// A format that the GPU has no units for. The compute model would refuse the first kernel, which no user names.
Result<void> check_format(const Scenario& scenario) {
  const Gpu& gpu = scenario.cluster.gpu;
  const auto runs = [&gpu](Precision precision) {
    return product_peak(gpu, precision) > FlopsPerSecond() &&
           gpu.matrix_peak(storage_type(precision)) > FlopsPerSecond();
  };
  const Precision asked = scenario.training.precision;
  if (runs(asked)) return {};
  std::vector<std::string_view> all;
  std::string hint;
  for (const std::string_view name : names_of<Precision>()) {
    const Precision precision = *enumerator_from_name<Precision>(name);
    if (runs(precision) && reason_against(gpu, precision).empty()) all.push_back(name);
  }
  for (const Precision usual : {Precision::kFp32, Precision::kFp16, Precision::kBf16, Precision::kFp8}) {
    const bool holds = size_of(product_type(usual)) >= size_of(product_type(asked));
    if (holds && runs(usual)) hint = fmt::format("write training/dtype={}", name_of(usual));
  }
  return fail({ErrorCode::kInvalidInput, fmt::format("{} has no rate for {}", gpu.id, name_of(asked)), "training/dtype",
               fmt::format("one of {}", fmt::join(all, ", ")), hint});
}

// What check_plan, which comes after it, cannot know: room on the cluster.
Result<void> check_scenario(const Scenario& scenario) {
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  const std::int64_t gpus = scenario.cluster.gpu_count();
  if (gpus > 0 && ranks > gpus) {
    const std::int64_t node = scenario.cluster.gpus_per_node();
    return fail({ErrorCode::kInfeasible, fmt::format("the plan has {} ranks, the cluster {} GPUs", ranks, gpus),
                 "machine/nodes", "tp x cp x pp x dp ranks on as many GPUs",
                 fmt::format("write machine/nodes={}, or smaller degrees", (ranks + node - 1) / node)});
  }
  return check_stragglers(scenario);
}

tl::unexpected<Error> too_long(const Scenario& scenario) {
  const bool asked = scenario.settings.unfolded;
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} microbatches are too many to be timed one by one, {}",
                           microbatches_of(scenario.plan, scenario.training),
                           asked ? "which settings/unfolded asks for" : "and this step does not repeat itself"),
               "training/global_batch, training/micro_batch, plan/dp",
               fmt::format("at most {} events in a step", kMostEvents),
               fmt::format("{}write a larger plan/dp or training/micro_batch, or a smaller training/global_batch",
                           asked ? "leave out settings/unfolded, or " : "")});
}

// Planned and priced, not yet timed.
struct Priced {
  StepProgram program;
  ProgramCosts costs;
};

// Kernels of the GPU `efficiency` times as fast, but not faster than their floor.
void hurry_kernels(Priced& priced, double efficiency) {
  for (ProgramCosts::Row& row : priced.costs.rows) {
    for (std::size_t w = 0; w < row.forecasts.size(); ++w) {
      Forecast& forecast = row.forecasts[w];
      const WorkItem& item = priced.program.works[w];
      if (!std::holds_alternative<Operator>(item.work) || item.host.any()) continue;
      forecast.latency = max(min(forecast.floor, forecast.latency), forecast.latency / efficiency);
    }
  }
}

Result<Priced> price_kernels(const Scenario& scenario, const Session& session, double kernel_efficiency) {
  NS_TRY_VOID(check_scenario(scenario));
  if (session.made_its_models()) NS_TRY_VOID(check_format(scenario));
  Priced priced;
  NS_TRY(priced.program, plan_program(scenario.model, scenario.plan, scenario.training, session.plans()));
  NS_TRY(priced.costs, costs_of(priced.program, scenario, session));
  if (kernel_efficiency != 1) hurry_kernels(priced, kernel_efficiency);
  return priced;
}

// What the GPU waits for `host`; `memory`: read where each step maps it anew. Returns whether it waits for launches
// anywhere; `every` as in add_host_waits.
bool add_host(const Scenario& scenario, const Host& host, const MemoryBudget& memory, Priced& priced,
              bool every = false) {
  const bool waits = add_host_waits(host, scenario.constants.hosts, priced.program, priced.costs, every);
  if (host.empty_cache) add_memory_mapping(scenario, memory, priced.program, priced.costs);
  return waits;
}

Result<Priced> price(const Scenario& scenario, const Session& session, double kernel_efficiency = 1,
                     bool every_wait = false) {
  NS_TRY(Priced priced, price_kernels(scenario, session, kernel_efficiency));
  MemoryBudget memory;
  if (scenario.host.empty_cache) {
    NS_TRY(memory, memory_budget(scenario.model, scenario.plan, scenario.training, session.plans()));
  }
  add_host(scenario, scenario.host, memory, priced, every_wait);
  return priced;
}

// How much shorter and longer the step is on hosts whose launches take as long or as short as LaunchSpread says.
struct HostRange {
  Seconds shorter, longer;
};

// `priced`: `kernels` with the scenario's host, for which the GPU `waits` or not. A host that never lets the GPU wait
// has a range, too: a slower one may.
Result<HostRange> host_range(const Priced& kernels, const Priced& priced, bool waits, const MemoryBudget& memory,
                             const Scenario& scenario, const Session& session) {
  const double spread = scenario.host.launch_spread.value;
  if (spread == 1) return HostRange{};
  const Scenario alone = without_sharing(scenario);
  const auto step = [&](const Priced& all) { return step_of(all.program, all.costs, alone, session); };
  Priced other = kernels;
  if (!add_host(alone, alone.host.with_launches(spread), memory, other)) return HostRange{};
  NS_TRY(const Seconds slow, step(other));
  NS_TRY(const Seconds same, step(priced));
  Seconds fast = same;
  if (waits) {
    other = kernels;
    add_host(alone, alone.host.with_launches(1 / spread), memory, other);
    NS_TRY(fast, step(other));
  }
  return HostRange{max(Seconds(), same - fast), max(Seconds(), slow - same)};
}

// All waits for launches as one entry of the path, with the steps of other hosts as its interval.
void set_host_range(const HostRange& range, std::vector<PathEntry>& path) {
  PathEntry all;
  all.name = kHostLaunches;
  all.kind = kWaitKind;
  all.forecast.bound = Bound::kLaunch;
  std::erase_if(path, [&all](const PathEntry& entry) {
    if (entry.name != kHostLaunches) return false;
    all.count += entry.count;
    all.seconds += entry.seconds;
    return true;
  });
  if (all.count == 0 && !(range.longer > Seconds())) return;
  all.count = std::max<std::int64_t>(all.count, 1);
  const auto count = static_cast<double>(all.count);
  all.forecast.latency = all.seconds / count;
  all.forecast.low = all.forecast.latency - range.shorter / count;
  all.forecast.high = all.forecast.latency + range.longer / count;
  path.push_back(std::move(all));
}

// Collectives that computation hides are not on the path, nor kernels that communication hides. Where all of one kind
// take as long as the upper end of their intervals, some are hidden no more; where all take as little as the lower end,
// the path gets no shorter than what hides them. An entry without seconds for each kind of which the path alone tells
// less, or more; of kernels, which mostly are on the path, where that makes the step much longer.
void add_hidden(const Prediction& prediction, const Scenario& scenario, const Session& session,
                std::vector<PathEntry>& path) {
  std::map<std::string_view, bool> kinds;  // whether some of it is extrapolated
  for (std::size_t w = 0; w < prediction.program.works.size(); ++w) {
    const WorkItem& item = prediction.program.works[w];
    if (!std::holds_alternative<Collective>(item.work) && find_operator_form(kind_of(item)) == nullptr) continue;
    bool& extrapolated = kinds[kind_of(item)];
    for (const ProgramCosts::Row& row : prediction.costs.rows) extrapolated |= row.forecasts[w].extrapolated;
  }
  const Scenario alone = without_sharing(scenario);
  const auto step = [&](const auto& latency) {
    return step_with(prediction, alone, session, latency).value_or(prediction.step);
  };
  std::optional<Seconds> usual;
  for (const auto& [kind, extrapolated] : kinds) {
    const auto with = [&, of = kind](Seconds Forecast::*end) {
      return step([=](const WorkItem& item, const Forecast& forecast) {
        return kind_of(item) == of ? forecast.*end : forecast.latency;
      });
    };
    if (!usual) usual = with(&Forecast::latency);
    Seconds below = *usual - with(&Forecast::low), above = with(&Forecast::high) - *usual;
    for (const PathEntry& entry : path) {
      if (entry.kind != kind) continue;
      below -= static_cast<double>(entry.count) * (entry.forecast.latency - entry.forecast.low);
      above -= static_cast<double>(entry.count) * (entry.forecast.high - entry.forecast.latency);
    }
    PathEntry hidden;
    hidden.name = kHiddenWork;
    hidden.kind = kind;
    hidden.count = 1;
    constexpr double kRounding = 1e-9, kMuch = 0.02;  // of the step; chosen, not fitted
    const bool kernels = find_operator_form(kind) != nullptr;
    if (!kernels && below < -kRounding * *usual) hidden.forecast.low = -below;
    if (above > (kernels ? kMuch : kRounding) * *usual) hidden.forecast.high = above;
    hidden.forecast.extrapolated = extrapolated;
    if (hidden.forecast.low != Seconds() || hidden.forecast.high != Seconds()) path.push_back(std::move(hidden));
  }
}

ProgramQueue::Options queue_options(const Scenario& scenario) {
  ProgramQueue::Options options;
  options.fold = options.close = !scenario.settings.unfolded;
  options.most_events = kMostEvents;
  return options;
}

// The last check before a report: nothing infinite leaves.
Result<void> check_finite(const Prediction& prediction) {
  const double step = prediction.step / units::s, memory = prediction.memory.peak() / units::B;
  if (std::isfinite(step) && step > 0 && std::isfinite(memory)) return {};
  return fail({ErrorCode::kInvalidInput, fmt::format("a step of {} s and {} B is no answer", step, memory),
               "model, machine, plan", "sizes and speeds that are plausible"});
}

}  // namespace

Result<Seconds> step_of(const StepProgram& program, const ProgramCosts& costs, const Scenario& scenario,
                        const Session& session) {
  if (!scenario.network.contention && !scenario.network.compute_slowdown) {
    const std::shared_ptr<const CallOrder> order = session.orders().of(program);
    PassClock clock(program, costs, !scenario.settings.unfolded, order.get());
    const double step = clock.run();
    if (order == nullptr) session.orders().ran_folded(program, clock.passes());
    return step * units::s;
  }
  ProgramQueue queue(program, costs, queue_options(scenario));
  const std::optional<double> step = queue.run();
  if (!step) return too_long(scenario);
  return *step * units::s;
}

Result<Seconds> step_with(const Prediction& prediction, const Scenario& scenario, const Session& session,
                          const std::function<Seconds(const WorkItem&, const Forecast&)>& latency) {
  ProgramCosts costs = prediction.costs;
  for (ProgramCosts::Row& row : costs.rows) {
    for (std::size_t w = 0; w < row.forecasts.size(); ++w) {
      row.forecasts[w].latency = latency(prediction.program.works[w], row.forecasts[w]);
      if (row.demands.empty() || row.forecasts[w].latency > Seconds()) continue;
      row.demands[w] = Demand{{}, 0, 0, row.demands[w].bound};
    }
  }
  return step_of(prediction.program, costs, scenario, session);
}

Scenario without_sharing(Scenario scenario) {
  scenario.network.contention = scenario.network.compute_slowdown = false;
  return scenario;
}

Result<Seconds> step_time(const Scenario& scenario, const Session& session) { return step_time(scenario, session, 1); }

Result<Seconds> step_time(const Scenario& scenario, const Session& session, double kernel_efficiency) {
  NS_TRY(const Priced priced, price(scenario, session, kernel_efficiency));
  return step_of(priced.program, priced.costs, scenario, session);
}

Result<Prediction> predict(const Scenario& scenario, const Session& session) {
  NS_TRY(const Priced kernels, price_kernels(scenario, session, 1));
  Prediction prediction;
  NS_TRY(prediction.memory, memory_budget(scenario.model, scenario.plan, scenario.training, session.plans()));
  Priced priced = kernels;
  const bool waits = add_host(scenario, scenario.host, prediction.memory, priced);
  NS_TRY(const HostRange hosts, host_range(kernels, priced, waits, prediction.memory, scenario, session));
  prediction.program = std::move(priced.program);
  prediction.costs = std::move(priced.costs);
  const auto timed = run_and_analyze(prediction.program, prediction.costs, queue_options(scenario));
  if (!timed) return too_long(scenario);
  prediction.step = timed->step;
  NS_TRY_VOID(check_finite(prediction));
  prediction.folding = timed->folding;
  prediction.breakdown = timed->analysis.breakdown;
  for (const PathWork& work : timed->analysis.path) {
    const WorkItem& item = prediction.program.works[index(work.work)];
    prediction.critical_path.push_back({item.name, kind_of(item),
                                        prediction.costs.rows[work.row].forecasts[index(work.work)], work.count,
                                        work.seconds});
  }
  set_host_range(hosts, prediction.critical_path);
  add_hidden(prediction, scenario, session, prediction.critical_path);
  return prediction;
}

Report report(const Scenario& scenario, const Prediction& prediction, std::vector<Improvement> improvements) {
  Report report;
  report.scenario = scenario;
  report.ranks = prediction.program.mesh.ranks();
  report.microbatches = microbatches_of(scenario.plan, scenario.training);
  report.nodes = prediction.program.node_count();
  report.works = prediction.program.works.size();
  report.folding = prediction.folding;

  const double seconds = prediction.step / units::s;
  report.interval = interval_parts(scenario, prediction.step, path_interval(prediction.critical_path));
  const Interval interval = step_interval(prediction.step, report.interval);
  report.step = prediction.step;
  report.step_low = interval.low;
  report.step_high = interval.high;

  const Training& training = scenario.training;
  const auto ranks = static_cast<double>(report.ranks);
  report.tokens_per_second = tokens_of_step(training) / seconds;
  const StepFlops flops = step_flops(scenario.model, scenario.plan, training);
  const FlopsPerSecond peak = product_peak(scenario.cluster.gpu, training.precision);
  report.model_flops_per_second = flops.model / units::FLOP / ranks / seconds;
  if (peak > FlopsPerSecond()) {
    report.mfu = flops.model / (ranks * report.step * peak);
    report.mfu_causal = flops.causal / (ranks * report.step * peak);
    report.hfu = flops.hardware / (ranks * report.step * peak);
    report.hfu_causal = flops.causal_hardware / (ranks * report.step * peak);
  }

  if (const Watts power = most_power(scenario, ranks); power > Watts()) {
    report.energy = Energy{report.step * power, 1e12 / report.tokens_per_second * units::s * power};
  }

  report.memory = prediction.memory;
  report.host_memory = offloaded_bytes(scenario.model, scenario.plan, training).value_or(Bytes());
  report.fits = report.memory.fits(scenario.cluster.gpu.memory);

  report.breakdown = prediction.breakdown;
  report.critical_path = hotspots(prediction.critical_path);
  report.improvements = std::move(improvements);
  report.warnings = warnings(report, prediction);
  return report;
}

Result<Report> simulate(const Scenario& scenario, const Session& session) {
  if (!session.serves(scenario)) {
    return fail({ErrorCode::kInvalidInput, "the session is of another machine, network or calibration", "session",
                 "one that serves the scenario (Session::serves)", "make one with Session::make(scenario)"});
  }
  NS_TRY(const Prediction prediction, predict(scenario, session));
  std::optional<FittingPlan> fitting;
  if (!prediction.memory.fits(scenario.cluster.gpu.memory)) fitting = memory_remedy(scenario, session);
  const Scenario* const near = fitting ? &fitting->scenario : nullptr;
  Report all = report(scenario, prediction, advise(scenario, prediction, session, kMostAdvice, near));
  all.additions = additions(scenario, prediction, session);
  NS_TRY(all.memory_detail, memory_detail(scenario.model, scenario.plan, scenario.training, session.plans()));
  if (fitting) all.remedy = std::move(fitting->remedy);
  return all;
}

Result<Report> simulate(const Scenario& scenario) {
  NS_TRY(const Session session, Session::make(scenario));
  return simulate(scenario, session);
}

Result<StepOutline> outline(const Scenario& scenario, const Session& session, std::size_t pieces) {
  NS_EXPECTS(pieces > 0);
  NS_TRY(const Priced priced, price(scenario, session));
  auto timed = run_and_analyze(priced.program, priced.costs, queue_options(scenario), pieces);
  if (!timed) return too_long(scenario);
  return std::move(timed->analysis.outline);
}

Result<UnfoldedStep> unfold(const Scenario& scenario, const Session& session, bool every_wait) {
  NS_TRY(const Priced priced, price(scenario, session, 1, every_wait));
  if (const std::uint64_t nodes = priced.program.node_count(); nodes > kMostNodes) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} kernels, collectives and messages are too many to be written one by one", nodes),
                 "training/global_batch, training/micro_batch, plan/dp", fmt::format("at most {}", kMostNodes),
                 "write a larger plan/dp or training/micro_batch, or a smaller training/global_batch"});
  }
  Expansion expansion = expand(priced.program, priced.costs.row_of_actor);
  UnfoldedStep step;
  std::vector<Seconds> durations;
  std::vector<Demand> demands;
  for (const Expansion::Origin& origin : expansion.origins) {
    const ProgramCosts::Row& row = priced.costs.rows[origin.row];
    step.forecasts.push_back(row.forecasts[index(origin.work)]);
    durations.push_back(step.forecasts.back().latency);
    if (!row.demands.empty()) demands.push_back(row.demands[index(origin.work)]);
  }
  step.graph = std::move(expansion.graph);
  step.timeline = schedule(step.graph, durations, demands);
  return step;
}

Result<std::vector<Seconds>> kernels_alone(const Scenario& scenario, const Session& session,
                                           const ExecutionGraph& graph) {
  if (!session.made_its_models()) return std::vector<Seconds>();
  const std::span<const WorkItem> works = graph.works();
  const TrainingClock clock = training_clock(scenario, graph.mesh().ranks());
  std::vector<Seconds> out(works.size());
  for (std::size_t w = 0; w < works.size(); ++w) {
    const auto* op = std::get_if<Operator>(&works[w].work);
    if (op == nullptr || works[w].host.any() || work_of(*op) == Work()) continue;
    NS_TRY(const Forecast alone, session.compute().forecast(clock.kernel_of(*op)));
    out[w] = alone.latency * clock.load_on(*op) * clock.slowest_on(*op);
  }
  return out;
}

Result<void> write_timeline(const UnfoldedStep& step, TraceSink& sink) {
  if (auto begun = sink.begin(step.graph); !begun) return begun;
  const std::vector<Span>& spans = step.timeline.spans;
  for (std::uint32_t i = 0; i < step.graph.node_count(); ++i) {
    if (auto written = sink.span(NodeId{i}, spans[i]); !written) return written;
  }
  return sink.finish();
}

}  // namespace ns_dist
