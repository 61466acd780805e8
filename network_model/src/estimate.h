// How long a call takes after correction, and what of it stays in a node.
#pragma once

#include "calibration.h"
#include "timing.h"

namespace ns_dist::network {

struct Estimate {
  Choice choice;
  const Corrected* corrected = nullptr;
  double time = 0;    // corrected, seconds
  double spread = 0;  // half of the 90 % interval: of the logarithm of `time` if corrected, else over it
  bool far = false;   // the correction was measured on other sizes or numbers of ranks
};

// The corrected time of a call for which `choice` was made of the same transport. Null: of no correction.
double corrected_time(const Call& call, const Allowed& allowed, Transport transport, const Choice& choice,
                      const Corrected* corrected);

// The fastest allowed choice after correction. Corrections are monotonic, so that within one transport the fastest
// before correction is the fastest after it. Without an algorithm where none is allowed.
Estimate estimate(const Call& call, const Allowed& allowed, const Calibration& calibration);

// Across nodes, every GPU still moves over its node's own links what stays in the node: a collective of the largest
// node alone. The two are corrected by different measurements: without this bound, two racks may be faster than one,
// and nodes whose transfers go through their host as fast as their network. `with_leaving`: what goes to other nodes
// passes the same ports, and the host's memory if transfers between GPUs do. Without an algorithm inside a node.
Estimate inside_nodes(const Call& call, bool with_leaving, const Calibration& calibration);

}  // namespace ns_dist::network
