// What would a better part change? The step is forecast again with one part of the machine or of the software changed.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/units.h"

namespace ns_dist {

// A part, and what its quantity is multiplied by: {"inter-bandwidth", 2}.
struct PartChange {
  std::string part;  // one of part_names()
  double factor = 1;
};

// "flops", "memory-bandwidth", ...: the parts, in the order of their table.
std::vector<std::string_view> part_names();

// "inter-bandwidth x2, hbm x1.5, launch x0.5". Errors: an unknown part, with the nearest one; a factor that is not
// within kLeastFactor to kMostFactor; a part that is there twice; `where` is "--what-if".
Result<std::vector<PartChange>> read_part_changes(std::string_view text);
inline constexpr double kLeastFactor = 0.01, kMostFactor = 100;

struct Sensitivity {
  std::string part;   // "memory-bandwidth"
  std::string name;   // "memory bandwidth of the GPU"
  double factor = 1;  // of the part's quantity: a latency of 0.99 is better, a bandwidth of 1.01
  Seconds step;       // with the part changed
  double change = 0;  // of the step, relative to it: -0.004 is 0.4 % less
  bool fits = true;   // into the memory of the GPU
  // Of what_if: the 90 % interval of `change`. None where the efficiency of kernels is changed, which is no forecast.
  std::optional<std::pair<double, double>> range = {};
};

// The step with each part better by `share` (0.01: 1 %): the GPU's clock with its peak rates, at the same board power
// (k times the FLOP/s for 1 / k of the energy of a FLOP, so that power lowers clocks by the same share as before), its
// board power (at which clocks are lowered), the bandwidth and the size of its memory, the bandwidth inside nodes and
// between them, the latency of all links and the host's launches, which become shorter, and how close kernels come to
// their bounds. The plan stays, so that more memory changes nothing by itself. Largest change first. Errors: those of
// step_time; a share that is not above -1.
Result<std::vector<Sensitivity>> sensitivities(const Scenario& scenario, double share = 0.01);

// The step with each of these changes alone, in their order, and, where there are several that the machine has, with
// all of them at once. Parts that the machine does not have (links between nodes, of one node) change nothing. Errors:
// those of step_time.
Result<std::vector<Sensitivity>> what_if(const Scenario& scenario, std::span<const PartChange> changes);

}  // namespace ns_dist
