#include "ns_dist/parameters.h"

namespace ns_dist {
namespace {

double linear(double in, double out, bool bias) { return in * out + (bias ? out : 0); }

double attention_parameters(const Model& model) {
  const auto hidden = static_cast<double>(model.hidden), heads = static_cast<double>(model.heads);
  if (model.mla) {
    // DeepSeek-V2, s.2.1: down- and up-projections with a norm on each latent; the rotary key is shared by the heads.
    const LatentAttention& mla = *model.mla;
    const auto q_rank = static_cast<double>(mla.q_rank), kv_rank = static_cast<double>(mla.kv_rank);
    const auto nope = static_cast<double>(mla.nope_head_dim), rope = static_cast<double>(mla.rope_head_dim);
    const auto value = static_cast<double>(mla.v_head_dim);
    const double query =
        mla.q_rank > 0 ? hidden * q_rank + q_rank + q_rank * heads * (nope + rope) : hidden * heads * (nope + rope);
    return query + hidden * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value) + heads * value * hidden;
  }
  const auto head_dim = static_cast<double>(model.head_dim), kv_heads = static_cast<double>(model.kv_heads);
  return linear(hidden, (heads + 2 * kv_heads) * head_dim, model.bias || model.qkv_bias) +
         linear(heads * head_dim, hidden, model.bias);
}

double mlp_parameters(const Model& model, std::int64_t ffn) {
  const auto hidden = static_cast<double>(model.hidden), width = static_cast<double>(ffn);
  return (model.gated_mlp ? 2 : 1) * linear(hidden, width, model.bias) + linear(width, hidden, model.bias);
}

double norm_parameters(const Model& model) {
  return static_cast<double>(model.hidden) * (model.norm == NormKind::kLayerNorm ? 2 : 1);
}

bool has_experts(const Model& model, std::int64_t layer) { return model.moe && layer >= model.moe->first_dense_layers; }

}  // namespace

LayerParameters layer_parameters(const Model& model, std::int64_t layer) {
  LayerParameters parameters;
  parameters.attention = attention_parameters(model);
  parameters.norms = 2 * norm_parameters(model);
  if (has_experts(model, layer)) {
    const Experts& moe = *model.moe;
    const auto experts = static_cast<double>(moe.experts);
    parameters.mlp = static_cast<double>(model.hidden) * experts +
                     static_cast<double>(moe.shared_experts) * mlp_parameters(model, moe.shared_expert_ffn);
    parameters.experts = experts * mlp_parameters(model, moe.expert_ffn);
  } else {
    parameters.mlp = mlp_parameters(model, model.ffn);
  }
  return parameters;
}

ModelParameters model_parameters(const Model& model) {
  ModelParameters parameters;
  const auto hidden = static_cast<double>(model.hidden);
  parameters.embedding = (static_cast<double>(model.vocabulary) + static_cast<double>(model.position_table)) * hidden +
                         (model.embedding_norm ? norm_parameters(model) : 0);
  // All layers of a kind are alike.
  const std::int64_t dense = model.moe ? model.moe->first_dense_layers : model.layers;
  if (dense > 0) parameters.layers += static_cast<double>(dense) * layer_parameters(model, 0).total();
  if (dense < model.layers) {
    parameters.layers += static_cast<double>(model.layers - dense) * layer_parameters(model, dense).total();
  }
  parameters.final_norm = norm_parameters(model);
  parameters.output = model.tied_embeddings ? 0 : static_cast<double>(model.vocabulary) * hidden;
  return parameters;
}

double active_parameters(const Model& model) {
  double active = model_parameters(model).total();
  if (model.moe) {
    const Experts& moe = *model.moe;
    const double idle = 1 - static_cast<double>(moe.top_k) / static_cast<double>(moe.experts);
    active -= static_cast<double>(model.layers - moe.first_dense_layers) *
              layer_parameters(model, model.layers - 1).experts * idle;
  }
  return active;
}

}  // namespace ns_dist
