// The dense MLP.
#include <algorithm>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {

using blocks::Split;

namespace {

// The MLP reads the attention's normalized input: what that gathered is there already, and gradients of both are added
// up before they are reduced.
void share_input(const Shape& shape, BlockStep& fc1) {
  fc1.input_gradient.push_back(
      blocks::kernel(shape, "mlp.fc1.dgrad.add", Elementwise{"add", shape.tokens * shape.hidden, 2, 1, 1}));
}

// Adds the attention's partial sums to the MLP's, before both are reduced.
void add_attention(const Shape& shape, BlockStep& fc2) {
  ++fc2.calls_after_kept;
  blocks::insert_behind_kernels(
      fc2.forward,
      {blocks::kernel(shape, "mlp.attention.add", Elementwise{"add", shape.tokens * shape.hidden, 2, 1, 1})});
}

}  // namespace

Block mlp_block(const Shape& shape) {
  const std::int64_t ffn = shape.ffn / shape.tp, tokens = shape.tokens;
  // A gated MLP's two input projections are one GEMM of twice the width, as Megatron-LM lays them out.
  const std::int64_t up = shape.model->gated_mlp ? 2 * ffn : ffn;
  const bool bias = shape.model->bias, beside = shape.parallel_branches();
  const bool shares = beside && shape.model->branches == Branches::kParallel;
  const bool keeps_original = blocks::recomputes(shape, RecomputeModule::kNorm);
  constexpr ModuleSet kMlp = set_of(RecomputeModule::kMlp);
  Block block;
  block.steps.reserve(6);
  if (!shares) block.steps.push_back(blocks::branch_start(shape, "mlp"));
  BlockStep fc1 = blocks::linear(shape, ActivationKind::kMlp,
                                 {.name = "mlp.fc1",
                                  .rows = tokens,
                                  .in = shape.hidden,
                                  .out = up,
                                  .bias = bias,
                                  .split = shares ? Split::kLocal : Split::kColumn,
                                  .region = "mlp",
                                  .behind_norm = blocks::alone_behind_norm(shape),
                                  .keeps_original = keeps_original,
                                  .readers = blocks::separate_layers(shape, shape.model->gated_mlp ? 2 : 1),
                                  .shares_input = shares && !blocks::keeps_casts(shape, keeps_original),
                                  .weights = Split::kColumn});
  shares ? share_input(shape, fc1) : void(fc1.drops_for_weight_gradient = block.steps.front().again);
  BlockStep activation = blocks::activation(shape, ActivationKind::kMlp, "mlp.activation", tokens, ffn);
  BlockStep fc2 = blocks::linear(shape, ActivationKind::kMlp,
                                 {.name = "mlp.fc2",
                                  .rows = tokens,
                                  .in = ffn,
                                  .out = shape.hidden,
                                  .bias = bias,
                                  .split = Split::kRow,
                                  .region = "mlp"});
  fc1.again = activation.again = fc2.again = kMlp;
  activation.drops_for_input_gradient = fc2.drops_for_weight_gradient = kMlp;
  if (beside) add_attention(shape, fc2);
  for (BlockStep* step : {&fc1, &activation, &fc2}) block.steps.push_back(std::move(*step));
  blocks::end_branch(shape, block, "mlp");
  return block;
}

}  // namespace ns_dist
