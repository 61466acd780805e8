// Attention that is written out: scores, scaled masked softmax, dropout, weighted sum (arXiv 2205.05198, fig. 3).
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "blocks/attention_core.h"

namespace ns_dist::blocks {
namespace {

// Whether one kernel scales, masks and normalizes scores: Megatron's (megatron/core/fusions/fused_softmax.py,
// is_kernel_available; in 2021 its longest sequence was 2,048, later 4,096), or a compiler's. Megatron's is for formats
// of 16 bits; who asks for a fused softmax in fp32 has a compiler.
bool has_fused_softmax(const Shape& shape) {
  if (shape.element > 2 || shape.plan->norm_library == Library::kCompiled) return true;
  constexpr std::int64_t kMultiple = 4, kLongest = 16384;
  return shape.sequence <= kLongest && shape.sequence % kMultiple == 0 &&
         shape.micro_batch * shape.heads % kMultiple == 0;
}

// PyTorch alone scales and masks in kernels of their own, and multiplies the softmax's output with its gradient in one
// (softmax_backward_cuda). Its products of more than one sequence read copies of queries, keys and values, whose heads
// are views with gaps (torch.matmul); heads of the output are joined by a copy. Where Megatron's fused kernel does not
// run, it casts scores of 16 bits to fp32, scales, masks and normalizes these, and casts them back (fused_softmax.py,
// forward_torch_softmax). Classes of transformers scale and mask in 16 bits and cast around the softmax alone
// (modeling_llama.py, eager_attention_forward: softmax(..., dtype=torch.float32).to(query.dtype)); those with learned
// positions normalize in the format of the scores (modeling_gpt2.py, eager_attention_forward), which autocast casts.
// With sinks they join a score for each row, take the largest off, and normalize in the scores' format; the backward
// pass puts zeros in the sinks' place, and takes the largest one's gradient, their sum, off (modeling_gpt_oss.py,
// eager_attention_forward).
class UnfusedAttention {
 public:
  explicit UnfusedAttention(const Shape& shape)
      : shape_(shape),
        classes_(shape.plan->split_softmax),
        in_parts_(classes_ || !has_fused_softmax(shape)),
        sinks_(classes_ && shape.model->attention_sinks),
        mask_(mask_elements(shape.dtype)),
        batch_(shape.micro_batch * shape.heads),
        scores_(batch_ * shape.sequence * shape.sequence),
        copies_(shape.heads / std::max<std::int64_t>(1, key_heads(shape))) {
    const bool in_fp32 = !sinks_ && (shape.autocast || shape.model->position != PositionKind::kLearned);
    casts_last_ = classes_ && shape.element <= 2 && in_fp32;
    casts_first_ = !classes_ && in_parts_;
    if (casts()) normalized_ = size_of(DType::kFp32) / units::B / shape.element;
    if (casts_first_) masked_ = normalized_;
  }

  void forward(std::vector<Call>& calls) const;
  void backward(std::vector<Call>& calls) const;
  void keep(BlockStep& step) const;

 private:
  using Kernels = std::initializer_list<Elementwise>;

  bool casts() const { return casts_first_ || casts_last_; }
  // Whether the heads of keys and values are repeated for each query's (repeat_kv): the products read these copies as
  // they are, and autograd sums up the gradients of each.
  bool repeats() const { return classes_ && copies_ > 1; }
  std::int64_t repeated() const { return shape_.tokens * shape_.heads * (shape_.query_dim + shape_.value_dim); }
  Elementwise widen() const { return {"cast", scores_, 1, normalized_, 1}; }
  Elementwise narrow() const { return {"cast", scores_, normalized_, 1, 1}; }
  Elementwise scale() const { return {"scale", scores_, masked_, masked_, 1}; }
  // Columns of the heads that are copied before the products read them.
  std::int64_t gathered_columns() const {
    if (shape_.micro_batch == 1) return 0;
    const std::int64_t keys = repeats() ? 0 : key_heads(shape_) * (shape_.query_dim + shape_.value_dim);
    return shape_.heads * shape_.query_dim + keys;
  }

  Call product(const char* name, std::int64_t n, std::int64_t k, GemmLayout layout) const {
    return kernel(shape_, name, Gemm{batch_, shape_.sequence, n, k, layout, Epilogue::kNone});
  }
  Call softmax(const char* name, Pass pass) const {
    const Library library = in_parts_ ? Library::kEager : Library::kDefault;
    const Softmax rows{batch_ * shape_.sequence, shape_.sequence, pass, library};
    return {name, Operator{rows, casts() ? DType::kFp32 : shape_.dtype}};
  }
  void add(bool when, std::vector<Call>& calls, const char* name, const Elementwise& what) const {
    if (when) calls.push_back(kernel(shape_, name, what));
  }
  void add_copy(std::vector<Call>& calls, const char* name, std::int64_t columns) const {
    if (!classes_ || columns == 0) return;
    const double elements = static_cast<double>(shape_.tokens) * static_cast<double>(columns);
    calls.push_back(kernel(shape_, name, Copy{elements * shape_.element * units::B}));
  }
  void add_cap(std::vector<Call>& calls, Kernels kernels) const {
    for (const Elementwise& each : kernels) add(shape_.model->capped_scores, calls, "attention.cap", each);
  }

  const Shape& shape_;
  bool classes_;   // of transformers, which write everything out
  bool in_parts_;  // scale, mask and softmax are kernels of their own
  bool sinks_;
  bool casts_first_ = false, casts_last_ = false;  // scores to fp32: before they are scaled, or before the softmax
  double mask_;                                    // elements of the plan's format that a byte is
  std::int64_t batch_, scores_;                    // products side by side; scores of all of them
  std::int64_t copies_;                            // of each head of keys
  // Elements of the plan's format that a score is, as the softmax reads it; as it is scaled and masked.
  double normalized_ = 1, masked_ = 1;
};

void UnfusedAttention::forward(std::vector<Call>& calls) const {
  calls.reserve(4);
  add_copy(calls, "attention.heads.copy", gathered_columns());
  add(repeats(), calls, "attention.keys.repeat", {"copy", repeated(), 1 / static_cast<double>(copies_), 1, 0, true});
  calls.push_back(product("attention.scores", shape_.sequence, shape_.query_dim, GemmLayout::kNT));
  add(casts_first_, calls, "attention.scores.cast", widen());
  add(in_parts_, calls, "attention.scale", scale());
  add_cap(calls, {scale(), {"tanh", scores_, masked_, masked_, 8}, scale()});
  add(in_parts_, calls, "attention.mask", {"mask", scores_, masked_ + mask_, masked_, 1});  // torch.where, a byte each
  add(casts_last_, calls, "attention.scores.cast", widen());
  add(sinks_, calls, "attention.sinks.join", {Elementwise::kJoin, scores_, 1, 1, 0, true});
  add(sinks_, calls, "attention.sinks.largest", {"max", scores_, 1, 0, 1});
  add(sinks_, calls, "attention.sinks.subtract", {"subtract", scores_, 1, 1, 1, true});
  calls.push_back(softmax("attention.softmax", Pass::kForward));
  add(casts(), calls, "attention.probabilities.cast", narrow());
  add(shape_.dropout, calls, "attention.dropout", {"dropout", scores_, 1, 1 + mask_, 2});
  calls.push_back(product("attention.context", shape_.value_dim, shape_.sequence, GemmLayout::kNN));
  add_copy(calls, "attention.output.copy", shape_.heads * shape_.value_dim);
}

void UnfusedAttention::backward(std::vector<Call>& calls) const {
  const std::int64_t s = shape_.sequence;
  calls.reserve(6);
  add_copy(calls, "attention.output.backward.copy", shape_.heads * shape_.value_dim);
  calls.push_back(product("attention.context.dprobabilities", s, shape_.value_dim, GemmLayout::kNT));
  calls.push_back(product("attention.context.dvalues", shape_.value_dim, s, GemmLayout::kTN));
  add(shape_.dropout, calls, "attention.dropout.backward", {"dropout_backward", scores_, 1 + mask_, 1, 1});
  add(casts(), calls, "attention.probabilities.backward.cast", widen());
  add(sinks_, calls, "attention.sinks.fill", {"fill", scores_, 0, 1, 0});
  add(sinks_, calls, "attention.sinks.copy", {"copy", scores_, 1, 1, 0, true});
  add(in_parts_, calls, "attention.softmax.backward.multiply", {"multiply", scores_, 2 * normalized_, normalized_, 1});
  calls.push_back(softmax("attention.softmax.backward", Pass::kBackward));
  add(sinks_, calls, "attention.sinks.subtract.backward", {"negate", scores_, 1, 1, 1});
  add(sinks_, calls, "attention.sinks.largest.sum", {"sum", scores_, 1, 0, 1});
  add(sinks_, calls, "attention.sinks.largest.backward", {"add", scores_, 2, 1, 1});
  add(sinks_, calls, "attention.sinks.join.backward", {"copy", scores_, 1, 1, 0, true});
  add(casts_last_, calls, "attention.scores.backward.cast", narrow());
  add(in_parts_, calls, "attention.mask.backward", {"mask", scores_, masked_, masked_, 1});
  add_cap(calls, {scale(), {"tanh_backward", scores_, 2 * masked_, masked_, 3}, scale()});
  add(in_parts_, calls, "attention.scale.backward", scale());
  add(casts_first_, calls, "attention.scores.backward.cast", narrow());
  calls.push_back(product("attention.scores.dqueries", shape_.query_dim, s, GemmLayout::kNN));
  calls.push_back(product("attention.scores.dkeys", shape_.query_dim, s, GemmLayout::kTN));
  add_copy(calls, "attention.heads.backward.copy", gathered_columns());
  add(repeats(), calls, "attention.keys.repeat.backward", {"sum", repeated(), 1, 1 / static_cast<double>(copies_), 1});
}

// Softmax output, its copy in 16 bits where the next product reads it, and the dropout's mask and output.
void UnfusedAttention::keep(BlockStep& step) const {
  const double scores =
      static_cast<double>(shape_.tokens) * static_cast<double>(shape_.heads) * static_cast<double>(shape_.sequence);
  const double element = shape_.element;
  step.kept_as = ActivationKind::kAttentionScores;
  step.kept_for_input_gradient = scores * (normalized_ * element + (shape_.dropout ? 1 + element
                                                                    : casts()      ? element
                                                                                   : 0));
  // Gradients of what the dropout or the softmax returns and of what it reads.
  step.transient_backward = 2 * scores * normalized_ * element;
  if (shape_.model->capped_scores) step.kept_for_input_gradient += scores * masked_ * element;
  if (repeats()) {  // in place of the heads that were repeated
    step.kept_for_input_gradient +=
        bytes_of(shape_, shape_.tokens, (shape_.heads - key_heads(shape_)) * (shape_.query_dim + shape_.value_dim));
  }
}

}  // namespace

void add_unfused_attention(const Shape& shape, BlockStep& step) {
  const UnfusedAttention core(shape);
  core.forward(step.forward);
  core.backward(step.input_gradient);
  core.keep(step);
}

}  // namespace ns_dist::blocks
