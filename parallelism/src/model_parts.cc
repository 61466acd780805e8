#include "model_parts.h"

#include <algorithm>

#include "fragment.h"
#include "ns_dist/hash.h"
#include "ns_dist/planner.h"
#include "plan_cache.h"

namespace ns_dist {
namespace {

// The fields on which parts depend. All others have their defaults, so that a field that is new is one of the key.
PartsKey key_of(const Model& model, const ParallelPlan& plan, const Training& training) {
  static const ParallelPlan kDefault;
  PartsKey key{&model, plan, training};
  key.training.global_batch = 1;
  if (plan.passes == Passes::kGradients && plan.weights == WeightStorage::kMaster) key.plan.passes = kDefault.passes;
  key.plan.vpp = kDefault.vpp;
  divide_evenly(key.plan);
  // Of ZeRO, only whether gradients are accumulated in the products, and whether the first ones are their sums.
  const bool adds = adds_up_gradients(plan), shared = !adds && has_replicas(plan), of_fsdp = adds && is_fsdp(plan);
  if (shared || (adds && !of_fsdp)) {  // shards in fp32 need no replicas
    key.plan.zero = shared ? ZeroStage::kGradients : kDefault.zero;
    key.plan.zero_library = kDefault.zero_library;
  }
  key.plan.shard = kDefault.shard;
  if (!of_fsdp) key.plan.reduce_each = kDefault.reduce_each;
  key.plan.gradient_exchange = kDefault.gradient_exchange;
  key.plan.reshard = kDefault.reshard;
  key.plan.prefetch = kDefault.prefetch;
  key.plan.fp8_params = kDefault.fp8_params;
  key.plan.optimizer_state = kDefault.optimizer_state;
  key.plan.muon_tp = kDefault.muon_tp;
  key.plan.muon_steps = kDefault.muon_steps;
  key.plan.muon_buffers = kDefault.muon_buffers;
  key.plan.kv_cache = kDefault.kv_cache;
  key.plan.offload_optimizer = kDefault.offload_optimizer;
  key.plan.offload_gradients = kDefault.offload_gradients;
  key.plan.copy_gradients = kDefault.copy_gradients;
  key.plan.reduce_bucket = kDefault.reduce_bucket;
  key.plan.average_in_collective = kDefault.average_in_collective;
  key.plan.offload_activations = kDefault.offload_activations;
  key.plan.recompute_layers = plan.recompute_layers > 0 ? 1 : 0;
  key.plan.recompute_together = kDefault.recompute_together;
  key.plan.overlap_grad_reduce = kDefault.overlap_grad_reduce;
  key.plan.overlap_param_gather = kDefault.overlap_param_gather;
  key.plan.grad_buckets = kDefault.grad_buckets;
  key.plan.overlap_p2p = kDefault.overlap_p2p;
  key.plan.frozen_layers = frozen_layers_of(plan) > 0 ? 1 : 0;
  key.plan.bf16_first_layers = has_layers_in_16_bits(plan) ? 1 : 0;
  key.plan.bf16_last_layers = kDefault.bf16_last_layers;
  // Of a schedule, only whether it splits backward passes; of the pipeline, whether the loss has a table of its own.
  key.splits_backward = traits_of(plan).splits_backward;
  key.plan.schedule = kDefault.schedule;
  // Tensor- and context-parallel ranks are neighbors, whatever the other degrees are, where these come first.
  if (plan.ep == 1 && expert_tp(plan) <= plan.tp && plan.order.starts_with(plan.cp == 1 ? "tp" : "tp-cp")) {
    key.plan.dp = shared ? 2 : 1;
    key.plan.pp = std::min<std::int64_t>(plan.pp, 2);
  }
  // Of the batch, how many microbatches share the first one's gradients.
  if (begins_sums(plan) && adds) {
    const std::int64_t microbatches = std::max<std::int64_t>(1, microbatches_of(plan, training));
    key.training.global_batch = microbatches * training.micro_batch * key.plan.dp;
  }
  return key;
}

// `sizes`: without fragments.
ModelParts make_parts(const Model& model, const PartsKey& key, bool sizes) {
  const Shape shape(model, key.plan, key.training);
  ModelParts made;
  made.layers = layer_kinds(model);
  made.prediction_layers = shape.prediction_layers;
  const std::size_t kinds = made.layers.kinds.size();
  made.parts.resize(static_cast<std::size_t>(layer_part(kinds, LayerPart::kUsual, false)));
  each_part(model, made.layers, key.plan, key.training, [&](Part part, const Block& block, const Shape& own) {
    ModelPart& added = made.parts[static_cast<std::size_t>(part)];
    const bool adapts = own.plan->lora_rank > 0, frozen = is_frozen(key.plan, part);
    added.frozen = frozen_of(block, own, adapts || frozen ? Freezes::kAll : Freezes::kSteps);
    if (!frozen) {
      added.parameters = adapts ? adapters_of(block) : trained_of(block);
      added.matrices = matrices_of(block);
      added.kept = kept_bytes(block, own.plan->recompute, own.plan->recompute_modules);
      added.whole = kept_bytes(block, Recompute::kNone).after_forward;
    }
    if (frozen) {
      added.transient = forward_working_bytes(block);
    } else if (key.plan.passes == Passes::kForward) {
      added.working = added.working_of_split = forward_working_bytes(block);
    } else {
      added.working = working_bytes(block, own.plan->recompute, own.plan->recompute_modules, false);
      added.working_of_split = working_bytes(block, own.plan->recompute, own.plan->recompute_modules, true);
      added.transient = forward_transient(block);
    }
    added.cached = block.cached;
    added.logged = block.logged;
    if (sizes) return;
    const FragmentMaker maker(own, mesh_of(key.plan), made.works);
    const auto add_pass = [&](PassKind kind) {
      added.passes[static_cast<std::size_t>(kind)] = FragmentId{static_cast<std::uint32_t>(made.fragments.size())};
      made.fragments.push_back(maker.pass(block, kind));
    };
    add_pass(PassKind::kForward);
    if (frozen || key.plan.passes == Passes::kForward) return;
    add_pass(PassKind::kBackward);
    if (!key.splits_backward) return;
    add_pass(PassKind::kInputGradient);
    add_pass(PassKind::kWeightGradient);
  });
  return made;
}

}  // namespace

void each_part(const Model& model, const LayerKinds& layers, const ParallelPlan& plan, const Training& training,
               const std::function<void(Part, const Block&, const Shape&)>& visit) {
  const Shape shape(model, plan, training);
  const auto add_layers = [&](const Shape& own, LayerPart which, bool in_16_bits) {
    for (std::size_t kind = 0; kind < layers.kinds.size(); ++kind) {
      visit(layer_part(kind, which, in_16_bits), layer_block(own, layers.kinds[kind]), own);
    }
  };
  // No backward pass reads what a frozen part casts or keeps. It drops out what it would.
  const bool freezes = frozen_layers_of(plan) > 0;
  ParallelPlan forward = plan;
  forward.passes = Passes::kForward;
  forward.recompute = Recompute::kNone;
  const auto frozen = [&](const Training& precise) {
    Shape own(model, forward, precise);
    own.dropout = shape.dropout;
    return own;
  };
  const Shape first = freezes ? frozen(training) : shape;
  visit(Part::kEmbedding, embedding_block(first), first);
  add_layers(shape, LayerPart::kUsual, false);
  visit(Part::kLoss, loss_block(shape), shape);
  if (shape.prediction_layers > 0) {
    visit(Part::kPrediction, prediction_block(shape), shape);
    visit(Part::kPredictionLoss, prediction_loss_block(shape), shape);
  }
  ParallelPlan keeping = plan;
  keeping.recompute = Recompute::kNone;
  const bool keeps = keeps_some_layers(plan), mixes = has_layers_in_16_bits(plan);
  if (keeps) add_layers(Shape(model, keeping, training), LayerPart::kKept, false);
  if (mixes) add_layers(Shape(model, plan, in_16_bits(training)), LayerPart::kUsual, true);
  if (keeps && mixes) add_layers(Shape(model, keeping, in_16_bits(training)), LayerPart::kKept, true);
  if (freezes) add_layers(first, LayerPart::kFrozen, false);
  if (freezes && mixes) add_layers(frozen(in_16_bits(training)), LayerPart::kFrozen, true);
}

std::vector<PartRun> part_runs(const ModelParts& parts, const ParallelPlan& plan, std::span<const LayerRange> layers,
                               std::size_t position) {
  std::vector<PartRun> runs;
  runs.reserve(4);
  for_each_run(parts, plan, layers, position, [&](const PartRun& run) { runs.push_back(run); });
  return runs;
}

// Of the fields that a search varies.
std::uint64_t PartsKey::hash() const {
  std::uint64_t hash = (splits_backward ? 1u : 0u) + (plan.sequence_parallel ? 2u : 0u);
  for (const std::int64_t field :
       {plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, static_cast<std::int64_t>(plan.recompute),
        static_cast<std::int64_t>(plan.zero), training.micro_batch, training.sequence, model->layers, model->hidden}) {
    hash = mix_hash(hash, static_cast<std::uint64_t>(field));
  }
  return hash;
}

std::shared_ptr<const ModelParts> model_parts(const Model& model, const ParallelPlan& plan, const Training& training,
                                              PlanCache& cache) {
  const PartsKey key = key_of(model, plan, training);
  return *cache.contents().parts.find_or_make(key,
                                              [&]() -> Result<ModelParts> { return make_parts(model, key, false); });
}

std::shared_ptr<const ModelParts> part_sizes(const Model& model, const ParallelPlan& plan, const Training& training,
                                             PlanCache& cache) {
  static const ParallelPlan kDefault;
  PartsKey key = key_of(model, plan, training);
  key.plan.dp = 1;
  key.plan.pp = std::min<std::int64_t>(plan.pp, 2);
  key.plan.order = kDefault.order;
  key.plan.zero = kDefault.zero;  // decides only which kernels sum gradients
  key.splits_backward = false;
  return *cache.contents().sizes.find_or_make(key,
                                              [&]() -> Result<ModelParts> { return make_parts(model, key, true); });
}

}  // namespace ns_dist
