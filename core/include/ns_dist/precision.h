// The number formats of a training run.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ns_dist/dtype.h"
#include "ns_dist/gpu.h"
#include "ns_dist/names.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// How a model is trained. Up to bf16, products, weights and activations have one format. Below, the products of the
// transformer layers' linear operations run in 8 or 4 bits, as TransformerEngine's recipes do; attention, norms,
// embedding, router and the loss's logits stay in bf16. kFp8: one factor for each tensor (NVIDIA, "FP8 primer");
// kFp8Block: 1x128 and 128x128 blocks (DeepSeek-V3, arXiv 2412.19437, s.3.3.2); kMxFp8: 32 elements (OCP
// Microscaling Formats 1.0); kNvFp4: 16 elements (NVIDIA, arXiv 2509.25149).
enum class Precision { kFp32, kTf32, kFp16, kBf16, kFp8, kFp8Block, kMxFp8, kNvFp4 };
template <>
inline constexpr auto kEnumeratorNames<Precision> =
    std::to_array<std::string_view>({"fp32", "tf32", "fp16", "bf16", "fp8", "fp8-block", "mxfp8", "nvfp4"});

// Whether products run in another format than the rest.
constexpr bool quantizes(Precision precision) { return precision >= Precision::kFp8; }

// Format of weights and activations in memory.
constexpr DType storage_type(Precision precision) {
  constexpr std::array<DType, 4> kWhole = {DType::kFp32, DType::kTf32, DType::kFp16, DType::kBf16};
  return quantizes(precision) ? DType::kBf16 : kWhole[static_cast<std::size_t>(precision)];
}

// Format of the operands of the layers' linear products.
constexpr DType product_type(Precision precision) {
  if (precision == Precision::kNvFp4) return DType::kFp4;
  return quantizes(precision) ? DType::kFp8 : storage_type(precision);
}

// A GPU's fastest dense rate of these products: what MFU is a share of. Zero where it has none.
inline FlopsPerSecond product_peak(const Gpu& gpu, Precision precision) {
  return gpu.matrix_peak(product_type(precision));
}

// How the operands of these products are scaled.
constexpr Scaling scaling_of(Precision precision) {
  return precision == Precision::kFp8Block || precision == Precision::kMxFp8 ? Scaling::kBlock : Scaling::kTensor;
}

// Why GPUs like this one do not run a format for lack of units or of kernels, for a sentence; "" where they do, and
// where nobody knows. Formats of which a data sheet has no rate (Gpu::tensor) are not asked for here.
std::string_view reason_against(const Gpu& gpu, Precision precision);

// What rows and columns of the operands of the layers' products must be multiples of (TransformerEngine,
// pytorch/utils.py, assert_dim_for_fp8_exec; MXFP8Quantizer and NVFP4Quantizer, is_quantizable: whole blocks).
struct Multiples {
  std::int64_t rows = 1, columns = 1;
};
constexpr Multiples multiples_of(Precision precision) {
  if (precision == Precision::kMxFp8) return {32, 32};
  if (precision == Precision::kNvFp4) return {16, 16};
  return quantizes(precision) ? Multiples{8, 16} : Multiples{};
}

}  // namespace ns_dist
