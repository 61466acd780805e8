// The algorithms of collectives: one file each in algorithms/, one line each in algorithms.cc.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "links.h"
#include "ns_dist/collective.h"
#include "topology.h"

namespace ns_dist::network {

// What each rank of a collective has before or after it.
enum class Pattern {
  kWholeBuffer,  // the buffer, or a part that makes one buffer with those of the others
  kPartEach,     // a part of its own for each other rank: every rank, or one alone
  kPair,         // one message
  kNothing,
};

constexpr Pattern pattern_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return Pattern::kWholeBuffer;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return Pattern::kPartEach;
    case CollectiveKind::kSendRecv:
      return Pattern::kPair;
    case CollectiveKind::kBarrier:
      return Pattern::kNothing;
  }
  return Pattern::kNothing;
}

// Share of the ranks that are not in a part of so many.
constexpr double share_outside(double members, double ranks) { return (ranks - members) / ranks; }

// Bytes that leave one part of `members` of the `ranks` in `parts`, over Collective::size. `each`: what a rank of an
// all-to-all sends, over its share of an even one.
constexpr double leaving_share(CollectiveKind kind, double parts, double members, double ranks, double each = 1) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (parts - 1) / parts;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return (parts - 1) / parts;
    case CollectiveKind::kAllToAll:
      return each * members * (ranks - members) / ranks;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return share_outside(members, ranks);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kSendRecv:
      return 1;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;
}

// What an even all-to-all sends over a GPU's links of a torus dimension, as a share of its buffer: half of the ring's
// positions send to the other half. Even rings: P / 4, the mean number of hops.
double across_half(const Tier& tier);

// One collective on its place, in plain doubles.
struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double bytes = 0;      // Collective::size
  bool integer = false;  // Collective::integer
  double imbalance = 1;  // Collective::imbalance
  const Placement* placement = nullptr;
  const Link* links = nullptr;  // one a level of the cluster
  // Of an all-to-all: copies that cross a network over those that `bytes` counts, and whether GPUs of a node make
  // copies for each other (Collective::routing).
  double copies_over_network = 1;
  bool copies_in_nodes = false;

  double ranks() const { return static_cast<double>(placement->ranks); }
  const Link& link(const Tier& tier) const { return links[tier.level]; }
  double copies(const Tier& tier) const { return link(tier).network() ? copies_over_network : 1; }
  // Whether the group fills a torus dimension: only then is the ring closed and both directions carry it.
  bool fills(const Tier& tier) const { return link(tier).ring == kOpenRing || link(tier).ring == tier.parts; }
  // Share of a GPU's links that lead to units of the group: in a mesh of n units, r - 1 of n - 1. The others lead to
  // GPUs outside the group, and no collective sends through those.
  double links_used(const Tier& tier) const {
    const std::int64_t units = link(tier).mesh;
    return tier.parts < units ? static_cast<double>(tier.parts - 1) / static_cast<double>(units - 1) : 1;
  }
  // On a part of a torus ring, a ring of ranks goes there on the links of one direction and comes back on those of the
  // other.
  double share_of_links(const Tier& tier) const {
    return link(tier).ring != 0 && !fills(tier) ? 0.5 : links_used(tier);
  }
  // What a rank reaches on the tier, bytes per second, where all GPUs of its part send.
  double bandwidth(const Tier& tier) const { return share_of_links(tier) * link(tier).bandwidth; }
  // What the ranks of a part reach together: the least of all parts, by their ports and by the part's own links.
  double part_bandwidth(const Tier& tier) const { return part_bandwidth(tier, tier); }
  // The same by the ports of a smaller part, of a tier further in.
  double part_bandwidth(const Tier& tier, const Tier& leaving) const {
    const double ports = std::min(static_cast<double>(leaving.members) * link(tier).port_bandwidth,
                                  leaving.room * link(tier).shared_bandwidth);
    return share_of_links(tier) * std::min(ports, tier.room * link(tier).bandwidth);
  }
  // What each rank of a part with `members` reaches.
  double bandwidth_of(const Tier& tier, std::int64_t members) const {
    const double share = std::max(1.0, tier.room / static_cast<double>(members));
    return share_of_links(tier) * std::min(link(tier).port_bandwidth, share * link(tier).bandwidth);
  }
  // The same on the data sheet, of the part with the fewest.
  double peak_of_part(const Tier& tier) const {
    const double share = tier.room / static_cast<double>(tier.members);
    return links_used(tier) * std::min(link(tier).port_peak, share * link(tier).peak);
  }
  // Whether what a rank sends into an outer tier passes its ports of this one.
  bool leads_into(const Tier& tier, const Tier& outer) const {
    return link(tier).network() ? link(outer).network() : share_ports(link(tier), link(outer));
  }
  // Mean number of ranks in a unit of the tier.
  double inside(const Tier& tier) const {
    return ranks() / (static_cast<double>(tier.all_parts) / static_cast<double>(tier.parts));
  }
  // Whether an all-to-all goes there hop by hop, dimension after dimension.
  bool goes_along(const Tier& tier) const { return link(tier).ring != 0 && kind == CollectiveKind::kAllToAll; }
  // What a rank of an even all-to-all (the root of a gather or scatter) with so many ranks in its part, itself among
  // them, sends through its ports of the tier, over `bytes`: on a torus, along the dimension.
  double exchanged(const Tier& tier, double beside) const {
    if (goes_along(tier)) return copies(tier) * across_half(tier);
    const Tier* last = &tier;  // to which the same ports lead
    while (last + 1 != placement->end() && leads_into(*last, last[1])) ++last;
    const double reached = inside(*last);
    // Where a node's GPUs make copies for each other, they do so for what comes from all nodes.
    const double among = copies_in_nodes && !link(tier).network() ? reached : ranks();
    return copies(tier) * (reached - beside) / among;
  }
  bool torus() const {
    for (const Tier& tier : *placement) {
      if (link(tier).ring != 0) return true;
    }
    return false;
  }
  // Start-up latency beyond NCCL's base, and its growth with the number of channels (measured inside nodes; across
  // nodes small all-reduces are flat from 4 KiB to 64 KiB). Nobody measured more than the hops between 8 ranks: no more
  // of them grow.
  double latency_of(double base, double path) const {
    if (nodes() > 1) return base + path + kNetworkStart;
    constexpr double kMeasuredHops = 7;
    const double measured = std::min(1.0, kMeasuredHops / (ranks() - 1)) * path;
    return path - measured + (base + measured) * channel_growth(bytes);
  }
  // LL128 needs the order in which NVLink stores, so it does not run where GPUs of a node reach each other over PCIe
  // (NCCL 2.30, src/graph/tuning.cc, typeIntra <= PATH_NVB).
  bool runs(Protocol protocol) const {
    return protocol != Protocol::kLl128 || std::none_of(placement->begin(), placement->end(), [&](const Tier& tier) {
             return link(tier).link_class == LinkClass::kPcie;
           });
  }
  // Parts that only a network joins.
  std::int64_t nodes() const {
    for (const Tier& tier : *placement) {
      if (link(tier).network()) return tier.all_parts;
    }
    return 1;
  }
};

// Time is latency + transfer, seconds.
struct Cost {
  double latency = 0, transfer = 0;
  double steps = 0;  // messages one after the other
  double time() const { return latency + transfer; }
};

// What carries the data: messages between ranks, or reduction in the switch. Each has measured corrections of its own.
enum class Transport { kMessages, kSwitch };
inline constexpr std::array<Transport, 2> kTransports = {Transport::kMessages, Transport::kSwitch};

struct Algorithm {
  std::string_view name, description;
  bool automatic = true;  // NCCL may choose it; otherwise only on request
  Transport transport = Transport::kMessages;
  bool (*applies)(const Call& call, Protocol protocol);
  Cost (*cost)(const Call& call, Protocol protocol);
  // On a torus: its messages go between neighbors, or it counts their hops. There it may always be chosen.
  bool on_torus = false;
  bool network_reduces = false;  // SHARP: see bandwidth_bound
};

// In the order in which ties are broken.
std::span<const Algorithm* const> algorithms();
inline constexpr std::size_t kMostAlgorithms = 16;  // room for them where nothing is allocated

// "ring/ll", ...: Forecast::method. Of an entry of algorithms().
std::string_view method_of(const Algorithm& algorithm, Protocol protocol);

// For algorithms that scatter or gather in one sweep over the tiers: an all-gather, a reduce-scatter or an all-reduce
// of equally full tiers, and its cost from one sweep's (`once`, with a latency of `path` beyond NCCL's base); an
// all-reduce sweeps twice.
bool can_sweep(const Call& call);
Cost swept(const Call& call, Protocol protocol, Cost once, double path);

// Errors: those of Topology.
Result<Placement> place(const Topology& topology, const Collective& collective);
// `collective`, which must be possible, on its place; both outlive the call.
Call call_of(const Collective& collective, const Placement& placement, const Link* links);

// Least time that the links allow, whatever the algorithm: bytes that must cross a border over its data-sheet
// bandwidth, seconds. All-reduce: Patarasuk and Yuan 2009, theorem 1; where a switch reduces (NVLS; `network_reduces`:
// SHARP), what a part sends once.
double bandwidth_bound(const Call& call, bool network_reduces = false);

}  // namespace ns_dist::network
