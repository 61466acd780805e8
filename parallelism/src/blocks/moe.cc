// Mixture of experts with token dispatch by all-to-all (Megatron-Core's all-to-all dispatcher): route, permute,
// exchange over the expert-parallel group, gather over the tensor-parallel group, grouped GEMMs, and back. By DeepEP or
// by an all-gather: route, exchange, permute, grouped GEMMs, and back.
#include <algorithm>
#include <cmath>
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;
using blocks::kernel;
using blocks::Split;

// What the busiest rank has, for which the others wait: tokens of `imbalance` times as many as under balanced routing,
// which its experts share evenly. Where experts are padded to a capacity, all ranks have the same: as many rows of each
// expert as it has places, from each rank (Megatron-Core, moe_utils.py, get_capacity).
struct LocalExperts {
  explicit LocalExperts(const Shape& shape)
      : top_k(shape.model->moe->top_k),
        routed(copies_of_tokens(shape)),
        imbalance(busiest_over_mean(*shape.model, *shape.plan)),
        rows(std::llround(imbalance * static_cast<double>(rows_on_average(shape)))),
        width(shape.model->moe->latent > 0 ? shape.model->moe->latent : shape.hidden),
        experts(shape.model->moe->experts / shape.ep),
        ffn(shape.model->moe->expert_ffn / shape.etp),
        one_copy(shape.plan->expert_dispatch != ExpertDispatch::kAllToAll && shape.ep > 1),
        to_all(one_copy && shape.plan->expert_dispatch == ExpertDispatch::kAllGather),
        copies(to_all     ? static_cast<double>(shape.ep)
               : one_copy ? parts_reached(shape.model->moe->routing(), shape.ep)
                          : static_cast<double>(top_k)),
        exchanged(one_copy ? bytes_of(shape, shape.sharded_tokens, width) * copies * units::B
                           : bytes_of(shape, routed, width) * units::B),
        summed(one_copy ? rows : routed),
        gathered(bytes_of(shape, rows, width) * units::B),
        casts_before(shape.plan->fp8_dispatch && shape.ep > 1 && blocks::keeps_casts(shape, false)),
        to_experts(casts_before ? shape.product_element / shape.element : 1) {}

  // Of this rank's tokens: each expert's even share, or the places that it has for them.
  static std::int64_t copies_of_tokens(const Shape& shape) {
    const Experts& moe = *shape.model->moe;
    const std::int64_t all = shape.sharded_tokens * moe.top_k;
    if (!pads_experts(*shape.plan)) return all;
    const double share = static_cast<double>(all) / static_cast<double>(moe.experts);
    const auto places = static_cast<std::int64_t>(std::ceil(share * shape.plan->expert_capacity.value));
    return moe.experts * std::min(places, shape.sharded_tokens);  // at most each token once
  }
  // Ranks of one expert bring their tokens together.
  static std::int64_t rows_on_average(const Shape& shape) {
    const std::int64_t sources = shape.etp == shape.tp ? shape.tokens / shape.sharded_tokens : shape.etp;
    return sources * copies_of_tokens(shape);
  }
  // Writes of a token where its rows are summed, for each of them.
  double once() const { return (one_copy ? copies : 1) / static_cast<double>(top_k); }

  std::int64_t top_k;    // experts of a token
  std::int64_t routed;   // token copies that this rank sends to experts
  double imbalance;      // of what ranks receive
  std::int64_t rows;     // token copies that this rank's experts receive, all of them together
  std::int64_t width;    // of a row
  std::int64_t experts;  // of this rank
  std::int64_t ffn;      // of one expert on this rank
  bool one_copy;         // a rank gets a token once, however many of its experts process it
  bool to_all;           // or none of them
  double copies;         // of a token that travel: for each rank that gets it, or for each expert
  Bytes exchanged;       // all of them, in the mean
  std::int64_t summed;   // rows that this rank makes of tokens, and sums up
  Bytes gathered;        // over the tensor-parallel group
  bool casts_before;     // rows travel to experts in the products' format: tokens, and gradients of experts' outputs
  double to_experts;     // bytes of what travels so, over those in the storage format
};

// Whether a class of transformers writes experts out, and whether in one kernel for all.
bool written_out(const Shape& shape) { return shape.plan->written_out && shape.ep == 1 && shape.tp == 1; }
bool in_one_kernel(const Shape& shape) {
  const ParallelPlan& plan = *shape.plan;
  return written_out(shape) && plan.expert_products == ExpertProducts::kKernel && !plan.fused_permutation &&
         !plan.weighted_activation;
}

// Of the all-gather dispatcher: hidden states of all tokens that a rank has for a while.
Bytes all_tokens(const Shape& shape, const LocalExperts& size) {
  return size.to_all ? size.exchanged * (shape.gathers_rows() ? static_cast<double>(shape.etp) : 1) : Bytes();
}

// What travels beside the rows of experts, in the order of the ranks or as single tokens: received beside rows in
// experts' order, and backward so, too; on its way, rows of this rank's tokens beside it (Megatron-Core,
// token_dispatcher.py).
double received(const Shape& shape, const LocalExperts& size) {
  if (size.to_all) return all_tokens(shape, size) / units::B;
  if (size.one_copy) return size.imbalance * (size.exchanged / units::B);
  return std::max(size.experts > 1 ? size.gathered / units::B : 0.0, shape.ep > 1 ? size.exchanged / units::B : 0.0);
}
// Forward, the first layer keeps experts' rows; backward these are a gradient.
void add_received(const Shape& shape, BlockStep& step, const LocalExperts& size) {
  step.transient_forward = received(shape, size);
  step.transient_backward = received(shape, size) + size.gathered / units::B;
}

// `kind`: of the all-gather dispatcher, tokens of all ranks come together or their sums go back. Then, under sequence
// parallelism, all ranks of one expert do the same.
void exchange(const Shape& shape, std::vector<Call>& calls, const char* name, const LocalExperts& size,
              CollectiveKind kind, Beside beside = Beside::kNothing) {
  if (shape.ep == 1) return;
  const double format = kind == CollectiveKind::kAllGather ? size.to_experts : 1;
  if (!size.to_all) {
    calls.push_back({name, Communication{CollectiveKind::kAllToAll, size.exchanged * format, Axis::kExpert, beside,
                                         size.one_copy ? shape.model->moe->routing() : Routing{}, size.imbalance}});
    return;
  }
  const Bytes of_tensor_ranks = all_tokens(shape, size) * format;
  if (kind == CollectiveKind::kReduceScatter) blocks::reduce(shape, calls, name, of_tensor_ranks, Axis::kExpertTensor);
  calls.push_back({name, Communication{kind, size.exchanged * format, Axis::kExpert, beside}});
  if (kind == CollectiveKind::kAllGather) blocks::gather(shape, calls, name, of_tensor_ranks, Axis::kExpertTensor);
}
constexpr CollectiveKind kToExperts = CollectiveKind::kAllGather, kFromExperts = CollectiveKind::kReduceScatter;

// Rows come in from each rank in turn. They are brought together by local expert, and split before they leave
// (Megatron-Core, token_dispatcher.py, sort_chunks_by_idxs).
void sort_by_expert(const Shape& shape, std::vector<Call>& calls, const char* name, const LocalExperts& size,
                    double format = 1) {
  if (size.experts > 1) calls.push_back(kernel(shape, name, Copy{size.gathered * format}));
}

// Casts this rank's tokens, or the gradients of their sums, before they travel to experts.
void cast_before(const Shape& shape, std::vector<Call>& calls, std::string_view name, const LocalExperts& size) {
  if (!size.casts_before) return;
  const std::int64_t elements = shape.sharded_tokens * size.width;
  calls.push_back(
      kernel(shape, blocks::concat(name, ".quantize"), blocks::cast(shape, elements, shape.product_element)));
}

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

// Tokens, or their copies on this rank, become rows of experts.
void permute(const Shape& shape, std::vector<Call>& calls, Bytes rows) {
  calls.push_back(kernel(shape, "moe.permute", Copy{rows}));
}
void permute_backward(const Shape& shape, std::vector<Call>& calls, const LocalExperts& size) {
  const std::int64_t elements = size.summed * size.width;
  calls.push_back(kernel(shape, "moe.permute.backward",
                         shape.plan->fused_permutation ? Elementwise{"sum", elements, 1, size.once(), 1}
                                                       : Elementwise{Elementwise::kIndexAdd, elements, 2, 1, 1}));
}

// And back to a sum, weighted where the activation was not. Unfused: rows times their weights, added to their tokens
// one by one; backward, the gradient of each row, its product with the weight, and the gradient of the weight
// (Megatron-Core, moe_utils.py, unpermute).
void unpermute(const Shape& shape, std::vector<Call>& calls, const LocalExperts& size) {
  const std::int64_t elements = size.summed * size.width;
  const bool weighted = !shape.plan->weighted_activation;
  if (shape.plan->fused_permutation) {
    calls.push_back(
        kernel(shape, "moe.unpermute",
               Elementwise{weighted ? "weighted_sum" : "sum", elements, 1, size.once(), weighted ? 2.0 : 1}));
  } else {
    if (weighted) {
      calls.push_back(kernel(shape, "moe.unpermute.scale", Elementwise{"multiply", elements, 1, 1, 1, true}));
    }
    calls.push_back(
        kernel(shape, "moe.unpermute",
               Elementwise{written_out(shape) ? Elementwise::kIndexAdd : Elementwise::kScatterAdd, elements, 2, 1, 1}));
  }
}
void unpermute_backward(const Shape& shape, std::vector<Call>& calls, const LocalExperts& size) {
  const std::int64_t elements = size.summed * size.width;
  const auto add = [&](const char* name, const Elementwise& what) { calls.push_back(kernel(shape, name, what)); };
  if (shape.plan->weighted_activation) {
    add("moe.unpermute.backward", {"index_select", elements, size.to_experts, size.to_experts, 0});
  } else if (shape.plan->fused_permutation) {
    add("moe.unpermute.backward", {"weighted_sum_backward", elements, 2, 1, 3});
  } else {
    add("moe.unpermute.backward", {"index_select", elements, 1, 1, 0});
    add("moe.unpermute.scale.backward", {"multiply", elements, 1, 1, 1, true});
    add("moe.unpermute.weights.backward", {"multiply_sum", elements, 2, 0, 2});
  }
}

// The host needs the number of rows of each rank, to exchange them, and of each expert, where it launches an expert's
// product by itself (Megatron-Core, token_dispatcher.py, cuda_sync_point; deep_ep, Buffer.dispatch). Padded experts
// have rows that are known beforehand (ibid., drop_and_pad: "no_sync"). An all-gather of tokens has one size.
bool host_reads_counts(const Shape& shape, const LocalExperts& size) {
  if (pads_experts(*shape.plan)) return false;
  return (shape.ep > 1 && !size.to_all) || shape.plan->expert_products == ExpertProducts::kLoop;
}

// From tokens to rows of experts: two steps, with `beside` beside the exchange. Where each rank gets a token once, the
// exchange sends the tokens themselves, and rows are made behind it (Megatron-Core, token_dispatcher.py,
// _DeepepManager).
BlockStep send_rows(const Shape& shape, const LocalExperts& size, Beside beside) {
  BlockStep step;
  step.name = "moe.dispatch";
  if (!size.one_copy) step.module = LayerModule::kMoePreprocess;  // makes rows for the exchange
  cast_before(shape, step.forward, "moe.dispatch", size);
  const std::size_t cast = step.forward.size();
  if (!size.one_copy) permute(shape, step.forward, size.exchanged * size.to_experts);
  exchange(shape, step.forward, "moe.dispatch", size, kToExperts, beside);
  if (host_reads_counts(shape, size) && !size.to_all && cast < step.forward.size()) {
    step.forward[cast].after_read = true;
  }
  if (!size.one_copy) permute_backward(shape, step.input_gradient, size);
  return step;
}
BlockStep receive_rows(const Shape& shape, const LocalExperts& size, Beside beside) {
  BlockStep step;
  step.name = "moe.receive";
  if (size.one_copy) {
    permute(shape, step.forward, size.gathered * size.to_experts);
    if (size.to_all) step.forward.front().after_read = host_reads_counts(shape, size);
    permute_backward(shape, step.input_gradient, size);
  } else {
    blocks::gather(shape, step.forward, "moe.dispatch", size.gathered * size.to_experts, Axis::kExpertTensor);
    sort_by_expert(shape, step.forward, "moe.sort", size, size.to_experts);
    sort_by_expert(shape, step.input_gradient, "moe.sort.backward", size);
    blocks::reduce(shape, step.input_gradient, "moe.dispatch.backward", size.gathered, Axis::kExpertTensor);
  }
  exchange(shape, step.input_gradient, "moe.dispatch.backward", size, kFromExperts, beside);
  add_received(shape, step, size);
  return step;
}

// From rows of experts to the weighted sum of each token. Where each rank gets a token once, the exchange itself adds
// the sums of ranks and nodes.
BlockStep combine(const Shape& shape, const LocalExperts& size) {
  BlockStep step;
  step.name = "moe.combine";
  cast_before(shape, step.input_gradient, "moe.combine.backward", size);
  step.forward.reserve(4);
  step.input_gradient.reserve(4);
  if (size.one_copy) {
    unpermute(shape, step.forward, size);
    exchange(shape, step.forward, "moe.combine", size, kFromExperts);
    exchange(shape, step.input_gradient, "moe.combine.backward", size, kToExperts);
    unpermute_backward(shape, step.input_gradient, size);
  } else {
    sort_by_expert(shape, step.forward, "moe.unsort", size);
    blocks::reduce(shape, step.forward, "moe.combine", size.gathered, Axis::kExpertTensor);
    exchange(shape, step.forward, "moe.combine", size, kFromExperts);
    const std::size_t before = step.forward.size();
    unpermute(shape, step.forward, size);
    step.calls_after_kept = step.forward.size() - before;
    unpermute_backward(shape, step.input_gradient, size);
    exchange(shape, step.input_gradient, "moe.combine.backward", size, kToExperts);
    blocks::gather(shape, step.input_gradient, "moe.combine.backward", size.gathered * size.to_experts,
                   Axis::kExpertTensor);
    sort_by_expert(shape, step.input_gradient, "moe.unsort.backward", size, size.to_experts);
  }
  add_received(shape, step, size);
  step.transient_forward += size.gathered / units::B;  // the experts' outputs
  // The experts' outputs, for the gradient of the routing weights.
  step.kept_as = ActivationKind::kExperts;
  if (!shape.plan->weighted_activation) step.kept_for_input_gradient = bytes_of(shape, size.summed, size.width);
  return step;
}

// ---- Experts as transformers writes them out ----
//
// integrations/moe.py. One GPU has all experts whole. In one kernel (grouped_mm_experts_forward): rows sorted by
// expert, rows of none masked behind each step, weights in fp32.

// Rows that belong to no expert become zeros, and so do their gradients.
void mask_rows(const Shape& shape, BlockStep& step, std::string_view name, std::int64_t elements) {
  blocks::add_mirrored(shape, step, blocks::concat(name, ".mask"), Elementwise{"mask", elements, 1, 1, 0, true});
}

BlockStep take_rows(const Shape& shape, const LocalExperts& size) {
  BlockStep step;
  step.name = "moe.dispatch";
  permute(shape, step.forward, size.gathered);
  const std::int64_t elements = size.rows * size.width;
  step.input_gradient.push_back(
      kernel(shape, "moe.permute.backward",
             Elementwise{"index_put", elements, 1, 1.0 / static_cast<double>(size.top_k), 1, true}));
  mask_rows(shape, step, "moe.permute", elements);
  return step;
}

BlockStep sum_rows(const Shape& shape, const LocalExperts& size) {
  const std::int64_t elements = size.rows * size.width, tokens = shape.tokens * size.width;
  const double fp32 = size_of(DType::kFp32) / units::B / shape.element, each = fp32 / static_cast<double>(size.top_k);
  BlockStep step;
  step.name = "moe.combine";
  const auto forward = [&](const char* name, const Elementwise& what) {
    step.forward.push_back(kernel(shape, name, what));
  };
  forward("moe.unpermute.scale", {"multiply", elements, 1, fp32, 1, true});
  forward("moe.unpermute", {"index_select", elements, fp32, fp32, 0});
  forward("moe.unpermute.sum", {"sum", elements, fp32, each, 1});
  forward("moe.unpermute.cast", {"cast", tokens, fp32, 1, 1});
  const auto backward = [&](const char* name, const Elementwise& what) {
    step.input_gradient.push_back(kernel(shape, name, what));
  };
  backward("moe.unpermute.cast.backward", {"cast", tokens, 1, fp32, 1, true});
  backward("moe.unpermute.sum.backward", {"expand", elements, each, fp32, 0, true});
  backward("moe.unpermute.backward", {"index_put", elements, fp32, fp32, 1, true});
  backward("moe.unpermute.scale.backward", {"multiply", elements, fp32, fp32, 1, true});
  backward("moe.unpermute.weights.backward", {"multiply", elements, 1 + fp32, fp32, 1, true});
  backward("moe.unpermute.weights.sum.backward", {"sum", elements, fp32, 0, 1});
  backward("moe.unpermute.scale.cast.backward", {"cast", elements, fp32, 1, 1});
  step.calls_after_kept = step.forward.size();
  // Forward, products in fp32 and the same in the order of tokens; backward, the gradient of such a product, and of
  // both its factors.
  step.transient_forward = 2 * 4 * static_cast<double>(elements);
  step.transient_backward = 3 * 4 * static_cast<double>(elements);
  step.kept_as = ActivationKind::kExperts;
  step.kept_for_input_gradient = bytes_of(shape, size.rows, size.width);
  return step;
}

// Each row gets its expert's bias. Megatron-Core's first layer adds it in its product, its second one behind it
// (experts.py, _apply_bias); classes of transformers pick each row's bias and add that.
void add_bias(const Shape& shape, BlockStep& step, std::string_view name, const LocalExperts& size, std::int64_t out,
              bool first) {
  const std::int64_t elements = size.rows * out;
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const Elementwise& what) {
    calls.push_back(kernel(shape, blocks::concat(name, suffix), what));
  };
  const bool picked = written_out(shape);
  const std::size_t before = step.forward.size();
  if (picked) add(step.forward, ".bias.select", {"index_select", elements, 1, 1, 0});
  if (picked || !first) add(step.forward, ".bias", {"add", elements, picked ? 2.0 : 1, 1, 1, true});
  step.calls_after_kept += step.forward.size() - before;
  add(step.weight_gradient, ".bias_gradient",
      picked ? Elementwise{"index_put", elements, 1, 1, 1, true} : Elementwise{"sum_rows", elements, 1, 0, 1});
  blocks::add_to_sums(shape, step.weight_gradient, blocks::concat(name, ".bias"), size.experts * out);
}

// One linear layer of all experts of this rank. It keeps its input as it reads it: rows come together before the layer
// (Megatron-Core, token_dispatcher.py; explicit_expert_comm), and nothing gathers them again.
struct GroupedLinear {
  std::string_view name;
  std::int64_t in = 1, out = 1;
  Split weights = Split::kLocal;                         // over the ranks of an expert
  bool keeps_original = false;                           // Linear::keeps_original
  bool input_is_cast = false, gradient_is_cast = false;  // came in the products' format, in one layout
  bool reads_hidden = false;                             // rows are hidden states
};
BlockStep grouped_linear(const Shape& shape, const LocalExperts& size, const GroupedLinear& layer) {
  const std::string_view name = layer.name;
  const std::int64_t in = layer.in, out = layer.out;
  BlockStep step;
  step.name = name;
  const bool quantized = blocks::is_quantized(shape);
  const bool in_format = quantized && shape.plan->lora_rank == 0;
  const bool casts_again = blocks::casts_again(shape, layer.keeps_original);
  // What was cast has to be cast along the other axis for the weight gradient, where products need that.
  const bool other_layout = operand_bytes(shape) > shape.product_element;
  const auto gemm = [&](std::string text, std::int64_t n, std::int64_t k, GemmLayout layout, Epilogue epilogue) {
    return Call{std::move(text), Operator{GroupedGemm{size.experts, size.rows, n, k, layout, epilogue,
                                                      shape.plan->expert_products == ExpertProducts::kKernel,
                                                      quantized ? scaling_of(shape.precision) : Scaling::kTensor},
                                          quantized ? product_type(shape.precision) : shape.dtype}};
  };
  const double weights = static_cast<double>(size.experts) * static_cast<double>(in) * static_cast<double>(out);
  const double hidden = layer.reads_hidden ? static_cast<double>(size.rows) * static_cast<double>(in) : 0;
  blocks::autocast(shape, step.forward, blocks::concat(name, ".input.cast"), hidden, true);
  blocks::autocast(shape, step.forward, blocks::concat(name, ".weights.cast"), weights, true);
  const double cast = shape.product_element;
  const std::string input = blocks::concat(name, ".input"), grad = blocks::concat(name, ".grad");
  if (layer.input_is_cast) {
    if (other_layout) blocks::quantize_again(shape, step.input_gradient, input, size.rows * in, cast, cast);
  } else if (casts_again) {
    step.forward.push_back(kernel(shape, blocks::concat(name, ".quantize"), blocks::cast(shape, size.rows * in, cast)));
    blocks::quantize_again(shape, step.input_gradient, input, size.rows * in, shape.element, cast);
  } else {
    blocks::quantize(shape, step.forward, name, size.rows * in, false);
  }
  if (!layer.gradient_is_cast) {
    blocks::quantize(shape, step.input_gradient, grad, size.rows * out, false);
  } else if (other_layout) {
    blocks::quantize_again(shape, step.input_gradient, grad, size.rows * out, cast, cast);
  }
  step.forward.push_back(gemm(step.name, out, in, GemmLayout::kNT, Epilogue::kNone));
  step.calls_after_kept = 1;
  step.input_gradient.push_back(gemm(blocks::concat(name, ".dgrad"), in, out, GemmLayout::kNN, Epilogue::kNone));
  blocks::autocast(shape, step.input_gradient, blocks::concat(name, ".dgrad.cast"), hidden, false);
  // The weight gradient contracts over an expert's rows: the same products, reduced over tokens.
  step.weight_gradient.push_back(
      gemm(blocks::concat(name, ".wgrad"), in, out, GemmLayout::kTN, blocks::accumulation_epilogue(shape)));
  blocks::autocast(shape, step.weight_gradient, blocks::concat(name, ".wgrad.cast"), weights, false);
  blocks::accumulate(shape, step.weight_gradient, name, size.experts * in * out);
  if (shape.model->bias) add_bias(shape, step, name, size, out, layer.reads_hidden);
  if (in_one_kernel(shape)) {
    mask_rows(shape, step, name, size.rows * out);
    ++step.calls_after_kept;
  } else if (written_out(shape) && shape.plan->lora_rank == 0) {
    // An expert's weights are a part of one tensor: in a loop over experts, autograd makes a gradient of the whole
    // tensor for each, zero elsewhere, and adds them up.
    const auto add = [&](std::string_view suffix, const Elementwise& what) {
      step.weight_gradient.push_back(blocks::hidden_kernel(shape, blocks::concat(name, suffix), what));
    };
    const std::int64_t whole = size.experts * in * out;
    add(".wgrad.fill", {"fill", size.experts * whole, 0, 1, 0});
    if (size.experts > 1) add(".wgrad.add", {"add", (size.experts - 1) * whole, 2, 1, 1});
  }
  step.kept_as = ActivationKind::kExperts;
  const double operand = in_format ? shape.product_element : shape.element;
  const double held = static_cast<double>(size.rows) * static_cast<double>(in);
  step.kept_for_weight_gradient = held * (casts_again ? shape.element : operand);
  if (casts_again) step.cast_for_weight_gradient = held * operand;
  step.output_gradient = static_cast<double>(size.rows * out) * operand;
  // Gradients of outputs and inputs, and the outputs' cast.
  step.transient_backward = bytes_of(shape, size.rows, in + out);
  if (quantized) step.transient_backward += static_cast<double>(size.rows * out) * operand_bytes(shape);
  const double biases = shape.model->bias ? static_cast<double>(size.experts * out) : 0;
  step.parameters.experts = weights + biases;
  if (quantized) step.parameters.quantized = step.parameters.quantized_experts = weights;
  blocks::add_matrices(shape, step, {out, in, blocks::side_of(layer.weights), true}, size.experts);
  blocks::adapt(shape, step, {size.rows, in, out, size.experts, layer.weights});
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
  const bool one_kernel = in_one_kernel(shape);
  const bool latent = size.width != shape.hidden;
  if (latent) in_layer(to_latent(shape, size)).drops_for_weight_gradient |= norm_again;
  in_layer(one_kernel ? take_rows(shape, size) : send_rows(shape, size, exchanges));
  if (beside) pass_shared_experts();
  const std::size_t last_shared = block.steps.size() - 1;
  if (!one_kernel) in_layer(receive_rows(shape, size, exchanges));
  in_layer(grouped_linear(shape, size,
                          {.name = "moe.fc1",
                           .in = size.width,
                           .out = up,
                           .weights = Split::kColumn,
                           .input_is_cast = size.casts_before,
                           .reads_hidden = true}));
  BlockStep& activation = in_layer(blocks::activation(shape, ActivationKind::kExperts, "moe.activation", size.rows,
                                                      size.ffn, written_out(shape) && shape.model->gated_mlp));
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
  in_layer(one_kernel ? sum_rows(shape, size) : combine(shape, size));
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
