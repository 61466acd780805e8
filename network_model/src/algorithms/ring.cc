// Ring: each rank sends to the next one; reduce-scatter and all-gather in n - 1 steps each. On several nodes the ring
// enters and leaves a node once, and each channel does so through another rank's port.
#include <algorithm>
#include <limits>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

// The rank's own n-th of the buffer is copied, or reduced, locally in a step of its own, at about the link's speed
// times this. It is why two ranks reach less bus bandwidth than eight over every NVLink measured. The SMs do it: a
// lower clock makes it longer (A100 and H200, each left out, are forecast 1 % better so).
constexpr double kOwnShare = 0.65;

bool applies(const Call& call, Protocol protocol) {
  if (!call.runs(protocol)) return false;
  return pattern_of(call.kind) == Pattern::kWholeBuffer || call.kind == CollectiveKind::kBarrier;
}

Cost cost(const Call& call, Protocol protocol) {
  const double ranks = call.ranks();
  // Across nodes a hop takes no less than the network's overhead; with one rank in each node its latency is that of
  // trees, which nothing hides (NCCL 2.30, src/graph/tuning.cc, getNetOverhead and ppn).
  constexpr double kNetworkOverhead = 1e-6;  // s; of a host with AMD's CPU twice that
  const bool across = call.link(call.placement->outermost()).network();
  const bool one_each = call.link(call.placement->tiers[0]).network();
  const double overhead = across ? kNetworkOverhead * (protocol == Protocol::kSimple ? 3 : 1) : 0;
  // Of the n - 1 hops that a piece makes, those between parts of the outermost tier are one less than its parts; each
  // tier further in adds what its parts are more.
  double path = 0, reached = 1;
  double bus = std::numeric_limits<double>::infinity();
  const Tier* const nodes = std::find_if(call.placement->begin(), call.placement->end(),
                                         [&](const Tier& tier) { return call.link(tier).network(); });
  for (std::size_t i = call.placement->tier_count; i-- > 0;) {
    const Tier& tier = call.placement->tiers[i];
    const Link& link = call.link(tier);
    const auto parts = static_cast<double>(tier.all_parts);
    const double hop = of(link.network() && one_each ? link.tree_hop : link.ring_hop, protocol);
    path += (parts - reached) * (link.network() ? hop : std::max(hop, overhead));
    // A closed ring through m ranks of a mesh uses m of its m (m - 1) links, one that goes on outside a link less.
    const auto inside = static_cast<double>(tier.parts);
    const bool goes_on = link.mesh > 0 && tier.parts > 1 && i + 1 < call.placement->tier_count;
    // A part of several nodes is left by the ports of one of them.
    const bool of_nodes = link.network() && !call.torus();
    const double part = call.part_bandwidth(tier, of_nodes ? *nodes : tier);
    bus = std::min(bus, (goes_on ? inside / (inside - 1) : 1) * part);
    reached = parts;
  }
  bus = ring_bandwidth(protocol, bus, call.links[0].generation, call.nodes());

  Cost result;
  const Link& innermost = call.link(call.placement->tiers[0]);
  const double own = innermost.own_share(kOwnShare) / ranks * call.bytes /
                     ring_bandwidth(protocol, innermost.bandwidth, innermost.generation, call.nodes());
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBarrier:
      result.steps = 2 * (ranks - 1);
      path *= 2;
      result.transfer = 2 * (ranks - 1) / ranks * call.bytes / bus + own;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      result.steps = ranks - 1;
      result.transfer = (ranks - 1) / ranks * call.bytes / bus + own;
      break;
    default:  // a pipeline around the ring: every byte passes every link but one
      result.steps = ranks - 1;
      result.transfer = call.bytes / bus;
      break;
  }
  result.latency = call.latency_of(base_latency_ring(protocol, call.links[0]), path);
  return result;
}

}  // namespace

extern constinit const Algorithm kRing = {
    .name = "ring",
    .description =
        "every rank sends to the next; n - 1 steps of reduce-scatter and of all-gather (Patarasuk and Yuan 2009)",
    .applies = applies,
    .cost = cost,
    .on_torus = true,
};

}  // namespace ns_dist::network
