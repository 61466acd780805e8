// How long does this operator take on this GPU?
//
//   NS_TRY(const auto model, make_compute_model(gpu));
//   NS_TRY(const Forecast forecast, model->forecast(Operator{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16}));
//   forecast.latency / units::ms
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ns_dist/cost.h"
#include "ns_dist/gpu.h"

namespace ns_dist {

struct KernelCalibration;

// kBurst: one kernel alone at full clocks, as kernel benchmarks measure. kSustained: kernels back to back at the clock
// that the board's power allows, as in a training step.
enum class Mode { kBurst, kSustained };
std::string_view name_of(Mode mode);  // "burst", "sustained"
std::optional<Mode> mode_from_name(std::string_view name);

struct ComputeModelOptions {
  Mode mode = Mode::kSustained;
  // A safetensors file's bytes, as fit_kernels writes them; empty: the weights compiled in.
  std::string weights{};
  // Only tiles, waves and rooflines, nothing learned.
  bool analytic = false;
  // What a few measurements of this GPU corrected (kernel_calibration.h).
  std::shared_ptr<const KernelCalibration> calibration = nullptr;
};

// The kernel model of one GPU. Errors: a GPU without multiprocessors, memory bandwidth or any rate; weights that are
// damaged or of another version; a calibration of another GPU.
Result<std::unique_ptr<ComputeCost>> make_compute_model(const Gpu& gpu, const ComputeModelOptions& options = {});

struct OperatorFamily {
  std::string_view name, description;
};

// What can be forecast, by the names that `family_of` gives.
std::span<const OperatorFamily> operator_families();

}  // namespace ns_dist
