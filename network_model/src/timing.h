// The least time that NCCL's published constants give for a call, before any correction.
#pragma once

#include <optional>

#include "algorithms.h"

namespace ns_dist::network {

struct Choice {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSimple;
  Cost cost;
};

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
