// A correction of the kernel forecasts for one GPU, from a few dozen measurements on it.
//
//   NS_TRY(const KernelCalibration calibration, calibrate_kernels(gpu, table, {}));
//   std::ofstream("my-gpu.calibration.json") << to_json(calibration);
//   NS_TRY(const auto model, make_compute_model(gpu, {.calibration = std::make_shared<...>(calibration)}));
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/compute_model.h"

namespace ns_dist {

class CsvTable;

// The correction of one operator family and number format. Kernels with a similar duration and a similar ratio of
// compute to memory time have similar errors, and more so those of one layout, pass or library: ln(measured / forecast)
// is a Gaussian process over ln(forecast / 100 us), ln(compute time / memory time) and what the kernel is. A kernel
// that was measured itself takes nearly what was measured. One unlike all of them takes what they have in common
// (Rasmussen and Williams 2006, eq. 2.25; for the interval, eq. 5.12).
struct FamilyCalibration {
  struct Point {
    double duration = 0, ridge = 0;  // ln(forecast / 100 us), ln(compute time / memory time)
    double weight = 0;               // of this measurement in the mean of the process
    double error = 0;                // ln(measured / forecast), as the others correct it
    std::string kernel = {};         // as to_spec() writes it
    std::string kind = {};           // what of it is no size; follows from `kernel`, and is not in the JSON
    friend bool operator==(const Point&, const Point&) = default;
  };
  std::string family;  // as operator_forms() names it
  DType dtype = DType::kBf16;
  std::vector<Point> points;  // the measurements, kMostPoints at most
  // 90 % interval of ln(measured / corrected forecast) of all kernels that were measured, by the others, and the
  // standard deviation that the process expects of these. At a kernel, the errors of those of a like duration and ridge
  // count most. Near measured ones the process expects less and the interval is as much narrower; of kernels that are
  // less like them it expects more, which is added. Deviation 0: not known, one interval for all.
  double low = -0.1, high = 0.1, deviation = 0;
  // How much the process expects of kernels unlike the measured ones: 1 where forecasts are as far off as those of GPUs
  // that were not measured, 0.5 where many measurements are as forecast, or as one factor says.
  double amplitude = 1;
  // Mean |forecast / measured - 1| of the rows: without a correction, and with a correction from the other kernels
  // (leave-one-out). Forecasts are never below their floor.
  double before = 0, after = 0;
  static constexpr std::size_t kMostPoints = 1000;
  friend bool operator==(const FamilyCalibration&, const FamilyCalibration&) = default;
};

struct KernelCalibration {
  std::string gpu;  // id
  Mode mode = Mode::kBurst;
  std::vector<FamilyCalibration> families;
  std::string machine{};  // board_text of that GPU; empty: not known
  friend bool operator==(const KernelCalibration&, const KernelCalibration&) = default;
};

// Fits on the rows of `table` whose column gpu is `gpu`, or on all rows if there is no such column. Rows with the flag
// outlier or over_peak are left out, and so are families of which the rows are noise. `notes`: sentences about rows
// that are left out or doubtful. Errors: a row that cannot be read or has no latency_ms, or whose column mode is
// another mode; fewer than three kernels in every family and number format; one whose middle row takes more than 7.4
// times as long as forecast, or as short; a row of more than twice the GPU's peak rate.
Result<KernelCalibration> calibrate_kernels(const Gpu& gpu, const CsvTable& table, const ComputeModelOptions& options,
                                            std::vector<std::string>* notes = nullptr);

// What tells a GPU from another one of its id: "132 SMs at 1980 MHz, 700 W, 3350 GB/s".
std::string board_text(const Gpu& gpu);

// The measurements that correct `op`: its family's, or those of products for other kernels on tensor units; null where
// there are none.
const FamilyCalibration* measurements_for(const KernelCalibration& calibration, const Operator& op);

std::string to_json(const KernelCalibration& calibration);
// Errors, with file and place: not JSON, another schema, a missing or unknown key, a number out of range.
Result<KernelCalibration> read_kernel_calibration(std::string_view json, const std::string& where);

}  // namespace ns_dist
