#include "ns_dist/parameters.h"

#include "block.h"

namespace ns_dist {

ModelParameters model_parameters(const Model& model) {
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  const std::int64_t dense = dense_layers(model), with_experts = model.layers - dense;
  ModelParameters parameters;
  parameters.embedding = parameters_of(embedding_block(shape)).total();
  if (dense > 0) parameters.layers += static_cast<double>(dense) * parameters_of(layer_block(shape, false)).total();
  if (with_experts > 0) {
    parameters.layers += static_cast<double>(with_experts) * parameters_of(layer_block(shape, true)).total();
  }
  const Block loss = loss_block(shape);
  parameters.final_norm = loss.steps.front().parameters.total();
  parameters.output = parameters_of(loss).total() - parameters.final_norm;
  return parameters;
}

}  // namespace ns_dist
