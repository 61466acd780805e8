// Mixture of experts with token dispatch by all-to-all (Megatron-Core's all-to-all dispatcher): route, permute,
// exchange over the expert-parallel group, gather over the tensor-parallel group, grouped GEMMs, and back.
#include "layers/layers.h"

namespace ns_dist::layers {
namespace {

struct Sizes {
  std::int64_t routed;         // token copies this rank sends to experts
  std::int64_t rows;           // token copies this rank's experts receive, all of them together
  std::int64_t local_experts;  // of this rank
  std::int64_t ffn;            // of one expert on this rank
  Bytes exchanged;             // send buffer of the all-to-all
  Bytes gathered;              // over the tensor-parallel group
};

// Routing is taken as balanced: each expert receives the same number of tokens.
Sizes sizes(const Shape& shape) {
  const Experts& moe = *shape.model->moe;
  Sizes sizes;
  sizes.routed = shape.sharded_tokens * moe.top_k;
  sizes.rows = shape.tokens * moe.top_k;
  sizes.local_experts = moe.experts / shape.ep;
  sizes.ffn = moe.expert_ffn / shape.tp;
  const double row_bytes = static_cast<double>(shape.hidden) * shape.element;
  sizes.exchanged = static_cast<double>(sizes.routed) * row_bytes * units::B;
  sizes.gathered = static_cast<double>(sizes.rows) * row_bytes * units::B;
  return sizes;
}

Linear shared_up(const Shape& shape) {
  const std::int64_t ffn = shape.model->moe->shared_experts * shape.model->moe->shared_expert_ffn / shape.tp;
  return {"moe.shared.fc1", shape.hidden, shape.model->gated_mlp ? 2 * ffn : ffn, shape.model->bias};
}

Linear shared_down(const Shape& shape) {
  const std::int64_t ffn = shape.model->moe->shared_experts * shape.model->moe->shared_expert_ffn / shape.tp;
  return {"moe.shared.fc2", ffn, shape.hidden, shape.model->bias};
}

Linear router(const Shape& shape) { return {"moe.router", shape.hidden, shape.model->moe->experts, false}; }

void exchange(Recorder& recorder, const std::string& name) {
  const Shape& shape = recorder.shape();
  if (shape.ep == 1) return;
  recorder.blocking(name, Category::kExpertParallel, Stream::kExpertParallel, CollectiveKind::kAllToAll,
                    sizes(shape).exchanged, recorder.expert_group());
}

void gather(Recorder& recorder, const std::string& name) {
  if (!recorder.shape().sequence_parallel) return;
  recorder.tensor_parallel(name + ".all_gather", CollectiveKind::kAllGather, sizes(recorder.shape()).gathered);
}

void scatter(Recorder& recorder, const std::string& name) {
  const Shape& shape = recorder.shape();
  if (shape.sequence_parallel) {
    recorder.tensor_parallel(name + ".reduce_scatter", CollectiveKind::kReduceScatter, sizes(shape).gathered);
  } else {
    recorder.tensor_parallel(name + ".all_reduce", CollectiveKind::kAllReduce, sizes(shape).gathered);
  }
}

// Rows come in from each rank in turn and are brought together by local expert, and back before they leave
// (Megatron-Core, token_dispatcher.py, sort_chunks_by_idxs).
void sort_by_expert(Recorder& recorder, const std::string& name, Category category) {
  const Sizes size = sizes(recorder.shape());
  if (size.local_experts > 1) recorder.kernel(name, category, Copy{size.gathered});
}

GroupedGemm grouped(const Sizes& size, std::int64_t rows, std::int64_t n, std::int64_t k, GemmLayout layout,
                    Epilogue epilogue) {
  return {size.local_experts, rows, n, k, layout, epilogue};
}

}  // namespace

void moe_forward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const Sizes size = sizes(shape);
  const Category category = recorder.forward_category();
  const std::int64_t up = shape.model->gated_mlp ? 2 * size.ffn : size.ffn;
  recorder.kernel("moe.norm", category, norm(shape, shape.sharded_tokens, shape.hidden, Pass::kForward));
  recorder.forward(router(shape), shape.sharded_tokens, Epilogue::kNone);
  recorder.kernel("moe.top_k", category, Softmax{shape.sharded_tokens, shape.model->moe->experts, Pass::kForward});
  recorder.kernel("moe.permute", category, Copy{size.exchanged});
  exchange(recorder, "moe.dispatch");
  gather(recorder, "moe.dispatch");
  sort_by_expert(recorder, "moe.sort", category);
  recorder.kernel("moe.fc1", category, grouped(size, size.rows, up, shape.hidden, GemmLayout::kNT, Epilogue::kNone));
  activation_forward(recorder, "moe.activation", size.rows, size.ffn);
  recorder.kernel("moe.fc2", category,
                  grouped(size, size.rows, shape.hidden, size.ffn, GemmLayout::kNT, Epilogue::kNone));
  sort_by_expert(recorder, "moe.unsort", category);
  scatter(recorder, "moe.combine");
  exchange(recorder, "moe.combine");
  recorder.kernel(
      "moe.unpermute", category,
      Elementwise{"weighted_sum", size.routed * shape.hidden, 1, 1 / static_cast<double>(shape.model->moe->top_k), 2});
  if (shape.model->moe->shared_experts > 0) {
    recorder.enter_split_region("moe.shared");
    recorder.forward(shared_up(shape), shape.tokens, Epilogue::kNone);
    activation_forward(recorder, "moe.shared.activation", shape.tokens, shared_down(shape).in);
    recorder.forward(shared_down(shape), shape.tokens, Epilogue::kNone);
    recorder.leave_split_region("moe.shared");
    recorder.kernel("moe.shared.add", category, Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1});
  }
  residual_forward(recorder, "moe");
}

void moe_backward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const Sizes size = sizes(shape);
  const std::int64_t up = shape.model->gated_mlp ? 2 * size.ffn : size.ffn;
  residual_branch_backward(recorder, "moe");
  if (shape.model->moe->shared_experts > 0) {
    recorder.row_parallel_backward(shared_down(shape));
    activation_backward(recorder, "moe.shared.activation", shape.tokens, shared_down(shape).in);
    recorder.column_parallel_backward(shared_up(shape));
  }
  recorder.kernel("moe.unpermute.backward", Category::kBackward,
                  Elementwise{"weighted_sum_backward", size.routed * shape.hidden, 2, 1, 3});
  exchange(recorder, "moe.combine.backward");
  gather(recorder, "moe.combine.backward");
  sort_by_expert(recorder, "moe.unsort.backward", Category::kBackward);
  const auto gemm = [&](std::string name, std::int64_t n, std::int64_t k, GemmLayout layout, Epilogue epilogue) {
    recorder.kernel(std::move(name), Category::kBackward, grouped(size, size.rows, n, k, layout, epilogue));
  };
  // The weight gradient contracts over an expert's rows: the same products, reduced over tokens.
  gemm("moe.fc2.dgrad", size.ffn, shape.hidden, GemmLayout::kNN, Epilogue::kNone);
  gemm("moe.fc2.wgrad", size.ffn, shape.hidden, GemmLayout::kTN, recorder.accumulation_epilogue());
  recorder.accumulate("moe.fc2", size.local_experts * size.ffn * shape.hidden);
  activation_backward(recorder, "moe.activation", size.rows, size.ffn);
  gemm("moe.fc1.dgrad", shape.hidden, up, GemmLayout::kNN, Epilogue::kNone);
  gemm("moe.fc1.wgrad", shape.hidden, up, GemmLayout::kTN, recorder.accumulation_epilogue());
  recorder.accumulate("moe.fc1", size.local_experts * up * shape.hidden);
  sort_by_expert(recorder, "moe.sort.backward", Category::kBackward);
  scatter(recorder, "moe.dispatch.backward");
  exchange(recorder, "moe.dispatch.backward");
  recorder.kernel(
      "moe.permute.backward", Category::kBackward,
      Elementwise{"sum", size.routed * shape.hidden, 1, 1 / static_cast<double>(shape.model->moe->top_k), 1});
  recorder.kernel("moe.top_k.backward", Category::kBackward,
                  Softmax{shape.sharded_tokens, shape.model->moe->experts, Pass::kBackward});
  recorder.input_gradient(router(shape), shape.sharded_tokens);
  recorder.weight_gradient(router(shape), shape.sharded_tokens);
  recorder.kernel("moe.norm.backward", Category::kBackward,
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kBackward));
  residual_sum_backward(recorder, "moe");
}

}  // namespace ns_dist::layers
