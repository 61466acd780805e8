#include "blocks/grouped_linear.h"

#include <string>
#include <utility>
#include <vector>

namespace ns_dist::blocks {
namespace {

// Each row gets its expert's bias. Megatron-Core's first layer adds it in its product, its second one behind it
// (experts.py, _apply_bias); classes of transformers pick each row's bias and add that.
void add_bias(const Shape& shape, BlockStep& step, std::string_view name, const LocalExperts& size, std::int64_t out,
              bool first) {
  const std::int64_t elements = size.rows * out;
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const Elementwise& what) {
    calls.push_back(kernel(shape, concat(name, suffix), what));
  };
  const bool picked = writes_experts_out(shape);
  const std::size_t before = step.forward.size();
  if (picked) add(step.forward, ".bias.select", {"index_select", elements, 1, 1, 0});
  if (picked || !first) add(step.forward, ".bias", {"add", elements, picked ? 2.0 : 1, 1, 1, true});
  step.calls_after_kept += step.forward.size() - before;
  add(step.weight_gradient, ".bias_gradient",
      picked ? Elementwise{"index_put", elements, 1, 1, 1, true} : Elementwise{"sum_rows", elements, 1, 0, 1});
  add_to_sums(shape, step.weight_gradient, concat(name, ".bias"), size.experts * out);
}

// Casts of what the products read to their format, and again for the weight gradient.
void add_casts(const Shape& shape, BlockStep& step, const LocalExperts& size, const GroupedLinear& layer) {
  const std::int64_t inputs = size.rows * layer.in, outputs = size.rows * layer.out;
  // What was cast has to be cast along the other axis for the weight gradient, where products need that.
  const bool other_layout = operand_bytes(shape) > shape.product_element;
  const double written = shape.product_element;
  const std::string input = concat(layer.name, ".input"), grad = concat(layer.name, ".grad");
  if (layer.input_is_cast) {
    if (other_layout) quantize_again(shape, step.input_gradient, input, inputs, written, written);
  } else if (casts_again(shape, layer.keeps_original)) {
    step.forward.push_back(kernel(shape, concat(layer.name, ".quantize"), cast(shape, inputs, written)));
    quantize_again(shape, step.input_gradient, input, inputs, shape.element, written);
  } else {
    quantize(shape, step.forward, layer.name, inputs, false);
  }
  if (!layer.gradient_is_cast) {
    quantize(shape, step.input_gradient, grad, outputs, false);
  } else if (other_layout) {
    quantize_again(shape, step.input_gradient, grad, outputs, written, written);
  }
}

// What classes of transformers run beside the products.
void add_written_out(const Shape& shape, BlockStep& step, const LocalExperts& size, const GroupedLinear& layer) {
  if (experts_in_one_kernel(shape)) {
    mask_rows(shape, step, layer.name, size.rows * layer.out);
    ++step.calls_after_kept;
  } else if (shape.plan->lora_rank == 0) {
    // An expert's weights are a part of one tensor: in a loop over experts, autograd makes a gradient of the whole
    // tensor for each, zero elsewhere, and adds them up.
    const auto add = [&](std::string_view suffix, const Elementwise& what) {
      step.weight_gradient.push_back(hidden_kernel(shape, concat(layer.name, suffix), what));
    };
    const std::int64_t whole = size.experts * layer.in * layer.out;
    add(".wgrad.fill", {"fill", size.experts * whole, 0, 1, 0});
    if (size.experts > 1) add(".wgrad.add", {"add", (size.experts - 1) * whole, 2, 1, 1});
  }
}

}  // namespace

BlockStep grouped_linear(const Shape& shape, const LocalExperts& size, const GroupedLinear& layer) {
  const std::string_view name = layer.name;
  const std::int64_t in = layer.in, out = layer.out;
  BlockStep step;
  step.name = name;
  const bool quantized = is_quantized(shape);
  const bool in_format = quantized && shape.plan->lora_rank == 0;
  const auto gemm = [&](std::string text, std::int64_t n, std::int64_t k, GemmLayout layout, Epilogue epilogue) {
    return Call{std::move(text), Operator{GroupedGemm{size.experts, size.rows, n, k, layout, epilogue,
                                                      shape.plan->expert_products == ExpertProducts::kKernel,
                                                      quantized ? scaling_of(shape.precision) : Scaling::kTensor},
                                          quantized ? product_type(shape.precision) : shape.dtype}};
  };
  const double weights = static_cast<double>(size.experts) * static_cast<double>(in) * static_cast<double>(out);
  const double hidden = layer.reads_hidden ? static_cast<double>(size.rows) * static_cast<double>(in) : 0;
  autocast(shape, step.forward, concat(name, ".input.cast"), hidden, true);
  autocast(shape, step.forward, concat(name, ".weights.cast"), weights, true);
  add_casts(shape, step, size, layer);
  step.forward.push_back(gemm(step.name, out, in, GemmLayout::kNT, Epilogue::kNone));
  step.calls_after_kept = 1;
  step.input_gradient.push_back(gemm(concat(name, ".dgrad"), in, out, GemmLayout::kNN, Epilogue::kNone));
  autocast(shape, step.input_gradient, concat(name, ".dgrad.cast"), hidden, false);
  // The weight gradient contracts over an expert's rows: the same products, reduced over tokens.
  step.weight_gradient.push_back(gemm(concat(name, ".wgrad"), in, out, GemmLayout::kTN, accumulation_epilogue(shape)));
  autocast(shape, step.weight_gradient, concat(name, ".wgrad.cast"), weights, false);
  accumulate(shape, step.weight_gradient, name, size.experts * in * out);
  if (shape.model->bias) add_bias(shape, step, name, size, out, layer.reads_hidden);
  if (writes_experts_out(shape)) add_written_out(shape, step, size, layer);
  step.kept_as = ActivationKind::kExperts;
  const double operand = in_format ? shape.product_element : shape.element;
  const double held = static_cast<double>(size.rows) * static_cast<double>(in);
  const bool again = casts_again(shape, layer.keeps_original);
  step.kept_for_weight_gradient = held * (again ? shape.element : operand);
  if (again) step.cast_for_weight_gradient = held * operand;
  step.output_gradient = static_cast<double>(size.rows * out) * operand;
  // Gradients of outputs and inputs, and the outputs' cast.
  step.transient_backward = bytes_of(shape, size.rows, in + out);
  if (quantized) step.transient_backward += static_cast<double>(size.rows * out) * operand_bytes(shape);
  const double biases = shape.model->bias ? static_cast<double>(size.experts * out) : 0;
  step.parameters.experts = weights + biases;
  if (quantized) step.parameters.quantized = step.parameters.quantized_experts = weights;
  add_matrices(shape, step, {out, in, side_of(layer.weights), true}, size.experts);
  adapt(shape, step, {size.rows, in, out, size.experts, layer.weights});
  return step;
}

}  // namespace ns_dist::blocks
