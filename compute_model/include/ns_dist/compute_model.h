// How long does this operator take on this GPU?
//
//   NS_TRY(const auto model, make_compute_model(gpu));
//   NS_TRY(const Forecast forecast, model->forecast(Operator{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16}));
//   forecast.latency / units::ms
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "ns_dist/cost.h"
#include "ns_dist/gpu.h"
#include "ns_dist/names.h"

namespace ns_dist {

struct KernelCalibration;

// kBurst: one kernel alone at full clocks, as kernel benchmarks measure. kSustained: kernels back to back at the clock
// that the board's power allows, as in a training step.
enum class Mode { kBurst, kSustained };
template <>
inline constexpr auto kEnumeratorNames<Mode> = std::to_array<std::string_view>({"burst", "sustained"});

struct ComputeModelOptions {
  Mode mode = Mode::kSustained;
  // A safetensors file's bytes, as fit_kernels writes them; empty: the weights compiled in.
  std::string weights{};
  // true: tiles, waves and rooflines only, without learned corrections.
  bool analytic = false;
  // A correction from a few measurements of this GPU (kernel_calibration.h); null: none.
  std::shared_ptr<const KernelCalibration> calibration = nullptr;
};

// The kernel model of one GPU. Errors: a GPU without multiprocessors, memory bandwidth or any peak rate; weights that
// are damaged or of another version; a calibration of another GPU.
Result<std::unique_ptr<ComputeCost>> make_compute_model(const Gpu& gpu, const ComputeModelOptions& options = {});

// The rate of large 16-bit products on the tensor units that the board's power allows in a benchmark: at most the
// nominal one, which it is where the power, the clock or the process is not known. A higher boost clock alone never
// lowers it. The law and its sources: tensor_ceiling in machine.cc. Zero where the GPU has no such units.
FlopsPerSecond powered_tensor_rate(const Gpu& gpu);

// The library whose kernel runs: that of the operator, or the default of training frameworks on this GPU.
// Transformer Engine takes cuDNN on Hopper and Blackwell and FlashAttention-2 before.
Library library_of(const Attention& op, const Gpu& gpu);
// The library of a normalization: in a training step frameworks run fused kernels, as cuDNN, Transformer Engine and
// Apex have them.
Library library_of(const Normalization& op);

}  // namespace ns_dist
