// How many parameters a model has, by part: those of the unsharded model, its vocabulary not padded. The numbers are
// exact; the catalog's published counts test them.
#pragma once

#include <cstdint>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"

namespace ns_dist {

struct ModelParameters {
  double embedding = 0;  // tokens and learned positions, and the norm after them
  double layers = 0;
  double final_norm = 0;
  double output = 0;      // the untied output projection
  double prediction = 0;  // layers for multi-token prediction, which the total leaves out
  double total() const { return embedding + layers + final_norm + output; }
};

// With all experts; active_parameters() counts those that a token goes through.
ModelParameters model_parameters(const Model& model);
// Of the total, those that a token goes through: of routed experts top_k in each layer.
double active_parameters(const Model& model);
// Those of the adapters that this plan has on all linear layers (ParallelPlan::lora_rank). `predictions`: with those of
// the layers for multi-token prediction.
double adapter_parameters(const Model& model, const ParallelPlan& plan, bool predictions = false);
// Those of the embedding, of whose table a tied projection reads, and of the model's first layers
// (ParallelPlan::frozen_layers); 0: none.
double frozen_parameters(const Model& model, std::int64_t layers);
// Of the plan's adapters, or of the model's that it does not freeze, those in the matrices that Muon updates
// (ParallelPlan::optimizer).
double matrix_parameters(const Model& model, const ParallelPlan& plan, bool predictions = false);

}  // namespace ns_dist
