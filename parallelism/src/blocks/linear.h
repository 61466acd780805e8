// A linear layer: its products, casts and communications, and what LoRA makes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "blocks/common.h"

namespace ns_dist::blocks {

// How tensor parallelism splits a linear layer (Shoeybi et al. 2019, arXiv 1909.08053, s.3): kColumn splits the outputs
// and opens a split region, kRow splits the inputs and closes it. kLocal has no communication of its own.
enum class Split : std::uint8_t { kLocal, kColumn, kRow };

// y = x W^T + b with the sizes of this rank.
struct Linear {
  std::string_view name = {};  // "mlp.fc1"
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
  std::vector<std::int64_t> products = {};  // BlockStep::products; empty: as many equal ones as readers
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

// How many layers the model's class has in place of one projection of `parts` parts (modeling_llama.py: q_proj, k_proj
// and v_proj; modeling_gpt2.py: c_attn).
inline int separate_layers(const Shape& shape, int parts) {
  return shape.model->position == PositionKind::kLearned ? 1 : parts;
}
// Notes `count` weights of outputs x inputs, which are split over ranks as in a linear layer, where the optimizer
// updates matrices as wholes.
void add_matrices(const Shape& shape, BlockStep& step, const WeightMatrix& matrix, std::int64_t count = 1);
constexpr SplitSide side_of(Split split) {
  return split == Split::kColumn ? SplitSide::kRows : split == Split::kRow ? SplitSide::kColumns : SplitSide::kNone;
}

// A step whose weights have no gradient. Its input gradient runs.
void freeze(BlockStep& step);
// What LoRA makes of a layer under a plan that has it; nothing else.
void freeze_beside_adapters(const Shape& shape, BlockStep& step);
// A frozen linear layer of `experts` experts (0: of none) and its adapter (Hu et al. 2021, arXiv 2106.09685): y +=
// alpha / r (x A) B of this rank's inputs and outputs, products of their own in the storage format, a kernel for the
// factor and one for the sum (PEFT, lora/layer.py). The input is kept for them in that format. Sums over
// tensor-parallel ranks join those of the layer; those of the gradients of the factor that is whole on every rank are
// left out.
//
// In 4 bits (FrozenWeights) a kernel makes the layer's weights before its product and before that of its input gradient
// (bitsandbytes, autograd/_functions.py, MatMul4Bit), for this layer alone.
//
// `parts`: outputs of the layers that are one here and have an adapter each (ParallelPlan::separate_adapters).
struct Adapter {
  std::int64_t rows = 1, in = 1, out = 1, experts = 0;
  Split weights = Split::kLocal;  // of the layer
  std::vector<std::int64_t> parts = {out};
};
void adapt(const Shape& shape, BlockStep& step, const Adapter& layer);
// Bytes of a weight in NF4: 4 bits, and its share of the constants of its block of 64 weights: 8 bits, and an fp32
// constant for 256 of these (double quantization: QLoRA, arXiv 2305.14314, s. 3), or fp32.
constexpr double nf4_bytes(FrozenWeights how) {
  return (4 + (how == FrozenWeights::kNf4Single ? 32.0 / 64 : 8.0 / 64 + 32.0 / (64 * 256))) / 8;
}

}  // namespace ns_dist::blocks
