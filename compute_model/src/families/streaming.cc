// Kernels that stream through memory once: their time is traffic over the achieved bandwidth.
#include <algorithm>
#include <cmath>

#include "families.h"

namespace ns_dist {

namespace {

bool amd(const Machine& machine) { return machine.gpu.vendor == "amd"; }

}  // namespace

// Least traffic over achieved: FP32 kernels of at least 0.2 ms inside models on P4, T4, P100, V100, A100-PCIe-40GB,
// MI100 and MI210 (NeuSight's node timings and kernel tables). HBM feeds rows faster than their exponentials and
// reductions run; slow memory hides them. Beyond 1,024 columns a warp no longer holds a row and PyTorch reads it again,
// which AMD's builds do not find in cache. Megatron's fused kernel keeps rows to 16,384 columns.
double softmax_passes(const Machine& machine, double columns, Pass pass) {
  if (columns > 16384) return 1.5;
  if (amd(machine)) return columns > 1024 ? 1.95 : 1.03;
  if (pass == Pass::kBackward) return 1.1;
  return machine.gddr ? 1.05 : columns > 512 ? 1.19 : 1.04;
}

// LayerNorm and RMSNorm: statistics first, then a second read, which a large L2 answers (A100 has 0.4 MB an SM, the
// others of these GPUs 0.1).
double normalization_passes(const Machine& machine, Pass pass) {
  if (pass == Pass::kBackward) return amd(machine) ? 2.8 : 1.4;
  if (amd(machine)) return 1.6;
  const bool found_again = machine.l2 / machine.sms > 200e3;
  return (machine.gddr ? 1.0 : 1.25) + (found_again ? 0 : machine.gddr ? 0.37 : 0.25);
}

Estimate estimate_streaming(const Machine& machine, double traffic, double flops, DType dtype, std::string_view method,
                            Steps& steps) {
  // Pointwise code reaches about half of the vector peak: it counts fused multiply-adds as two and has few of them.
  constexpr double kPointwiseShare = 0.5;
  const double memory = machine.memory_seconds(traffic);
  const double compute = flops / (kPointwiseShare * machine.vector_rate(dtype));
  Estimate estimate =
      estimate_tiled(machine.launch, {.compute = compute, .memory = memory, .seconds = overlap(compute, memory)});
  estimate.method = method;
  estimate.spread = 1.25;
  if (steps.on()) {
    steps.add("traffic_B", traffic);
    steps.add("memory_s", memory, "traffic over the bandwidth of long streaming kernels");
    steps.add("compute_s", compute, "vector units");
    steps.add("launch_s", machine.launch);
  }
  return estimate;
}

}  // namespace ns_dist
