// Hierarchical: a ring on each level. All-reduce scatters inside out, each level on the share that the one below left,
// and gathers outside in; on two levels that is reduce-scatter in the node, all-reduce along the rails, all-gather in
// the node (Cho et al. 2019, BlueConnect). Works on any number of levels.
#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  return call.placement->tier_count >= 2 && protocol != Protocol::kLl && can_sweep(call);
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
  return swept(call, protocol, result, path);
}

}  // namespace

extern constinit const Algorithm kHierarchical = {
    .name = "hierarchical",
    .description =
        "a ring on each level, each on the share that the level below left; only on request (Cho et al. 2019)",
    .automatic = false,
    .applies = applies,
    .cost = cost,
    .on_torus = true,
};

}  // namespace ns_dist::network
