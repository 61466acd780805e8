// ASTRA-Sim's analytical network backends as closed forms: what its simulator answers, to the nanosecond, for one
// collective of all NPUs. A reference to compare with, not our forecast: it has no protocols and, in the unaware
// backend, no contention between messages.
//
// ASTRA-Sim at 518bd513, astra-network-analytical at 599a0473.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "ns_dist/astra_network.h"
#include "ns_dist/cluster.h"
#include "ns_dist/collective.h"
#include "ns_dist/cost.h"
#include "ns_dist/result.h"

namespace ns_dist {

// Finish time of one collective of all NPUs that starts at 0, in ns. `comm_size` is the trace's attribute: the buffer
// of all-reduce, reduce-scatter and all-to-all, a rank's own shard for all-gather, bytes. Errors: no closed form is
// known (several dimensions with several chunks, the congestion-aware backend with several active chunks or with direct
// exchange on a ring, direct all-reduce on a ring of more than three, other algorithms), a dimension below 2 NPUs, a
// collective that it does not run. Where a key of the system json would have to be another, the place is "#/KEY".
Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size);

// Messages and collectives of any ranks, as ASTRA-Sim's unaware backend times them. Collectives of all NPUs run
// dimension by dimension. Those of fewer run as one flat ring in the order of ranks, with the system's algorithm where
// the network has one dimension. A message is charged the lowest dimension in which its two ranks differ, and no other.
// A ring uses one link of a GPU at a time, so on a FullyConnected dimension it leaves the other links idle, there as
// here.
class AstraNetwork {
 public:
  // Errors: those of astra_time_ns that lie in the system; the congestion-aware backend.
  static Result<AstraNetwork> make(AstraSystem system);

  const AstraSystem& system() const { return system_; }

  // Errors: ranks that the network does not have, or one and the same.
  Result<std::int64_t> message_ns(Rank from, Rank to, std::int64_t bytes) const;

  // `times`: when each member starts; becomes when each one ends, ns. A group of fewer ranks than the network is a ring
  // in the order of `members`, as comm_groups.json lists them. Ranks that wait send what has arrived in the meantime at
  // once, so a collective ends sooner after its latest start than it takes alone. With halvingDoubling or a window, all
  // end as if all had started with the latest.
  // Errors: those of astra_time_ns; a group below two, with a rank twice, or outside the network.
  Result<void> collective(CollectiveKind kind, std::int64_t comm_size, std::span<const Rank> members,
                          std::span<std::int64_t> times) const;

  // How long either takes alone, until its last member is done. `members`: those of a collective, as above; or sender
  // and receiver of a kSendRecv. Errors: those of message_ns and collective.
  Result<std::int64_t> longest_ns(CollectiveKind kind, std::int64_t comm_size, std::span<const Rank> members) const;

  // The same of a collective of a step, in the order of its group: a routed all-to-all as its exchanges in nodes of
  // `node` GPUs (astra_exchanges), a ring of messages until the slowest is there.
  Result<std::int64_t> longest_ns(const Collective& collective, std::int64_t node) const;

  // The dimension that pays for a message, and the distance of the two on it.
  std::pair<std::size_t, std::int64_t> charged(Rank from, Rank to) const;

 private:
  AstraSystem system_;
};

// Collectives of `ranks` ranks (0: as many as the cluster has GPUs) as AstraNetwork times them on the network that
// to_astra gives. Errors: as make_network_model; at forecast: those of to_astra, collectives that ASTRA-Sim does not
// run.
Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster, std::int64_t ranks = 0);

// What a collective of a step should take, and how often the step has it. A kSendRecv is a message.
struct AstraTarget {
  Collective collective;
  Seconds time;
  double count = 1;
};

struct AstraFit {
  AstraSystem system;
  // |answer / time - 1| of the targets, averaged by their time: of the network as given, and as fitted.
  double error_before = 0, error = 0;
  double total = 1;  // sum of the answers over the sum of times
};

// Bandwidth and latency of each dimension such that the formulas answer what the targets should take: least squares of
// the logarithm of answer over time, weighted by time. Both stay within a factor of 1,000 of what they were; a
// dimension that no target spans keeps its own. Targets that ASTRA-Sim does not run are left out. Errors: those of
// AstraNetwork::make; no target that it runs.
// `node`: GPUs of a node, as in astra_exchanges.
Result<AstraFit> fit_astra(const AstraSystem& system, std::span<const AstraTarget> targets, std::int64_t node = 0);

}  // namespace ns_dist
