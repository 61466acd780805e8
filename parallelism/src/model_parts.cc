#include "model_parts.h"

#include <algorithm>

#include "fragment.h"
#include "ns_dist/planner.h"
#include "plan_memory.h"

namespace ns_dist {
namespace {

// The fields on which parts depend. All others have their defaults, so that a field that is new is one of the key.
PartsKey key_of(const Model& model, const ParallelPlan& plan, const Training& training) {
  static const ParallelPlan kDefault;
  PartsKey key{&model, plan, training};
  key.training.global_batch = 1;
  key.plan.vpp = kDefault.vpp;
  key.plan.first_stage_layers = kDefault.first_stage_layers;
  key.plan.last_stage_layers = kDefault.last_stage_layers;
  key.plan.account_embedding = kDefault.account_embedding;
  key.plan.account_loss = kDefault.account_loss;
  key.plan.zero = kDefault.zero;
  key.plan.overlap_grad_reduce = kDefault.overlap_grad_reduce;
  key.plan.overlap_param_gather = kDefault.overlap_param_gather;
  key.plan.overlap_p2p = kDefault.overlap_p2p;
  // Of a schedule, only whether it splits backward passes; of the pipeline, whether the loss has a table of its own.
  const auto schedule = pipeline_schedule(plan.schedule);
  key.splits_backward = schedule && (*schedule)->splits_backward;
  key.plan.schedule = kDefault.schedule;
  // The ranks of a tensor-parallel group are neighbors, whatever the other degrees are, where tp comes first.
  if (plan.ep == 1 && plan.order.starts_with("tp")) {
    key.plan.dp = 1;
    key.plan.pp = std::min<std::int64_t>(plan.pp, 2);
  }
  return key;
}

ModelParts make_parts(const Model& model, const PartsKey& key) {
  const Shape shape(model, key.plan, key.training);
  const std::int64_t dense = dense_layers(model);
  ModelParts made;
  const FragmentMaker maker(shape, mesh_of(key.plan), made.works);
  const auto add = [&](Part part, const Block& block) {
    ModelPart& added = made.parts[static_cast<std::size_t>(part)];
    added.parameters = parameters_of(block);
    added.kept = kept_bytes(block, key.plan.recompute);
    added.kept_without_recompute = kept_bytes(block, Recompute::kNone).after_forward;
    const auto add_pass = [&](PassKind kind) {
      added.passes[static_cast<std::size_t>(kind)] = FragmentId{static_cast<std::uint32_t>(made.fragments.size())};
      made.fragments.push_back(maker.pass(block, kind));
    };
    add_pass(PassKind::kForward);
    add_pass(PassKind::kBackward);
    if (!key.splits_backward) return;
    add_pass(PassKind::kInputGradient);
    add_pass(PassKind::kWeightGradient);
  };
  add(Part::kEmbedding, embedding_block(shape));
  if (dense > 0) add(Part::kDenseLayer, layer_block(shape, false));
  if (dense < model.layers) add(Part::kMoeLayer, layer_block(shape, true));
  add(Part::kLoss, loss_block(shape));
  return made;
}

}  // namespace

// Of the fields that a search varies.
std::uint64_t PartsKey::hash() const {
  std::uint64_t hash = 0;
  for (const std::int64_t field : {plan.tp, plan.pp, plan.dp, plan.ep, static_cast<std::int64_t>(plan.recompute),
                                   training.micro_batch, training.sequence, model->layers, model->hidden}) {
    hash = (hash ^ static_cast<std::uint64_t>(field)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::shared_ptr<const ModelParts> model_parts(const Model& model, const ParallelPlan& plan, const Training& training,
                                              PlanMemory& memory) {
  const PartsKey key = key_of(model, plan, training);
  return *memory.contents().parts.find_or_make(key, [&]() -> Result<ModelParts> { return make_parts(model, key); });
}

}  // namespace ns_dist
