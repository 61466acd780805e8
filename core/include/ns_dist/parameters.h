// How many parameters a model has, by part. Shared by the planner, the memory budget and the model's own test against
// the published count.
#pragma once

#include <cstdint>

#include "ns_dist/model.h"

namespace ns_dist {

struct LayerParameters {
  double attention = 0;  // projections and their biases
  double mlp = 0;        // dense MLP, or shared experts and router
  double experts = 0;    // routed experts, all of them
  double norms = 0;
  double total() const { return attention + mlp + experts + norms; }
};

// Parameters of layer `layer` (0-based; mixture-of-experts models may start with dense layers).
LayerParameters layer_parameters(const Model& model, std::int64_t layer);

struct ModelParameters {
  double embedding = 0;  // tokens and learned positions, and the norm after them
  double layers = 0;
  double final_norm = 0;
  double output = 0;  // the untied output projection
  double total() const { return embedding + layers + final_norm + output; }
};

ModelParameters model_parameters(const Model& model);

// Parameters that one token passes through: routed experts count top_k / experts.
double active_parameters(const Model& model);

}  // namespace ns_dist
