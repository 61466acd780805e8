// Recursive halving and doubling: partners at distance n/2, n/4, ... exchange halves; log2(n) steps each way
// (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005). For powers of two.
#include <cmath>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  const auto ranks = static_cast<std::uint64_t>(call.placement->ranks);
  if ((ranks & (ranks - 1)) != 0 || protocol != Protocol::kSimple) return false;
  for (const Tier& tier : *call.placement) {
    if ((tier.parts & (tier.parts - 1)) != 0) return false;
  }
  return can_sweep(call);
}

// The largest exchanges go between neighbors: each step of a tier further out moves a smaller piece, and the pieces of
// all members of a part cross its border at once, each through its own port.
Cost cost(const Call& call, Protocol protocol) {
  Cost result;
  double path = 0, piece = call.bytes;
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    const double parts = static_cast<double>(tier.parts), steps = std::log2(parts);
    path += steps * of(link.ring_hop, protocol);
    result.steps += steps;
    result.transfer += (parts - 1) / parts * piece / call.bandwidth(tier);
    piece /= parts;
  }
  return swept(call, protocol, result, path);
}

}  // namespace

extern constinit const Algorithm kHalvingDoubling = {
    .name = "halving-doubling",
    .description =
        "recursive halving and doubling; powers of two; only on request, NCCL has it not (Thakur et al. 2005)",
    .automatic = false,
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
