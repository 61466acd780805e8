#include "shape.h"

#include <algorithm>

#include "ns_dist/planner.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

// Megatron-LM's --make-vocab-size-divisible-by.
constexpr std::int64_t kVocabularyMultiple = 128;

std::int64_t padded_vocabulary(const Model& model, std::int64_t tp) {
  const std::int64_t multiple = kVocabularyMultiple * tp;
  return (model.vocabulary + multiple - 1) / multiple * multiple;
}

}  // namespace

Shape::Shape(const Model& m, const ParallelPlan& p, const Training& training)
    : model(&m),
      plan(&p),
      dtype(training.dtype),
      element(size_of(training.dtype) / units::B),
      tp(p.tp),
      dp(p.dp),
      ep(p.ep),
      sequence_parallel(p.sequence_parallel && p.tp > 1),
      micro_batch(training.micro_batch),
      sequence(training.sequence),
      hidden(m.hidden),
      tokens(training.micro_batch * training.sequence),
      sharded_tokens(sequence_parallel ? tokens / p.tp : tokens),
      heads(m.heads / p.tp),
      kv_heads(std::max<std::int64_t>(1, m.kv_heads / p.tp)),
      query_dim(m.mla ? m.mla->nope_head_dim + m.mla->rope_head_dim : m.head_dim),
      value_dim(m.mla ? m.mla->v_head_dim : m.head_dim),
      vocabulary(padded_vocabulary(m, p.tp) / p.tp) {}

Shape Shape::whole(const Model& model, const Training& training) {
  static const ParallelPlan kUnsharded;
  Shape shape(model, kUnsharded, training);
  shape.vocabulary = model.vocabulary;
  return shape;
}

bool is_moe_layer(const Model& model, std::int64_t layer) { return layer >= dense_layers(model); }

std::int64_t dense_layers(const Model& model) {
  return model.moe ? std::min(model.layers, model.moe->first_dense_layers) : model.layers;
}

Bytes gradient_size(const ParallelPlan& plan, DType dtype) {
  return size_of(plan.grad_accumulation == GradAccumulation::kLow ? dtype : DType::kFp32);
}

double updated_parameters(const RankParameters& held, const ParallelPlan& plan) {
  if (plan.zero == ZeroStage::kNone) return held.total();
  return held.dense / static_cast<double>(plan.dp) + held.experts / static_cast<double>(plan.dp / plan.ep);
}

Rank representative(const Mesh& mesh, std::int64_t stage) {
  return mesh.size("pp") > 1 ? stage * mesh.stride("pp") : 0;
}

RankGroup tensor_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  return {representative, {{plan.tp, mesh.stride("tp")}}};
}

namespace {

bool experts_are_neighbours(const ParallelPlan& plan) {
  const auto order = rank_order(plan);
  NS_EXPECTS(order.has_value());
  return std::find(order->begin(), order->end(), "ep") < std::find(order->begin(), order->end(), "dp");
}

}  // namespace

RankGroup expert_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  const std::int64_t step = experts_are_neighbours(plan) ? 1 : plan.dp / plan.ep;
  return {representative, {{plan.ep, mesh.stride("dp") * step}}};
}

RankGroup data_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative, bool experts) {
  if (!experts) return {representative, {{plan.dp, mesh.stride("dp")}}};
  const std::int64_t step = experts_are_neighbours(plan) ? plan.ep : 1;
  return {representative, {{plan.dp / plan.ep, mesh.stride("dp") * step}}};
}

}  // namespace ns_dist
