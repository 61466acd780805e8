#include "machine.h"

#include <algorithm>
#include <cmath>

namespace ns_dist {
namespace {

using namespace units;

struct Efficiency {
  std::string_view architecture;
  double burst, sustained;
};

// Share of the nominal tensor peak that large GEMMs reach when tiles fill the SMs evenly: 90th percentile over BF16
// GEMMs of at least 5e10 FLOP with m, n, k >= 512 in published kernel tables (NVIDIA aiconfigurator's system data).
// Nominal peaks assume the boost clock, which board power does not allow to dense matrix products; sustained rows were
// run for 0.3-1 s. A100 stays under its power limit. Without rows of their own (*), an architecture takes its
// neighbour's figure.
constexpr std::array<Efficiency, 11> kTensorEfficiency = {{
    {"volta", 0.82, 0.80},   // *
    {"turing", 0.60, 0.55},  // * 70 W board
    {"ampere", 0.82, 0.81},
    {"ada", 0.64, 0.57},
    {"hopper", 0.82, 0.74},
    {"blackwell", 0.71, 0.66},
    {"blackwell-ultra", 0.75, 0.69},
    {"cdna1", 0.75, 0.70},  // *
    {"cdna2", 0.75, 0.70},  // *
    {"cdna3", 0.65, 0.60},  // *
    {"cdna4", 0.60, 0.55},  // *
}};

Efficiency tensor_efficiency(std::string_view architecture) {
  for (const Efficiency& row : kTensorEfficiency) {
    if (row.architecture == architecture) return row;
  }
  return {architecture, 0.72, 0.66};  // median of the rows above
}

// FP32 FLOP per joule of board energy on the vector units, large GEMMs at the power limit: 57-58 G on P4 and T4 (16 and
// 12 nm), 56-61 G on A100 (7 nm), 121 G on L4 (5 nm).
double vector_flops_per_joule(int process_nm) { return process_nm == 0 || process_nm > 5 ? 60e9 : 121e9; }
constexpr double kVectorEfficiency = 0.94;  // V100, which its power does not limit

// Share of the nominal bandwidth that long streaming kernels reach: HBM 0.86-0.91 (A100, V100), GDDR with ECC 0.74-0.78
// (P4, T4, L4). Medians over kernels that move at least 400 MB, from NeuSight's kernel data.
double bandwidth_efficiency(std::string_view memory_type) {
  return memory_type.starts_with("GDDR") || memory_type.starts_with("gddr") ? 0.77 : 0.87;
}

// Fixed cost of a small kernel: 1.6-2.5 us in CUDA graphs; back to back in a stream, the dependent launch adds about 1
// us.
constexpr double kBurstLaunch = 2e-6, kStreamGap = 1e-6;

}  // namespace

double Machine::vector_rate(DType dtype) const {
  const FlopsPerSecond packed = dtype == DType::kFp64 ? FlopsPerSecond() : gpu.vector[dtype];
  return std::max(vector_peak, packed / (FLOP / s));
}

Result<Machine> make_machine(const Gpu& gpu, Mode mode) {
  Machine machine;
  machine.gpu = gpu;
  machine.mode = mode;
  machine.sms = gpu.sm_count;
  machine.l2 = gpu.l2_cache / B;
  machine.bandwidth = gpu.memory_bandwidth / (B / s);
  machine.vector_peak = gpu.vector[DType::kFp32] / (FLOP / s);
  machine.launch = kBurstLaunch + (mode == Mode::kSustained ? kStreamGap : 0);

  const auto bad = [&](std::string_view what, std::string_view expected) {
    Error error;
    error.message = "GPU \"" + gpu.id + "\" has no usable " + std::string(what);
    error.where = gpu.id;
    error.expected = std::string(expected);
    return fail(error);
  };
  const auto usable = [](double value) { return value > 0 && std::isfinite(value); };
  if (gpu.sm_count <= 0) return bad("sm_count", "a whole number of at least 1");
  if (!usable(machine.bandwidth)) return bad("memory bandwidth", "a positive bandwidth");

  const Efficiency efficiency = tensor_efficiency(gpu.architecture);
  const double tensor_share = mode == Mode::kBurst ? efficiency.burst : efficiency.sustained;
  const double watts = gpu.board_power / W;
  double fastest = 0;
  for (const DType dtype : kAllDTypes) {
    const double peak = gpu.matrix_peak(dtype) / (FLOP / s);
    if (!(peak >= 0) || !std::isfinite(peak)) return bad("peak for " + std::string(name_of(dtype)), "a finite rate");
    const bool on_tensor_units = gpu.tensor[dtype] > FlopsPerSecond();
    double rate = peak * (on_tensor_units ? tensor_share : kVectorEfficiency);
    if (!on_tensor_units && usable(watts)) rate = std::min(rate, watts * vector_flops_per_joule(gpu.process_nm));
    machine.matrix_peak[static_cast<std::size_t>(dtype)] = peak;
    machine.matrix_rate[static_cast<std::size_t>(dtype)] = rate;
    fastest = std::max(fastest, peak);
  }
  if (!usable(fastest)) return bad("rate", "a peak for at least one number format");
  if (!usable(machine.vector_peak)) machine.vector_peak = fastest / 16;  // H100's and A100's ratio of BF16 to FP32
  machine.achieved_bandwidth = machine.bandwidth * bandwidth_efficiency(gpu.memory_type);
  return machine;
}

}  // namespace ns_dist
