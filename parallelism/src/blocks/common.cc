#include "blocks/common.h"

#include <array>
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

Call hidden_kernel(const Shape& shape, std::string name, OperatorKind kind) {
  return {std::move(name), Operator{std::move(kind), shape.hidden_dtype}};
}

std::vector<Call>::iterator insert_behind_kernels(std::vector<Call>& calls, std::vector<Call> added) {
  const auto last = std::find_if(calls.rbegin(), calls.rend(),
                                 [](const Call& call) { return std::holds_alternative<Operator>(call.what); });
  return calls.insert(last.base(), std::move_iterator(added.begin()), std::move_iterator(added.end()));
}

void add_mirrored(const Shape& shape, BlockStep& step, std::string_view name, const OperatorKind& kind) {
  step.forward.push_back(kernel(shape, std::string(name), kind));
  step.input_gradient.insert(step.input_gradient.begin(), kernel(shape, concat(name, ".backward"), kind));
}

void communicate(const Shape& shape, std::vector<Call>& calls, std::string name, CollectiveKind kind, Bytes size,
                 Axis axis) {
  if ((axis == Axis::kTensor ? shape.tp : shape.etp) > 1) {
    calls.push_back({std::move(name), Communication{kind, size, axis}});
  }
}

// Whether each rank of a tensor-parallel group, or of an expert's, has tokens of its own.
static bool divides_tokens(const Shape& shape, Axis axis) {
  return axis == Axis::kTensor ? shape.sequence_parallel : shape.gathers_rows();
}

void reduce(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis) {
  const bool scatter = divides_tokens(shape, axis);
  communicate(shape, calls, concat(name, scatter ? ".reduce_scatter" : ".all_reduce"),
              scatter ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, size, axis);
}

void gather(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis) {
  if (!divides_tokens(shape, axis)) return;
  communicate(shape, calls, concat(name, ".all_gather"), CollectiveKind::kAllGather, size, axis);
}

Epilogue accumulation_epilogue(const Shape& shape) {
  const GradAccumulation how = shape.plan->grad_accumulation;
  if (!is_fused(how) || !adds_up_gradients(*shape.plan)) return Epilogue::kNone;
  return sums_in_fp32(how) ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulate;
}

void accumulate(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters) {
  if (!is_fused(shape.plan->grad_accumulation)) add_to_sums(shape, calls, name, parameters);
}

void add_to_sums(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters) {
  // Each rank adds up its share once they are reduced.
  if (!adds_up_gradients(*shape.plan)) return;
  // The product's gradient is read, the sum is read and written. In fp32, a cast comes first: it writes a copy of the
  // gradient, which is read (deepspeed/runtime/bf16_optimizer.py, update_hp_grads).
  const double sum = gradient_size(*shape.plan, shape.dtype) / units::B / shape.element;
  if (begins_sums(*shape.plan)) {
    // Autograd keeps the first microbatch's gradient as the sum (torch/csrc/autograd/functions/accumulate_grad.h);
    // FSDP2 casts it to the format of the sum, and adds the others as they are (_fsdp_param.py,
    // to_accumulated_grad_if_needed). Here each microbatch has its share of this.
    const double first = 1 / static_cast<double>(shape.microbatches), others = 1 - first;
    if (shape.microbatches == 1) return;
    const bool as_they_are = is_fsdp(*shape.plan);
    const double gradient = as_they_are ? 1 : sum, cast = as_they_are && sum != 1 ? first : 0;
    const Elementwise add{"add", parameters, (gradient + sum) * others + cast, sum * (others + cast), 1};
    calls.push_back(kernel(shape, concat(name, ".wgrad.accumulate"), add));
    return;
  }
  const double cast = shape.plan->grad_accumulation == GradAccumulation::kFp32 ? sum : 0;
  calls.push_back(
      kernel(shape, concat(name, ".wgrad.accumulate"), Elementwise{"add", parameters, 1 + cast + sum, cast + sum, 1}));
}

void autocast(const Shape& shape, std::vector<Call>& calls, std::string name, double elements, bool to_low) {
  if (!shape.autocast || elements < 1) return;
  const double fp32 = shape.hidden_element / shape.element;
  calls.push_back(kernel(
      shape, std::move(name),
      Elementwise{"cast", static_cast<std::int64_t>(elements), to_low ? fp32 : 1, to_low ? 1 : fp32, 1, !to_low}));
}

void quantize(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
              bool behind_norm) {
  if (!is_quantized(shape)) return;
  // A copy for the weight gradient's product, too.
  const double written = shape.plan->lora_rank == 0 ? operand_bytes(shape) : shape.product_element;
  // With factors of earlier passes, the normalization writes 8 bits itself; with those of this tensor, it finds the
  // largest value (TransformerEngine, csrc/extensions/normalization.cpp).
  if (behind_norm && delays_scaling(*shape.plan, shape.precision)) {
    if (!(written > shape.product_element)) return;
    const double moved = shape.product_element / shape.element;
    calls.push_back(kernel(shape, concat(name, ".quantize"), Elementwise{"transpose", elements, moved, moved, 0}));
    return;
  }
  calls.push_back(kernel(shape, concat(name, ".quantize"), cast(shape, elements, written, behind_norm)));
}

void quantize_again(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
                    double read, double written) {
  Elementwise what = cast(shape, elements, written);
  what.inputs *= read / shape.element;
  calls.push_back(kernel(shape, concat(name, ".quantize"), std::move(what)));
}

namespace {

// A kernel that reads so many activations for each that it writes.
struct Pointwise {
  const char* what;
  double inputs, flops;
};
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as transformers' NewGELUActivation runs it and as autograd
// differentiates it: both factors of the product, tanh, the cube, and x's gradients of all four places added up.
constexpr std::array<Pointwise, 8> kGeluForward = {{{"power", 1, 2},
                                                    {"scale", 1, 1},
                                                    {"add", 2, 1},
                                                    {"scale", 1, 1},
                                                    {"tanh", 1, 8},
                                                    {"add", 1, 1},
                                                    {"scale", 1, 1},
                                                    {"multiply", 2, 1}}};
constexpr std::array<Pointwise, 11> kGeluBackward = {{{"multiply", 2, 1},
                                                      {"multiply", 2, 1},
                                                      {"scale", 1, 1},
                                                      {"tanh_backward", 2, 3},
                                                      {"scale", 1, 1},
                                                      {"scale", 1, 1},
                                                      {"power", 1, 1},
                                                      {"scale", 1, 1},
                                                      {"multiply", 2, 1},
                                                      {"add", 2, 1},
                                                      {"add", 2, 1}}};
// x, tanh, and both factors of the last product.
constexpr std::int64_t kGeluKept = 4;

}  // namespace

BlockStep activation(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
                     std::int64_t ffn, bool halves) {
  const bool gated = shape.model->gated_mlp;
  BlockStep step;
  step.name = name;
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const char* what, double inputs,
                       double outputs, double flops, bool by_element = false) {
    calls.push_back(
        kernel(shape, concat(name, suffix), Elementwise{what, rows * ffn, inputs, outputs, flops, by_element}));
  };
  const bool written_out = shape.plan->written_out && shape.model->activation == Activation::kGeluNew;
  std::int64_t kept = gated ? (shape.plan->fused_kernels ? 2 : 3) : 1;
  const bool in_8_bits = !written_out && shape.plan->fused_kernels && keeps_activations_in_8_bits(shape);
  const double each = in_8_bits ? shape.product_element / shape.element : 1;  // of a kept element
  if (written_out) {
    // Autocast runs powers in fp32, and what is computed with them is in fp32, too (PyTorch, amp.html).
    const double fp32 = shape.hidden_element / shape.element, elements = static_cast<double>(rows * ffn);
    autocast(shape, step.input_gradient, concat(name, ".cast.backward"), elements, false);
    for (const auto& [what, inputs, flops] : kGeluForward) add(step.forward, "", what, inputs * fp32, fp32, flops);
    for (const auto& [what, inputs, flops] : kGeluBackward)
      add(step.input_gradient, ".backward", what, inputs * fp32, fp32, flops);
    autocast(shape, step.forward, concat(name, ".cast"), elements, true);
    kept = kGeluKept;
  } else if (shape.plan->fused_kernels || !gated) {
    // The kernel writes its inputs in the format in which they are kept, too.
    const double inputs = gated ? 2 : 1, copied = in_8_bits ? inputs * each : 0;
    add(step.forward, "", gated ? "gated_activation" : "bias_activation", inputs, 1 + copied, 10);
    add(step.input_gradient, ".backward", gated ? "gated_activation_backward" : "bias_activation_backward",
        1 + inputs * each, inputs, 20);
  } else {
    // The activation of one half, then its product with the other; backward, two products and the derivative.
    add(step.forward, "", "activation", 1, 1, 8, halves);
    add(step.forward, ".gate", "multiply", 2, 1, 1, halves);
    add(step.input_gradient, ".gate.backward", "multiply", 2, 1, 1, halves);
    add(step.input_gradient, ".gate.backward", "multiply", 2, 1, 1);
    add(step.input_gradient, ".backward", "activation_backward", 2, 1, 16, halves);
    if (halves) add(step.input_gradient, ".join.backward", "copy", 2, 2, 0);
  }
  step.kept_as = input;
  step.kept_for_input_gradient = bytes_of(shape, rows, kept * ffn) * each;
  // Gradients of the output and of one or both inputs; a join of these has both a second time, and no output's.
  step.transient_backward = bytes_of(shape, rows, (gated ? 3 : 2) * ffn);
  if (gated && halves && !shape.plan->fused_kernels) step.transient_backward = bytes_of(shape, rows, 4 * ffn);
  // Autocast: all but the product's half are fp32.
  if (written_out && shape.autocast) {
    step.kept_for_input_gradient += (hidden_bytes(shape, rows, ffn) - bytes_of(shape, rows, ffn)) * (kGeluKept - 1);
  }
  return step;
}

BlockStep gate(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
               std::int64_t columns) {
  BlockStep step;
  step.name = name;
  step.forward.push_back(kernel(shape, step.name, Elementwise{"gated_activation", rows * columns, 2, 1, 10}));
  step.input_gradient.push_back(
      kernel(shape, concat(name, ".backward"), Elementwise{"gated_activation_backward", rows * columns, 3, 2, 20}));
  step.kept_as = input;
  step.kept_for_input_gradient = bytes_of(shape, rows, 2 * columns);
  step.transient_backward = bytes_of(shape, rows, 3 * columns);
  return step;
}

void exchange_heads(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t columns) {
  if (shape.cp == 1) return;
  const Bytes size = bytes_of(shape, shape.tokens, columns) * units::B;
  calls.push_back(kernel(shape, concat(name, ".pack"), Copy{size}));
  calls.push_back({std::string(name), Communication{CollectiveKind::kAllToAll, size, Axis::kContext}});
}

}  // namespace ns_dist::blocks
