// By Megatron-Core's all-to-all dispatcher: permute, exchange over the expert-parallel group, gather over the
// tensor-parallel group, sort by expert, and back. By DeepEP or by an all-gather: exchange, permute, and back.
#include "blocks/expert_dispatch.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ns_dist::blocks {
namespace {

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
  if (kind == CollectiveKind::kReduceScatter) reduce(shape, calls, name, of_tensor_ranks, Axis::kExpertTensor);
  calls.push_back({name, Communication{kind, size.exchanged * format, Axis::kExpert, beside}});
  if (kind == CollectiveKind::kAllGather) gather(shape, calls, name, of_tensor_ranks, Axis::kExpertTensor);
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
  calls.push_back(kernel(shape, concat(name, ".quantize"), cast(shape, elements, shape.product_element)));
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
    calls.push_back(kernel(
        shape, "moe.unpermute",
        Elementwise{writes_experts_out(shape) ? Elementwise::kIndexAdd : Elementwise::kScatterAdd, elements, 2, 1, 1}));
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

}  // namespace

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
    gather(shape, step.forward, "moe.dispatch", size.gathered * size.to_experts, Axis::kExpertTensor);
    sort_by_expert(shape, step.forward, "moe.sort", size, size.to_experts);
    sort_by_expert(shape, step.input_gradient, "moe.sort.backward", size);
    reduce(shape, step.input_gradient, "moe.dispatch.backward", size.gathered, Axis::kExpertTensor);
  }
  exchange(shape, step.input_gradient, "moe.dispatch.backward", size, kFromExperts, beside);
  add_received(shape, step, size);
  return step;
}

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
    reduce(shape, step.forward, "moe.combine", size.gathered, Axis::kExpertTensor);
    exchange(shape, step.forward, "moe.combine", size, kFromExperts);
    const std::size_t before = step.forward.size();
    unpermute(shape, step.forward, size);
    step.calls_after_kept = step.forward.size() - before;
    unpermute_backward(shape, step.input_gradient, size);
    exchange(shape, step.input_gradient, "moe.combine.backward", size, kToExperts);
    gather(shape, step.input_gradient, "moe.combine.backward", size.gathered * size.to_experts, Axis::kExpertTensor);
    sort_by_expert(shape, step.input_gradient, "moe.unsort.backward", size, size.to_experts);
  }
  add_received(shape, step, size);
  step.transient_forward += size.gathered / units::B;  // the experts' outputs
  // The experts' outputs, for the gradient of the routing weights.
  step.kept_as = ActivationKind::kExperts;
  if (!shape.plan->weighted_activation) step.kept_for_input_gradient = bytes_of(shape, size.summed, size.width);
  return step;
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

}  // namespace ns_dist::blocks
