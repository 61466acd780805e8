// PAT (parallel aggregated trees): all-gather and reduce-scatter in a logarithmic number of steps, one GPU a node
// (NCCL 2.23; Jeaugey 2025).
#include <algorithm>
#include <cmath>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

// NCCL 2.30, src/graph/tuning.cc, for PAT.
constexpr double kShareOfRing = 0.75;           // of the bus bandwidth
constexpr double kHopShare = 1 / 3.5;           // of a Simple network hop for each doubling
constexpr double kBase = 8e-6, kRank = 2.8e-6;  // s; of the start, and for each rank

bool applies(const Call& call, Protocol protocol) {
  return (call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kReduceScatter) &&
         protocol == Protocol::kSimple && call.placement->tier_count > 0 &&
         call.link(call.placement->tiers[0]).network();
}

Cost cost(const Call& call, Protocol protocol) {
  const double ranks = call.ranks();
  double slowest = 0, hop = 0;
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    slowest = std::max(slowest, 1 / call.part_bandwidth(tier));
    hop = std::max(hop, of(link.ring_hop, protocol));
  }
  Cost result;
  result.steps = std::ceil(std::log2(ranks));
  result.latency = call.latency_of(kBase, result.steps * hop * kHopShare + kRank * ranks);
  result.transfer = (ranks - 1) / ranks * call.bytes * slowest / kShareOfRing;
  return result;
}

}  // namespace

extern constinit const Algorithm kPat = {
    .name = "pat",
    .description = "parallel aggregated trees; all-gather and reduce-scatter with one GPU a node (NCCL 2.23)",
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
