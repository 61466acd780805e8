// Token and position embeddings, the table split over the vocabulary (Shoeybi et al. 2019, arXiv 1909.08053, s.3).
#include <utility>

#include "blocks/common.h"

namespace ns_dist {
namespace {

BlockStep table(const Shape& shape) {
  BlockStep step;
  step.name = "embedding";
  step.forward.push_back(blocks::hidden_kernel(
      shape, "embedding", Embedding{shape.tokens, shape.hidden, shape.vocabulary, Pass::kForward}));
  blocks::reduce(shape, step.forward, "embedding", shape.residual_states());
  blocks::gather(shape, step.weight_gradient, "embedding.backward", shape.residual_states());
  // A dense gradient of zeros, to which rows are added (PyTorch, embedding_dense_backward), and which is added to the
  // sums.
  const std::int64_t parameters = shape.vocabulary * shape.hidden;
  step.weight_gradient.push_back(
      blocks::hidden_kernel(shape, "embedding.gradient", Elementwise{"fill", parameters, 0, 1, 0}));
  step.weight_gradient.push_back(blocks::hidden_kernel(
      shape, "embedding.backward", Embedding{shape.tokens, shape.hidden, shape.vocabulary, Pass::kBackward}));
  blocks::add_to_sums(shape, step.weight_gradient, "embedding", parameters);
  step.output_gradient = blocks::bytes_of(shape, shape.sharded_tokens, shape.hidden);
  step.parameters.dense = shape.table();
  blocks::freeze(shape, step);
  return step;
}

}  // namespace

Block embedding_block(const Shape& shape) {
  const Model& model = *shape.model;
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  Block block;
  block.steps.reserve(5);
  block.steps.push_back(table(shape));
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
  return block;
}

}  // namespace ns_dist
