#include "blocks/branch.h"

#include <array>
#include <utility>

namespace ns_dist::blocks {

namespace {

// A kernel of so many elements that are read and written, in fp32 or in the format of hidden states. Products with the
// weight, or with a number of each row, and what that number's gradient becomes handle each element alone.
struct NormKernel {
  const char* what;
  double inputs, outputs, flops;
  bool in_fp32 = true, by_element = false;
};
// LlamaRMSNorm as its class writes it out (modeling_llama.py): w * (x rsqrt(mean(x^2) + eps)), in fp32 but for the
// weight, and as autograd differentiates it. Kernels of one number a row are left out.
constexpr std::array<NormKernel, 4> kRmsNormForward = {
    {{"power", 1, 1, 1}, {"mean", 1, 0, 1}, {"scale", 1, 1, 1, true, true}, {"multiply", 1, 1, 1, false, true}}};
constexpr std::array<NormKernel, 11> kRmsNormBackward = {{{"multiply", 1, 1, 1, false, true},
                                                          {"multiply", 2, 1, 1, false},
                                                          {"sum_rows", 1, 0, 1, false},
                                                          {"scale", 1, 1, 1, true, true},
                                                          {"multiply", 2, 1, 1},
                                                          {"sum", 1, 0, 1},
                                                          {"mean_backward", 0, 1, 1, true, true},
                                                          {"copy", 1, 1, 0},
                                                          {"scale", 1, 1, 1},
                                                          {"multiply", 2, 1, 1},
                                                          {"add", 2, 1, 1}}};

void add_written_out_norm(const Shape& shape, BlockStep& step, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kFewColumns = 256;
  const std::int64_t elements = rows * columns;
  const double low = shape.hidden_element / (size_of(DType::kFp32) / units::B);  // elements of fp32
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const NormKernel& each) {
    const bool narrow = columns <= kFewColumns && std::string_view(each.what) == "sum_rows";
    calls.push_back(
        {concat(step.name, suffix), Operator{Elementwise{narrow ? Elementwise::kSumNarrowRows : each.what, elements,
                                                         each.inputs, each.outputs, each.flops, each.by_element},
                                             each.in_fp32 ? DType::kFp32 : shape.hidden_dtype}});
  };
  const NormKernel to_fp32{"cast", low, 1, 1, true, true}, back{"cast", 1, low, 1};
  const bool casts = low < 1;
  if (casts) add(step.forward, ".cast", to_fp32);
  for (const NormKernel& each : kRmsNormForward) {
    if (casts && !each.in_fp32) add(step.forward, ".cast", back);
    add(step.forward, "", each);
  }
  for (std::size_t i = 0; i < kRmsNormBackward.size(); ++i) {
    if (casts && kRmsNormBackward[i].in_fp32 && !kRmsNormBackward[i - 1].in_fp32)
      add(step.input_gradient, ".cast", to_fp32);
    add(step.input_gradient, ".backward", kRmsNormBackward[i]);
  }
  if (casts) add(step.input_gradient, ".cast", back);
}

}  // namespace

BlockStep norm_without_sums(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  const NormalizationKind kind = shape.model->norm;
  const Library library = shape.plan->norm_library;
  BlockStep step;
  step.name = name;
  if (shape.plan->written_out && library == Library::kEager && kind == NormalizationKind::kRmsNorm) {
    add_written_out_norm(shape, step, rows, columns);
  } else {
    step.forward.push_back(
        hidden_kernel(shape, step.name, Normalization{kind, rows, columns, Pass::kForward, library}));
    step.input_gradient.push_back(
        hidden_kernel(shape, concat(name, ".backward"), Normalization{kind, rows, columns, Pass::kBackward, library}));
  }
  step.kept_as = ActivationKind::kNorms;
  step.kept_for_input_gradient = hidden_bytes(shape, rows, columns);
  step.transient_backward = 2 * hidden_bytes(shape, rows, columns);  // gradients of output and input
  // PyTorch runs RMSNorm as its class writes it out (modeling_llama.py, LlamaRMSNorm): the input in fp32, for its
  // square and its product, and the normalized values in the storage format, for the product with the weight.
  if (library == Library::kEager && kind == NormalizationKind::kRmsNorm) {
    const double fp32 = static_cast<double>(rows) * static_cast<double>(columns) * (size_of(DType::kFp32) / units::B);
    step.kept_for_input_gradient += fp32;
    // Gradients of the normalized values by both factors and their sum.
    step.transient_backward += 3 * fp32;
  }
  step.parameters.dense = static_cast<double>(columns) * (kind == NormalizationKind::kLayerNorm ? 2 : 1);
  return step;
}

BlockStep norm(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  BlockStep step = norm_without_sums(shape, name, rows, columns);
  // Gradients of what is no product's weight are added to the sums by a kernel for each parameter (Megatron-Core,
  // distributed_data_parallel.py: main_grad.add_; PyTorch, AccumulateGrad).
  const int parameters = shape.plan->lora_rank > 0 ? 0 : shape.model->norm == NormalizationKind::kLayerNorm ? 2 : 1;
  for (int i = 0; i < parameters; ++i) add_to_sums(shape, step.input_gradient, name, columns);
  return step;
}

BlockStep stream_sum(const Shape& shape, std::string_view branch, bool mixes) {
  const std::int64_t n = shape.streams, tokens = shape.sharded_tokens, elements = tokens * shape.hidden;
  const auto streams = static_cast<double>(n);
  const std::int64_t weights = mixes ? n * (n + 2) : n, in = n * shape.hidden;
  const auto call = [&](std::string_view name, OperatorKind kind) {
    return hidden_kernel(shape, concat(branch, name), std::move(kind));
  };
  // The n x n weights of a token that mix streams are normalized 20 times by rows and columns (Sinkhorn), all others by
  // a sigmoid.
  constexpr double kRounds = 20;
  const Elementwise normalize{"stream_weights", tokens * weights, 2, 2, mixes ? 2 * kRounds : 6};
  BlockStep step;
  step.name = concat(branch, ".streams");
  step.forward.push_back(call(".streams.weights", Gemm{1, tokens, weights, in, GemmLayout::kNT}));
  step.forward.push_back(call(".streams.weights.normalize", normalize));
  step.forward.push_back(call(".streams.sum", Elementwise{"stream_sum", elements, streams, 1, 2 * streams}));
  // The gradient of each stream: what came around the branch, by the sum, and by the weights.
  step.input_gradient.push_back(call(".streams.weights.normalize.backward", normalize));
  step.input_gradient.push_back(call(".streams.weights.dgrad", Gemm{1, tokens, in, weights, GemmLayout::kNN}));
  step.input_gradient.push_back(call(
      ".streams.sum.backward", Elementwise{"stream_sum_backward", elements, 1 + 3 * streams, streams, 6 * streams}));
  if (shape.plan->lora_rank == 0) {
    step.weight_gradient.push_back(
        call(".streams.weights.wgrad", Gemm{1, weights, in, tokens, GemmLayout::kTN, accumulation_epilogue(shape)}));
    accumulate(shape, step.weight_gradient, concat(branch, ".streams.weights"), weights * in);
  }
  step.kept_as = ActivationKind::kResidualStreams;
  step.kept_for_input_gradient = hidden_bytes(shape, tokens, in);
  // A base for each weight, and scales.
  step.parameters.dense = static_cast<double>(weights * in + weights + (mixes ? 3 : 1));
  return step;
}

BlockStep branch_start(const Shape& shape, std::string_view branch, NormPlacement placement) {
  BlockStep step;
  if (placement == NormPlacement::kPost) {
    step.name = concat(branch, ".branch");
  } else {
    step = norm(shape, concat(branch, ".norm"), shape.sharded_tokens, shape.hidden);
    step.again = set_of(RecomputeModule::kNorm);
  }
  if (shape.streams > 1) return step;  // gradients meet in stream_sum
  step.input_gradient.push_back(hidden_kernel(shape, concat(branch, ".residual.backward"),
                                              Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1}));
  return step;
}

void add_gradients(const Shape& shape, BlockStep& start, std::string_view branch, int readers) {
  const Elementwise add{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1};
  for (int other = 1; other < readers; ++other) {
    start.input_gradient.insert(start.input_gradient.begin(),
                                hidden_kernel(shape, concat(branch, ".inputs.dgrad.add"), add));
  }
}

void dropout_backward(const Shape& shape, BlockStep& step, std::string_view name, DType dtype) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  const Elementwise backward{"dropout_backward", elements, 1 + mask_elements(dtype), 1, 1};
  step.input_gradient.push_back({concat(name, ".dropout.backward"), Operator{backward, dtype}});
  step.kept_as = ActivationKind::kDropoutMasks;
  step.kept_for_input_gradient += static_cast<double>(elements);
}

namespace {

// The branch has the products' format, which autocast converts one by one as it adds to hidden states in fp32.
BlockStep residual(const Shape& shape, std::string_view branch) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  const double of_branch = shape.element / shape.hidden_element;
  BlockStep step;
  step.name = concat(branch, ".residual");
  if (shape.dropout && shape.plan->fused_kernels) {
    const Elementwise all{"bias_dropout_add", elements, 1 + of_branch, 1 + mask_elements(shape.hidden_dtype), 4};
    step.forward.push_back(hidden_kernel(shape, concat(branch, ".dropout_add"), all));
  } else {
    if (shape.dropout) {
      const Elementwise dropout{"dropout", elements, 1, 1 + mask_elements(shape.dtype), 3};
      step.forward.push_back(kernel(shape, concat(branch, ".dropout"), dropout));
    }
    step.forward.push_back(hidden_kernel(shape, concat(branch, ".add"),
                                         Elementwise{"add", elements, 1 + of_branch, 1, 1, shape.autocast}));
  }
  if (shape.dropout) dropout_backward(shape, step, branch, shape.dtype);
  return step;
}

// Each stream is a sum of all, and of the branch's output: (n + 1) hidden states are read, n are written. The output is
// kept for the gradient of its weights.
BlockStep mixed_streams(const Shape& shape, std::string_view branch) {
  const auto n = static_cast<double>(shape.streams);
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  BlockStep step;
  step.name = concat(branch, ".streams");
  step.forward.push_back(hidden_kernel(shape, concat(branch, ".streams.mix"),
                                       Elementwise{"stream_mix", elements, n + 1, n, 2 * n * (n + 1)}));
  step.input_gradient.push_back(
      hidden_kernel(shape, concat(branch, ".streams.mix.backward"),
                    Elementwise{"stream_mix_backward", elements, 2 * n + 1, n + 1, 4 * n * (n + 1)}));
  step.kept_as = ActivationKind::kResidualStreams;
  step.kept_for_input_gradient = hidden_bytes(shape, shape.sharded_tokens, shape.hidden);
  return step;
}

}  // namespace

void end_branch(const Shape& shape, Block& block, std::string_view branch, NormPlacement placement) {
  if (placement != NormPlacement::kPre) {
    block.steps.push_back(norm(shape, concat(branch, ".post_norm"), shape.sharded_tokens, shape.hidden));
  }
  block.steps.push_back(shape.streams > 1 ? mixed_streams(shape, branch) : residual(shape, branch));
}

}  // namespace ns_dist::blocks
