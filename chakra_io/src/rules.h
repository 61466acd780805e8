// What ASTRA-Sim demands of a node: its feeder of the node by itself, the rest of it with a network and a system.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flat_node.h"
#include "ns_dist/astra_network.h"
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

// Of a node that Rules::check lets pass.
inline const FeederKind& checked_kind(TraceCollective trace) {
  const FeederKind* found = feeder_kind(trace);
  NS_EXPECTS(found != nullptr);
  return *found;
}

inline constexpr std::int64_t kTags = 500'000'000;  // the feeder takes tags modulo this

// ASTRA-Sim's event queue keeps ns in doubles. Later than 2^53 an event may be due at a ns that none of them is, and
// its rank hangs (CommonNetworkApi::sim_schedule, Sys::call_events).
inline constexpr std::uint64_t kMostMicros = (std::uint64_t{1} << 53U) / 1000;

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
  bool some_dimensions = false;      // a collective of all ranks that leaves out dimensions of the network
  std::uint32_t tag = 0;             // of messages, modulo kTags
  Rank peer = 0;
};

// What tells how long nodes take: the recorded durations of all; or those of kernels, or their work.
enum class TimedBy : std::uint8_t { kDurations, kKernelDurations, kRoofline };

// Nanoseconds of a kernel by ASTRA-Sim's roofline, in doubles as Roofline.cc and Workload.cc compute them.
double roofline_ns(const FlatNode& kernel, double local_memory_gbs, double peak_tflops);

// What ASTRA-Sim demands of the nodes of a run.
class Rules {
 public:
  struct Run {
    bool replay_only = false, roofline = false;
    bool durations_are_cut = false;       // so none is too long
    const AstraSystem* system = nullptr;  // null: not known; it must outlive the rules
  };
  Rules(const CommGroups& groups, std::int64_t ranks, const Run& run)
      : groups_(members_of(groups, ranks)), ranks_(ranks), run_(run), system_(run.system) {}

  const std::map<std::int64_t, GroupMembers>& groups() const { return groups_; }
  TimedBy timed() const {
    if (run_.replay_only) return TimedBy::kDurations;
    return run_.roofline ? TimedBy::kRoofline : TimedBy::kKernelDurations;
  }

  // Errors have only a message: what is wrong with the node by itself, and what the feeder does about it.
  Result<NodeFacts> check(const FlatNode& node, Rank rank) const;

  // ---- Of nodes that `check` lets pass, on this system ----

  // What ASTRA-Sim does where it does not run the node to its end; empty: nothing, or the system is not known. The same
  // text means the same mistake.
  std::string refusal(const FlatNode& node, const NodeFacts& facts) const;
  bool takes_no_time(const FlatNode& node, const NodeFacts& facts) const;
  // Of one with some_dimensions: what it leaves out.
  std::string_view left_out() const;

 private:
  Result<void> check_duration(const FlatNode& node) const;
  Result<void> check_collective(const FlatNode& in, Rank rank, NodeFacts* node) const;
  Result<void> check_dimensions(const DimensionFlags& flags, CollectiveKind kind, NodeFacts* node) const;
  // Through which a collective of all ranks goes; 0: not known.
  std::size_t dimensions_of(CollectiveKind kind) const;

  std::map<std::int64_t, GroupMembers> groups_;
  std::int64_t ranks_;
  Run run_;
  const AstraSystem* system_;
};

// The first node of each slot starts with its rank. ASTRA-Sim stops (an assertion) where it takes no time.
class FirstNodes {
 public:
  void look_at(const FlatNode& node, const NodeFacts& facts, const Rules& rules);
  std::vector<TraceProblem> problems(Rank rank) const;

 private:
  struct First {
    std::uint64_t id = std::numeric_limits<std::uint64_t>::max();
    std::string name;
    bool takes_no_time = false;
  };
  First kernel_, communication_;
};

}  // namespace ns_dist::chakra
