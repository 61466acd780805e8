#include <algorithm>

#include "ns_dist/parameters.h"
#include "ns_dist/planner.h"
#include "shape.h"

namespace ns_dist {
namespace {

// Forward FLOPs of one token, two a multiply-add.
struct TokenFlops {
  double core = 0, layers = 0, logits = 0;  // core: attention scores and weighted sum, part of `layers`
};

TokenFlops token_flops(const Model& model, const Training& training) {
  TokenFlops flops;
  const double query =
      static_cast<double>(model.mla ? model.mla->nope_head_dim + model.mla->rope_head_dim : model.head_dim);
  const double value = static_cast<double>(model.mla ? model.mla->v_head_dim : model.head_dim);
  const std::int64_t keys =
      model.sliding_window > 0 ? std::min(model.sliding_window, training.sequence) : training.sequence;
  const double core = 2 * static_cast<double>(keys) * static_cast<double>(model.heads) * (query + value);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    // Matrix products: every weight of the layer once, routed experts top_k of them. Norms and biases are left out by
    // convention; they are below 0.1 %.
    const LayerParameters parameters = layer_parameters(model, layer);
    double weights = parameters.attention + parameters.mlp;
    if (is_moe_layer(model, layer)) {
      weights += parameters.experts * static_cast<double>(model.moe->top_k) / static_cast<double>(model.moe->experts);
    }
    flops.core += core;
    flops.layers += 2 * weights + core;
  }
  flops.logits = 2 * static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden);
  return flops;
}

}  // namespace

StepFlops step_flops(const Model& model, const ParallelPlan& plan, const Training& training) {
  const TokenFlops flops = token_flops(model, training);
  const double tokens = static_cast<double>(training.global_batch) * static_cast<double>(training.sequence);
  const double model_flops = 3 * (flops.layers + flops.logits);
  double again = 0;
  if (plan.recompute == Recompute::kFull) again = flops.layers;
  if (plan.recompute == Recompute::kSelective) again = flops.core;
  return {tokens * model_flops * units::FLOP, tokens * (model_flops + again) * units::FLOP};
}

}  // namespace ns_dist
