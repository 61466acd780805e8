#include "ns_dist/parameters.h"

#include "block.h"

namespace ns_dist {

ModelParameters model_parameters(const Model& model) {
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  const LayerKinds layers = layer_kinds(model);
  const std::vector<std::int64_t> counts = layers_of_kinds(layers);
  ModelParameters parameters;
  parameters.embedding = parameters_of(embedding_block(shape)).total();
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    parameters.layers +=
        static_cast<double>(counts[kind]) * parameters_of(layer_block(shape, layers.kinds[kind])).total();
  }
  const Block loss = loss_block(shape);
  parameters.final_norm = loss.steps.front().parameters.total();
  parameters.output = parameters_of(loss).total() - parameters.final_norm;
  if (model.prediction_layers > 0) {
    parameters.prediction =
        static_cast<double>(model.prediction_layers) *
        (parameters_of(prediction_block(shape)) += parameters_of(prediction_loss_block(shape))).total();
  }
  return parameters;
}

double active_parameters(const Model& model) {
  double active = model_parameters(model).total();
  if (!model.moe) return active;
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  const LayerKinds layers = layer_kinds(model);
  const double idle = 1 - static_cast<double>(model.moe->top_k) / static_cast<double>(model.moe->experts);
  const std::vector<std::int64_t> counts = layers_of_kinds(layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    const double experts = parameters_of(layer_block(shape, layers.kinds[kind])).experts;
    active -= idle * experts * static_cast<double>(counts[kind]);
  }
  return active;
}

double adapter_parameters(const Model& model, std::int64_t rank) {
  if (rank == 0) return 0;
  ParallelPlan plan;
  plan.lora_rank = rank;
  const Shape shape(model, plan, {1, 1, 1, Precision::kBf16});
  double adapters = 0;
  const LayerKinds layers = layer_kinds(model);
  const std::vector<std::int64_t> counts = layers_of_kinds(layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    adapters += static_cast<double>(counts[kind]) * adapters_of(layer_block(shape, layers.kinds[kind])).total();
  }
  return adapters;
}

double matrix_parameters(const Model& model, std::int64_t rank) {
  ParallelPlan plan;
  plan.optimizer = OptimizerKind::kMuon;
  plan.lora_rank = rank;
  const Shape shape(model, plan, {1, 1, 1, Precision::kBf16});
  double all = 0;
  const LayerKinds layers = layer_kinds(model);
  const std::vector<std::int64_t> counts = layers_of_kinds(layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    for (const auto& [matrix, count] : matrices_of(layer_block(shape, layers.kinds[kind]))) {
      all += matrix.size() * static_cast<double>(count * counts[kind]);
    }
  }
  return all;
}

}  // namespace ns_dist
