// What ASTRA-Sim's feeder demands of a node by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flat_node.h"
#include "ns_dist/collective.h"

namespace ns_dist::chakra {

inline constexpr std::array<std::string_view, 10> kCollectiveNames = {
    "ALL_REDUCE", "REDUCE",         "ALL_GATHER",           "GATHER", "SCATTER", "BROADCAST",
    "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"};
// A kind of collective that the feeder runs: in traces, in graphs, and in the system json, whose "KEY-implementation"
// names the algorithm.
struct FeederKind {
  TraceCollective trace = TraceCollective::kAllReduce;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string_view key;  // empty: none is looked up, and each rank waits for itself, for the node's duration

  constexpr bool meets() const { return !key.empty(); }
};
inline constexpr std::array<FeederKind, 5> kFeederKinds = {
    {{TraceCollective::kAllReduce, CollectiveKind::kAllReduce, "all-reduce"},
     {TraceCollective::kAllGather, CollectiveKind::kAllGather, "all-gather"},
     {TraceCollective::kReduceScatter, CollectiveKind::kReduceScatter, "reduce-scatter"},
     {TraceCollective::kAllToAll, CollectiveKind::kAllToAll, "all-to-all"},
     {TraceCollective::kBroadcast, CollectiveKind::kBroadcast, ""}}};

// Null: the feeder does not run it.
constexpr const FeederKind* feeder_kind(TraceCollective trace) {
  const auto* found = std::find_if(kFeederKinds.begin(), kFeederKinds.end(),
                                   [trace](const FeederKind& each) { return each.trace == trace; });
  return found == kFeederKinds.end() ? nullptr : found;
}
constexpr const FeederKind* feeder_kind(CollectiveKind kind) {
  const auto* found = std::find_if(kFeederKinds.begin(), kFeederKinds.end(),
                                   [kind](const FeederKind& each) { return each.kind == kind; });
  return found == kFeederKinds.end() ? nullptr : found;
}

// Of a node that check_node lets pass.
inline const FeederKind& checked_kind(TraceCollective trace) {
  const FeederKind* found = feeder_kind(trace);
  NS_EXPECTS(found != nullptr);
  return *found;
}

// "it waits for itself: 1 after 2 after 1", of nodes that wait for each other in a circle; at most eight are named.
std::string cycle_text(std::span<const std::uint64_t> ids);

inline constexpr std::int64_t kTags = 500'000'000;  // the feeder takes tags modulo this

struct GroupMembers {
  std::vector<Rank> sorted, listed;  // listed: the order of the feeder's ring
  std::vector<std::size_t> turn;     // by place in `sorted`: place in `listed`
  bool repeated = false;             // a rank is listed twice

  std::optional<std::size_t> place_of(Rank rank) const;  // in `sorted`
};

// By id; 0 is all ranks.
std::map<std::int64_t, GroupMembers> members_of(const CommGroups& groups, std::int64_t ranks);

// What of a node matters to its run.
struct NodeFacts {
  TraceNodeType type = TraceNodeType::kInvalid;
  bool cpu = false;
  TraceCollective collective = TraceCollective::kAllReduce;
  std::int64_t size = 0, group = 0;  // of communication
  std::uint32_t tag = 0;             // of messages, modulo kTags
  Rank peer = 0;
};

// What tells how long nodes take: the recorded durations of all; or those of kernels, or their work.
enum class TimedBy : std::uint8_t { kDurations, kKernelDurations, kRoofline };

// Nanoseconds of a kernel by ASTRA-Sim's roofline, in doubles as Roofline.cc and Workload.cc compute them.
double roofline_ns(const FlatNode& kernel, double local_memory_gbs, double peak_tflops);

// Errors have only a message: what is wrong with the node, and what the feeder does about it.
Result<NodeFacts> check_node(const FlatNode& node, Rank rank, std::int64_t ranks, TimedBy timed,
                             const std::map<std::int64_t, GroupMembers>& groups);

}  // namespace ns_dist::chakra
