// What a calibration asks of a forecast.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "ns_dist/gpu.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// Where a kernel stands: ln(forecast / 100 us), ln(compute / memory), and what it is, as to_spec() writes it.
struct CalibrationPlace {
  double duration = 0, ridge = 0;
  std::string kernel, kind;  // kind: kind_of_kernel(kernel)
};
CalibrationPlace calibration_place(const Operator& op, double seconds, double compute, double memory);

// What of a kernel is no size: its layout, pass, library, mask and the like ("causal=1 pass=backward library=cudnn").
std::string kind_of_kernel(std::string_view kernel);

// The process (`calibration_covariance`): forecasts of unmeasured GPUs are off by some 15 % in general, by some 12 %
// more in a kind, by some 16 % more in a kind and a region of a factor e^1.4 of duration or ridge, and by some 7 % for
// a single kernel, which a measurement tells to 4 %. Kinds that differ in one member (another pass, layout, library)
// share 0.85 of what is their own, in two members 0.85^2.
//
// Source: measurements of NeuSight, vidur, aiconfigurator, cuDNN, SimuMax and our own, of 11 GPUs, forecast for the GPU
// itself (47 sets of a table, family and format) and for another one (86): the covariance that forecasts held-out rows
// best, by the mean error and the log density. 0.85 is the best for nearly each member and for both groups of sets
// (compute_model/tried.md).
inline constexpr double kCalibrationScatter = 0.04 * 0.04;
double calibration_covariance(const CalibrationPlace& a, const CalibrationPlace& b);

inline constexpr std::size_t kFewestRows = 3;  // kernels of a family, for a correction

// The family's own measurements, in the operator's format or in the other one of 16 bits; those of plain products for
// other kernels on matrix units, which are as fast or slow as a machine's clock and power: on a B200 whose products
// reach 0.79 of the forecast, attention reaches 0.76 to 0.89 and experts' products 0.81 to 0.86. FP32 products run on
// vector units and say nothing of them. Null where there are neither.
struct CalibrationChoice {
  const FamilyCalibration* family = nullptr;
  double wider = 1;  // times as wide an interval: 1 where the measurements are the family's own
  bool own() const { return wider == 1; }
};
CalibrationChoice calibration_for(const KernelCalibration& calibration, const Operator& op);

struct CalibrationAt {
  double ratio = 0;          // ln(measured / forecast), by the measurements
  double low = 0, high = 0;  // the 90 % interval of ln(measured / corrected forecast)
  // Beside it, where less was measured like it than like the kernels left out; both add up as the root of the sum of
  // their squares.
  double doubt = 0;
};
CalibrationAt calibration_at(const FamilyCalibration& family, const CalibrationPlace& x);

// How many times fewer multiplications the fastest algorithm of `op` needs than the direct one, which work_of counts:
// 2.25 for a 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3) (Lavin and Gray 2016, arXiv 1509.09308, s.4.1).
double fewer_multiplications(const Operator& op);

// Seconds of `op` by the direct algorithm at the nominal peak, and at the nominal memory bandwidth.
std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op);

}  // namespace ns_dist
