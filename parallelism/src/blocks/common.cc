#include "blocks/common.h"

#include <utility>

namespace ns_dist::blocks {

std::string concat(std::string_view a, std::string_view b) {
  std::string text;
  text.reserve(a.size() + b.size());
  text.append(a).append(b);
  return text;
}

Call kernel(const Shape& shape, std::string name, OperatorKind kind) {
  return {std::move(name), Operator{std::move(kind), shape.dtype}};
}

void communicate(const Shape& shape, std::vector<Call>& calls, std::string name, CollectiveKind kind, Bytes size) {
  if (shape.tp > 1) calls.push_back({std::move(name), Communication{kind, size, Axis::kTensor}});
}

void reduce(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size) {
  if (shape.tp == 1) return;
  if (shape.sequence_parallel) {
    communicate(shape, calls, concat(name, ".reduce_scatter"), CollectiveKind::kReduceScatter, size);
  } else {
    communicate(shape, calls, concat(name, ".all_reduce"), CollectiveKind::kAllReduce, size);
  }
}

void gather(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size) {
  if (!shape.sequence_parallel) return;
  communicate(shape, calls, concat(name, ".all_gather"), CollectiveKind::kAllGather, size);
}

Epilogue accumulation_epilogue(const Shape& shape) {
  return shape.plan->grad_accumulation == GradAccumulation::kFused ? Epilogue::kAccumulateFp32 : Epilogue::kNone;
}

void accumulate(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters) {
  if (shape.plan->grad_accumulation == GradAccumulation::kFused) return;
  // The product's gradient is read, the sum is read and written.
  const double sum = gradient_size(*shape.plan, shape.dtype) / units::B / shape.element;
  calls.push_back(kernel(shape, concat(name, ".wgrad.accumulate"), Elementwise{"add", parameters, 1 + sum, sum, 1}));
}

BlockStep linear(const Shape& shape, const Linear& layer) {
  const auto& [name, rows, in, out, bias, split, region, epilogue] = layer;
  BlockStep step;
  step.name = name;

  step.forward.reserve(2);
  if (split == Split::kColumn) gather(shape, step.forward, region, shape.hidden_states());
  step.forward.push_back(kernel(shape, step.name, Gemm{1, rows, out, in, GemmLayout::kNT, epilogue}));
  if (split == Split::kRow) reduce(shape, step.forward, region, shape.hidden_states());

  step.input_gradient.reserve(2);
  if (split == Split::kRow) gather(shape, step.input_gradient, concat(name, ".grad"), shape.hidden_states());
  const std::string dgrad = concat(name, ".dgrad");
  step.input_gradient.push_back(kernel(shape, dgrad, Gemm{1, rows, in, out, GemmLayout::kNN, Epilogue::kNone}));
  if (split == Split::kColumn) reduce(shape, step.input_gradient, dgrad, shape.hidden_states());

  step.weight_gradient.reserve(3);
  if (split == Split::kColumn) gather(shape, step.weight_gradient, concat(name, ".input"), shape.hidden_states());
  step.weight_gradient.push_back(
      kernel(shape, concat(name, ".wgrad"), Gemm{1, out, in, rows, GemmLayout::kTN, accumulation_epilogue(shape)}));
  accumulate(shape, step.weight_gradient, name, out * in);
  if (bias) {
    // The output's gradient summed over rows (Megatron-LM, layers.py: `grad_output.sum(dim=0)`).
    step.weight_gradient.push_back(
        kernel(shape, concat(name, ".bias_gradient"), Elementwise{"sum_rows", rows * out, 1, 0, 1}));
  }

  // Column-parallel layers keep this rank's part of the input and gather it again.
  step.kept_for_weight_gradient = bytes_of(shape, split == Split::kColumn ? shape.sharded_tokens : rows, in);
  step.output_gradient = bytes_of(shape, rows, out);
  step.parameters.dense = static_cast<double>(in) * static_cast<double>(out) + (bias ? static_cast<double>(out) : 0);
  return step;
}

BlockStep norm(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  const bool layer_norm = shape.model->norm == NormKind::kLayerNorm;
  const NormalizationKind kind = layer_norm ? NormalizationKind::kLayerNorm : NormalizationKind::kRmsNorm;
  const Library library = shape.plan->norm_library;
  BlockStep step;
  step.name = name;
  step.forward.push_back(kernel(shape, step.name, Normalization{kind, rows, columns, Pass::kForward, library}));
  step.input_gradient.push_back(
      kernel(shape, concat(name, ".backward"), Normalization{kind, rows, columns, Pass::kBackward, library}));
  step.kept_for_input_gradient = bytes_of(shape, rows, columns);
  step.parameters.dense = static_cast<double>(columns) * (layer_norm ? 2 : 1);
  return step;
}

BlockStep branch_norm(const Shape& shape, std::string_view branch) {
  BlockStep step = norm(shape, concat(branch, ".norm"), shape.sharded_tokens, shape.hidden);
  step.input_gradient.push_back(kernel(shape, concat(branch, ".residual.backward"),
                                       Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1}));
  return step;
}

BlockStep activation(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t ffn) {
  const bool gated = shape.model->gated_mlp;
  BlockStep step;
  step.name = name;
  step.forward.push_back(
      kernel(shape, step.name,
             Elementwise{gated ? "gated_activation" : "bias_activation", rows * ffn, gated ? 2.0 : 1.0, 1, 10}));
  step.input_gradient.push_back(kernel(shape, concat(name, ".backward"),
                                       Elementwise{gated ? "gated_activation_backward" : "bias_activation_backward",
                                                   rows * ffn, gated ? 3.0 : 2.0, gated ? 2.0 : 1.0, 20}));
  step.kept_for_input_gradient = bytes_of(shape, rows, gated ? 2 * ffn : ffn);
  return step;
}

void dropout_backward(const Shape& shape, BlockStep& step, std::string_view name) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  step.input_gradient.push_back(kernel(shape, concat(name, ".dropout.backward"),
                                       Elementwise{"dropout_backward", elements, 1 + mask_elements(shape), 1, 1}));
  step.kept_for_input_gradient += static_cast<double>(elements);
}

BlockStep residual(const Shape& shape, std::string_view branch) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  BlockStep step;
  step.name = concat(branch, ".residual");
  if (shape.model->dropout) {
    step.forward.push_back(kernel(shape, concat(branch, ".dropout_add"),
                                  Elementwise{"bias_dropout_add", elements, 2, 1 + mask_elements(shape), 4}));
    dropout_backward(shape, step, branch);
  } else {
    step.forward.push_back(kernel(shape, concat(branch, ".add"), Elementwise{"add", elements, 2, 1, 1}));
  }
  return step;
}

}  // namespace ns_dist::blocks
