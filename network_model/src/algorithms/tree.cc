// Double binary tree: two complementary trees over the nodes, each carrying half of the data up and down again; a
// chain inside each node (Sanders, Speck and Träff 2009; NCCL 2.4).
#include <algorithm>
#include <cmath>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  return call.runs(protocol) && (call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kBarrier);
}

Cost cost(const Call& call, Protocol protocol) {
  Cost result;
  double path = 0;
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    const auto parts = static_cast<double>(tier.parts);
    const double depth = link.network() ? std::ceil(std::log2(parts)) : parts - 1;
    result.steps += 2 * depth;
    path += 2 * depth * of(link.tree_hop, protocol);
    // Every byte goes up and down; both trees together use both directions of every link.
    const double bus = call.part_bandwidth(tier);
    result.transfer = std::max(result.transfer,
                               2 * call.bytes / tree_bandwidth(protocol, bus, call.links[0].generation, call.nodes()));
  }
  result.latency = call.latency_of(base_latency_tree(protocol, call.links[0]), path);
  return result;
}

}  // namespace

extern constinit const Algorithm kTree = {
    .name = "tree",
    .description = "double binary tree between nodes, chain inside; all-reduce only (Sanders, Speck and Traeff 2009)",
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
