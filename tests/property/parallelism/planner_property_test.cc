// Is every plan either refused with a reason or planned completely? For random models, degrees and options.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "ns_dist/memory.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "support/planned_graph.h"
#include "support/random_layouts.h"

namespace ns_dist {
namespace {

std::int64_t any_of(std::vector<std::int64_t> values) { return *rc::gen::elementOf(std::move(values)); }
bool coin() { return *rc::gen::arbitrary<bool>(); }

struct Question {
  Model model;
  ParallelPlan plan;
  Training training;
};

Question any_question() {
  Question q;
  Model& model = q.model;
  model.name = "any";
  model.layers = *rc::gen::inRange<std::int64_t>(1, 9);
  model.heads = any_of({2, 4, 8, 12});
  model.kv_heads = coin() ? model.heads : any_of({1, 2, 4});
  if (model.heads % model.kv_heads != 0) model.kv_heads = model.heads;
  model.head_dim = any_of({16, 64});
  model.hidden = model.heads * model.head_dim;
  model.ffn = any_of({1, 3, 4}) * model.hidden;
  model.gated_mlp = coin();
  model.bias = coin();
  model.dropout = coin();
  model.tied_embeddings = coin();
  model.position = coin() ? PositionKind::kRotary : PositionKind::kLearned;
  model.position_table = model.position == PositionKind::kLearned ? 128 : 0;
  model.vocabulary = 1000;
  model.sequence = 128;
  if (coin()) model.moe = Experts{any_of({2, 4, 8}), any_of({1, 2}), model.ffn, any_of({0, 1}), 0, any_of({0, 1})};
  if (model.moe) {
    model.moe->shared_expert_ffn = model.moe->shared_experts * model.ffn;
    model.moe->first_dense_layers = std::min(model.moe->first_dense_layers, model.layers);
  }
  if (coin() && coin()) model.mla = LatentAttention{any_of({0, 32}), 32, 16, 16, 16};
  if (model.moe) model.moe->layers.every = any_of({1, 2, 3});
  model.norm_placement = static_cast<NormPlacement>(any_of({0, 1, 2}));
  model.qk_norm = static_cast<QueryKeyNorm>(any_of({0, 1, 2, 3}));
  model.branches = static_cast<Branches>(any_of({0, 1, 2}));
  model.sliding_window = any_of({0, 32, 64});
  model.chunked_attention = coin();
  model.full_attention_layers = coin() ? LayerSet{any_of({0, 2, 3}), {}} : LayerSet{0, {0, 3}};
  model.no_rotary_layers.every = any_of({0, 2, 4});
  model.prediction_layers = any_of({0, 1, 2});
  ParallelPlan& plan = q.plan;
  plan.tp = any_of({1, 2, 3, 4});
  plan.pp = any_of({1, 2, 3, 4});
  plan.dp = any_of({1, 2, 4});
  plan.ep = any_of({1, 1, 2, 4});
  plan.vpp = any_of({1, 1, 2});
  plan.schedule = plan.vpp > 1 ? "interleaved" : (coin() ? "1f1b" : "gpipe");
  plan.cp = any_of({1, 1, 2, 4});
  plan.cp_comm = static_cast<ContextExchange>(any_of({0, 1, 2, 3}));
  plan.expert_dispatch = static_cast<ExpertDispatch>(any_of({0, 0, 1}));
  if (plan.cp_comm == ContextExchange::kHierarchical) plan.cp_inner = any_of({0, 0, 1, 2});
  plan.etp = any_of({0, 0, 1, 2});
  plan.zero = static_cast<ZeroStage>(any_of({0, 1, 2, 3}));
  if (plan.zero == ZeroStage::kParameters) plan.zero_library = static_cast<ZeroLibrary>(any_of({0, 1, 2}));
  if (coin()) plan.reduce_each = ReduceEach::kRound;
  plan.gradient_exchange = static_cast<GradientExchange>(any_of({0, 0, 1}));
  if (coin()) {
    plan.optimizer = OptimizerKind::kMuon;
    plan.muon_tp = static_cast<MuonSplit>(*rc::gen::inRange(0, 3));
    plan.muon_buffers = static_cast<MuonBuffers>(*rc::gen::inRange(0, 2));
  }
  plan.shard = coin() && coin() ? any_of({1, 2}) : 0;
  plan.reshard = coin();
  plan.prefetch = any_of({0, 1});
  plan.recompute_layers = any_of({0, 1});
  plan.recompute_modules = static_cast<ModuleSet>(*rc::gen::inRange(1, 128));
  plan.overlap_tp = coin();
  plan.overlap_ep = coin();
  plan.recompute = static_cast<Recompute>(any_of({0, 1, 2}));
  plan.recompute_early_stop = coin();
  plan.frozen_layers = any_of({0, 0, 0, 1, 3, model.layers});
  plan.sequence_parallel = coin();
  plan.flash_attention = coin();
  plan.overlap_grad_reduce = coin();
  plan.overlap_param_gather = coin();
  plan.overlap_p2p = coin();
  plan.blocking_tp = static_cast<TensorBlocking>(*rc::gen::inRange(0, 3));
  plan.grad_accumulation = static_cast<GradAccumulation>(*rc::gen::inRange(0, 4));
  plan.loss_library =
      std::array{Library::kDefault, Library::kEager, Library::kFlash2}[static_cast<std::size_t>(any_of({0, 1, 2}))];
  plan.loss_metrics = any_of({0, 0, 1, 2});
  q.training = {any_of({1, 2, 3, 4}) * plan.dp * any_of({1, 2, 4}), any_of({1, 2}), any_of({64, 128}), Precision::kBf16,
                model.prediction_layers > 0 && coin()};
  q.training.document_tokens = any_of({0, 0, 1, 24, 64, 200});
  if (coin()) {
    plan.pipeline_layout = any_layout(model, plan, q.training.mtp,
                                      [](std::int64_t most) { return *rc::gen::inRange<std::int64_t>(0, most); });
  }
  return q;
}

RC_GTEST_PROP(Planner, APlanThatChecksIsPlannedWithoutACircle, ()) {
  const Question q = any_question();
  const bool fine = check_plan(q.model, q.plan, q.training).has_value();
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
  const Question q = any_question();
  const auto graph = planned_graph(q.model, q.plan, q.training);
  if (!graph) return;
  std::map<std::pair<int, int>, int> forward, backward;
  for (const GraphNode& node : graph->nodes()) {
    const WorkItem& item = graph->works()[index(node.work)];
    const std::string first = q.model.mla ? "attention.kv_down" : "attention.qkv";
    if (item.category == Category::kForward && item.name == first) {
      ++forward[{node.origin.microbatch, node.origin.layer}];
    }
    if (item.name == first + ".dgrad") ++backward[{node.origin.microbatch, node.origin.layer}];
  }
  const std::int64_t layers = q.model.layers + (q.training.mtp ? q.model.prediction_layers : 0);
  const auto passes = static_cast<std::size_t>(microbatches_of(q.plan, q.training) * layers);
  const auto frozen = static_cast<std::size_t>(microbatches_of(q.plan, q.training) * q.plan.frozen_layers);
  RC_ASSERT(forward.size() == passes);
  RC_ASSERT(backward.size() == passes - frozen);
  for (const auto& counts : {forward, backward}) {
    for (const auto& [where, count] : counts) RC_ASSERT(count == 1);
  }
}

// What a search leaves out without asking every schedule.
RC_GTEST_PROP(Memory, NoScheduleNeedsLessThanTheLeast, ()) {
  Question q = any_question();
  const auto schedules = pipeline_schedules();
  const PipelineSchedule& schedule = *schedules[*rc::gen::inRange<std::size_t>(0, schedules.size())];
  q.plan.schedule = schedule.name;
  q.plan.vpp = std::max(schedule.least_chunks, q.plan.vpp);
  q.plan.offload_activations = any_of({0, 0, 1, 2});
  q.plan.lora_rank = q.plan.frozen_layers == 0 ? any_of({0, 0, 8}) : 0;
  q.plan.weights = static_cast<WeightStorage>(any_of({0, 0, 1, 2}));
  if (q.plan.weights != WeightStorage::kMaster) q.plan.zero = ZeroStage::kNone;
  q.training.global_batch = q.plan.dp * q.training.micro_batch * q.plan.pp * any_of({1, 2, 4});
  const auto budget = memory_budget(q.model, q.plan, q.training);
  if (!budget) return;
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
  const Question q = any_question();
  const auto program = plan_program(q.model, q.plan, q.training);
  if (!program || q.plan.recompute_layers > 0 || !adds_up_gradients(q.plan)) return;
  const OnOneStage on = on_one_stage(q.plan);
  Training one_microbatch = q.training;
  one_microbatch.global_batch = q.training.micro_batch * on.plan.dp;
  const auto one = plan_program(q.model, on.plan, one_microbatch);
  RC_ASSERT(one.has_value());
  // How often each work of a pass runs for a microbatch; collectives where they are the same.
  const auto counts_of = [&](const StepProgram& of, std::int64_t microbatches) {
    std::map<std::string, std::uint64_t> counts;
    const std::vector<std::uint64_t> runs = of.run_counts();
    for (std::size_t w = 0; w < runs.size(); ++w) {
      const WorkItem& item = of.works[w];
      const bool of_pass = item.category == Category::kForward || item.category == Category::kBackward ||
                           item.category == Category::kRecompute;
      const bool collective = item.category == Category::kExpertParallel || item.category == Category::kContextParallel;
      if (of_pass && !item.name.starts_with("pipeline.") && !item.name.starts_with("gradients.") &&
          std::holds_alternative<Operator>(item.work)) {
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
  RC_ASSERT(counts_of(*one, 1) == counts_of(*program, microbatches_of(q.plan, q.training)));
}

// The kinds of activations are the budget, and so is the highest point of what is held over time.
RC_GTEST_PROP(Memory, KindsSumToTheBudget, ()) {
  Question q = any_question();
  const auto schedules = pipeline_schedules();
  const PipelineSchedule& schedule = *schedules[*rc::gen::inRange<std::size_t>(0, schedules.size())];
  q.plan.schedule = schedule.name;
  q.plan.vpp = schedule.most_chunks > 0 ? schedule.most_chunks : std::max(schedule.least_chunks, q.plan.vpp);
  // Most of these plans can run.
  q.plan.tp = q.model.heads % q.plan.tp == 0 ? q.plan.tp : 1;
  q.model.layers = std::max(q.model.layers, q.plan.pp * q.plan.vpp);
  q.plan.flash_attention = q.plan.flash_attention || q.plan.cp > 1;
  if (!q.model.moe) q.plan.ep = 1;
  if (q.plan.ep == 1) q.plan.expert_dispatch = ExpertDispatch::kAllToAll;
  q.plan.offload_activations = any_of({0, 0, 1, 2});
  q.plan.lora_rank = q.plan.frozen_layers == 0 ? any_of({0, 0, 8}) : 0;
  q.plan.bf16_first_layers = any_of({0, 1});
  q.plan.passes = static_cast<Passes>(any_of({0, 0, 1, 2}));
  q.training.precision = static_cast<Precision>(*rc::gen::inRange(0, 8));
  q.training.global_batch = q.plan.dp * q.training.micro_batch * q.plan.pp * any_of({1, 2, 4});
  const auto budget = memory_budget(q.model, q.plan, q.training);
  PlanCache cache;
  const auto details = memory_detail(q.model, q.plan, q.training, cache);
  RC_ASSERT(details.has_value() == budget.has_value());
  if (!budget) return;
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
    const bool splits = schedule.splits_backward;
    RC_ASSERT(splits || stage.of(ActivationKind::kOutputGradients) == Bytes());
  }
}

// The more layers are frozen, the less is computed, kept and updated. Weights stay, but for operands of backward passes
// and for fp32 beside them.
RC_GTEST_PROP(Memory, FrozenLayersSave, ()) {
  Question q = any_question();
  q.plan.weights = static_cast<WeightStorage>(any_of({0, 0, 1, 2}));
  if (q.plan.weights != WeightStorage::kMaster) q.plan.zero = ZeroStage::kNone;
  q.plan.frozen_layers = 0;
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
      RC_ASSERT(now.optimizer <= 1.000001 * then.optimizer + padding);
      RC_ASSERT(now.weights + now.optimizer <= 1.000001 * (then.weights + then.optimizer) + padding);
    }
    before = flops;
    most = std::move(less);
  }
}

// Recomputation and sharding never need more memory for what they are made to save. While the only layer of a stage
// runs again, its kept inputs are there beside what it would have kept, and so is what its forward pass needs for a
// moment: of experts, the tokens on their way out and back.
RC_GTEST_PROP(Memory, SavingSaves, ()) {
  Question q = any_question();
  q.plan.recompute = Recompute::kNone;
  q.plan.zero = ZeroStage::kNone;
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
