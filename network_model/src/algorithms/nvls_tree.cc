// NVLS-tree: the switch reduces inside each node, trees over the nodes carry one share of the buffer on each rail, and
// the switch multicasts the result (NCCL 2.18).
#include <algorithm>
#include <cmath>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  const Placement& placement = *call.placement;
  return call.kind == CollectiveKind::kAllReduce && !call.integer && protocol == Protocol::kSimple &&
         placement.tier_count >= 2 && call.link(placement.tiers[0]).nvls && call.link(placement.tiers[1]).network();
}

Cost cost(const Call& call, Protocol) {
  const Tier& inner = call.placement->tiers[0];
  const Link& nvlink = call.link(inner);
  Cost result;
  const auto local = static_cast<double>(inner.parts);
  result.transfer = (1 + 1 / local) * call.bytes / nvls_bandwidth(nvlink.bandwidth, nvlink.generation);
  double path = 0;
  for (std::size_t i = 1; i < call.placement->tier_count; ++i) {
    const Tier& tier = call.placement->tiers[i];
    const Link& link = call.link(tier);
    const double depth = std::ceil(std::log2(static_cast<double>(tier.parts)));
    result.steps += 2 * depth;
    path += 2 * depth * link.nvls_tree_hop;
    // Two nodes exchange what they have; each of more is an inner one of a tree, and sends as much down as up.
    const double passes = call.nodes() == 2 ? 1 : 2;
    result.transfer = std::max(result.transfer, passes * call.bytes / call.part_bandwidth(tier));
  }
  result.steps += 2;
  result.latency = call.latency_of(nvlink.nvls_hop, path);
  return result;
}

}  // namespace

extern constinit const Algorithm kNvlsTree = {
    .name = "nvls-tree",
    .description = "the NVSwitch reduces inside each node, double trees between nodes; all-reduce (NCCL 2.18)",
    .transport = Transport::kSwitch,
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
