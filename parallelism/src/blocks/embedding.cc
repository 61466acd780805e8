// Token and position embeddings, the table split over the vocabulary (Shoeybi et al. 2019, arXiv 1909.08053, s.3).
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

// A dense gradient of zeros, to which rows are added (PyTorch, embedding_dense_backward), and which is added to the
// sums.
void add_gradient(const Shape& shape, BlockStep& step, std::string_view name, const Embedding& table) {
  const std::int64_t parameters = table.vocabulary * table.hidden;
  step.weight_gradient.push_back(
      blocks::hidden_kernel(shape, blocks::concat(name, ".gradient"), Elementwise{"fill", parameters, 0, 1, 0}));
  step.weight_gradient.push_back(blocks::hidden_kernel(shape, blocks::concat(name, ".backward"), table));
  blocks::add_to_sums(shape, step.weight_gradient, name, parameters);
}

// `rows` of the table are on this rank.
BlockStep table(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  using blocks::concat;
  using blocks::hidden_kernel;
  const Bytes states = blocks::hidden_bytes(shape, shape.tokens, columns) * units::B;
  BlockStep step;
  step.name = name;
  step.forward.push_back(hidden_kernel(shape, step.name, Embedding{shape.tokens, columns, rows, Pass::kForward}));
  blocks::reduce(shape, step.forward, name, states);
  blocks::gather(shape, step.weight_gradient, concat(name, ".backward"), states);
  add_gradient(shape, step, name, {shape.tokens, columns, rows, Pass::kBackward});
  step.output_gradient = blocks::bytes_of(shape, shape.sharded_tokens, columns);
  step.parameters.dense = static_cast<double>(rows) * static_cast<double>(columns);
  blocks::freeze_beside_adapters(shape, step);
  return step;
}

// Per-layer embeddings of all layers: a row of a second table, and a normalized projection of the embedding.
void add_per_layer_embeddings(const Shape& shape, Block& block) {
  const std::int64_t tokens = shape.sharded_tokens, columns = shape.layer_table_columns();
  block.steps.push_back(table(shape, "embedding.per_layer", shape.layer_table_rows(), columns));
  block.steps.push_back(blocks::linear(
      shape, ActivationKind::kEmbedding,
      {.name = "embedding.per_layer.proj", .rows = tokens, .in = shape.hidden, .out = columns, .readers = 1}));
  const std::int64_t width = shape.model->per_layer_embeddings->width;
  block.steps.push_back(blocks::norm(shape, "embedding.per_layer.norm", tokens * shape.model->layers, width));
  BlockStep sum;
  sum.name = "embedding.per_layer.add";
  sum.forward.push_back(blocks::hidden_kernel(shape, sum.name, Elementwise{"add", tokens * columns, 2, 1, 2}));
  sum.input_gradient.push_back(blocks::hidden_kernel(shape, blocks::concat(sum.name, ".backward"),
                                                     Elementwise{"scale", tokens * columns, 1, 1, 1}));
  block.steps.push_back(std::move(sum));
}

}  // namespace

Block embedding_block(const Shape& shape) {
  const Model& model = *shape.model;
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  Block block;
  block.steps.reserve(5);
  block.steps.push_back(table(shape, "embedding", shape.vocabulary, shape.hidden));
  if (shape.streams > 1) {  // each begins with the embedding
    BlockStep copies;
    copies.name = "embedding.streams";
    const auto n = static_cast<double>(shape.streams);
    copies.forward.push_back(blocks::hidden_kernel(shape, copies.name, Elementwise{"copy", elements, 1, n, 0}));
    copies.input_gradient.push_back(
        blocks::hidden_kernel(shape, "embedding.streams.backward", Elementwise{"sum", elements, n, 1, n}));
    block.steps.push_back(std::move(copies));
  }
  BlockStep position;
  position.name = "embedding.position";
  position.parameters.dense = static_cast<double>(model.position_table) * static_cast<double>(model.hidden);
  if (model.position == PositionKind::kLearned) {
    position.forward.push_back(blocks::hidden_kernel(shape, position.name, Elementwise{"add", elements, 2, 1, 1}));
    if (model.position_table > 0) {
      add_gradient(shape, position, position.name,
                   {shape.sharded_tokens, shape.hidden, model.position_table, Pass::kBackward});
      blocks::freeze_beside_adapters(shape, position);
    }
  }
  block.steps.push_back(std::move(position));
  if (model.embedding_norm) {
    // Memory budgets leave its input out.
    block.steps.push_back(blocks::norm(shape, "embedding.norm", shape.sharded_tokens, shape.hidden));
    block.steps.back().kept_for_input_gradient = 0;
  }
  if (shape.dropout) {
    BlockStep dropout;
    dropout.name = "embedding.dropout";
    const double mask = blocks::mask_elements(shape.hidden_dtype);
    dropout.forward.push_back(
        blocks::hidden_kernel(shape, dropout.name, Elementwise{"dropout", elements, 1, 1 + mask, 2}));
    blocks::dropout_backward(shape, dropout, "embedding", shape.hidden_dtype);
    dropout.kept_as = ActivationKind::kEmbedding;
    block.steps.push_back(std::move(dropout));
  }
  if (model.per_layer_embeddings) add_per_layer_embeddings(shape, block);
  return block;
}

}  // namespace ns_dist
