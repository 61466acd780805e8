// Is every plan either refused with a reason or planned completely? For random models, degrees and options.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "ns_dist/memory.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "shape.h"
#include "support/planned_graph.h"
#include "support/random_plans.h"

namespace ns_dist {
namespace {

RC_GTEST_PROP(Planner, APlanThatChecksIsPlannedWithoutACircle, ()) {
  const Question q = any_question();
  const bool fine = check_plan(q.model, q.plan, q.training).has_value();
  RC_TAG(fine ? "planned" : "refused");
  const auto graph = planned_graph(q.model, q.plan, q.training);
  RC_ASSERT(graph.has_value() == fine);
  RC_ASSERT(memory_budget(q.model, q.plan, q.training).has_value() == fine);
  if (!fine) return;
  RC_ASSERT(graph->topological_order().size() == graph->node_count());
  RC_ASSERT(graph->stage_count() == q.plan.pp);
  for (const WorkItem& item : graph->works()) {
    if (const auto* op = std::get_if<Operator>(&item.work)) {
      RC_ASSERT(validate(*op).has_value());
    } else if (const auto* collective = std::get_if<Collective>(&item.work)) {
      RC_ASSERT(collective->group.size() > 1);
      RC_ASSERT(collective->size > Bytes());
      const RankGroup& group = collective->group;
      RC_ASSERT(group.at(group.size() - 1) < graph->mesh().ranks());
    } else {
      RC_ASSERT(std::get<Message>(item.work).size > Bytes());
    }
  }
}

// Each microbatch passes every layer once forward and once backward, whatever the schedule and the stages; frozen ones
// forward alone.
RC_GTEST_PROP(Planner, EveryMicrobatchPassesEveryLayerOnce, ()) {
  const Question q = any_possible_question();
  const auto graph = planned_graph(q.model, q.plan, q.training);
  RC_ASSERT(graph.has_value());
  // One product of each layer.
  std::set<std::string> products = {q.model.mla ? "attention.kv_down" : "attention.qkv", "mamba.in_proj",
                                    "delta.in_proj"};
  if (!q.model.layer_pattern.empty()) products.insert({"mlp.fc1", "moe.router"});
  std::map<std::pair<int, int>, int> forward, backward;
  for (const GraphNode& node : graph->nodes()) {
    const WorkItem& item = graph->works()[index(node.work)];
    const std::pair where(node.origin.microbatch, node.origin.layer);
    if (item.category == Category::kForward && products.contains(item.name)) ++forward[where];
    if (item.name.ends_with(".dgrad") && products.contains(item.name.substr(0, item.name.size() - 6)))
      ++backward[where];
  }
  const std::int64_t layers = q.model.layers + (q.training.mtp ? q.model.prediction_layers : 0);
  const auto passes = static_cast<std::size_t>(microbatches_of(q.plan, q.training) * layers);
  const bool has_backward = q.plan.passes != Passes::kForward;
  const auto frozen = static_cast<std::size_t>(microbatches_of(q.plan, q.training) * q.plan.frozen_layers);
  // Where layers of two passes run beside each other, the nodes of both are the first pass's.
  const bool knows_all = !traits_of(q.plan).pairs_passes;
  for (const auto& [counts, expected] :
       {std::pair(&forward, passes), {&backward, has_backward ? passes - frozen : 0}}) {
    std::size_t runs = 0;
    for (const auto& [where, count] : *counts) {
      RC_ASSERT(count == 1 || !knows_all);
      runs += static_cast<std::size_t>(count);
    }
    RC_ASSERT(runs == expected);
  }
}

// What a search leaves out without asking every schedule.
RC_GTEST_PROP(Memory, NoScheduleNeedsLessThanTheLeast, ()) {
  Question q = any_possible_question();
  const auto budget = memory_budget(q.model, q.plan, q.training);
  RC_ASSERT(budget.has_value());
  PlanCache cache;
  const Bytes least = least_memory(q.model, q.plan, q.training, cache);
  RC_ASSERT(0.999999 * least <= budget->peak());
  // A search does not ask larger micro-batches of one that is too large.
  q.training.micro_batch += any_of({1, 2, 5});
  RC_ASSERT(0.999999 * least <= least_memory(q.model, q.plan, q.training, cache));
}

// What a search leaves out without asking every schedule.
RC_GTEST_PROP(Planner, SchedulesHaveOtherErrorsInCommon, ()) {
  Question q = any_question();
  const auto schedules = pipeline_schedules();
  q.plan.schedule = schedules[*rc::gen::inRange<std::size_t>(0, schedules.size())]->name;
  const auto common = check_all_but_schedule(q.model, q.plan, q.training);
  const auto all = check_plan(q.model, q.plan, q.training);
  if (common) return;
  RC_ASSERT(!all.has_value());
  // A schedule with more chunks may be what has too many parts.
  if (common.error().message.find("parts of the pipeline") != std::string::npos) return;
  RC_ASSERT(all.error().where.starts_with(common.error().where));
}

// A search forecasts the passes of plans that differ in their pipeline once: as if one stage held the model.
RC_GTEST_PROP(Planner, OneStageRunsTheKernelsOfAllStages, ()) {
  const Question q = any_possible_question();
  const auto program = plan_program(q.model, q.plan, q.training);
  RC_ASSERT(program.has_value());
  const OnOneStage on = on_one_stage(q.plan);
  Training one_microbatch = q.training;
  one_microbatch.global_batch = q.training.micro_batch * on.plan.dp;
  const auto one = plan_program(q.model, on.plan, one_microbatch);
  RC_ASSERT(one.has_value());
  if (q.plan.recompute_layers > 0 || !adds_up_gradients(q.plan)) return;
  // How often each work of a pass runs for a microbatch; collectives where they are the same.
  const auto counts_of = [&](const StepProgram& of, std::int64_t microbatches) {
    std::map<std::string, std::uint64_t> counts;
    const std::vector<std::uint64_t> runs = of.run_counts();
    for (std::size_t w = 0; w < runs.size(); ++w) {
      const WorkItem& item = of.works[w];
      const bool of_pass = item.category == Category::kForward || item.category == Category::kBackward ||
                           item.category == Category::kRecompute;
      const bool collective = item.category == Category::kExpertParallel || item.category == Category::kContextParallel;
      const bool shared = item.name.starts_with("weights.") || item.name.starts_with("gradients.");
      if (of_pass && !shared && !item.name.starts_with("pipeline.") && std::holds_alternative<Operator>(item.work)) {
        counts[item.name] += runs[w];
      } else if (collective && on.collectives) {
        const auto& group = std::get<Collective>(item.work).group;
        counts[item.name + std::to_string(group.size()) + "/" + std::to_string(group.strides.front().stride)] +=
            runs[w];
      }
    }
    for (auto& [name, count] : counts) {
      RC_ASSERT(count % static_cast<std::uint64_t>(microbatches) == 0u);
      count /= static_cast<std::uint64_t>(microbatches);
    }
    return counts;
  };
  auto all = counts_of(*program, microbatches_of(q.plan, q.training));
  if (begins_sums(q.plan)) {  // one microbatch adds them to nothing
    std::erase_if(all, [](const auto& entry) { return entry.first.ends_with(".wgrad.accumulate"); });
  }
  RC_ASSERT(counts_of(*one, 1) == all);
}

// The kinds of activations are the budget, and so is the highest point of what is held over time.
RC_GTEST_PROP(Memory, KindsSumToTheBudget, ()) {
  const Question q = any_possible_question();
  const auto budget = memory_budget(q.model, q.plan, q.training);
  PlanCache cache;
  const auto details = memory_detail(q.model, q.plan, q.training, cache);
  RC_ASSERT(details.has_value() && budget.has_value());
  RC_ASSERT(details->size() == budget->stages.size());
  for (std::size_t s = 0; s < details->size(); ++s) {
    const StageMemoryDetail& stage = (*details)[s];
    const Bytes activations = budget->stages[s].activations;
    const Bytes sum = std::accumulate(stage.activations.begin(), stage.activations.end(), Bytes());
    const auto is_all = [&](Bytes parts) {
      return max(parts, activations) - min(parts, activations) <= 1e-12 * activations + 1e-3 * units::B;
    };
    RC_ASSERT(is_all(sum));
    RC_ASSERT(max(stage.gathered_weights, stage.cast_weights) <= 1.000001 * budget->stages[s].weights);
    RC_ASSERT(stage.whole_gradients + stage.unsummed_gradients <= 1.000001 * budget->stages[s].gradients);
    RC_ASSERT(stage.over_time.empty() == (q.plan.passes == Passes::kForward));
    if (stage.over_time.empty()) continue;
    RC_ASSERT(is_all(stage.over_time[stage.peak].most * units::B + stage.transient));
    RC_ASSERT(std::abs(stage.over_time.back().bytes) < 1e-6);  // a sum of roundings
    RC_ASSERT(stage.weight_gradients_due <= stage.live);
    const bool splits = traits_of(q.plan).splits_backward;
    RC_ASSERT(splits || stage.of(ActivationKind::kOutputGradients) == Bytes());
  }
}

// The more layers are frozen, the less is computed, kept and updated. Weights stay, but for operands of backward passes
// and for fp32 beside them.
RC_GTEST_PROP(Memory, FrozenLayersSave, ()) {
  Question q = any_possible_question();
  q.plan.passes = Passes::kTraining;
  q.plan.lora_rank = q.plan.frozen_layers = 0;
  auto most = memory_budget(q.model, q.plan, q.training);
  if (!most) return;
  StepFlops before = step_flops(q.model, q.plan, q.training);
  for (q.plan.frozen_layers = 1; q.plan.frozen_layers <= q.model.layers; ++q.plan.frozen_layers) {
    auto less = memory_budget(q.model, q.plan, q.training);
    RC_ASSERT(less.has_value());
    const StepFlops flops = step_flops(q.model, q.plan, q.training);
    RC_ASSERT(flops.model < before.model);
    RC_ASSERT(flops.causal < before.causal);
    // Early ends of recomputation, and layers that keep all, move to others of other kinds.
    RC_ASSERT(flops.hardware < before.hardware || q.plan.recompute_layers > 0);
    for (std::size_t stage = 0; stage < most->stages.size(); ++stage) {
      const StageMemory &now = less->stages[stage], &then = most->stages[stage];
      const Bytes padding = max(now.padding, then.padding);  // of matrices of which each has one owner
      // FSDP's shards of trained weights are the optimizer's.
      if (!has_fp32_shards(q.plan)) RC_ASSERT(now.weights <= 1.000001 * then.weights + padding);
      // Each matrix of Muon has one owner: with fewer of them, a rank may own more.
      if (q.plan.optimizer == OptimizerKind::kMuon) continue;
      RC_ASSERT(now.optimizer <= 1.000001 * then.optimizer + padding);
      RC_ASSERT(now.weights + now.optimizer <= 1.000001 * (then.weights + then.optimizer) + padding);
    }
    before = flops;
    most = std::move(less);
  }
}

// Recomputation and sharding never need more memory for what they are made to save. While the only layer of a stage
// runs again, its kept inputs are there beside what it would have kept, and so is what its forward pass needs for a
// moment: of experts, the tokens on their way out and back. Products in 8 bits keep smaller copies of what a module
// that runs again keeps as it is, and frozen products under LoRA keep nothing; layers whose activations travel to the
// host are not there to save anything.
RC_GTEST_PROP(Memory, SavingSaves, ()) {
  Question q = any_question();
  if (quantizes(q.training.precision)) q.training.precision = Precision::kBf16;
  q.plan.offload_activations = 0;
  q.plan.lora_rank = 0;
  q.plan.recompute = Recompute::kNone;
  q.plan.zero = ZeroStage::kNone;
  q.plan.weights = WeightStorage::kMaster;
  const auto most = memory_budget(q.model, q.plan, q.training);
  if (!most) return;
  q.plan.recompute = Recompute::kSelective;
  q.plan.zero = ZeroStage::kOptimizer;
  const auto less = memory_budget(q.model, q.plan, q.training);
  RC_ASSERT(less.has_value());
  const double states = q.model.moe ? 2.0 + 4.0 * static_cast<double>(q.model.moe->top_k) : 2.0;
  const Bytes inputs =
      2.0 * states * static_cast<double>(q.training.micro_batch * q.training.sequence * q.model.hidden) * units::B;
  for (std::size_t stage = 0; stage < most->stages.size(); ++stage) {
    RC_ASSERT(less->stages[stage].activations <= most->stages[stage].activations + inputs);
    RC_ASSERT(less->stages[stage].optimizer <= most->stages[stage].optimizer);
    const Bytes padding = less->stages[stage].padding;  // of matrices of which each has one owner
    RC_ASSERT(less->stages[stage].weights - padding <= most->stages[stage].weights);
    RC_ASSERT(padding > Bytes() || less->stages[stage].weights == most->stages[stage].weights);
  }
}

}  // namespace
}  // namespace ns_dist
