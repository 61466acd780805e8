// Double binary tree: two complementary trees over the nodes, each carrying half of the data up and down again; a
// chain inside each node (Sanders, Speck and Träff 2009; NCCL 2.4).
#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol) {
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kBarrier;
}

Cost cost(const Call& call, Protocol protocol) {
  const Tier* innermost = call.placement->begin();
  const Tier* outermost = call.placement->end() - 1;
  double hops = 0, latency = 0;
  double bus = std::numeric_limits<double>::infinity();
  for (const Tier* tier = innermost; tier <= outermost; ++tier) {
    const Link& link = call.link(*tier);
    const auto parts = static_cast<double>(tier->parts);
    const double depth = link.network() ? std::ceil(std::log2(parts)) : parts - 1;
    hops += 2 * depth;
    latency += 2 * depth * of(link.tree_hop, protocol);
    bus = std::min(bus, static_cast<double>(tier->members) * link.bandwidth);
  }
  bus = tree_bandwidth(protocol, bus, call.links[0].generation, call.nodes());
  Cost result;
  result.steps = hops;
  result.latency = (base_latency_tree(protocol, call.links[0]) + latency) * channel_growth(call.bytes);
  result.transfer = 2 * call.bytes / bus;  // every byte goes up and down; both trees together use both directions
  return result;
}

}  // namespace

constinit const Algorithm kTree = {
    "tree",
    "double binary tree between nodes, chain inside; all-reduce only (Sanders, Speck and Traeff 2009)",
    Means::kMessages,
    {"tree/ll", "tree/ll128", "tree/simple"},
    applies,
    cost};

}  // namespace ns_dist::network
