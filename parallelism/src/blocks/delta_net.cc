// The gated delta rule (Yang et al. 2024, arXiv 2412.06464), as Megatron-Core splits it over heads
// (megatron/core/ssm/gated_delta_net) and flash-linear-attention computes it in chunks of 64 tokens. Products are
// forecast as all others. Of convolution and rule, only work and traffic are known: no measurement of them was fitted.
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/mixer.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

constexpr std::int64_t kChunk = 64;  // tokens; fla/ops/gated_delta_rule/chunk.py

struct DeltaSizes {
  explicit DeltaSizes(const Shape& shape)
      : net(*shape.model->delta_net),
        heads(net.value_heads / shape.tp),
        keys(net.key_heads / shape.tp * net.key_dim),
        values(heads * net.value_dim) {}
  const DeltaNet& net;
  std::int64_t heads;   // of values, of this rank
  std::int64_t keys;    // channels of queries, and as many of keys
  std::int64_t values;  // channels of values, and as many of the gate
  std::int64_t convolved() const { return 2 * keys + values; }
  // Gate, and a decay and a strength for each head, but for what other matrices make.
  std::int64_t projected() const {
    return convolved() + (net.gate_rank > 0 ? 0 : values) + heads + (net.decay_rank > 0 ? 0 : heads);
  }
  // Numbers that tell how states decay: those of channels are cumulated beside queries and keys.
  std::int64_t decays() const { return net.decay_rank > 0 ? heads * net.key_dim : heads; }
  // What ranks exchange for tokens, whichever matrices made it.
  std::int64_t exchanged() const { return convolved() + values + heads + decays(); }
  // Queries and keys as the rule reads them: those of several heads of values are repeated.
  std::int64_t repeated() const { return 2 * heads * net.key_dim; }
};

// Elements that the kernels of the rule read and write for a token, in the order of their launches
// (fla/ops/gated_delta_rule/chunk.py): the inverse of the products of a chunk's keys, in a cleared tensor; what it
// makes of keys and values; the states between chunks; outputs. Backward, the two before the last run again; then the
// gradients of new values inside chunks, of states, of queries, keys and decays, of the inverse, and their sum. Decays
// of channels are fp32, as many as keys: each kernel that reads keys reads them, and one cumulates them (fla/ops/kda).
struct Traffic {
  double read = 0, written = 0;
};
Traffic rule_traffic(const DeltaSizes& size, bool backward) {
  const auto k = static_cast<double>(size.net.key_dim), v = static_cast<double>(size.net.value_dim);
  constexpr double c = kChunk;
  const double state = k * v / c;
  const Traffic again{k + v + c + (2 * k + v), (k + v) + (state + v)};
  Traffic head;
  if (!backward) {
    head = {k + again.read + (2 * k + v + state), 2 * c + again.written + v};
  } else {
    head = {again.read + (2 * k + v) + (3 * k + 2 * v) + (3 * k + 3 * v + 2 * state) + (2 * k + 2 * v + c) + 2 * k,
            again.written + v + (state + v) + 3 * k + (k + v) + k};
  }
  if (size.net.decay_rank > 0) {
    const double fp32 = 2;  // elements of 16 bits
    head.read += (backward ? 7 : 5) * fp32 * k, head.written += (backward ? 2 : 1) * fp32 * k;
  }
  return {head.read * static_cast<double>(size.heads), head.written * static_cast<double>(size.heads)};
}

// Two matrices in the place of one: the first on all ranks, the second split over heads.
void low_rank(const Shape& shape, Block& block, const std::string& name, std::int64_t rank, std::int64_t out) {
  block.steps.push_back(blocks::linear(shape, ActivationKind::kStateSpace,
                                       {.name = name + "_down",
                                        .rows = shape.tokens,
                                        .in = shape.hidden,
                                        .out = rank,
                                        .readers = 1,
                                        .shares_input = !blocks::keeps_casts(shape, false)}));
  block.steps.push_back(blocks::linear(
      shape, ActivationKind::kStateSpace,
      {.name = name + "_up", .rows = shape.tokens, .in = rank, .out = out, .split = Split::kColumn, .readers = 1}));
}

Call rule(const Shape& shape, const char* name, const DeltaSizes& size, bool backward) {
  // As Megatron-LM counts them (training.py, gdn_layer_flops): four products of a state and a token's vector.
  const double flops = (backward ? 2.0 : 1.0) * 8 * static_cast<double>(shape.tokens) *
                       static_cast<double>(size.values) * static_cast<double>(size.net.key_dim);
  const Traffic all = rule_traffic(size, backward);
  const double element = bytes_of(shape, shape.tokens, 1);
  return kernel(
      shape, name,
      UnknownOperator{name, flops * units::FLOP, all.read * element * units::B, all.written * element * units::B});
}

}  // namespace

Block delta_net_block(const Shape& shape) {
  const DeltaSizes size(shape);
  const std::int64_t tokens = shape.tokens;
  Block block;
  blocks::begin_mixer(shape, block, "delta",
                      {.out = size.projected(),
                       .readers = blocks::separate_layers(shape, 2),
                       .products = size.net.decay_rank > 0 || size.net.gate_rank > 0
                                       ? std::vector<std::int64_t>{}
                                       : std::vector{size.projected() - 2 * size.heads, 2 * size.heads}});

  if (const int readers = 1 + (size.net.decay_rank > 0 ? 1 : 0) + (size.net.gate_rank > 0 ? 1 : 0); readers > 1) {
    blocks::add_gradients(shape, block.steps.front(), "delta", readers);
  }
  if (size.net.decay_rank > 0) low_rank(shape, block, "delta.decay", size.net.decay_rank, size.decays());
  if (size.net.gate_rank > 0) low_rank(shape, block, "delta.gate", size.net.gate_rank, size.values);

  // With SiLU in the same kernel, whose input is kept: the projection's output, of which it is a view.
  BlockStep convolution;
  convolution.name = "delta.convolution";
  const auto taps = static_cast<double>(size.net.convolution);
  const std::int64_t elements = tokens * size.convolved();
  // Back behind the norm (gated_delta_net/common.py, a2a_cp_to_hp).
  blocks::exchange_heads(shape, convolution.forward, "delta.heads.all_to_all", size.exchanged());
  convolution.forward.push_back(
      kernel(shape, convolution.name, Elementwise{"convolution", elements, 1, 1, 2 * taps + 5}));
  convolution.input_gradient.push_back(
      kernel(shape, "delta.convolution.backward", Elementwise{"convolution_backward", elements, 2, 1, 4 * taps + 10}));
  blocks::exchange_heads(shape, convolution.input_gradient, "delta.heads.backward.all_to_all", size.exchanged());
  convolution.parameters.dense = static_cast<double>(size.convolved()) * taps;
  convolution.kept_as = ActivationKind::kStateSpace;
  convolution.kept_for_input_gradient = bytes_of(shape, tokens, size.projected());
  block.steps.push_back(std::move(convolution));

  // Queries and keys of length one; then repeated, and all made contiguous, with the gate (common.py,
  // _prepare_input_for_gated_delta_rule).
  BlockStep prepare;
  prepare.name = "delta.prepare";
  const std::int64_t normalized = 2 * size.keys, made = size.repeated() + 2 * size.values;
  const double read = static_cast<double>(normalized + 2 * size.values) / static_cast<double>(made);
  prepare.forward.push_back(kernel(shape, "delta.key_norm", Elementwise{"l2_norm", tokens * normalized, 1, 1, 3}));
  prepare.forward.push_back(kernel(shape, "delta.prepare", Elementwise{"repeat", tokens * made, read, 1, 0}));
  prepare.input_gradient.push_back(
      kernel(shape, "delta.prepare.backward", Elementwise{"sum", tokens * made, 1, read, 1}));
  prepare.input_gradient.push_back(
      kernel(shape, "delta.key_norm.backward", Elementwise{"l2_norm_backward", tokens * normalized, 2, 1, 5}));
  prepare.kept_as = ActivationKind::kStateSpace;
  prepare.kept_for_input_gradient = bytes_of(shape, tokens, normalized);
  block.steps.push_back(std::move(prepare));

  // It keeps what it reads, decays and strengths in fp32, and the inverse of each chunk.
  BlockStep core;
  core.name = "delta.rule";
  core.forward.push_back(rule(shape, "delta.rule", size, false));
  core.input_gradient.push_back(rule(shape, "delta.rule.backward", size, true));
  core.kept_as = ActivationKind::kStateSpace;
  core.kept_for_input_gradient = bytes_of(shape, tokens, size.repeated() + size.values + size.heads * kChunk) +
                                 4 * static_cast<double>(tokens) * static_cast<double>(size.heads + size.decays());
  core.parameters.dense = static_cast<double>(size.heads + size.decays());  // decay, bias of the time step
  block.steps.push_back(std::move(core));

  // Each head normalized, times SiLU of its gate.
  block.steps.push_back(blocks::norm(shape, "delta.gated_norm", tokens * size.heads, size.net.value_dim));
  BlockStep gate = blocks::gate(shape, ActivationKind::kStateSpace, "delta.gate", tokens, size.values);
  blocks::exchange_heads(shape, gate.forward, "delta.output.all_to_all", size.values);
  std::vector<Call> back;
  blocks::exchange_heads(shape, back, "delta.output.backward.all_to_all", size.values);
  gate.input_gradient.insert(gate.input_gradient.begin(), back.begin(), back.end());
  block.steps.push_back(std::move(gate));
  blocks::end_mixer(shape, block, "delta", size.values);
  return block;
}

}  // namespace ns_dist
