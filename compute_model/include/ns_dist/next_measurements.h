// What to measure next on a GPU that is calibrated: the kernels whose measurement makes the forecasts of whole training
// steps most certain.
//
//   NS_TRY(const MeasurementAdvice advice, next_measurements(gpu, calibration, {{{op, 64}, {other, 32}}}, 20));
//   advice.rows.front().work
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

// A kernel of a step and how often it runs there; 0: it does not, but may be measured.
struct KernelUse {
  Operator work;
  double runs = 1;
};

struct NextMeasurement {
  Operator work;
  double share = 0;  // of the kernel time of a step, mean of all steps
  double error = 0;  // expected of this kernel's forecast now
  double left = 0;   // expected of all kernels by time, when this row and those before it are measured
};

struct MeasurementAdvice {
  double error = 0;  // expected of all kernels by time, now
  std::vector<NextMeasurement> rows;
};

// At most `most` kernels of the steps, in the order in which to measure them. Errors are means of |ln(measured /
// forecast)| that the process of kernel_calibration.h expects, from where measurements lie alone. Each row is the one
// that lowers the mean error of all kernels, weighted by their time, the most; each step counts alike. A family and
// number format of which calibrate_kernels has no three rows gets as many at once. Left out: kernels of which the
// calibration knows as much as one more measurement tells, families with fewer than three different kernels in all
// steps, and operators that tables know by name only. `calibration` may have no families: nothing was measured. Errors:
// a kernel that has no forecast on this GPU, or a calibration of another one.
Result<MeasurementAdvice> next_measurements(const Gpu& gpu, const KernelCalibration& calibration,
                                            std::span<const std::vector<KernelUse>> steps, std::size_t most);

}  // namespace ns_dist
