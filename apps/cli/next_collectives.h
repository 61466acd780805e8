// Which collectives of steps a calibration should measure next.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ns_dist/collective_table.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/scenario.h"

namespace ns_dist::cli {

struct NextCollective {
  CollectiveRow row;       // as a table describes it: its size, and its ranks in each node
  double share = 0;        // of the time of the collectives of a step; all steps have the same weight
  double interval = 0;     // how far the 90 % interval reaches upwards: 0.3 for 30 %
  bool has_curve = false;  // other sizes of its group were measured
};
struct CollectiveAdvice {
  double interval = 0;               // of all collectives, by their time
  std::vector<NextCollective> rows;  // the one with the largest part of it first; none that `curves` measured
};

// Collectives of similar size (within a factor of two) are one row: the largest of them.
Result<CollectiveAdvice> next_collectives(std::span<const Scenario> steps, const NetworkCalibration& curves,
                                          std::size_t most);

}  // namespace ns_dist::cli
