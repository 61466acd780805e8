// Concurrent transfers that share links: max-min fair rates, and the ports, SMs and memory bandwidth that a collective
// uses on a GPU.
//
// Rates by progressive filling (Bertsekas and Gallager 1992, section 6.5.2): the rates of all flows grow together. When
// a link is full, its flows keep their rate; a flow that reaches its own limit does, too. The other rates grow on.
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
  BytesPerSecond limit = BytesPerSecond::from_base(std::numeric_limits<double>::infinity());  // alone
};

// Rate of each flow while all of them run. A flow without limit that uses no link has an infinite rate.
// Errors: a capacity that is not positive, a negative share or limit, a link that is not there.
Result<std::vector<BytesPerSecond>> max_min_rates(std::span<const BytesPerSecond> capacities,
                                                  std::span<const SharedFlow> flows);

// What a collective uses on a GPU while it runs alone, during the time `alone`.
struct Footprint {
  // By level: share (0 to 1) of the bandwidth that the GPU reaches at its port. Each byte is sent at one level, by how
  // far it goes; a port of an inner network level also carries the traffic to the outer levels.
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

}  // namespace ns_dist
