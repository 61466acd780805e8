#include "training_clock.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace ns_dist {

double training_slowdown(const Gpu& gpu) {
  constexpr double kRateOfA100 = 312e12 / 400;  // FLOP/s for each watt, data sheet
  constexpr double kExponent = 0.2;
  const double rate = std::max(gpu.tensor[DType::kBf16], gpu.tensor[DType::kFp16]) / (1.0 * units::FLOP / units::s);
  const double power = gpu.board_power / (1.0 * units::W);
  if (!(rate > 0) || !(power > 0)) return 1;
  return std::pow(std::max(1.0, rate / power / kRateOfA100), kExponent);
}

bool is_matrix_kernel(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<GroupedGemm>(op.kind) ||
         std::holds_alternative<Attention>(op.kind);
}

}  // namespace ns_dist
