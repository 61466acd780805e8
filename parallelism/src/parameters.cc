#include "ns_dist/parameters.h"

#include <algorithm>

#include "block.h"

namespace ns_dist {
namespace {

// Of all layers, or of all but the first: `of_block` of a layer of each kind, times how many there are.
template <class OfBlock>
double sum_of_layers(const Model& model, const Shape& shape, OfBlock of_block, std::int64_t first = 0) {
  LayerKinds layers = layer_kinds(model);
  layers.of_layer.erase(layers.of_layer.begin(), layers.of_layer.begin() + std::min(first, model.layers));
  const std::vector<std::int64_t> counts = layers_of_kinds(layers);
  double sum = 0;
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    sum += static_cast<double>(counts[kind]) * of_block(layer_block(shape, layers.kinds[kind]));
  }
  return sum;
}

// With the embedding unless `frozen` layers are behind it, and with the layers that predict further tokens where these
// are trained.
template <class OfBlock>
double sum_of_blocks(const Model& model, const Shape& shape, bool predictions, OfBlock of_block,
                     std::int64_t frozen = 0) {
  double sum = frozen == 0 ? of_block(embedding_block(shape)) : 0;
  sum += sum_of_layers(model, shape, of_block, frozen);
  if (predictions && model.prediction_layers > 0) {
    sum += static_cast<double>(model.prediction_layers) * of_block(prediction_block(shape));
  }
  return sum;
}

}  // namespace

ModelParameters model_parameters(const Model& model) {
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  ModelParameters parameters;
  parameters.embedding = parameters_of(embedding_block(shape)).total();
  parameters.layers = sum_of_layers(model, shape, [](const Block& layer) { return parameters_of(layer).total(); });
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
  const double all = model_parameters(model).total();
  if (!model.moe) return all;
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  const double idle = 1 - static_cast<double>(model.moe->top_k) / static_cast<double>(model.moe->experts);
  return all - idle * sum_of_layers(model, shape, [](const Block& layer) { return parameters_of(layer).experts; });
}

double adapter_parameters(const Model& model, const ParallelPlan& plan, bool predictions) {
  if (plan.lora_rank == 0) return 0;
  const ParallelPlan adapters = adapters_alone(plan);
  const Shape shape(model, adapters, {1, 1, 1, Precision::kBf16});
  return sum_of_blocks(model, shape, predictions, [](const Block& block) { return adapters_of(block).total(); });
}

double frozen_parameters(const Model& model, std::int64_t layers) {
  if (layers == 0) return 0;
  const Shape shape = Shape::whole(model, {1, 1, 1, Precision::kBf16});
  const auto all = [](const Block& block) { return parameters_of(block).total(); };
  return all(embedding_block(shape)) + sum_of_layers(model, shape, all) - sum_of_layers(model, shape, all, layers);
}

double matrix_parameters(const Model& model, const ParallelPlan& plan, bool predictions) {
  ParallelPlan updated = adapters_alone(plan);
  updated.optimizer = OptimizerKind::kMuon;
  const Shape shape(model, updated, {1, 1, 1, Precision::kBf16});
  const auto in_matrices = [](const Block& block) { return parameters_of(matrices_of(block)); };
  return sum_of_blocks(model, shape, predictions, in_matrices, frozen_layers_of(plan));
}

}  // namespace ns_dist
