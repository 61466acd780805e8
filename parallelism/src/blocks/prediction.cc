// Multi-token prediction, as Megatron-Core has it (multi_token_prediction.py).
#include <iterator>
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"
#include "kept_operators.h"

namespace ns_dist {
namespace {

// The layer behind the projections.
Block with_layer(const Shape& shape, Block block) {
  Block layer = layer_block(shape, prediction_kind(*shape.model));
  block.steps.insert(block.steps.end(), std::move_iterator(layer.steps.begin()), std::move_iterator(layer.steps.end()));
  if (shape.plan->recompute == Recompute::kOperators) keep_operators(shape, block);
  return block;
}

// Of hyper-connections: each stream projected by one matrix, the embedding by another one, and their sum (DeepSeek-V4,
// inference/model.py). Each rank has both matrices, and projects its own tokens.
void add_projected_streams(const Shape& shape, Block& block) {
  const std::int64_t streams = shape.streams, elements = shape.sharded_tokens * shape.hidden;
  const auto project = [&](std::string_view name, std::int64_t copies) {
    block.steps.push_back(
        blocks::linear(shape, ActivationKind::kPrediction,
                       {.name = name, .rows = shape.sharded_tokens * copies, .in = shape.hidden, .out = shape.hidden}));
  };
  project("mtp.embedding_proj", 1);
  project("mtp.proj", streams);
  BlockStep sum;
  sum.name = "mtp.streams";
  const auto n = static_cast<double>(streams);
  sum.forward.push_back(blocks::hidden_kernel(shape, sum.name, Elementwise{"add", elements, n + 1, n, n}));
  sum.input_gradient.push_back(
      blocks::hidden_kernel(shape, "mtp.streams.backward", Elementwise{"sum", elements, n, 1, n}));
  block.steps.push_back(std::move(sum));
}

}  // namespace

Block prediction_block(const Shape& shape) {
  using blocks::bytes_of;
  const std::int64_t tokens = shape.sharded_tokens, hidden = shape.hidden;
  Block block;
  block.input = block.around = blocks::hidden_bytes(shape, tokens, hidden * shape.streams);
  BlockStep table = std::move(embedding_block(shape).steps.front());
  // The embedding's table, or one copy of it for all prediction layers: on another stage, where the loss has none.
  const bool copies = shape.plan->pp > 1 && !shape.model->ties_logits() && shape.prediction_layers > 0;
  table.parameters =
      copies ? table.parameters * (1.0 / static_cast<double>(shape.prediction_layers)) : RankParameters{};
  if (freezes_tables(*shape.plan)) blocks::freeze(table);
  block.steps.push_back(std::move(table));
  block.steps.push_back(blocks::norm(shape, "mtp.embedding_norm", tokens, hidden));
  block.steps.push_back(blocks::norm(shape, "mtp.hidden_norm", tokens * shape.streams, hidden));
  if (shape.streams > 1) {
    add_projected_streams(shape, block);
    return with_layer(shape, std::move(block));
  }
  BlockStep concat;
  concat.name = "mtp.concat";
  const Bytes both = bytes_of(shape, tokens, 2 * hidden) * units::B;
  concat.forward.push_back(blocks::kernel(shape, concat.name, Copy{both}));
  concat.input_gradient.push_back(blocks::kernel(shape, "mtp.concat.backward", Copy{both}));
  block.steps.push_back(std::move(concat));
  // Its outputs are split over the ranks and come together on all of them; the hidden states that follow are those of
  // this rank's tokens.
  BlockStep projection = blocks::linear(shape, ActivationKind::kPrediction,
                                        {.name = "mtp.proj",
                                         .rows = shape.tokens,
                                         .in = 2 * hidden,
                                         .out = hidden / shape.tp,
                                         .split = blocks::Split::kColumn,
                                         .region = "mtp"});
  blocks::communicate(shape, projection.forward, "mtp.proj.all_gather", CollectiveKind::kAllGather,
                      shape.hidden_states());
  if (shape.sequence_parallel) {
    projection.input_gradient.insert(
        projection.input_gradient.begin(),
        {"mtp.proj.grad.all_gather", Communication{CollectiveKind::kAllGather, shape.hidden_states(), Axis::kTensor}});
  }
  block.steps.push_back(std::move(projection));
  return with_layer(shape, std::move(block));
}

}  // namespace ns_dist
