#include "ns_dist/training_clock.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <variant>

#include "ns_dist/compute_model.h"

namespace ns_dist {

double training_slowdown(const Gpu& gpu, double exponent) {
  constexpr double kEfficiencyOfA100 = 6.111e11;  // FLOP/J: powered_tensor_rate of 108 SMs, over 400 W
  const double rate = powered_tensor_rate(gpu) / (1.0 * units::FLOP / units::s);
  const double power = gpu.board_power / (1.0 * units::W);
  if (!(rate > 0) || !(power > 0)) return 1;
  return std::pow(std::max(1.0, rate * gpu.flop_energy / power / kEfficiencyOfA100), exponent);
}

bool knows_training_clock(const Gpu& gpu) {
  return gpu.vendor == "nvidia" && gpu.memory_type.starts_with("HBM") && is_known_architecture(gpu.architecture);
}

double mean_of_largest(double n) {
  thread_local std::map<double, double> known;  // a search asks for few n, and very often
  const auto [found, added] = known.try_emplace(n);
  if (!added) return found->second;
  // The integral of 1 - P(largest <= x) above 0, less that of P(largest <= x) below. The integrand is smooth and even,
  // so this step leaves an error of less than 1e-9 up to a million numbers.
  constexpr double kStep = 0.05, kEnd = 12;
  double sum = 0;
  for (double x = kStep / 2; x < kEnd; x += kStep) {
    const double above = 0.5 * std::erfc(x / std::sqrt(2.0));  // the share of single numbers above x
    sum += -std::expm1(n * std::log1p(-above)) - std::pow(above, n);
  }
  return found->second = sum * kStep;
}

double slowest_of(std::int64_t ranks, double deviation) {
  if (ranks < 2) return 1;
  return 1 + deviation * mean_of_largest(static_cast<double>(ranks));
}

// Of CalibratedShares: which kind of product, or that it is none.
static std::optional<std::size_t> product_kind(const Operator& op) {
  if (std::holds_alternative<Gemm>(op.kind)) return 0;
  if (std::holds_alternative<Attention>(op.kind)) return 1;
  if (std::holds_alternative<GroupedGemm>(op.kind)) return 2;
  return std::nullopt;
}

static bool is_product(const Operator& op) { return product_kind(op).has_value(); }

CalibratedShares::CalibratedShares(const KernelCalibration& calibration) {
  constexpr double kEnough = 20;  // as many as `calibrate` advises to measure
  for (const OperatorKind& kind : std::array<OperatorKind, 3>{Gemm{}, Attention{}, GroupedGemm{}}) {
    for (const DType dtype : kAllDTypes) {
      const Operator op{kind, dtype};
      const FamilyCalibration* const measured = measurements_for(calibration, op);
      if (measured == nullptr) continue;
      shares_[*product_kind(op)][static_cast<std::size_t>(dtype)] =
          std::min(1.0, static_cast<double>(measured->points.size()) / kEnough);
      measured_fp16_ |= dtype == DType::kFp16 && measured->dtype == dtype;
    }
  }
}

double CalibratedShares::of(const Operator& op) const {
  const auto kind = product_kind(op);
  return kind ? shares_[*kind][static_cast<std::size_t>(op.dtype)] : 0;
}

TrainingClock::TrainingClock(const Gpu& gpu, const CalibratedShares& shares, std::int64_t ranks,
                             const TrainingConstants& constants)
    : calibrated(shares),
      fp16_as_bf16(!shares.measured_fp16() && gpu.tensor[DType::kFp16] > FlopsPerSecond() &&
                   gpu.tensor[DType::kBf16] == gpu.tensor[DType::kFp16]),
      slowest(slowest_of(ranks, constants.deviation)),
      experts(constants.experts),
      efficiency_(training_slowdown(gpu, 1)),
      exponent_(constants.exponent),
      exponent_calibrated_(constants.calibrated) {}

Operator TrainingClock::kernel_of(Operator op) const {
  if (fp16_as_bf16 && is_product(op) && op.dtype == DType::kFp16) op.dtype = DType::kBf16;
  return op;
}

Result<Forecast> TrainingClock::forecast(const ComputeCost& kernels, const Operator& op) const {
  NS_TRY(const Forecast alone, kernels.forecast(kernel_of(op)));
  return in_training(alone, op);
}

double TrainingClock::load_on(const Operator& op) const {
  if (!is_product(op) || op.dtype == DType::kFp32) return 1;
  const double exponent = exponent_ + calibrated.of(op) * (exponent_calibrated_ - exponent_);
  return std::pow(efficiency_, exponent);
}

double TrainingClock::slowest_on(const Operator& op) const { return is_product(op) ? slowest : 1; }

Forecast TrainingClock::times(double longer, Forecast forecast) {
  forecast.latency *= longer, forecast.low *= longer, forecast.high *= longer;
  return forecast;
}

Forecast TrainingClock::in_training(const Forecast& busiest, const Forecast& even, const Operator& op) const {
  Forecast found = times(load_on(op) * slowest_on(op), busiest);
  const Forecast usual = in_training(even, op);
  if (usual.latency > found.latency) found.latency = usual.latency, found.low = usual.low, found.high = usual.high;
  return found;
}

double TrainingClock::experts_on(const Operator& op) const {
  return std::holds_alternative<GroupedGemm>(op.kind) ? experts : 1;
}

}  // namespace ns_dist
