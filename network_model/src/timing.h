// The least time that NCCL's published constants give for a call, before any correction.
#pragma once

#include <optional>

#include "algorithms.h"

namespace ns_dist::network {

struct Choice {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSimple;
  Cost cost;
  double spread = 0;  // half of the 90 % interval of NCCL's constants over `cost.time()`: mean_spread of all candidates
};

struct Candidate {
  double time = 0, spread = 0;  // seconds, and half of the interval
};
// The mean of the spreads, so that an interval does not jump where the choice changes. The fastest candidate counts
// fully, one that takes as long as it does, too, because either may be what runs, and one that takes twice as long not.
double mean_spread(std::span<const Candidate> candidates);

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
