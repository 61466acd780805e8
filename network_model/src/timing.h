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

// The fastest allowed of these means, the first of equals; no algorithm when none applies.
Choice choose(const Call& call, const Allowed& allowed, Means means);

}  // namespace ns_dist::network
