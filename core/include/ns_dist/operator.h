// Operators: the mathematics of one kernel, with the shape on one GPU.
//
//   Operator op{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16};
//   Work work = work_of(op);     // 1.1e12 FLOP, 402 MB
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "ns_dist/dtype.h"
#include "ns_dist/library.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

enum class Pass { kForward, kBackward };
template <>
inline constexpr auto kEnumeratorNames<Pass> = std::to_array<std::string_view>({"forward", "backward"});

// How A and B lie in memory (row-major unless T): the forward of a linear layer is kNT (weights n x k), its dgrad kNN
// and its wgrad kTN.
enum class GemmLayout { kNN, kNT, kTN, kTT };
template <>
inline constexpr auto kEnumeratorNames<GemmLayout> = std::to_array<std::string_view>({"nn", "nt", "tn", "tt"});

// What a GEMM's epilogue does to its output before it is written.
enum class Epilogue { kNone, kBias, kBiasGelu, kAccumulateFp32, kAccumulate };
template <>
inline constexpr auto kEnumeratorNames<Epilogue> = std::to_array<std::string_view>({"none", "bias", "bias_gelu",
                                                                                    "accumulate_fp32", "accumulate"});

// How fp8 operands are scaled: one factor a tensor (found and applied by a kernel of its own before the product), or
// one for each 1x128 of A and 128x128 of B (DeepSeek-V3's recipe). fp4 always has one factor for 16 elements
// (scale_bytes). fp16 and wider formats are not scaled.
enum class Scaling { kTensor, kBlock };
template <>
inline constexpr auto kEnumeratorNames<Scaling> = std::to_array<std::string_view>({"tensor", "block"});

// Bytes of the factors that scale an element: 16 elements of 4 bits share one of a byte (NVFP4), 32 of 8 bits one of a
// byte (MXFP8), and a block one of fp32 for each 128 (of weights for 128 x 128).
constexpr double scale_bytes(DType dtype, Scaling scaling) {
  if (dtype == DType::kFp4) return 1.0 / 16;
  return scaling == Scaling::kBlock ? 1.0 / 32 : 0;
}

// C(batch, m, n) = A(batch, m, k) x B(batch, k, n). kAccumulateFp32: C is read and written in fp32 (Megatron's fused
// weight gradient accumulation).
struct Gemm {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  GemmLayout layout = GemmLayout::kNT;
  Epilogue epilogue = Epilogue::kNone;
  Scaling scaling = Scaling::kTensor;
  bool quantizes = false;  // fp8: the call includes the kernels that quantize A, as a framework's linear layer does
  friend bool operator==(const Gemm&, const Gemm&) = default;
};

// Fused (flash) attention: softmax(Q K^T) V without writing the scores. A window of 0 is full attention.
struct Attention {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, query_length = 1, key_length = 1, head_dim = 1, value_dim = 1;
  bool causal = true;
  std::int64_t window = 0;
  Pass pass = Pass::kForward;
  Library library = Library::kDefault;
  bool deterministic = false;          // backward: gradients of queries are added up in a fixed order
  Scaling scaling = Scaling::kTensor;  // of fp8; kBlock: one factor for 32 elements (MXFP8)
  std::int64_t in_a_row = 1;           // kernels of about this size that follow each other without a pause
  friend bool operator==(const Attention&, const Attention&) = default;
};

// Softmax over the columns, by one of kSoftmaxLibraries.
struct Softmax {
  std::int64_t rows = 1, columns = 1;
  Pass pass = Pass::kForward;
  Library library = Library::kDefault;
  friend bool operator==(const Softmax&, const Softmax&) = default;
};

enum class NormalizationKind { kLayerNorm, kRmsNorm };
template <>
inline constexpr auto kEnumeratorNames<NormalizationKind> = std::to_array<std::string_view>({"layernorm", "rmsnorm"});

struct Normalization {
  NormalizationKind kind = NormalizationKind::kLayerNorm;
  std::int64_t rows = 1, columns = 1;
  Pass pass = Pass::kForward;
  Library library = Library::kDefault;
  friend bool operator==(const Normalization&, const Normalization&) = default;
};

// A fused chain of pointwise steps: reads `inputs` and writes `outputs` elements of the operator's type for each
// element (fractions for masks: a 1-byte dropout mask beside bf16 is 0.5).
struct Elementwise {
  std::string name = "elementwise";  // "add", "bias_gelu", "dropout_add", "swiglu", ...
  std::int64_t elements = 1;
  double inputs = 2, outputs = 1, flops_per_element = 1;
  // A thread finds the address of each element, or converts each by itself, instead of moving 16 bytes at a time: views
  // with gaps, operands that are broadcast, conversions to a wider format (PyTorch's elementwise_kernel and
  // unrolled_elementwise_kernel).
  bool by_element = false;
  // Names of kernels that take longer than their elements and bytes tell; kOverTensors: what such names begin with.
  static constexpr const char *kIndexAdd = "index_add", *kScatterAdd = "scatter_add", *kJoin = "join",
                              *kSumNarrowRows = "sum_narrow_rows", *kAdam = "adam", *kRope = "rope",
                              *kOverTensors = "multi_tensor";
  // Of "gelu", "exp" and the like in their usual polynomial forms; 1 of every other function.
  static constexpr double flops_of(std::string_view function) {
    if (function == "div" || function == "exp" || function == "sqrt") return 4;
    if (function == "sigmoid") return 6;
    if (function == "silu") return 7;
    if (function == "tanh" || function == "gelu") return 10;
    return function == "pow" ? 20 : 1;
  }
  friend bool operator==(const Elementwise&, const Elementwise&) = default;
};

// Rows of a (vocabulary x hidden) table gathered (forward) or scattered and added (backward).
struct Embedding {
  std::int64_t tokens = 1, hidden = 1, vocabulary = 1;
  Pass pass = Pass::kForward;
  friend bool operator==(const Embedding&, const Embedding&) = default;
};

// Softmax cross-entropy over (rows x columns) logits; columns is this rank's slice of the vocabulary.
struct CrossEntropy {
  std::int64_t rows = 1, columns = 1;
  Pass pass = Pass::kForward;
  Library library = Library::kDefault;
  friend bool operator==(const CrossEntropy&, const CrossEntropy&) = default;
};

// Fused Adam over `parameters` elements with fp32 state: reads gradient, master weight and two moments, writes master
// weight, two moments and the low-precision weight, if weights are not in fp32.
struct OptimizerStep {
  std::int64_t parameters = 1;
  friend bool operator==(const OptimizerStep&, const OptimizerStep&) = default;
};

// Experts' GEMMs launched as one: `experts` products of (rows/experts x k) x (k x n), rows spread evenly; the
// weight gradient (kTN) is `experts` products of (n x rows/experts) x (rows/experts x k).
struct GroupedGemm {
  std::int64_t experts = 1, rows = 1, n = 1, k = 1;
  GemmLayout layout = GemmLayout::kNT;
  Epilogue epilogue = Epilogue::kNone;
  bool one_kernel = false;  // for all experts; else a library launches a product for each
  Scaling scaling = Scaling::kTensor;
  friend bool operator==(const GroupedGemm&, const GroupedGemm&) = default;
};

// A whole gated mixture-of-experts feed-forward layer as one call, as inference engines fuse it: routing, permutation,
// two grouped products (tokens*top_k x hidden x 2*intermediate, and back) and the weighted sum. `intermediate` is this
// rank's slice. `skew`: 0 is a balanced router; else tokens an expert follow a power law with this exponent.
struct MixtureOfExperts {
  std::int64_t tokens = 1, hidden = 1, intermediate = 1, experts = 1, top_k = 1;
  double skew = 0;
  friend bool operator==(const MixtureOfExperts&, const MixtureOfExperts&) = default;
};

// Device-to-device copy of `bytes` (read once, written once).
struct Copy {
  Bytes bytes{};
  friend bool operator==(const Copy&, const Copy&) = default;
};

// 2-D convolution, NCHW: output (batch, out_channels, out_height, out_width).
struct Convolution {
  std::int64_t batch = 1, in_channels = 1, in_height = 1, in_width = 1, out_channels = 1, kernel = 1, stride = 1,
               padding = 0;
  Pass pass = Pass::kForward;
  // Below 1 where the kernel does not fit into the padded input.
  double out_height() const;
  double out_width() const;
  friend bool operator==(const Convolution&, const Convolution&) = default;
};

// Any other operator: the user gives its FLOPs and bytes.
struct UnknownOperator {
  std::string name;
  Flops flops{};
  Bytes read{}, written{};
  friend bool operator==(const UnknownOperator&, const UnknownOperator&) = default;
};

using OperatorKind = std::variant<Gemm, Attention, Softmax, Normalization, Elementwise, Embedding, CrossEntropy,
                                  OptimizerStep, GroupedGemm, MixtureOfExperts, Copy, Convolution, UnknownOperator>;

struct Operator {
  OperatorKind kind;
  DType dtype = DType::kBf16;
  friend bool operator==(const Operator&, const Operator&) = default;
};

// Of all members, for hash tables.
std::uint64_t hash_of(const Operator& op);

// "gemm", "attention", "softmax", ...: the family that forecasts it.
std::string_view family_of(const Operator& op);

// One line for people: "gemm 8192x9216x12288 nt bf16".
std::string to_text(const Operator& op);

// Errors: a dimension that is not positive, or work that is not finite in a double.
Result<void> validate(const Operator& op);

struct Work {
  Flops flops;
  Bytes read, written;  // least traffic to memory: each input read once, each output written once
  friend bool operator==(const Work&, const Work&) = default;
};

// Of one call, the same on every GPU. 2 FLOPs a multiply-add; softmax, norms and pointwise kernels count the operations
// of their formulas. Of an operator that validate() accepts.
Work work_of(const Operator& op);

// Query-key pairs that a head of `op` looks at. Queries stand at the end of the keys, as when a cache precedes them.
double attended_pairs(const Attention& op);

}  // namespace ns_dist
