// CollNet: the network's switches reduce (SHARP); each node sends its data once and receives the result once.
#include <algorithm>

#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  const Placement& placement = *call.placement;
  return call.kind == CollectiveKind::kAllReduce && protocol == Protocol::kSimple && call.nodes() > 1 &&
         call.link(placement.outermost()).network();
}

Cost cost(const Call& call, Protocol) {
  constexpr double kInNode = 3.7e-6, kNetwork = 31e-6;  // s; NCCL 2.30, tuning.cc, CollNet direct
  Cost result;
  double path = kNetwork;
  for (const Tier& tier : *call.placement) {
    const Link& link = call.link(tier);
    const auto parts = static_cast<double>(tier.parts);
    if (link.network()) {
      result.transfer = std::max(result.transfer, call.bytes / call.part_bandwidth(tier));
    } else {  // all ranks of a node exchange directly: reduce-scatter before, all-gather after
      result.transfer = std::max(result.transfer, 2 * (parts - 1) / parts * call.bytes / call.bandwidth(tier));
      path += 2 * kInNode;
    }
  }
  result.steps = 2;
  result.latency = call.latency_of(0, path);
  return result;
}

}  // namespace

extern constinit const Algorithm kCollnet = {
    .name = "collnet",
    .description =
        "the network's switches reduce (SHARP); all-reduce, only where asked for, since few clusters have it",
    .automatic = false,
    .applies = applies,
    .cost = cost,
    .network_reduces = true,
};

}  // namespace ns_dist::network
