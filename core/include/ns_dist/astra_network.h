// A cluster in ASTRA-Sim's words: the network and the settings that its analytical backends read. The trace export
// writes them as files; the network model evaluates them as closed forms. Both read the same conversion.
//
// ASTRA-Sim at 518bd513, astra-network-analytical at 599a0473.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/result.h"

namespace ns_dist {

enum class AstraTopology { kRing, kFullyConnected, kSwitch };

std::string_view name_of(AstraTopology topology);  // "Ring", ... as the network yml spells them

// One dimension of the network yml, with its algorithm from the system json; dimension 0 has the lowest rank stride.
struct AstraDimension {
  AstraTopology topology = AstraTopology::kRing;
  std::int64_t npus = 2;
  double bandwidth_gib = 50;       // of one link in one direction, GiB/s; the yml calls it GB/s
  double latency_ns = 500;         // of one hop; a message through a switch makes two
  std::string algorithm = "ring";  // "ring", "direct", "direct<window>", "halvingDoubling"
  friend bool operator==(const AstraDimension&, const AstraDimension&) = default;
};

struct AstraSystem {
  std::vector<AstraDimension> dimensions;
  std::int64_t splits = 1;         // preferred-dataset-splits
  std::int64_t active_chunks = 1;  // active-chunks-per-dimension
  std::int64_t endpoint_delay_ns = 10;
  double local_memory_gbs = 0;        // local-mem-bw, GB/s of 10^9 bytes; 0: reductions take no time
  bool local_bandwidth_aware = true;  // collective-optimization: localBWAware or baseline
  bool congestion_aware = false;      // backend
  friend bool operator==(const AstraSystem&, const AstraSystem&) = default;
};

// `npus` units of `level` as one dimension. Numbers have nine significant digits, as the yml writes them.
//
// FullyConnected (point-to-point NVLink, xGMI): a GPU's bandwidth divided by its peers, because a link of ASTRA-Sim
// joins one pair and carries `bandwidth_gib` alone. Peers are those of the whole level: a GPU that talks to three of
// seven neighbors has three links. For an open level they are the `npus` - 1.
// Ring (a torus dimension): half of a GPU's bandwidth, because half of its ports lead to each neighbor.
// Switch (all others): a GPU's bandwidth at its port, and half of the latency for each of the two hops.
AstraDimension astra_dimension(const FabricLevel& level, std::int64_t npus);

// local-mem-bw of a system of such GPUs, GB/s: each reduction step reads its two operands from the GPU's memory and
// writes one result, before the next step starts.
double astra_local_memory(const Gpu& gpu);

// The first `gpus` GPUs of the cluster, one dimension for each level with more than one unit. Collectives run as
// rings. Errors: fewer than two GPUs, more than the cluster has, or a number
// that fills no whole units of a level.
Result<AstraSystem> to_astra(const Cluster& cluster, std::int64_t gpus);

// The network yml of `system`: topology, npus_count, bandwidth, latency.
std::string to_network_yml(const AstraSystem& system);

}  // namespace ns_dist
