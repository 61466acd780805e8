// NVLS (NVLink SHARP): the switch reduces what all ranks hold and multicasts the result (NCCL 2.17). Each GPU sends its
// whole buffer once and one n-th of the result: (n + 1) / n of the buffer, where a ring sends 2 (n - 1) / n.
#include "algorithms.h"

namespace ns_dist::network {
namespace {

bool applies(const Call& call, Protocol protocol) {
  return call.kind == CollectiveKind::kAllReduce && !call.integer && protocol == Protocol::kSimple &&
         call.placement->tier_count == 1 && call.link(call.placement->tiers[0]).nvls;
}

Cost cost(const Call& call, Protocol) {
  const Link& link = call.link(call.placement->tiers[0]);
  Cost result;
  result.steps = 2;
  result.latency = link.nvls_hop;
  result.transfer = (1 + 1 / call.ranks()) * call.bytes / nvls_bandwidth(link.bandwidth, link.generation);
  return result;
}

}  // namespace

extern constinit const Algorithm kNvls = {
    .name = "nvls",
    .description = "the NVSwitch reduces and multicasts; all-reduce in one node of Hopper or later (NCCL 2.17)",
    .transport = Transport::kSwitch,
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
