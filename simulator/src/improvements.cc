#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "advice.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

constexpr double kWorthwhile = 0.002;  // of the step

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

  Seconds saving_without(Category category) const {
    return saving([category](const WorkItem& item, const Forecast& forecast) {
      return item.category == category ? Seconds() : forecast.latency;
    });
  }

 private:
  const ExecutionGraph& graph_;
  const std::vector<Forecast>& forecasts_;
  Rescheduler& rescheduler_;
  Seconds step_;
};

// The fewest chunks that the interleaved schedule could split this plan's stages into; 1 where it cannot.
std::int64_t fewest_chunks(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  if (plan.pp == 1 || plan.vpp > 1 || scenario.model.layers % plan.pp != 0) return 1;
  const std::int64_t layers = scenario.model.layers / plan.pp;
  for (std::int64_t chunks = 2; chunks <= layers; ++chunks) {
    if (layers % chunks != 0) continue;
    ParallelPlan interleaved = plan;
    interleaved.vpp = chunks;
    interleaved.schedule = "interleaved";
    return check_plan(scenario.model, interleaved, scenario.training) ? chunks : 1;
  }
  return 1;
}

std::optional<Improvement> fewer_bubbles(const Scenario& scenario, const Breakdown& parts) {
  const std::int64_t chunks = fewest_chunks(scenario);
  const auto now = pipeline_schedule(scenario.plan.schedule);
  const auto then = pipeline_schedule("interleaved");
  if (chunks == 1 || !now || !then) return std::nullopt;
  ScheduleShape shape{scenario.plan.pp, microbatches_of(scenario.plan, scenario.training), 1};
  const double bubble_now = (*now)->bubble(shape);
  shape.chunks = chunks;
  const double bubble_then = (*then)->bubble(shape);
  if (!(bubble_now > bubble_then)) return std::nullopt;
  return Improvement{fmt::format("interleave {} model chunks a stage: smaller bubble, more messages", chunks),
                     fmt::format("--vpp {}", chunks), parts.bubble * (1 - bubble_then / bubble_now), true};
}

std::optional<Improvement> less_recomputation(const Scenario& scenario, const WhatIf& what_if) {
  Scenario lighter = scenario;
  lighter.plan.recompute = Recompute::kNone;
  const auto memory = memory_budget(lighter.model, lighter.plan, lighter.training);
  if (!memory) return std::nullopt;
  const bool fits = memory->peak() <= scenario.cluster.gpu.memory;
  return Improvement{fits ? "keep the activations instead of computing them again: they fit"
                          : "keep the activations instead of computing them again: they need more memory",
                     "--recompute none", what_if.saving_without(Category::kRecompute), !fits};
}

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

}  // namespace

std::vector<Improvement> improvements(const Scenario& scenario, const ExecutionGraph& graph,
                                      const std::vector<Forecast>& forecasts, Rescheduler& rescheduler,
                                      const Breakdown& parts, Seconds step) {
  const WhatIf what_if(graph, forecasts, rescheduler, step);
  const ParallelPlan& plan = scenario.plan;
  const Seconds least = kWorthwhile * step;
  std::vector<Improvement> found;
  if (parts.tp_exposed > least) {
    found.push_back({"hide tensor-parallel communication (smaller --tp, faster links in the node)", "",
                     what_if.saving_without(Category::kTensorParallel), true});
  }
  if (parts.ep_exposed > least) {
    found.push_back({"hide the experts' all-to-alls", "", what_if.saving_without(Category::kExpertParallel), true});
  }
  if (parts.cp_exposed > least) {
    found.push_back(
        {"hide context-parallel communication", "", what_if.saving_without(Category::kContextParallel), true});
  }
  if (parts.pp_exposed > least) {
    found.push_back({"hide pipeline messages behind computation", plan.overlap_p2p ? "" : "--overlap p2p",
                     what_if.saving_without(Category::kPipelineParallel), true});
  }
  if (parts.dp_exposed > least) {
    const bool overlapped = plan.overlap_grad_reduce && plan.overlap_param_gather;
    found.push_back({"hide gradient reduction and parameter gathering behind computation",
                     overlapped ? "" : "--overlap grad-reduce,param-gather",
                     what_if.saving_without(Category::kDataParallel), true});
  }
  if (parts.recompute > least) {
    if (auto lighter = less_recomputation(scenario, what_if)) found.push_back(*std::move(lighter));
  }
  if (parts.bubble > least) {
    if (auto interleaved = fewer_bubbles(scenario, parts)) found.push_back(*std::move(interleaved));
  }
  if (auto faster = faster_kernels(graph, forecasts, what_if)) found.push_back(*std::move(faster));
  std::erase_if(found, [least](const Improvement& improvement) { return improvement.saves <= least; });
  std::stable_sort(found.begin(), found.end(),
                   [](const Improvement& a, const Improvement& b) { return a.saves > b.saves; });
  return found;
}

}  // namespace ns_dist
