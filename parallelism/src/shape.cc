#include "shape.h"

#include <algorithm>

#include "ns_dist/parameters.h"
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

bool is_moe_layer(const Model& model, std::int64_t layer) {
  return model.moe && layer >= model.moe->first_dense_layers;
}

RankParameters layer_rank_parameters(const Model& model, const ParallelPlan& plan, std::int64_t layer) {
  const LayerParameters parameters = layer_parameters(model, layer);
  const auto tp = static_cast<double>(plan.tp);
  const auto hidden = static_cast<double>(model.hidden);
  double whole = parameters.norms;  // on every tensor-parallel rank
  double split = parameters.attention + parameters.mlp;
  const auto keep_whole = [&](double part) {
    whole += part;
    split -= part;
  };
  if (is_moe_layer(model, layer)) keep_whole(hidden * static_cast<double>(model.moe->experts));
  if (model.mla) {
    const auto q_rank = static_cast<double>(model.mla->q_rank);
    keep_whole(hidden * q_rank + q_rank);
    keep_whole(hidden * static_cast<double>(model.mla->kv_rank + model.mla->rope_head_dim) +
               static_cast<double>(model.mla->kv_rank));
  } else if (model.kv_heads < plan.tp) {
    // Key-value heads are replicated over the ranks that share them.
    const double key_values = 2 * static_cast<double>(model.kv_heads * model.head_dim) * hidden;
    split += key_values * (tp / static_cast<double>(model.kv_heads) - 1);
  }
  if (model.bias) keep_whole(2 * hidden);  // biases of the two row-parallel projections
  return {whole + split / tp, parameters.experts / tp / static_cast<double>(plan.ep)};
}

RankParameters embedding_rank_parameters(const Model& model, const ParallelPlan& plan) {
  const auto hidden = static_cast<double>(model.hidden);
  const double norm = model.embedding_norm ? hidden * (model.norm == NormKind::kLayerNorm ? 2 : 1) : 0;
  return {static_cast<double>(padded_vocabulary(model, plan.tp)) * hidden / static_cast<double>(plan.tp) +
              static_cast<double>(model.position_table) * hidden + norm,
          0};
}

RankParameters output_rank_parameters(const Model& model, const ParallelPlan& plan) {
  const auto hidden = static_cast<double>(model.hidden);
  const bool own_projection = !model.tied_embeddings || plan.pp > 1;
  return {hidden * (model.norm == NormKind::kLayerNorm ? 2 : 1) +
              (own_projection
                   ? static_cast<double>(padded_vocabulary(model, plan.tp)) * hidden / static_cast<double>(plan.tp)
                   : 0),
          0};
}

RankParameters stage_rank_parameters(const Model& model, const ParallelPlan& plan, std::span<const LayerRange> chunks,
                                     std::int64_t stage) {
  RankParameters held;
  for (const LayerRange& range : chunks) {
    for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer) {
      held += layer_rank_parameters(model, plan, layer);
    }
  }
  if (stage == 0) held += embedding_rank_parameters(model, plan);
  if (stage == plan.pp - 1) held += output_rank_parameters(model, plan);
  return held;
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
