#include "algorithms.h"

#include <algorithm>

namespace ns_dist::network {

std::span<const Algorithm> algorithms() {
  static const std::array<const Algorithm*, 9> order = {
      &kRing, &kTree, &kNvls, &kNvlsTree, &kPat, &kDirect, &kHierarchical, &kHalvingDoubling, &kCollnet};
  static const auto table = [] {
    std::array<Algorithm, order.size()> copies{};
    std::transform(order.begin(), order.end(), copies.begin(), [](const Algorithm* a) { return *a; });
    return copies;
  }();
  return table;
}

// For every tier, a cut around one of its parts: whatever leaves the part goes through this tier or one further out.
double bandwidth_bound(const Call& call, bool network_reduces) {
  const double size = call.bytes, ranks = call.ranks();
  double bound = 0, outward = 0;
  for (std::size_t i = call.placement->tier_count; i-- > 0;) {
    const Tier& tier = call.placement->tiers[i];
    outward += call.link(tier).peak;
    const auto parts = static_cast<double>(tier.all_parts), members = static_cast<double>(tier.max_members);
    double leaving = 0;
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        leaving = 2 * (parts - 1) / parts * size;
        if (call.link(tier).nvls) leaving = std::min(leaving, (parts + 1) / parts * size);
        if (call.link(tier).network() && network_reduces) leaving = std::min(leaving, size);
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kReduceScatter:
        leaving = (parts - 1) / parts * size;
        break;
      case CollectiveKind::kAllToAll:
        leaving = call.imbalance * members * (ranks - members) / ranks * size;
        break;
      case CollectiveKind::kGather:
      case CollectiveKind::kScatter:
        leaving = (ranks - members) / ranks * size;
        break;
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kReduce:
      case CollectiveKind::kSendRecv:
        leaving = size;
        break;
      case CollectiveKind::kBarrier:
        break;
    }
    bound = std::max(bound, leaving / (members * outward));
  }
  return bound;
}

}  // namespace ns_dist::network
