// The least time that NCCL's published constants give for a call, before any correction.
#pragma once

#include <optional>

#include "algorithms.h"

namespace ns_dist::network {

struct Choice {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSimple;
  Cost cost;
  // Half of the 90 % interval of NCCL's constants over `cost.time()`: the mean of all candidates by candidate_weight,
  // so that it does not jump where the choice changes.
  double spread = 0;
};

// How much a candidate of `seconds` counts in an interval beside the fastest one of `least`: 1 if both are equally
// long, because then either may be what runs, 0 from twice as long.
double candidate_weight(double seconds, double least);

// Limits the choice to one algorithm (an index into algorithms()) or protocol.
struct Allowed {
  std::optional<std::size_t> algorithm;
  std::optional<Protocol> protocol;
};

bool is_allowed(const Call& call, const Allowed& allowed, std::size_t algorithm, Protocol protocol);

// The fastest allowed algorithm and protocol of `transport`; of equally fast ones the first. No algorithm when none
// applies.
Choice choose(const Call& call, const Allowed& allowed, Transport transport);

}  // namespace ns_dist::network
