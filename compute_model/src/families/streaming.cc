// Kernels that stream through memory once: their time is traffic over the achieved bandwidth.
#include <algorithm>
#include <cmath>

#include "families.h"

namespace ns_dist {

double overlap(double compute, double memory) {
  const double larger = std::max(compute, memory), smaller = std::min(compute, memory);
  if (!(larger > 0)) return 0;
  const double ratio = smaller / larger;
  // A norm of order 4: at the ridge 19 % above the roofline, 6 % where one is half of the other.
  return larger * std::pow(1 + ratio * ratio * ratio * ratio, 0.25);
}

Estimate estimate_streaming(const Machine& machine, double traffic, double flops, DType dtype, std::string_view method,
                            Steps& steps) {
  // Pointwise code reaches about half of the vector peak: it counts fused multiply-adds as two and has few of them.
  constexpr double kPointwiseShare = 0.5;
  const double memory = traffic / machine.achieved_bandwidth;
  const double compute = flops / (kPointwiseShare * machine.vector_rate(dtype));
  Estimate estimate;
  const double work = overlap(compute, memory);
  estimate.seconds = machine.launch + work;
  estimate.bound = machine.launch > work ? Bound::kLaunch : compute > memory ? Bound::kCompute : Bound::kMemory;
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
