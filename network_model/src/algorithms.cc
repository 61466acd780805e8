#include "algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace ns_dist::network {

// One file each in algorithms/.
extern constinit const Algorithm kRing, kTree, kNvls, kNvlsTree, kPat, kDirect, kHierarchical, kHalvingDoubling,
    kCollnet;

namespace {

constexpr std::array kAlgorithms = {
    &kRing, &kTree, &kNvls, &kNvlsTree, &kPat, &kDirect, &kHierarchical, &kHalvingDoubling, &kCollnet};
static_assert(kAlgorithms.size() <= kMostAlgorithms);

}  // namespace

std::span<const Algorithm* const> algorithms() { return kAlgorithms; }

std::string_view method_of(const Algorithm& algorithm, Protocol protocol) {
  using Methods = std::array<std::string, kProtocolCount>;
  static const auto kMethods = [] {
    std::array<Methods, kAlgorithms.size()> methods;
    for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
      for (const Protocol each : kProtocols) {
        methods[i][static_cast<std::size_t>(each)] = fmt::format("{}/{}", kAlgorithms[i]->name, name_of(each));
      }
    }
    return methods;
  }();
  const auto found = std::find(kAlgorithms.begin(), kAlgorithms.end(), &algorithm);
  NS_EXPECTS(found != kAlgorithms.end());
  return kMethods[static_cast<std::size_t>(found - kAlgorithms.begin())][static_cast<std::size_t>(protocol)];
}

bool can_sweep(const Call& call) {
  for (const Tier& tier : *call.placement) {
    if (tier.members != tier.max_members) return false;
  }
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kAllGather ||
         call.kind == CollectiveKind::kReduceScatter;
}

Cost swept(const Call& call, Protocol protocol, Cost once, double path) {
  const double sweeps = call.kind == CollectiveKind::kAllReduce ? 2 : 1;
  once.steps *= sweeps, once.transfer *= sweeps;
  once.latency = call.latency_of(base_latency_ring(protocol, call.links[0]), sweeps * path);
  return once;
}

Result<Placement> place(const Topology& topology, const Collective& collective) {
  if (collective.kind != CollectiveKind::kSendRecv) return topology.place(collective.group);
  const Stride& others = collective.ring.count > 1 ? collective.ring : collective.stages;
  return topology.place_message(collective.group, others);
}

Call call_of(const Collective& collective, const Placement& placement, const Link* links) {
  const Routing& routing = collective.routing;
  const bool routed = routing.experts > 0;
  Call call{.kind = collective.kind,
            .bytes = collective.kind == CollectiveKind::kBarrier ? 0 : collective.size / units::B,
            .integer = collective.integer,
            .imbalance = collective.imbalance,
            .placement = &placement,
            .links = links,
            .copies_in_nodes = routed};
  if (routed) call.copies_over_network = parts_reached(routing, call.nodes()) / parts_reached(routing, placement.ranks);
  return call;
}

double across_half(const Tier& tier) {
  const auto parts = static_cast<double>(tier.parts);
  const double half = std::floor(parts / 2);
  return half * (parts - half) / parts;
}

namespace {

// What must come in to the emptiest part of a tier, or leave it, because the other ranks have it or want it: bytes.
// Zero where that depends on which rank the part has.
double to_or_from_few(const Call& call, const Tier& tier) {
  const auto parts = static_cast<double>(tier.all_parts), members = static_cast<double>(tier.members);
  switch (call.kind) {
    case CollectiveKind::kAllToAll:
      return leaving_share(call.kind, parts, members, call.ranks(), call.imbalance * call.copies(tier)) * call.bytes;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return share_outside(members, call.ranks()) * call.bytes;
    default:
      return pattern_of(call.kind) == Pattern::kWholeBuffer ? call.bytes : 0;
  }
}

}  // namespace

// For every tier, a cut around one of its parts: whatever leaves the part goes through this tier or one further out.
// `leaving` is that of the fullest part; the emptiest one has the fewest ports for what it needs.
double bandwidth_bound(const Call& call, bool network_reduces) {
  const double size = call.bytes, ranks = call.ranks();
  double bound = 0, beyond = 0;  // `beyond`: peak of the tiers further out that are no torus
  double apart = 0, same = 0;    // of a GPU by tiers further out: by other ports, and by those of this tier
  const Link* outer = nullptr;
  for (std::size_t i = call.placement->tier_count; i-- > 0;) {
    const Tier& tier = call.placement->tiers[i];
    const Link& link = call.link(tier);
    if (outer && !share_ports(*outer, link)) apart += std::exchange(same, 0);
    outer = &link;
    // What a part with so many ranks gets out at most.
    const double used = call.links_used(tier), port = used * link.port_peak;
    const auto through = [&](double members) {
      const double ports = std::min(members * port, tier.most_room * used * link.shared_peak);
      return std::min(ports, tier.most_room * used * link.peak + members * same) + members * apart;
    };
    const double own = std::min(port, tier.most_room / static_cast<double>(tier.members) * used * link.peak);
    // And one through both sides of a torus dimension, its bisection, around which only another network leads.
    if (link.ring == 0) {
      beyond += own;
    } else if (call.kind == CollectiveKind::kAllToAll && tier.members == tier.max_members) {
      bound = std::max(bound, call.copies(tier) * across_half(tier) * size / (link.peak + beyond));
    }
    const auto parts = static_cast<double>(tier.all_parts), members = static_cast<double>(tier.max_members);
    double leaving = leaving_share(call.kind, parts, members, ranks, call.imbalance * call.copies(tier)) * size;
    if (call.kind == CollectiveKind::kAllReduce) {
      if (link.nvls) leaving = std::min(leaving, (parts + 1) / parts * size);
      if (link.network() && network_reduces) leaving = std::min(leaving, size);
    }
    const auto fewest = static_cast<double>(tier.members);
    bound = std::max({bound, leaving / through(members), to_or_from_few(call, tier) / through(fewest)});
    same = std::min(port, own + same);
  }
  return bound;
}

}  // namespace ns_dist::network
