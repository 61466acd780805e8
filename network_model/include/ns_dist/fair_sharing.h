// Concurrent transfers that share links: max-min fair rates, and when each transfer ends.
//
// Rates by progressive filling (Bertsekas and Gallager 1992, section 6.5.2): all flows grow together; when a link is
// full, or a flow reaches its own limit, the flows it stops keep their rate and the others go on. Between two events
// (a flow starts or ends) rates are constant.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/cost.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// Every byte of the flow puts `share` bytes on `link`.
struct LinkUse {
  std::size_t link = 0;
  double share = 1;
};

struct SharedFlow {
  std::vector<LinkUse> uses;
  Bytes size;
  Seconds start;
  BytesPerSecond limit = BytesPerSecond::from_base(std::numeric_limits<double>::infinity());  // alone
};

// Rate of each flow while all of them run. A flow without limit that uses no link has an infinite rate.
// Errors: a capacity that is not positive, a negative share or limit, a link that is not there.
Result<std::vector<BytesPerSecond>> max_min_rates(std::span<const BytesPerSecond> capacities,
                                                  std::span<const SharedFlow> flows);

// When each flow ends. Errors as above, and a size or a start that is negative or not finite.
Result<std::vector<Seconds>> completion_times(std::span<const BytesPerSecond> capacities,
                                              std::span<const SharedFlow> flows);

// One collective of several that overlap in time. In a training step every GPU takes part in one group of each.
struct TimedCollective {
  Collective call;
  Seconds start;
};

// Share of the data that each level of the cluster carries: bytes that one GPU sends into it, by the algorithms' lower
// bounds. Zero for levels that the group does not span. Errors: the group does not lie on the cluster.
Result<std::vector<Bytes>> level_loads(const Cluster& cluster, const Collective& call);

// What a collective takes of a GPU while it runs alone, for `alone`.
struct Footprint {
  // Of what a GPU reaches at its port of each level, 0 to 1. A port of an inner network level carries what goes to the
  // levels further out too.
  std::vector<double> ports;
  // Thread blocks, each of which holds an SM. Over NVLink NCCL opens as many channels as the GPU's links need at the
  // bandwidth of one channel (NCCL 2.30, src/graph/tuning.cc: 20 GB/s on Volta and Ampere, 36.7 on Hopper, 40 on
  // Blackwell), twice (src/graph/connect.cc duplicates its rings): 24 on a DGX A100, 21 on a DGX H100. Between nodes
  // two for each network port of the group's ranks in a node: 16 on eight ports. From 2 to 32, the fewest of the
  // levels.
  double channels = 0;
  // Read and written in the GPU's memory: 2 bytes for each that it sends (what arrives is written, what leaves is
  // read), 3 where it reduces (its own operand is read too).
  BytesPerSecond memory_traffic;
};

// Errors: the group does not lie on the cluster.
Result<Footprint> footprint(const Cluster& cluster, const Collective& call, Seconds alone);

// When each collective ends if they share the ports of their levels max-min fairly. A collective alone takes what
// `network` says; together they are slowed where the bandwidth that they would need of a level exceeds what the level
// gives. Errors: those of `network` and of the functions above.
Result<std::vector<Seconds>> concurrent_collectives(const Cluster& cluster, const NetworkCost& network,
                                                    std::span<const TimedCollective> collectives);

}  // namespace ns_dist
