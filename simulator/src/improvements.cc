#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "advice.h"
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

  // The step under another plan; nothing when it cannot be planned or needs more memory than there is.
  std::optional<Seconds> step(const Candidate& candidate) const {
    const Model& model = scenario_.model;
    if (!check_plan(model, candidate.plan, candidate.training)) return std::nullopt;
    const auto memory = memory_budget(model, candidate.plan, candidate.training);
    if (!memory || memory->peak() > scenario_.cluster.gpu.memory) return std::nullopt;
    // A full pipeline repeats itself: two short steps give the time of a microbatch, and so of any number of them.
    const std::int64_t microbatches = microbatches_of(candidate.plan, candidate.training);
    const std::int64_t shorter = 2 * candidate.plan.pp, longer = 3 * candidate.plan.pp;
    if (microbatches <= longer + shorter) return step_of(candidate, microbatches);
    const auto at_shorter = step_of(candidate, shorter), at_longer = step_of(candidate, longer);
    if (!at_shorter || !at_longer) return std::nullopt;
    const Seconds each = (*at_longer - *at_shorter) / static_cast<double>(longer - shorter);
    return *at_longer + static_cast<double>(microbatches - longer) * each;
  }

 private:
  std::optional<Seconds> step_of(const Candidate& candidate, std::int64_t microbatches) const {
    Training training = candidate.training;
    training.global_batch = microbatches * training.micro_batch * candidate.plan.dp;
    const auto graph = plan_step(scenario_.model, candidate.plan, training);
    if (!graph) return std::nullopt;
    const auto forecasts = forecast_works(*graph, compute_, network_);
    if (!forecasts) return std::nullopt;
    std::vector<Seconds> durations;
    for (const Forecast& forecast : *forecasts) durations.push_back(forecast.latency);
    return Rescheduler(*graph).step(durations);
  }

  const Scenario& scenario_;
  const ComputeCost& compute_;
  const NetworkCost& network_;
};

// The best of candidates that exclude each other.
std::optional<Improvement> best_of(const std::vector<Candidate>& candidates, const Simulator& simulator, Seconds step) {
  std::optional<Improvement> best;
  for (const Candidate& candidate : candidates) {
    const auto changed = simulator.step(candidate);
    if (!changed || (best && step - *changed <= best->saves)) continue;
    best = Improvement{candidate.change, candidate.flags, step - *changed, false};
  }
  return best;
}

// What would be saved if a cause went away altogether: the same graph with other durations.
class WhatIf {
 public:
  WhatIf(const ExecutionGraph& graph, const std::vector<Forecast>& forecasts, Rescheduler& rescheduler, Seconds step)
      : graph_(graph), forecasts_(forecasts), rescheduler_(rescheduler), step_(step) {}

  // What the step saves when every work item takes `duration(item, forecast)` instead.
  template <class Duration>
  Seconds saving(Duration duration) const {
    std::vector<Seconds> durations;
    durations.reserve(forecasts_.size());
    for (std::size_t i = 0; i < forecasts_.size(); ++i) {
      durations.push_back(duration(graph_.works()[i], forecasts_[i]));
    }
    return step_ - rescheduler_.step(durations);
  }

  Improvement without(Category category, std::string change) const {
    const Seconds saves = saving([category](const WorkItem& item, const Forecast& forecast) {
      return item.category == category ? Seconds() : forecast.latency;
    });
    return {std::move(change), "", saves, true};
  }

 private:
  const ExecutionGraph& graph_;
  const std::vector<Forecast>& forecasts_;
  Rescheduler& rescheduler_;
  Seconds step_;
};

// The operator family that would save most if its kernels reached their floor.
std::optional<Improvement> faster_kernels(const ExecutionGraph& graph, const std::vector<Forecast>& forecasts,
                                          const WhatIf& what_if) {
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
  const Seconds saves = what_if.saving([family](const WorkItem& item, const Forecast& forecast) {
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
                                      const std::vector<Forecast>& forecasts, Rescheduler& rescheduler,
                                      const ComputeCost& compute, const NetworkCost& network, const Breakdown& parts,
                                      Seconds step) {
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

  const WhatIf what_if(graph, forecasts, rescheduler, step);
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
