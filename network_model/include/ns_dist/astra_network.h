// ASTRA-Sim's analytical network backends as closed forms: what its simulator answers, to the nanosecond, for one
// collective of all NPUs. A referee and a bridge, not our forecast: it knows no protocols, no contention between
// messages (unaware backend), and writes GiB/s where it says GB/s.
//
// ASTRA-Sim at 518bd513, astra-network-analytical at 599a0473.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/collective.h"
#include "ns_dist/cost.h"
#include "ns_dist/result.h"

namespace ns_dist {

enum class AstraTopology { kRing, kFullyConnected, kSwitch };

// One dimension of the network yml, with its algorithm from the system json; dimension 0 has the lowest rank stride.
struct AstraDimension {
  AstraTopology topology = AstraTopology::kRing;
  std::int64_t npus = 2;
  double bandwidth_gib = 50;       // GiB/s a link and direction
  double latency_ns = 500;         // a hop; a switch counts two
  std::string algorithm = "ring";  // "ring", "direct", "direct<window>", "halvingDoubling"
  friend bool operator==(const AstraDimension&, const AstraDimension&) = default;
};

struct AstraSystem {
  std::vector<AstraDimension> dimensions;
  std::int64_t splits = 1;         // preferred-dataset-splits
  std::int64_t active_chunks = 1;  // active-chunks-per-dimension
  std::int64_t endpoint_delay_ns = 10;
  double local_memory_gbs = 0;        // local-mem-bw; 0: reductions take no time
  bool local_bandwidth_aware = true;  // collective-optimization: localBWAware or baseline
  bool congestion_aware = false;      // backend
  friend bool operator==(const AstraSystem&, const AstraSystem&) = default;
};

// Finish time of one collective of all NPUs that starts at 0, in ns. `comm_size` is the trace's attribute: the buffer
// of all-reduce, reduce-scatter and all-to-all, a rank's own shard for all-gather, bytes. Errors: no closed form is
// known (several dimensions with several chunks, the congestion-aware backend with several active chunks or with direct
// exchange on a ring, direct all-reduce on a ring of more than three), a dimension below 2 NPUs, a collective that it
// does not run.
Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size);

// Our cluster in ASTRA-Sim's words, `gpus` GPUs large (a whole number of the units below the outermost level):
// NVSwitch, PCIe and networks become switches of half the latency a hop, point-to-point NVLink and xGMI full
// connections. Oversubscription divides the bandwidth. Errors: no level, a number of GPUs that does not fill the
// levels.
Result<AstraSystem> to_astra(const Cluster& cluster, std::int64_t gpus);

// The network yml of `system`: topology, npus_count, bandwidth (GiB/s, though the format says GB/s), latency.
std::string to_network_yml(const AstraSystem& system);

// Reads a network yml: the four keys, each a list in brackets or of "- " lines, comments allowed. Algorithms are the
// default ones. Errors, with the line: an unknown key or topology, a missing key, lists of different lengths, an
// impossible number.
Result<AstraSystem> read_network_yml(std::string_view text, const std::string& where);

// A cluster of ours with ASTRA-Sim's dimensions as levels: switches become NVSwitch on
// dimension 0 and InfiniBand beyond, full connections and rings point-to-point NVLink.
Cluster from_astra(const AstraSystem& system, const Gpu& gpu);

// Collectives as ASTRA-Sim's unaware backend forecasts them on to_astra's network: groups that fill the levels that
// they span run dimension by dimension, every other group as one flat ring. Errors as make_network_model; at forecast:
// collectives that ASTRA-Sim does not run.
Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster);

}  // namespace ns_dist
