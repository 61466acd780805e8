// Measured kernels as the fit sees them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"
#include "ns_dist/gpu.h"
#include "ns_dist/kernel_fit.h"
#include "predictors/predictor.h"

namespace ns_dist {

struct KernelSample {
  Operator work;
  Mode mode = Mode::kBurst;
  Features features;
  std::size_t gpu = 0;
  float target = 0, weight = 1;
  std::optional<float> power;  // ln(board power / limit)
  double seconds = 0, floor = 0;
  std::uint64_t shape = 0;
  bool holds_more = false;  // what a framework does around the kernel

  void see(const Features& now) {
    features = now;
    target = static_cast<float>(std::log(seconds / features.base));
  }
};

struct KernelSamples {
  std::vector<Gpu> gpus;
  std::vector<std::array<Machine, 2>> machines;  // burst, sustained
  std::array<std::vector<KernelSample>, kPredictorCount> samples;
  std::vector<std::string> tables;
  std::uint64_t hash = 14695981039346656037U;        // FNV-1a
  std::size_t flagged = 0, of_other_frameworks = 0;  // rows left out
};

// The number of a shape, from 0 to 999: the same on every GPU, in every mode and in every number format, whatever is
// done with it. `add` and `mul` of as many elements are one kernel to the features. So held-out shapes were seen
// nowhere.
std::uint64_t shape_number(const Operator& op);
// Shapes with smaller numbers are never fitted on, so that errors on them are honest with the shipped weights, too.
inline constexpr std::uint64_t kHoldOut = 100;

// Errors: no table found, a bad row, a GPU that `gpu_of` does not know, nothing of what is excluded.
Result<KernelSamples> read_samples(const KernelFitOptions& options,
                                   const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                                   const std::function<void(double, std::string_view)>& progress);

// The folders that are fitted on, as text.
std::string places_of(const KernelFitOptions& options);

}  // namespace ns_dist
