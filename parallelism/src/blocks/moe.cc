// Mixture of experts: route, dispatch, grouped products, and back, with shared experts beside them.
#include <utility>
#include <vector>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/expert_dispatch.h"
#include "blocks/grouped_linear.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::grouped_linear;
using blocks::kernel;
using blocks::LocalExperts;
using blocks::Split;

// Where experts work on a part of the hidden size, tokens are brought to it before they travel, and their sums back:
// linear layers that are whole on every rank (Megatron-Core, moe_layer.py, fc1_latent_proj and fc2_latent_proj). What
// reads the hidden states shares what the router keeps, but for a cast.
BlockStep to_latent(const Shape& shape, const LocalExperts& size) {
  return blocks::linear(shape, ActivationKind::kExperts,
                        {.name = "moe.latent_down",
                         .rows = shape.sharded_tokens,
                         .in = shape.hidden,
                         .out = size.width,
                         .readers = 1,
                         .shares_input = !blocks::keeps_casts(shape, false)});
}
BlockStep from_latent(const Shape& shape, const LocalExperts& size) {
  return blocks::linear(shape, ActivationKind::kExperts,
                        {.name = "moe.latent_up", .rows = shape.sharded_tokens, .in = size.width, .out = shape.hidden});
}

BlockStep top_k(const Shape& shape) {
  const std::int64_t experts = shape.model->moe->experts;
  BlockStep step;
  step.name = "moe.top_k";
  step.forward.push_back(kernel(shape, step.name, Softmax{shape.sharded_tokens, experts, Pass::kForward}));
  step.input_gradient.push_back(
      kernel(shape, "moe.top_k.backward", Softmax{shape.sharded_tokens, experts, Pass::kBackward}));
  // Routing probabilities of this rank's tokens, fp32.
  step.kept_as = ActivationKind::kRouter;
  step.kept_for_input_gradient = static_cast<double>(shape.sharded_tokens) * static_cast<double>(experts) * 4;
  return step;
}

// Weights the shared experts' output by a sigmoid of the token's product with one vector. The product and its
// gradients are small; its input is kept by the router, its output here.
BlockStep shared_gate(const Shape& shape) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  BlockStep step;
  step.name = "moe.shared.gate";
  step.forward.push_back(kernel(shape, step.name, Elementwise{"gate", elements, 2, 1, 3}));
  step.input_gradient.push_back(
      kernel(shape, "moe.shared.gate.backward", Elementwise{"gate_backward", elements, 3, 2, 6}));
  step.kept_as = ActivationKind::kSharedExperts;
  step.kept_for_input_gradient = bytes_of(shape, shape.sharded_tokens, shape.hidden);
  step.parameters.dense = static_cast<double>(shape.hidden);
  return step;
}

// Experts that all tokens pass, as one MLP.
std::vector<BlockStep> shared_experts(const Shape& shape) {
  const Experts& moe = *shape.model->moe;
  std::vector<BlockStep> steps;
  if (moe.shared_experts == 0) return steps;
  const std::int64_t ffn = moe.shared_experts * moe.shared_expert_ffn / shape.tp, tokens = shape.tokens;
  const std::int64_t up = shape.model->gated_mlp ? 2 * ffn : ffn;
  const bool bias = shape.model->bias;
  // The router keeps the same input (Megatron-Core, shared_experts.py, set_save_original_input), unless it is frozen.
  const bool original = blocks::may_keep_originals(shape);
  const bool router_keeps = shape.plan->lora_rank == 0 && !blocks::keeps_casts(shape, original);
  steps.push_back(blocks::linear(shape, ActivationKind::kSharedExperts,
                                 {.name = "moe.shared.fc1",
                                  .rows = tokens,
                                  .in = shape.hidden,
                                  .out = up,
                                  .bias = bias,
                                  .split = Split::kColumn,
                                  .region = "moe.shared",
                                  .keeps_original = original,
                                  .readers = blocks::separate_layers(shape, shape.model->gated_mlp ? 2 : 1),
                                  .shares_input = router_keeps}));
  steps.push_back(blocks::activation(shape, ActivationKind::kSharedExperts, "moe.shared.activation", tokens, ffn));
  steps.push_back(blocks::linear(shape, ActivationKind::kSharedExperts,
                                 {.name = "moe.shared.fc2",
                                  .rows = tokens,
                                  .in = ffn,
                                  .out = shape.hidden,
                                  .bias = bias,
                                  .split = Split::kRow,
                                  .region = "moe.shared"}));
  if (moe.shared_gate) steps.push_back(shared_gate(shape));
  return steps;
}

// Megatron-Core checkpoints the whole layer as "moe" (moe_layer.py, custom_forward), with the router, whose input is
// kept, and the shared experts, which read the same.
constexpr ModuleSet kMoe = set_of(RecomputeModule::kMoe), kActivation = set_of(RecomputeModule::kMoeActivation);

}  // namespace

double expert_rows(const Shape& shape) {
  return static_cast<double>(LocalExperts::copies_of_tokens(shape)) /
         static_cast<double>(shape.sharded_tokens * shape.model->moe->top_k);
}

Block moe_block(const Shape& shape) {
  const LocalExperts size(shape);
  const std::int64_t up = shape.model->gated_mlp ? 2 * size.ffn : size.ffn;
  std::vector<BlockStep> shared = shared_experts(shape);
  const bool beside = shape.plan->overlap_ep && shape.ep > 1 && !shared.empty();
  for (BlockStep& step : shared) {
    step.hides = beside;
    if (!beside) step.module = LayerModule::kMoeRouter;
  }
  const Beside exchanges = beside ? Beside::kSteps : Beside::kNothing;
  Block block;
  block.steps.reserve(15);
  const auto in_layer = [&block](BlockStep step, ModuleSet module = kMoe) -> BlockStep& {
    step.again |= module;
    step.drops_for_input_gradient |= module;
    step.drops_for_weight_gradient |= module;
    return block.steps.emplace_back(std::move(step));
  };
  block.steps.push_back(blocks::branch_start(shape, "moe"));
  const ModuleSet norm_again = block.steps.back().again;
  // Router, experts and shared experts read the same tokens.
  blocks::add_gradients(shape, block.steps.front(), "moe", shared.empty() ? 2 : 3);
  BlockStep& router = block.steps.emplace_back(blocks::linear(shape, ActivationKind::kRouter,
                                                              {.name = "moe.router",
                                                               .rows = shape.sharded_tokens,
                                                               .in = shape.hidden,
                                                               .out = shape.model->moe->experts,
                                                               .unquantized = true,
                                                               .readers = 1}));
  router.again |= kMoe, router.drops_for_input_gradient |= kMoe;
  router.products.clear();  // torchtitan, per_op_sac_force_recompute_mm_shapes_by_fqns
  router.drops_for_weight_gradient |= norm_again;
  in_layer(top_k(shape));
  // A graph of the router holds the norm before it, and shared experts that run beside nothing (Megatron-Core,
  // moe_layer.py and transformer_layer.py).
  for (BlockStep& step : block.steps) step.module = LayerModule::kMoeRouter;
  const auto pass_shared_experts = [&] {
    block.steps.back().reader = 1 + shared.size();
    for (BlockStep& step : shared) in_layer(std::move(step), kMoe | set_of(RecomputeModule::kSharedExperts));
  };
  const bool one_kernel = blocks::experts_in_one_kernel(shape);
  const bool latent = size.width != shape.hidden;
  if (latent) in_layer(to_latent(shape, size)).drops_for_weight_gradient |= norm_again;
  in_layer(one_kernel ? blocks::take_rows(shape, size) : blocks::send_rows(shape, size, exchanges));
  if (beside) pass_shared_experts();
  const std::size_t last_shared = block.steps.size() - 1;
  if (!one_kernel) in_layer(blocks::receive_rows(shape, size, exchanges));
  in_layer(grouped_linear(shape, size,
                          {.name = "moe.fc1",
                           .in = size.width,
                           .out = up,
                           .weights = Split::kColumn,
                           .input_is_cast = size.casts_before,
                           .reads_hidden = true}));
  BlockStep& activation =
      in_layer(blocks::activation(shape, ActivationKind::kExperts, "moe.activation", size.rows, size.ffn,
                                  blocks::writes_experts_out(shape) && shape.model->gated_mlp));
  activation.again |= kActivation;
  if (shape.plan->weighted_activation) {  // a weight of each row, fp32
    activation.kept_for_input_gradient += static_cast<double>(size.rows) * 4;
  }
  // Where outputs are weighted behind the layer, the weights' product makes the gradient, and in the storage format.
  BlockStep& down =
      in_layer(grouped_linear(shape, size,
                              {.name = "moe.fc2",
                               .in = size.ffn,
                               .out = size.width,
                               .weights = Split::kRow,
                               .keeps_original = blocks::recomputes(shape, RecomputeModule::kMoeActivation),
                               .gradient_is_cast = size.casts_before && shape.plan->weighted_activation}));
  down.drops_for_weight_gradient |= kActivation;
  in_layer(one_kernel ? blocks::sum_rows(shape, size) : blocks::combine(shape, size));
  if (latent) in_layer(from_latent(shape, size));
  if (beside) {
    block.steps[last_shared].reader = block.steps.size() - last_shared;
  } else {
    pass_shared_experts();
  }
  if (shape.model->moe->shared_experts > 0) {
    BlockStep add;
    add.name = "moe.shared.add";
    add.forward.push_back(kernel(shape, add.name, Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1}));
    in_layer(std::move(add));
  }
  blocks::end_branch(shape, block, "moe");
  return block;
}

}  // namespace ns_dist
