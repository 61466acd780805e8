// What a layer adds of its per-layer embeddings (Gemma 4: modeling_gemma4.py, Gemma4TextDecoderLayer): they are
// weighted by a gate that is made of the hidden states, and projected to their width. Both matrices are whole on every
// tensor-parallel rank and run on its own tokens.
#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {

Block per_layer_block(const Shape& shape) {
  const std::int64_t tokens = shape.sharded_tokens, width = shape.model->per_layer_embeddings->width;
  Block block;
  block.steps.push_back(blocks::branch_start(shape, "per_layer", NormPlacement::kPost));
  block.steps.push_back(
      blocks::linear(shape, ActivationKind::kMlp,
                     {.name = "per_layer.gate", .rows = tokens, .in = shape.hidden, .out = width, .readers = 1}));
  BlockStep product = blocks::gate(shape, ActivationKind::kMlp, "per_layer.activation", tokens, width);
  // A layer's embeddings are a view of those of all, whose gradient autograd makes of zeros for each layer and adds up
  // (PyTorch, select_backward).
  const std::int64_t all = tokens * shape.layer_table_columns();
  product.input_gradient.push_back(
      blocks::hidden_kernel(shape, "per_layer.inputs.backward", Elementwise{"fill", all, 0, 1, 0}));
  product.input_gradient.push_back(
      blocks::hidden_kernel(shape, "per_layer.inputs.backward.add", Elementwise{"add", all, 2, 1, 1}));
  block.steps.push_back(std::move(product));
  block.steps.push_back(
      blocks::linear(shape, ActivationKind::kMlp,
                     {.name = "per_layer.proj", .rows = tokens, .in = width, .out = shape.hidden, .readers = 1}));
  blocks::end_branch(shape, block, "per_layer", NormPlacement::kPost);
  return block;
}

}  // namespace ns_dist
