#include "ns_dist/training_clock.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace ns_dist {

double training_slowdown(const Gpu& gpu, double exponent) {
  constexpr double kRateOfA100 = 312e12 / 400;  // FLOP/s for each watt, data sheet
  const double rate = std::max(gpu.tensor[DType::kBf16], gpu.tensor[DType::kFp16]) / (1.0 * units::FLOP / units::s);
  const double power = gpu.board_power / (1.0 * units::W);
  if (!(rate > 0) || !(power > 0)) return 1;
  return std::pow(std::max(1.0, rate / power / kRateOfA100), exponent);
}

bool knows_training_clock(const Gpu& gpu) { return gpu.vendor == "nvidia" && gpu.memory_type.starts_with("HBM"); }

double slowest_of(std::int64_t ranks, double deviation) {
  if (ranks < 2) return 1;
  // Expected largest of n standard normal values (Blom 1958).
  const double n = static_cast<double>(ranks), p = (n - 0.375) / (n + 0.25);
  // Its quantile, for p above one half (Abramowitz and Stegun, 26.2.23; error below 4.5e-4).
  const double t = std::sqrt(-2 * std::log(1 - p));
  const double z =
      t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t * t * t);
  return 1 + deviation * z;
}

static bool is_product(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<Attention>(op.kind) ||
         std::holds_alternative<GroupedGemm>(op.kind);
}

Operator TrainingClock::kernel_of(Operator op) const {
  if (fp16_as_bf16 && is_product(op) && op.dtype == DType::kFp16) op.dtype = DType::kBf16;
  return op;
}

double TrainingClock::load_on(const Operator& op) const {
  return is_product(op) && op.dtype != DType::kFp32 ? load : 1;
}

double TrainingClock::slowest_on(const Operator& op) const { return is_product(op) ? slowest : 1; }

double TrainingClock::experts_on(const Operator& op) const {
  return std::holds_alternative<GroupedGemm>(op.kind) ? experts : 1;
}

}  // namespace ns_dist
