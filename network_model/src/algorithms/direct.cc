// Direct: every rank exchanges with its peers without intermediate ranks; NCCL's sends and receives.
#include <algorithm>
#include <cmath>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

// What a rank keeps for itself is copied by the same kernel, beside the sends. Source, as in ring.cc: measurements
// on several machines (docs/models/network.md).
constexpr double kOwnShare = 0.35;

bool applies(const Call& call, Protocol protocol) {
  const Pattern pattern = pattern_of(call.kind);
  return (pattern == Pattern::kPartEach || pattern == Pattern::kPair) &&
         protocol != Protocol::kLl128;  // NCCL's p2p has LL and Simple only
}

Cost cost(const Call& call, Protocol protocol) {
  const double ranks = call.ranks();
  Cost result;
  double hop = 0, hops = 0, wire = 0, members_below = 1;
  // Levels carry their traffic side by side, each through its own ports: the slowest one decides.
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    const auto bytes_of = [&](double beside) {
      if (call.kind == CollectiveKind::kSendRecv) return call.bytes;
      const double own = call.goes_along(tier) ? 0 : link.own_share(kOwnShare);
      return (call.exchanged(tier, beside) + own / ranks) * call.bytes;
    };
    const auto take = [&](double bytes, double bandwidth) {
      result.transfer =
          std::max(result.transfer, bytes / ring_bandwidth(protocol, bandwidth, link.generation, call.nodes()));
    };
    if (call.kind == CollectiveKind::kAllToAll) {
      // They wait for the ranks with the fewest beside them, or for those that share their links with the most.
      for (const std::int64_t beside : {tier.members, tier.max_members}) {
        take(bytes_of(static_cast<double>(beside)), call.bandwidth_of(tier, beside));
      }
    } else {
      const bool message = call.kind == CollectiveKind::kSendRecv;
      take(bytes_of(members_below), message ? call.bandwidth_of(tier, 1) : call.bandwidth(tier));
    }
    if (link.ring != 0) {
      // Dimension by dimension, the shortest way: every hop takes a link's time. The farthest peer is a half ring away,
      // or the whole of a line.
      const auto parts = static_cast<double>(tier.parts);
      hops += call.fills(tier) ? std::floor(parts / 2) : parts - 1;
      wire = std::max(wire, of(link.ring_hop, Protocol::kLl));
    }
    hop = std::max(hop, of(link.ring_hop, protocol));
    members_below = call.inside(tier);
  }
  result.transfer *= call.imbalance;  // the busiest port decides
  result.steps = call.kind == CollectiveKind::kSendRecv ? 1 : ranks - 1;
  // All peers are served at once, in NCCL's rounds of 8 a channel (NCCL 2.30, src/include/device.h,
  // NCCL_MAX_DEV_WORK_P2P_PER_BATCH): the set-up of each round, not of each peer, is paid.
  constexpr double kPeersAtOnce = 8;
  const double further = std::max(0.0, hops - 1) * wire;  // the first hop is in `hop`
  result.latency = call.latency_of(base_latency_ring(protocol, call.links[0]),
                                   further + hop * (1 + (result.steps - 1) / kPeersAtOnce));
  return result;
}

}  // namespace

extern constinit const Algorithm kDirect = {
    .name = "direct",
    .description = "every rank exchanges with its peers directly; all-to-all, gather, scatter, send and receive",
    .applies = applies,
    .cost = cost,
    .on_torus = true,
};

}  // namespace ns_dist::network
