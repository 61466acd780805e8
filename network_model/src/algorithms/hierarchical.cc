// Hierarchical: a ring on each level. All-reduce scatters inside out, each level on the share that the one below left,
// and gathers outside in; on two levels that is reduce-scatter in the node, all-reduce along the rails, all-gather in
// the node (Cho et al. 2019, BlueConnect). Works on any number of levels.
#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  if (call.placement->tier_count < 2 || protocol == Protocol::kLl) return false;
  for (const Tier& tier : *call.placement) {
    if (tier.members != tier.max_members) return false;
  }
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kAllGather ||
         call.kind == CollectiveKind::kReduceScatter;
}

Cost cost(const Call& call, Protocol protocol) {
  Cost result;
  double path = 0, share = call.bytes;
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    const auto parts = static_cast<double>(tier.parts);
    path += (parts - 1) * of(link.ring_hop, protocol);
    result.steps += parts - 1;
    result.transfer +=
        (parts - 1) / parts * share / ring_bandwidth(protocol, call.bandwidth(tier), link.generation, call.nodes());
    share /= parts;
  }
  if (call.kind == CollectiveKind::kAllReduce) {
    path *= 2;
    result.steps *= 2;
    result.transfer *= 2;
  }
  result.latency = call.latency_of(base_latency_ring(protocol, call.links[0]), path);
  return result;
}

}  // namespace

constinit const Algorithm kHierarchical = {
    "hierarchical",
    "a ring on each level, each on the share that the level below left; only on request (Cho et al. 2019)",
    false,
    Means::kMessages,
    {"hierarchical/ll", "hierarchical/ll128", "hierarchical/simple"},
    applies,
    cost,
    true};

}  // namespace ns_dist::network
