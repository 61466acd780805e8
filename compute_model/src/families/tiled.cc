// What every family ends with: compute and memory together, and what bounds the kernel.
#include <algorithm>
#include <cmath>

#include "families.h"

namespace ns_dist {

double overlap(double compute, double memory) {
  const double larger = std::max(compute, memory), smaller = std::min(compute, memory);
  if (!(larger > 0)) return 0;
  const double ratio = smaller / larger;
  // A norm of order 4: at the ridge 19 % above the roofline, 1.5 % where one is half of the other.
  return larger * std::pow(1 + ratio * ratio * ratio * ratio, 0.25);
}

Estimate estimate_tiled(double launch, const Tiled& kernel, double excess) {
  Estimate estimate;
  estimate.seconds = launch + kernel.seconds + excess;
  estimate.bound = launch > kernel.seconds           ? Bound::kLaunch
                   : kernel.compute >= kernel.memory ? Bound::kCompute
                                                     : Bound::kMemory;
  estimate.waves = static_cast<std::int64_t>(std::min(kernel.waves, 9e18));
  estimate.tile = kernel.tile;
  return estimate;
}

}  // namespace ns_dist
