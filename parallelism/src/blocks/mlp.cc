// The dense MLP.
#include "blocks/common.h"

namespace ns_dist {

using blocks::Split;

Block mlp_block(const Shape& shape) {
  const std::int64_t ffn = shape.model->ffn / shape.tp, tokens = shape.tokens;
  // A gated MLP's two input projections are one GEMM of twice the width, as Megatron-LM lays them out.
  const std::int64_t up = shape.model->gated_mlp ? 2 * ffn : ffn;
  const bool bias = shape.model->bias;
  Block block;
  block.input = blocks::bytes_of(shape, shape.sharded_tokens, shape.hidden);
  block.steps.reserve(5);
  block.steps.push_back(blocks::branch_norm(shape, "mlp"));
  block.steps.push_back(blocks::linear(shape, {"mlp.fc1", tokens, shape.hidden, up, bias, Split::kColumn, "mlp"}));
  block.steps.push_back(blocks::activation(shape, "mlp.activation", tokens, ffn));
  block.steps.push_back(blocks::linear(shape, {"mlp.fc2", tokens, ffn, shape.hidden, bias, Split::kRow, "mlp"}));
  block.steps.push_back(blocks::residual(shape, "mlp"));
  constexpr ModuleSet kMlp = set_of(RecomputeModule::kMlp);
  block.steps[1].drops_for_weight_gradient = set_of(RecomputeModule::kNorm);
  block.steps[1].again = block.steps[2].again = block.steps[3].again = kMlp;
  block.steps[2].drops_for_input_gradient = block.steps[3].drops_for_weight_gradient = kMlp;
  return block;
}

}  // namespace ns_dist
