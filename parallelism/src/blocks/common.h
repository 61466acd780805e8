// What several blocks have: kernels and communications, casts, sums of gradients, activation functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block.h"

namespace ns_dist::blocks {

Call kernel(const Shape& shape, std::string name, OperatorKind kind);
// A kernel on hidden states, in their format.
Call hidden_kernel(const Shape& shape, std::string name, OperatorKind kind);

// Appends autocast's cast of `elements` from fp32, the format of hidden states and weights, to that of the products, or
// back; nothing without autocast.
void autocast(const Shape& shape, std::vector<Call>& calls, std::string name, double elements, bool to_low);

// Behind the last kernel, before what a layer sends. The place of the first.
std::vector<Call>::iterator insert_behind_kernels(std::vector<Call>& calls, std::vector<Call> added);
// The kernel forward, and behind what `step` has already; backward, "name.backward" before that.
void add_mirrored(const Shape& shape, BlockStep& step, std::string_view name, const OperatorKind& kind);

// Appends a communication among tensor-parallel ranks, or those of one expert; nothing where there is one.
void communicate(const Shape& shape, std::vector<Call>& calls, std::string name, CollectiveKind kind, Bytes size,
                 Axis axis = Axis::kTensor);
// Sums partial results over these ranks. Under sequence parallelism each keeps its part of the tokens:
// "name.reduce_scatter", else "name.all_reduce".
void reduce(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis = Axis::kTensor);
// Under sequence parallelism, brings the tokens of all these ranks together: "name.all_gather".
void gather(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis = Axis::kTensor);

// Whether the layers' products run in another format than activations are stored in.
inline bool is_quantized(const Shape& shape) { return quantizes(shape.precision); }
// Whether a cast to that format reads a tensor twice: its factor follows its own largest value (TransformerEngine's
// current scaling; NVFP4's factor of the whole tensor).
inline bool finds_largest(const Shape& shape) {
  return shape.precision == Precision::kNvFp4 ||
         (shape.precision == Precision::kFp8 && !delays_scaling(*shape.plan, shape.precision));
}
// The cast of `elements` to the products' format, of which `written` bytes each are written. `knows_largest`: the
// kernel before found the largest value.
inline Elementwise cast(const Shape& shape, std::int64_t elements, double written, bool knows_largest = false) {
  const double reads = finds_largest(shape) && !knows_largest ? 2 : 1;
  return {"quantize", elements, reads, written / shape.element, 2};
}
// Appends a kernel that casts `elements` to the products' format, for the forward product and, transposed or with
// factors along the other axis, for the weight gradient; nothing without quantization. `behind_norm`: it alone reads
// the output of a norm, which writes the cast itself or finds the largest value, as the recipe allows.
void quantize(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
              bool behind_norm);
// The same where the input itself is kept, or has that format already: a cast of what has `read` bytes an element, of
// which `written` are written.
void quantize_again(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
                    double read, double written);
// Whether layers may keep what they read in place of its cast: factors of earlier passes hold for one cast alone, so
// TransformerEngine refuses delayed scaling here (linear.py), and Megatron-Core asks for it with all other recipes
// (attention.py, set_save_original_input).
inline bool may_keep_originals(const Shape& shape) {
  return is_quantized(shape) && !delays_scaling(*shape.plan, shape.precision);
}
// Whether a layer keeps its input as it comes, and casts it again in the backward pass. `original`:
// Linear::keeps_original.
inline bool casts_again(const Shape& shape, bool original) {
  const bool all = shape.plan->fp8_original_inputs && may_keep_originals(shape);
  return is_quantized(shape) && (original || all) && shape.plan->lora_rank == 0;
}
// Whether a layer keeps a cast of its input, which no other layer shares.
inline bool keeps_casts(const Shape& shape, bool original) {
  return is_quantized(shape) && !casts_again(shape, original) && shape.plan->lora_rank == 0;
}
// Bytes of a kept element of a value that ParallelPlan::fp8_activations keeps in the products' format, and of one that
// it keeps in E5M6, 12 bits with as many factors (DeepSeek-V3, arXiv 2412.19437, s.3.3.3).
inline bool keeps_activations_in_8_bits(const Shape& shape) {
  return shape.plan->fp8_activations && is_quantized(shape);
}
inline double e5m6_element(const Shape& shape) {
  return 1.5 + shape.product_element - size_of(product_type(shape.precision)) / units::B;
}
// Whether selective recomputation runs this module again.
inline bool recomputes(const Shape& shape, RecomputeModule module) {
  return shape.plan->recompute == Recompute::kSelective && (shape.plan->recompute_modules & set_of(module)) != 0;
}

// The gradient of `parameters` weights in `calls`: the product ends with accumulation_epilogue, or a kernel of its own
// adds it to the sum. add_to_sums: the kernel, whatever products do.
Epilogue accumulation_epilogue(const Shape& shape);
void accumulate(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters);
void add_to_sums(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters);

// Bytes of `rows` x `columns` hidden states.
inline double hidden_bytes(const Shape& shape, std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns) * shape.hidden_element;
}

// The activation function of an MLP whose width on this rank is `ffn`. `input`: as above. `halves`: gate and value are
// views of one tensor, which unfused kernels read element by element, and whose gradient is joined.
BlockStep activation(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
                     std::int64_t ffn, bool halves = false);

// `rows` x `columns` outputs times an activation function of as many gates. Both are kept, as `input`.
BlockStep gate(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
               std::int64_t columns);

// Bytes of `rows` x `columns` activations.
inline double bytes_of(const Shape& shape, std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns) * shape.element;
}

// A dropout mask is one byte an element; operators count traffic in elements of their own type.
inline double mask_elements(DType dtype) { return units::B / size_of(dtype); }

// "a" + "b" in one allocation.
std::string concat(std::string_view a, std::string_view b);

// Context-parallel ranks exchange tokens for heads, or back: each has all tokens of its part of the heads. `columns` of
// a token, before and behind.
void exchange_heads(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t columns);

}  // namespace ns_dist::blocks
