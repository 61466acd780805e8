// Mixture of experts with token dispatch by all-to-all (Megatron-Core's all-to-all dispatcher): route, permute,
// exchange over the expert-parallel group, gather over the tensor-parallel group, grouped GEMMs, and back.
#include <utility>

#include "blocks/common.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

// Routing is taken as balanced: each expert receives the same number of tokens.
struct LocalExperts {
  explicit LocalExperts(const Shape& shape)
      : routed(shape.sharded_tokens * shape.model->moe->top_k),
        rows(shape.tokens * shape.model->moe->top_k),
        experts(shape.model->moe->experts / shape.ep),
        ffn(shape.model->moe->expert_ffn / shape.tp),
        exchanged(bytes_of(shape, routed, shape.hidden) * units::B),
        gathered(bytes_of(shape, rows, shape.hidden) * units::B) {}

  std::int64_t routed;   // token copies that this rank sends to experts
  std::int64_t rows;     // token copies that this rank's experts receive, all of them together
  std::int64_t experts;  // of this rank
  std::int64_t ffn;      // of one expert on this rank
  Bytes exchanged;       // send buffer of the all-to-all
  Bytes gathered;        // over the tensor-parallel group
};

void exchange(const Shape& shape, std::vector<Call>& calls, const char* name, Bytes size) {
  if (shape.ep > 1) calls.push_back({name, Communication{CollectiveKind::kAllToAll, size, Axis::kExpert}});
}

// Rows come in from each rank in turn. They are brought together by local expert, and split before they leave
// (Megatron-Core, token_dispatcher.py, sort_chunks_by_idxs).
void sort_by_expert(const Shape& shape, std::vector<Call>& calls, const char* name, const LocalExperts& size) {
  if (size.experts > 1) calls.push_back(kernel(shape, name, Copy{size.gathered}));
}

BlockStep top_k(const Shape& shape) {
  const std::int64_t experts = shape.model->moe->experts;
  BlockStep step;
  step.name = "moe.top_k";
  step.forward.push_back(kernel(shape, step.name, Softmax{shape.sharded_tokens, experts, Pass::kForward}));
  step.input_gradient.push_back(
      kernel(shape, "moe.top_k.backward", Softmax{shape.sharded_tokens, experts, Pass::kBackward}));
  // Routing probabilities of all tokens, fp32.
  step.kept_for_input_gradient = static_cast<double>(shape.tokens) * static_cast<double>(experts) * 4;
  return step;
}

// From tokens to rows of experts.
BlockStep dispatch(const Shape& shape, const LocalExperts& size) {
  BlockStep step;
  step.name = "moe.dispatch";
  step.forward.reserve(4);
  step.forward.push_back(kernel(shape, "moe.permute", Copy{size.exchanged}));
  exchange(shape, step.forward, "moe.dispatch", size.exchanged);
  blocks::gather(shape, step.forward, "moe.dispatch", size.gathered);
  sort_by_expert(shape, step.forward, "moe.sort", size);

  step.input_gradient.reserve(4);
  sort_by_expert(shape, step.input_gradient, "moe.sort.backward", size);
  blocks::reduce(shape, step.input_gradient, "moe.dispatch.backward", size.gathered);
  exchange(shape, step.input_gradient, "moe.dispatch.backward", size.exchanged);
  step.input_gradient.push_back(
      kernel(shape, "moe.permute.backward",
             Elementwise{"sum", size.routed * shape.hidden, 1, 1 / static_cast<double>(shape.model->moe->top_k), 1}));
  return step;
}

// From rows of experts to the weighted sum of each token.
BlockStep combine(const Shape& shape, const LocalExperts& size) {
  BlockStep step;
  step.name = "moe.combine";
  step.forward.reserve(4);
  sort_by_expert(shape, step.forward, "moe.unsort", size);
  blocks::reduce(shape, step.forward, "moe.combine", size.gathered);
  exchange(shape, step.forward, "moe.combine", size.exchanged);
  step.forward.push_back(kernel(
      shape, "moe.unpermute",
      Elementwise{"weighted_sum", size.routed * shape.hidden, 1, 1 / static_cast<double>(shape.model->moe->top_k), 2}));

  step.input_gradient.reserve(4);
  step.input_gradient.push_back(kernel(shape, "moe.unpermute.backward",
                                       Elementwise{"weighted_sum_backward", size.routed * shape.hidden, 2, 1, 3}));
  exchange(shape, step.input_gradient, "moe.combine.backward", size.exchanged);
  blocks::gather(shape, step.input_gradient, "moe.combine.backward", size.gathered);
  sort_by_expert(shape, step.input_gradient, "moe.unsort.backward", size);
  // The experts' outputs, for the gradient of the routing weights.
  step.kept_for_input_gradient = bytes_of(shape, size.routed, shape.hidden);
  return step;
}

// One linear layer of all experts of this rank. `input_rows`: the rows of the input that are kept.
BlockStep grouped_linear(const Shape& shape, const LocalExperts& size, std::string_view name, std::int64_t in,
                         std::int64_t out, std::int64_t input_rows) {
  BlockStep step;
  step.name = name;
  const auto gemm = [&](std::string text, std::int64_t n, std::int64_t k, GemmLayout layout, Epilogue epilogue) {
    return kernel(shape, std::move(text), GroupedGemm{size.experts, size.rows, n, k, layout, epilogue});
  };
  step.forward.push_back(gemm(step.name, out, in, GemmLayout::kNT, Epilogue::kNone));
  step.input_gradient.push_back(gemm(blocks::concat(name, ".dgrad"), in, out, GemmLayout::kNN, Epilogue::kNone));
  // The weight gradient contracts over an expert's rows: the same products, reduced over tokens.
  step.weight_gradient.push_back(
      gemm(blocks::concat(name, ".wgrad"), in, out, GemmLayout::kTN, blocks::accumulation_epilogue(shape)));
  blocks::accumulate(shape, step.weight_gradient, name, size.experts * in * out);
  step.kept_for_weight_gradient = bytes_of(shape, input_rows, in);
  step.output_gradient = bytes_of(shape, size.rows, out);
  step.parameters.experts = static_cast<double>(size.experts) * (static_cast<double>(in) * static_cast<double>(out) +
                                                                 (shape.model->bias ? static_cast<double>(out) : 0));
  return step;
}

// Experts that all tokens pass, as one MLP.
void shared_experts(const Shape& shape, Block& block) {
  const Experts& moe = *shape.model->moe;
  if (moe.shared_experts == 0) return;
  const std::int64_t ffn = moe.shared_experts * moe.shared_expert_ffn / shape.tp, tokens = shape.tokens;
  const std::int64_t up = shape.model->gated_mlp ? 2 * ffn : ffn;
  const bool bias = shape.model->bias;
  block.steps.push_back(
      blocks::linear(shape, {"moe.shared.fc1", tokens, shape.hidden, up, bias, Split::kColumn, "moe.shared"}));
  block.steps.back().kept_for_weight_gradient = 0;  // the router keeps the same input
  block.steps.push_back(blocks::activation(shape, "moe.shared.activation", tokens, ffn));
  block.steps.push_back(
      blocks::linear(shape, {"moe.shared.fc2", tokens, ffn, shape.hidden, bias, Split::kRow, "moe.shared"}));
  BlockStep add;
  add.name = "moe.shared.add";
  add.forward.push_back(kernel(shape, add.name, Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1}));
  block.steps.push_back(std::move(add));
}

}  // namespace

Block moe_block(const Shape& shape) {
  const LocalExperts size(shape);
  const std::int64_t up = shape.model->gated_mlp ? 2 * size.ffn : size.ffn;
  Block block;
  block.input = bytes_of(shape, shape.sharded_tokens, shape.hidden);
  block.steps.reserve(13);
  block.steps.push_back(blocks::branch_norm(shape, "moe"));
  block.steps.push_back(
      blocks::linear(shape, {"moe.router", shape.sharded_tokens, shape.hidden, shape.model->moe->experts}));
  block.steps.push_back(top_k(shape));
  block.steps.push_back(dispatch(shape, size));
  block.steps.push_back(grouped_linear(shape, size, "moe.fc1", shape.hidden, up, size.routed));
  block.steps.push_back(blocks::activation(shape, "moe.activation", size.rows, size.ffn));
  block.steps.push_back(grouped_linear(shape, size, "moe.fc2", size.ffn, shape.hidden, size.rows));
  block.steps.push_back(combine(shape, size));
  shared_experts(shape, block);
  block.steps.push_back(blocks::residual(shape, "moe"));
  return block;
}

}  // namespace ns_dist
