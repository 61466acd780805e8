// What would a faster part change? The step is forecast again with one part of the machine changed.
#pragma once

#include <string>
#include <vector>

#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct Sensitivity {
  std::string name;   // "memory bandwidth of the GPU"
  Seconds step;       // with the part changed
  double change = 0;  // of the step, relative to it: -0.004 is 0.4 % less
};

// The step with each part better by `share` (0.01: 1 %): the GPU's clock with its peak rates, its board power (at
// which clocks are lowered), its memory bandwidth, the bandwidth inside nodes and between them, and the latency of all
// links, which becomes shorter. Largest change first. Errors: those of step_time; a share that is not above -1.
Result<std::vector<Sensitivity>> sensitivities(const Scenario& scenario, double share = 0.01);

}  // namespace ns_dist
