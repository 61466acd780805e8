// What a calibration asks of a forecast.
#pragma once

#include <array>
#include <utility>

#include "ns_dist/gpu.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// The process: forecasts of unmeasured GPUs are off by some 15 % in general and by some 20 % more in a region of a
// factor e of duration or ridge (`calibration_covariance`); single kernels scatter by some 8 %.
inline constexpr double kCalibrationScatter = 0.08 * 0.08;
double calibration_covariance(const std::array<double, 2>& a, const std::array<double, 2>& b);

inline constexpr std::size_t kFewestRows = 3;  // of a family, for a correction

// The family's own measurements; those of plain products for other kernels on matrix units, which are as fast or slow
// as a machine's clock and power: on a B200 whose products reach 0.79 of the forecast, attention reaches 0.76 to 0.89
// and experts' products 0.81 to 0.86. Null where there are neither.
struct CalibrationChoice {
  const FamilyCalibration* family = nullptr;
  bool own = false;
};
CalibrationChoice calibration_for(const KernelCalibration& calibration, const Operator& op);
inline constexpr double kBorrowed = 1.5;  // times as wide an interval where the measurements are another family's

// Where a forecast stands: ln(forecast / 100 us), ln(compute / memory).
std::array<double, 2> calibration_inputs(double seconds, double compute, double memory);
// ln(measured / forecast) there, by the measurements.
double correction_at(const FamilyCalibration& family, const std::array<double, 2>& x);

// Seconds of `op` at the nominal peak and at the nominal memory bandwidth.
std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op);

}  // namespace ns_dist
