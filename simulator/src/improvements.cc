#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "advice.h"
#include "clock.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

constexpr double kWorthwhile = 0.002;  // of the step

struct Candidate {
  std::string change, flags;
  ParallelPlan plan;
  Training training;
};

std::vector<Candidate> pipelines(const Scenario& from) {
  std::vector<Candidate> found;
  const ParallelPlan& plan = from.plan;
  if (plan.pp == 1 || from.model.layers % plan.pp != 0) return found;
  const std::int64_t layers = from.model.layers / plan.pp;
  for (std::int64_t chunks = 2; chunks <= layers; ++chunks) {
    // All divisors would be many for deep models; the smallest and those that leave few layers a chunk tell enough.
    if (layers % chunks != 0 || chunks == plan.vpp || (!found.empty() && layers / chunks > 2)) continue;
    Candidate candidate{fmt::format("interleave {} model chunks a stage", chunks), fmt::format("--vpp {}", chunks),
                        plan, from.training};
    candidate.plan.vpp = chunks;
    candidate.plan.schedule = "interleaved";
    candidate.plan.overlap_p2p = true;
    found.push_back(std::move(candidate));
  }
  return found;
}

std::vector<Candidate> microbatches(const Scenario& from) {
  std::vector<Candidate> found;
  for (const std::int64_t size : {2 * from.training.micro_batch, from.training.micro_batch / 2}) {
    if (size < 1) continue;
    Candidate candidate{fmt::format("microbatches of {} sequences", size), fmt::format("--micro-batch {}", size),
                        from.plan, from.training};
    candidate.training.micro_batch = size;
    found.push_back(std::move(candidate));
  }
  return found;
}

std::vector<Candidate> recomputations(const Scenario& from) {
  std::vector<Candidate> found;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
    if (recompute >= from.plan.recompute) break;
    const char* name = recompute == Recompute::kNone ? "none" : "selective";
    Candidate candidate{recompute == Recompute::kNone ? "keep the activations" : "recompute only the attention core",
                        fmt::format("--recompute {}", name), from.plan, from.training};
    candidate.plan.recompute = recompute;
    found.push_back(std::move(candidate));
  }
  return found;
}

std::vector<Candidate> overlaps(const Scenario& from) {
  const ParallelPlan& plan = from.plan;
  Candidate candidate{"communicate while computing", "--overlap ", plan, from.training};
  candidate.plan.overlap_grad_reduce |= plan.dp > 1;
  candidate.plan.overlap_param_gather |= plan.dp > 1 && plan.zero != ZeroStage::kNone;
  candidate.plan.overlap_p2p |= plan.pp > 1;
  if (candidate.plan == plan) return {};
  std::vector<std::string> parts;
  if (candidate.plan.overlap_grad_reduce) parts.emplace_back("grad-reduce");
  if (candidate.plan.overlap_param_gather) parts.emplace_back("param-gather");
  if (candidate.plan.overlap_p2p) parts.emplace_back("p2p");
  candidate.flags += fmt::format("{}", fmt::join(parts, ","));
  return {candidate};
}

std::vector<Candidate> kernels(const Scenario& from) {
  if (from.plan.flash_attention) return {};
  Candidate candidate{"fused attention", "--flash-attention on", from.plan, from.training};
  candidate.plan.flash_attention = true;
  return {candidate};
}

// The same GPUs, divided otherwise.
std::vector<Candidate> degrees(const Scenario& from) {
  std::vector<Candidate> found;
  const auto add = [&](std::int64_t tp, std::int64_t pp, std::int64_t dp) {
    Candidate candidate{"divide the GPUs otherwise", fmt::format("--tp {} --pp {} --dp {}", tp, pp, dp), from.plan,
                        from.training};
    candidate.plan.tp = tp;
    candidate.plan.pp = pp;
    candidate.plan.dp = dp;
    candidate.plan.sequence_parallel = tp > 1 && (from.plan.sequence_parallel || from.plan.tp == 1);
    if (pp == 1 && from.plan.pp > 1) candidate.plan.vpp = 1, candidate.plan.schedule = "1f1b";
    found.push_back(std::move(candidate));
  };
  const auto [tp, pp, dp] = std::tuple(from.plan.tp, from.plan.pp, from.plan.dp);
  if (tp % 2 == 0) add(tp / 2, pp, dp * 2), add(tp / 2, pp * 2, dp);
  if (pp % 2 == 0) add(tp, pp / 2, dp * 2), add(tp * 2, pp / 2, dp);
  if (dp % 2 == 0) add(tp * 2, pp, dp / 2), add(tp, pp * 2, dp / 2);
  return found;
}

class Simulator {
 public:
  Simulator(const Scenario& scenario, const ComputeCost& compute, const NetworkCost& network)
      : scenario_(scenario), compute_(compute), network_(network) {}

  // Steps of the scenario's model under another plan, ready to be timed.
  struct Trial {
    struct Run {
      std::unique_ptr<ExecutionGraph> graph;
      std::vector<Forecast> forecasts;
      std::vector<Seconds> durations;
      std::int64_t microbatches = 0;
    };
    std::vector<Run> runs;  // the step, or two short ones
    std::int64_t microbatches = 0;
  };

  // Nothing when it cannot be planned or needs more memory than there is.
  std::optional<Trial> plan(const Candidate& candidate) const {
    const Model& model = scenario_.model;
    if (!check_plan(model, candidate.plan, candidate.training)) return std::nullopt;
    const auto memory = memory_budget(model, candidate.plan, candidate.training);
    if (!memory || memory->peak() > scenario_.cluster.gpu.memory) return std::nullopt;
    // A full pipeline repeats itself: two short steps give the time of a microbatch, and so of any number of them.
    Trial trial;
    trial.microbatches = microbatches_of(candidate.plan, candidate.training);
    const std::int64_t shorter = 2 * candidate.plan.pp, longer = 3 * candidate.plan.pp;
    const bool whole = trial.microbatches <= longer + shorter;
    for (const std::int64_t microbatches : whole ? std::vector{trial.microbatches} : std::vector{shorter, longer}) {
      Training training = candidate.training;
      training.global_batch = microbatches * training.micro_batch * candidate.plan.dp;
      auto graph = plan_step(model, candidate.plan, training);
      if (!graph) return std::nullopt;
      auto forecasts = forecast_works(*graph, compute_, network_);
      if (!forecasts) return std::nullopt;
      std::vector<Seconds> durations;
      for (const Forecast& forecast : *forecasts) durations.push_back(forecast.latency);
      trial.runs.push_back({std::make_unique<ExecutionGraph>(*std::move(graph)), *std::move(forecasts),
                            std::move(durations), microbatches});
    }
    return trial;
  }

  // The step; with `sharing`, what overlaps shares links, SMs and memory, which takes longer to find out.
  std::optional<Seconds> step(const Trial& trial, bool sharing) const {
    std::vector<Seconds> steps;
    for (const Trial::Run& run : trial.runs) {
      auto demands = demands_of(*run.graph, run.forecasts, scenario_.cluster, sharing && scenario_.network.contention,
                                sharing && scenario_.network.compute_slowdown);
      if (!demands) return std::nullopt;
      steps.push_back(Clock(*run.graph, *std::move(demands)).step(run.durations));
    }
    if (steps.size() == 1) return steps.front();
    const Trial::Run &shorter = trial.runs.front(), &longer = trial.runs.back();
    const Seconds each =
        (steps.back() - steps.front()) / static_cast<double>(longer.microbatches - shorter.microbatches);
    return steps.back() + static_cast<double>(trial.microbatches - longer.microbatches) * each;
  }

 private:
  const Scenario& scenario_;
  const ComputeCost& compute_;
  const NetworkCost& network_;
};

// The best of candidates that exclude each other: chosen as if nothing shared anything, its saving with sharing.
std::optional<Improvement> best_of(const std::vector<Candidate>& candidates, const Simulator& simulator, Seconds step) {
  std::optional<Simulator::Trial> best;
  const Candidate* chosen = nullptr;
  Seconds least;
  for (const Candidate& candidate : candidates) {
    auto trial = simulator.plan(candidate);
    const auto alone = trial ? simulator.step(*trial, false) : std::nullopt;
    if (!alone || (chosen && *alone >= least)) continue;
    best = std::move(trial);
    chosen = &candidate;
    least = *alone;
  }
  if (!chosen || least >= step) return std::nullopt;
  const auto changed = simulator.step(*best, true);
  if (!changed) return std::nullopt;
  return Improvement{chosen->change, chosen->flags, step - *changed, false};
}

// What would be saved if a cause went away altogether: the same graph with other durations, as if nothing shared
// anything (communication that goes away takes nothing from what runs beside it either).
class WhatIf {
 public:
  WhatIf(const ExecutionGraph& graph, const std::vector<Forecast>& forecasts, Seconds step)
      : graph_(graph), forecasts_(forecasts), clock_(graph), step_(step) {}

  // The step when every work item takes `duration(item, forecast)`.
  template <class Duration>
  Seconds step(Duration duration) {
    std::vector<Seconds> durations;
    durations.reserve(forecasts_.size());
    for (std::size_t i = 0; i < forecasts_.size(); ++i) {
      durations.push_back(duration(graph_.works()[i], forecasts_[i]));
    }
    return clock_.step(durations);
  }

  Improvement without(Category category, std::string change) {
    const Seconds saves = step_ - step([category](const WorkItem& item, const Forecast& forecast) {
                            return item.category == category ? Seconds() : forecast.latency;
                          });
    return {std::move(change), "", saves, true};
  }

 private:
  const ExecutionGraph& graph_;
  const std::vector<Forecast>& forecasts_;
  Clock clock_;
  Seconds step_;
};

// The operator family that would save most if its kernels reached their floor.
std::optional<Improvement> faster_kernels(const ExecutionGraph& graph, const std::vector<Forecast>& forecasts,
                                          WhatIf& what_if) {
  std::vector<std::int64_t> counts(graph.works().size());
  for (const GraphNode& node : graph.nodes()) ++counts[index(node.work)];
  std::map<std::string_view, Seconds> above_floor;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const WorkItem& item = graph.works()[i];
    if (!std::holds_alternative<Operator>(item.work)) continue;
    above_floor[kind_of(item)] += static_cast<double>(counts[i]) * (forecasts[i].latency - forecasts[i].floor);
  }
  const auto worst = std::max_element(above_floor.begin(), above_floor.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (worst == above_floor.end()) return std::nullopt;
  const std::string_view family = worst->first;
  const Seconds now = what_if.step([](const WorkItem&, const Forecast& forecast) { return forecast.latency; });
  const Seconds saves = now - what_if.step([family](const WorkItem& item, const Forecast& forecast) {
    return std::holds_alternative<Operator>(item.work) && kind_of(item) == family ? forecast.floor : forecast.latency;
  });
  return Improvement{fmt::format("{} kernels at the GPU's peak rates", family), "", saves, true};
}

void sort_by_saving(std::vector<Improvement>& improvements) {
  std::stable_sort(improvements.begin(), improvements.end(),
                   [](const Improvement& a, const Improvement& b) { return a.saves > b.saves; });
}

}  // namespace

std::vector<Improvement> improvements(const Scenario& scenario, const ExecutionGraph& graph,
                                      const std::vector<Forecast>& forecasts, const ComputeCost& compute,
                                      const NetworkCost& network, const Breakdown& parts, Seconds step) {
  const Seconds least = kWorthwhile * step;
  const auto worthwhile = [least](const std::optional<Improvement>& improvement) {
    return improvement && improvement->saves > least;
  };
  const Simulator simulator(scenario, compute, network);
  std::vector<Improvement> changes;
  for (const auto candidates : {pipelines, microbatches, recomputations, overlaps, kernels, degrees}) {
    if (auto best = best_of(candidates(scenario), simulator, step); worthwhile(best))
      changes.push_back(*std::move(best));
  }
  sort_by_saving(changes);
  if (changes.size() >= kImprovements) return changes;

  WhatIf what_if(graph, forecasts, step);
  std::vector<Improvement> limits;
  if (parts.tp_exposed > least)
    limits.push_back(what_if.without(Category::kTensorParallel, "free tensor-parallel links"));
  if (parts.ep_exposed > least) limits.push_back(what_if.without(Category::kExpertParallel, "free expert all-to-alls"));
  if (parts.dp_exposed > least) limits.push_back(what_if.without(Category::kDataParallel, "free data-parallel links"));
  if (parts.pp_exposed > least)
    limits.push_back(what_if.without(Category::kPipelineParallel, "free pipeline messages"));
  if (auto faster = faster_kernels(graph, forecasts, what_if)) limits.push_back(*std::move(faster));
  std::erase_if(limits, [least](const Improvement& limit) { return limit.saves <= least; });
  sort_by_saving(limits);
  changes.insert(changes.end(), limits.begin(), limits.end());
  return changes;
}

}  // namespace ns_dist
