// Number formats of tensors and of the pipes that multiply them.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "ns_dist/names.h"
#include "ns_dist/units.h"

namespace ns_dist {

// kTf32 is stored as fp32. kFp8 is E4M3 or E5M2.
enum class DType { kFp64, kFp32, kTf32, kFp16, kBf16, kFp8, kFp4 };
inline constexpr std::size_t kDTypeCount = 7;
inline constexpr std::array<DType, kDTypeCount> kAllDTypes = {DType::kFp64, DType::kFp32, DType::kTf32, DType::kFp16,
                                                              DType::kBf16, DType::kFp8,  DType::kFp4};

template <>
inline constexpr auto kEnumeratorNames<DType> = std::to_array<std::string_view>({"fp64", "fp32", "tf32", "fp16", "bf16",
                                                                                 "fp8", "fp4"});

// Bytes of one stored element.
constexpr Bytes size_of(DType dtype) {
  constexpr std::array<double, kDTypeCount> kSizes = {8, 4, 4, 2, 2, 1, 0.5};
  return kSizes[static_cast<std::size_t>(dtype)] * units::B;
}

// Whether numbers have 32 bits where they are stored.
constexpr bool is_single_precision(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kTf32; }

// Format of a product's result: operands of 8 or 4 bits are summed up in fp32, and the result is written in bf16
// (cuBLAS library documentation, cublasLtMatmul, and the recipes of TransformerEngine).
constexpr DType product_of(DType operands) {
  return size_of(operands) < size_of(DType::kBf16) ? DType::kBf16 : operands;
}

// One rate for each number format; zero where the hardware has none.
class RateTable {
 public:
  constexpr FlopsPerSecond operator[](DType dtype) const { return rates_[static_cast<std::size_t>(dtype)]; }
  constexpr FlopsPerSecond& operator[](DType dtype) { return rates_[static_cast<std::size_t>(dtype)]; }
  friend bool operator==(const RateTable&, const RateTable&) = default;

 private:
  std::array<FlopsPerSecond, kDTypeCount> rates_{};
};

}  // namespace ns_dist
