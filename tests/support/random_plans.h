// Random models, plans and layouts of pipelines for property tests. Members that are flags or enumerators are drawn as
// their tables have them: a new one comes by itself.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {

// 0 to end - 1, of any size from the first case on.
inline std::int64_t below(std::int64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(0, end));
}
inline bool coin() { return *rc::gen::arbitrary<bool>(); }
inline bool one_in(std::int64_t times) { return below(times) == 0; }

template <class Values>
auto one_of(const Values& values) {
  return values[static_cast<std::size_t>(below(std::ssize(values)))];
}
inline std::int64_t any_of(const std::vector<std::int64_t>& values) { return one_of(values); }

template <class Enum>
Enum any_enum() {
  return static_cast<Enum>(below(std::ssize(names_of<Enum>())));
}
// Of one enumerator or more.
template <class Enum>
EnumSet any_set() {
  return static_cast<EnumSet>(1 + below((std::int64_t{1} << names_of<Enum>().size()) - 1));
}

// Draws flags and enumerators of a table.
struct AnyChoice {
  void operator()(const Field&, bool& value) const { value = coin(); }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const Field& field, Enum& value) const {
    value = field.names.empty() ? any_enum<Enum>() : *enumerator_from_name<Enum>(one_of(field.names));
  }
  void operator()(const Field&, Recomputation& value) const {
    const bool by_number = coin();
    value = {any_enum<Recompute>(), any_set<RecomputeModule>(), by_number ? any_of({0, 0, 1, 2}) : 0,
             by_number ? 1 : any_of({1, 1, 2, 3}), one_of(std::array{KeptProducts::kEverySecond, KeptProducts::kAll})};
  }
  template <class Other>
  requires(!std::is_enum_v<Other>) void operator()(const Field&, const Other&) const {}
};

// One of the plan's own stages and chunks: layers fall where `below` says, and positions may be without any. Even where
// the schedule has no such chunks.
inline PipelineLayout any_layout(const Model& model, const ParallelPlan& plan, bool predicts) {
  const auto schedule = pipeline_schedule(plan.schedule);
  if (!schedule || !(*schedule)->has_chunks(plan.vpp)) return {};
  const auto positions = static_cast<std::int64_t>((*schedule)->seats({plan.pp, 1, plan.vpp})[0].size());
  std::vector<PositionParts> parts(static_cast<std::size_t>(positions));
  std::int64_t last = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t at = below(positions);
    ++parts[static_cast<std::size_t>(at)].layers;
    last = std::max(last, at);
  }
  if (predicts) parts[static_cast<std::size_t>(last + below(positions - last))].predictions = model.prediction_layers;
  return {pipeline_layout_text(parts)};
}

struct Question {
  Model model;
  ParallelPlan plan;
  Training training;
};

// Layers of several kinds: with windows, the delta rule or Mamba-2, with or without experts, for multi-token
// prediction.
inline Model any_model(std::int64_t most_layers) {
  Model model;
  model.id = model.name = "any";
  model.layers = 1 + below(most_layers);
  model.heads = any_of({2, 4, 8, 8, 12});
  model.kv_heads = coin() ? model.heads : any_of({1, 2, 4});
  if (model.heads % model.kv_heads != 0) model.kv_heads = model.heads;
  model.head_dim = any_of({16, 64});
  model.hidden = model.heads * model.head_dim;
  model.ffn = any_of({1, 3, 4}) * model.hidden;
  model.gated_mlp = coin();
  model.norm = any_enum<NormalizationKind>();
  model.position = any_enum<PositionKind>();
  model.position_table = model.position == PositionKind::kLearned ? 128 : 0;
  model.bias = coin();
  model.qkv_bias = coin();
  model.dropout = coin();
  model.tied_embeddings = coin();
  model.embedding_norm = coin();
  model.attention_gate = one_in(4);
  model.norm_placement = any_enum<NormPlacement>();
  model.qk_norm = any_enum<QueryKeyNorm>();
  model.branches = any_enum<Branches>();
  model.rotary_dim = any_of({0, model.head_dim / 2});
  model.vocabulary = any_of({1000, 1024});
  model.sequence = 128;
  model.sliding_window = any_of({0, 32, 64});
  model.chunked_attention = coin();
  model.full_attention_layers = coin() ? LayerSet{any_of({0, 2, 3}), {}} : LayerSet{0, {0, 3}};
  model.no_rotary_layers.every = any_of({0, 2, 4});
  model.prediction_layers = any_of({0, 1, 2});
  if (coin()) {
    Experts& moe = model.moe.emplace();
    moe.experts = any_of({2, 4, 8});
    moe.top_k = any_of({1, 2});
    moe.expert_ffn = model.ffn;
    moe.shared_experts = any_of({0, 1, 2});
    moe.shared_expert_ffn = moe.shared_experts > 0 ? model.ffn : 0;
    moe.shared_gate = moe.shared_experts > 0 && coin();
    moe.first_dense_layers = std::min(any_of({0, 1, model.layers / 4}), model.layers);
    moe.layers.every = any_of({1, 2, 3});
  }
  if (one_in(4)) {
    model.mla = LatentAttention{any_of({0, 32}), 32, 16, 16, 16};
    model.attention_gate = false;
  } else if (one_in(4)) {
    model.delta_net = DeltaNet{12, any_of({12, 24}), 16, any_of({16, 32})};
  } else if (one_in(4)) {
    model.state_space = StateSpace{12, 16, 4, 16, 4};
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      model.layer_pattern += one_of(std::string(model.moe ? "M-*E" : "M-*-"));
    }
  }
  return model;
}

// About half of them can run; the others contradict themselves in ways that users do, too.
inline Question draw_question(std::int64_t most_layers) {
  Question q;
  q.model = any_model(most_layers);
  const Model& model = q.model;
  ParallelPlan& plan = q.plan;
  visit_fields(AnyChoice(), plan);
  if (!one_in(8)) plan.passes = Passes::kTraining;
  plan.tp = any_of({1, 1, 2, 2, 4, 3});
  plan.pp = any_of({1, 2, 3, 4, std::min<std::int64_t>(6, model.layers), std::min<std::int64_t>(8, model.layers)});
  plan.dp = any_of({1, 2, 4});
  plan.cp = any_of({1, 1, 1, 2, 4});
  if (plan.cp > 1) plan.flash_attention = true;
  if (plan.cp_comm == ContextExchange::kHierarchical) plan.cp_inner = any_of({0, 0, 1, 2});
  if (model.moe) {
    plan.ep = any_of({1, 2, plan.dp});
    plan.etp = any_of({0, 0, 0, 1, 2});
    if (plan.etp != 0) plan.sequence_parallel = true;
    if (expert_tp(plan) > 1 && plan.expert_dispatch == ExpertDispatch::kDeepEp) {
      plan.expert_dispatch = ExpertDispatch::kAllGather;
    }
    if (plan.expert_dispatch == ExpertDispatch::kAllToAll && one_in(4)) plan.expert_capacity = {1.25};
    if (one_in(4)) plan.expert_imbalance = {1.5};
  }
  const PipelineSchedule& schedule = *one_of(pipeline_schedules());
  const bool hides_nothing = schedule.hides_tokens && plan.ep == 1;
  plan.schedule = hides_nothing ? ParallelPlan().schedule : schedule.name;
  const PipelineSchedule& runs = traits_of(plan);
  plan.vpp = runs.most_chunks == 0 ? std::max(runs.least_chunks, any_of({1, 2, 3})) : runs.least_chunks;

  if (one_in(4)) plan.shard = any_of({1, 2, plan.dp});
  if (plan.shard > 0 && plan.zero == ZeroStage::kNone) plan.shard = 0;
  plan.prefetch = any_of({0, 1, 2});
  plan.offload_activations = any_of({0, 0, 1, 3});
  plan.vocabulary_multiple = any_of({0, 0, 1, 64});
  plan.loss_parts = any_of({0, 0, 1, 3});
  plan.loss_metrics = any_of({0, 0, 1, 2});
  plan.lora_rank = any_of({0, 0, 0, 8});
  if (plan.lora_rank == 0)
    plan.frozen_layers = any_of({0, 0, 0, 0, 1, std::min<std::int64_t>(3, model.layers), model.layers});
  if (plan.lora_rank == 0) plan.frozen_weights = FrozenWeights::kPlain;
  plan.bf16_first_layers = any_of({0, 0, 2});
  plan.bf16_last_layers = any_of({0, 0, 1});
  plan.reduce_bucket = any_of({0, 100'000});
  plan.offload_optimizer = {0.5 * static_cast<double>(any_of({0, 0, 1, 2}))};
  if (plan.optimizer == OptimizerKind::kMuon) {
    plan.offload_optimizer = {};
    if (plan.zero == ZeroStage::kParameters) plan.zero_library = ZeroLibrary::kFsdp2;
  }
  if (plan.zero != ZeroStage::kParameters || is_whole_in_passes(plan) || plan.offload_optimizer.value < 1) {
    plan.offload_weights = false;
  }
  if (coin()) plan.weights = WeightStorage::kMaster;
  if (plan.weights != WeightStorage::kMaster) plan.grad_accumulation = GradAccumulation::kLow;
  if (plan.weights == WeightStorage::kFp32 || (plan.weights == WeightStorage::kLow && !is_fsdp(plan))) {
    plan.zero = ZeroStage::kNone;
    plan.shard = 0;
    plan.offload_weights = false;
  }

  Training& training = q.training;
  training.precision = coin() ? Precision::kBf16 : any_enum<Precision>();
  if (quantizes(training.precision)) plan.frozen_weights = FrozenWeights::kPlain;
  training.micro_batch = any_of({1, 2});
  training.sequence = any_of({64, 128});
  training.document_tokens = any_of({0, 0, 1, 24, 64, 200});
  training.mtp = model.prediction_layers > 0 && coin();
  training.global_batch = training.micro_batch * plan.dp * (coin() ? plan.pp * any_of({1, 2, 4}) : 1 + below(12));
  if (one_in(3)) {
    divide_evenly(plan);
    plan.pipeline_layout = any_layout(model, plan, training.mtp);
  } else if (one_in(2)) {
    divide_evenly(plan);
  }
  return q;
}

// What a failed property shows of it.
inline void show(const Question& q) {
  const Model& model = q.model;
  RC_LOG() << model.layers << " layers " << model.layer_pattern << " of " << model.heads << " heads, " << model.kv_heads
           << " of keys, " << model.head_dim << " wide, MLP " << model.ffn << ", norm " << name_of(model.norm_placement)
           << ", of queries " << name_of(model.qk_norm) << ", " << name_of(model.branches) << ", window "
           << model.sliding_window << ", full attention every " << model.full_attention_layers.every << ", predictions "
           << model.prediction_layers << (model.gated_mlp ? ", gated" : "") << (model.bias ? ", bias" : "")
           << (model.tied_embeddings ? ", tied" : "") << (model.dropout ? ", dropout" : "")
           << (model.mla ? ", latent attention" : "") << (model.delta_net ? ", delta rule" : "");
  if (model.moe) {
    RC_LOG() << ", top " << model.moe->top_k << " of " << model.moe->experts << " experts every "
             << model.moe->layers.every << " from " << model.moe->first_dense_layers << ", shared "
             << model.moe->shared_experts;
  }
  const auto add = [](const std::vector<Assignment>& fields) {
    for (const Assignment& field : fields) RC_LOG() << ", " << field.field << "=" << field.text;
  };
  add(differences(ParallelPlan(), q.plan));
  add(differences(Training(), q.training));
  RC_LOG() << "\n";
}

inline Question any_question() {
  const Question q = draw_question(8);
  show(q);
  return q;
}

// One that check_plan accepts.
inline Question any_possible_question(std::int64_t most_layers = 8) {
  Question q = draw_question(most_layers);
  while (!check_plan(q.model, q.plan, q.training)) q = draw_question(most_layers);
  show(q);
  return q;
}

}  // namespace ns_dist
