// NVLS (NVLink SHARP): the switch reduces what all ranks hold and multicasts the result (NCCL 2.17). Each GPU sends its
// whole buffer once and one n-th of the result: (n + 1) / n of the buffer, where a ring sends 2 (n - 1) / n.
//
// All-gathers and reduce-scatters of up to 32 ranks (NCCL 2.30: src/enqueue.cc, NCCL_MAX_NVLS_ARITY) have half of the
// steps, and n / (n - 1) of the buffer by NCCL's bandwidth: one way of an all-reduce's, times (n - 1) / n
// (src/graph/tuning.cc). Between 8 or fewer a ring is faster at every size by NCCL's constants.
#include "algorithms.h"

namespace ns_dist::network {
namespace {

constexpr std::int64_t kFewRanks = 8, kMostRanks = 32;  // of all-gathers and reduce-scatters

bool is_one_way(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

bool applies(const Call& call, Protocol protocol) {
  if (call.kind != CollectiveKind::kAllReduce) {
    const std::int64_t ranks = call.placement->ranks;
    if (!is_one_way(call.kind) || ranks <= kFewRanks || ranks > kMostRanks) return false;
  }
  const bool adds = call.kind != CollectiveKind::kAllGather;
  return !(adds && call.integer) && protocol == Protocol::kSimple && call.placement->tier_count == 1 &&
         call.link(call.placement->tiers[0]).nvls;
}

Cost cost(const Call& call, Protocol) {
  const Link& link = call.link(call.placement->tiers[0]);
  Cost result;
  result.steps = is_one_way(call.kind) ? 1 : 2;
  result.latency = link.nvls_hop;
  const double n = call.ranks(), share = is_one_way(call.kind) ? n / (n - 1) : 1 + 1 / n;
  result.transfer = share * call.bytes / nvls_bandwidth(link.bandwidth, link.generation);
  return result;
}

}  // namespace

extern constinit const Algorithm kNvls = {
    .name = "nvls",
    .description = "the NVSwitch reduces and multicasts; in one node of Hopper or later (NCCL 2.17)",
    .transport = Transport::kSwitch,
    .applies = applies,
    .cost = cost,
};

}  // namespace ns_dist::network
