// Steps that several blocks have: linear layers, norms, activation functions, residual branches.
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

// How tensor parallelism splits a linear layer (Shoeybi et al. 2019, arXiv 1909.08053, s.3): kColumn splits the outputs
// and opens a split region, kRow splits the inputs and closes it. kLocal has no communication of its own.
enum class Split : std::uint8_t { kLocal, kColumn, kRow };

// y = x W^T + b with the sizes of this rank.
struct Linear {
  std::string_view name;  // "mlp.fc1"
  std::int64_t rows = 1, in = 1, out = 1;
  std::int64_t groups = 1;  // layers of these sizes side by side, each with its rows: one batched product
  bool bias = false;
  Split split = Split::kLocal;
  std::string_view region = {};  // "mlp"; names the forward communication of kColumn and kRow
  Epilogue epilogue = Epilogue::kNone;
  bool unquantized = false;  // runs in the storage format under every precision
  bool behind_norm = false;  // it alone reads the output of a norm, which can write it in the products' format
  // Where products are quantized: keeps its input as it comes, because that is there anyway or is made again, and casts
  // it again in the backward pass (TransformerEngine, pytorch/module/linear.py, save_original_input). Else keeps the
  // cast.
  bool keeps_original = false;
  double original_element = 0;  // bytes of an element so kept, as the cast's kernel writes it; 0: as it comes
  // Layers of the model's class that are one here and read the same hidden states; 0: the input is none. Autocast makes
  // a copy for each.
  int readers = 0;
  bool shares_input = false;  // another layer keeps what it reads
  // How tensor-parallel ranks share the weights, where `split` does not say it.
  std::optional<Split> weights = {};
  bool by_element = false;                  // its weights are updated by Adam whatever the optimizer is
  std::vector<std::int64_t> sections = {};  // WeightMatrix::sections
};
// `input`: what it counts as.
BlockStep linear(const Shape& shape, ActivationKind input, const Linear& layer);

// Layers that read the same output of a norm. What one of them keeps as it comes is kept for all; a cast each keeps
// itself.
class SideBySide {
 public:
  SideBySide(const Shape& shape, ActivationKind input) : shape_(shape), input_(input) {}
  BlockStep linear(Linear layer);

 private:
  const Shape& shape_;
  ActivationKind input_;
  bool kept_ = false;  // as it comes
};

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
// Whether a layer keeps a cast of its input, which no other layer shares. `original`: Linear::keeps_original.
inline bool keeps_casts(const Shape& shape, bool original) {
  return is_quantized(shape) && !original && shape.plan->lora_rank == 0;
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

// What `readers` parts of a branch read at its `start` gets a gradient of each, which autograd adds up.
void add_gradients(const Shape& shape, BlockStep& start, std::string_view branch, int readers);

// The gradient of `parameters` weights in `calls`: the product ends with accumulation_epilogue, or a kernel of its own
// adds it to the sum. add_to_sums: the kernel, whatever products do.
Epilogue accumulation_epilogue(const Shape& shape);
void accumulate(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters);
void add_to_sums(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters);

// Notes `count` weights of outputs x inputs, which are split over ranks as in a linear layer, where the optimizer
// updates matrices as wholes.
void add_matrices(const Shape& shape, BlockStep& step, const WeightMatrix& matrix, std::int64_t count = 1);
constexpr SplitSide side_of(Split split) {
  return split == Split::kColumn ? SplitSide::kRows : split == Split::kRow ? SplitSide::kColumns : SplitSide::kNone;
}

// What LoRA makes of a layer under a plan that has it; nothing else. A frozen layer has no weight gradient.
void freeze(const Shape& shape, BlockStep& step);
// A frozen linear layer of `experts` experts (0: of none) and its adapter (Hu et al. 2021, arXiv 2106.09685): y +=
// alpha / r (x A) B of this rank's inputs and outputs, products of their own in the storage format, a kernel for the
// factor and one for the sum (PEFT, lora/layer.py). The input is kept for them in that format. Sums over
// tensor-parallel ranks join those of the layer; those of the gradients of the factor that is whole on every rank are
// left out.
//
// Under FrozenWeights::kNf4 a kernel makes the layer's weights before its product and before that of its input gradient
// (bitsandbytes, autograd/_functions.py, MatMul4Bit), for this layer alone.
struct Adapter {
  std::int64_t rows = 1, in = 1, out = 1, experts = 0;
  Split weights = Split::kLocal;  // of the layer
};
void adapt(const Shape& shape, BlockStep& step, const Adapter& layer);
// Bytes of a weight in NF4: 4 bits, and 0.127 of its block's constants (QLoRA, arXiv 2305.14314, s. 3: an 8-bit
// constant for 64 weights, an fp32 one for 256 of these).
inline constexpr double kNf4Bytes = (4 + 8.0 / 64 + 32.0 / (64 * 256)) / 8;

// How many layers the model's class has in place of one projection of `parts` parts (modeling_llama.py: q_proj, k_proj
// and v_proj; modeling_gpt2.py: c_attn).
inline int separate_layers(const Shape& shape, int parts) {
  return shape.model->position == PositionKind::kLearned ? 1 : parts;
}
// Bytes of `rows` x `columns` hidden states.
inline double hidden_bytes(const Shape& shape, std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns) * shape.hidden_element;
}

// A normalization of `rows` x `columns` in the model's kind.
BlockStep norm(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns);
// The same without the kernels that add its gradients to the sums.
BlockStep norm_without_sums(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns);
// The streams of hyper-connections (Model::residual_streams) as one hidden state: a sum with weights that a product
// makes of each token. `mixes`: the product also makes the weights with which end_branch mixes the streams (Xie et al.
// 2025, arXiv 2512.24880, s. 4.3, whose kernels these are).
BlockStep stream_sum(const Shape& shape, std::string_view branch, bool mixes);
// The start of a residual branch: a norm, where the model has one there. Its backward ends with the sum of the branch's
// gradient and the gradient that went around the branch.
BlockStep branch_start(const Shape& shape, std::string_view branch, NormPlacement placement);
inline BlockStep branch_start(const Shape& shape, std::string_view branch) {
  return branch_start(shape, branch, shape.model->norm_placement);
}
// Whether its first product alone reads that norm's output. Parallel branches may share one.
inline bool alone_behind_norm(const Shape& shape) {
  const bool shared = shape.parallel_branches() && shape.model->branches == Branches::kParallel;
  return shape.model->norm_placement != NormPlacement::kPost && !shared;
}
// The end of a residual branch: a norm, where the model has one there, and the sum with the hidden states, with dropout
// where the model has it.
void end_branch(const Shape& shape, Block& block, std::string_view branch, NormPlacement placement);
inline void end_branch(const Shape& shape, Block& block, std::string_view branch) {
  end_branch(shape, block, branch, shape.model->norm_placement);
}

// The activation function of an MLP whose width on this rank is `ffn`. `input`: as above. `halves`: gate and value are
// views of one tensor, which unfused kernels read element by element, and whose gradient is joined.
BlockStep activation(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
                     std::int64_t ffn, bool halves = false);

// `rows` x `columns` outputs times an activation function of as many gates. Both are kept, as `input`.
BlockStep gate(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
               std::int64_t columns);

// The backward kernel of a dropout of what a branch adds to the hidden states, or of these, and its mask.
void dropout_backward(const Shape& shape, BlockStep& step, std::string_view name, DType dtype);

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
