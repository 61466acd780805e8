// A cluster in ASTRA-Sim's words: the network and the settings that its analytical backends read. The trace export
// writes them as files; the network model evaluates them as closed forms. Both read the same conversion.
//
// ASTRA-Sim at 518bd513, astra-network-analytical at 599a0473.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/collective.h"
#include "ns_dist/result.h"

namespace ns_dist {

enum class AstraTopology { kRing, kFullyConnected, kSwitch };
// As the network yml spells them.
template <>
inline constexpr auto kEnumeratorNames<AstraTopology> = std::to_array<std::string_view>({"Ring", "FullyConnected",
                                                                                         "Switch"});

// The algorithm of each collective in one dimension, as the system json spells it: "ring", "direct", "direct<window>",
// "halvingDoubling"; empty where a list of the system json is too short to reach the dimension.
struct AstraAlgorithms {
  std::string all_reduce = "ring", all_gather = "ring", reduce_scatter = "ring", all_to_all = "ring";

  AstraAlgorithms() = default;
  AstraAlgorithms(const char* all) : AstraAlgorithms(std::string(all)) {}  // NOLINT: one text means all four
  AstraAlgorithms(const std::string& all)                                  // NOLINT
      : all_reduce(all), all_gather(all), reduce_scatter(all), all_to_all(all) {}

  // Of the four that ASTRA-Sim runs; the others count as all-reduce.
  const std::string& of(CollectiveKind kind) const;
  friend bool operator==(const AstraAlgorithms&, const AstraAlgorithms&) = default;
};

// One dimension of the network yml, with its algorithms from the system json; dimension 0 has the lowest rank stride.
struct AstraDimension {
  AstraTopology topology = AstraTopology::kRing;
  std::int64_t npus = 2;
  double bandwidth_gib = 50;  // of one link in one direction, GiB/s; the yml calls it GB/s
  double latency_ns = 500;    // of one hop; a message through a switch makes two
  AstraAlgorithms algorithm;
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
  // How kernels are timed: by their recorded microseconds, or by the smaller of peak and memory bound.
  bool roofline = false;
  double peak_tflops = 0;    // peak-perf
  bool replay_only = false;  // every node, communication too, takes its recorded microseconds
  // Of the system json: keys that nobody reads, and that are near to one that is read; what ASTRA-Sim needs and is not
  // there.
  std::vector<std::string> notes;

  std::int64_t npus() const;
  friend bool operator==(const AstraSystem&, const AstraSystem&) = default;
};

// `npus` units of `level` as one dimension. Numbers have nine significant digits, as the yml writes them.
//
// FullyConnected (point-to-point NVLink, xGMI): a GPU's bandwidth divided by its peers, because a link of ASTRA-Sim
// joins one pair and carries `bandwidth_gib` alone. Peers are those of the whole level: a GPU that talks to three of
// seven neighbors has three links, whether the other four are there or not (FabricLevel::mesh_units). For an open level
// they are the `npus` - 1, or those for which its fabric was made.
// Ring (a torus dimension): half of a GPU's bandwidth, because half of its ports lead to each neighbor.
// Switch (all others): a GPU's bandwidth at its port, and half of the latency for each of the two hops.
AstraDimension astra_dimension(const FabricLevel& level, std::int64_t npus);

// The first `gpus` GPUs of the cluster, one dimension for each level with more than one unit. All-to-alls are direct
// exchanges, the other collectives run as rings.
//
// A number of GPUs that fills no whole units of a level is one dimension, that of the outermost level which it spans:
// ASTRA-Sim's network is a grid. Then messages inside a node are charged as those between nodes.
//
// local_memory_gbs is 0: with a memory bandwidth, ASTRA-Sim adds three passes over local memory to each reducing step
// of a collective, one after another with its messages. GPUs reduce while they receive. Errors: fewer than two GPUs, or
// more than the cluster has.
Result<AstraSystem> to_astra(const Cluster& cluster, std::int64_t gpus);

// Bytes of a chunk of a collective: comm_size over the splits, but of other than all-gathers at least one for each NPU
// of the network, also for a group of some of them (its Sys::determine_chunk_size). 0: an all-gather that never ends.
std::int64_t astra_chunk(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size);

// Why ASTRA-Sim's algorithm does not run a collective of so many NPUs, and what it does instead; empty where it does.
// `chunk`: as astra_chunk. `grouped`: the NPUs are some of the network's.
std::string astra_refusal(std::string_view algorithm, CollectiveKind kind, std::int64_t npus, std::int64_t chunk,
                          bool grouped);

// The most bytes of one collective or message that the closed forms of ASTRA-Sim's times compute with.
inline constexpr std::int64_t kMostAstraBytes = (std::int64_t{1} << 58) - 1;

// The attribute comm_size of a collective or message in a trace: whole bytes, rounded up, at least one; of an
// all-gather a rank's own shard, where we count what comes out.
std::int64_t astra_comm_size(const Collective& collective);

// What a collective of a step is in a trace: itself, or, if it sends one copy of a token to each node, two all-to-alls
// one after the other. The first one sends the copies for each node to the ranks in the same place of the other nodes,
// the second one the copies for each rank to the ranks of the node. `node` is the number of GPUs in a node, numbered
// one after the other; 0: there are no nodes. A group that does not fill its share of each node stays one all-to-all
// with a copy for each rank, and so does one that lies in a node or has one rank in each.
std::vector<Collective> astra_exchanges(const Collective& collective, std::int64_t node);

// The network yml of `system`: topology, npus_count, bandwidth, latency.
std::string to_network_yml(const AstraSystem& system);

// Reads what ASTRA-Sim reads: a network yml (its four lists, in brackets or as items) and a system json. Numbers that
// the system json leaves out take ASTRA-Sim's defaults. `yml_where` and `json_where` name the files.
// Errors: lists that are missing or differ in length, an unknown topology, numbers out of their range, no JSON,
// preferred-dataset-splits missing (ASTRA-Sim divides by zero), collectives of custom traces, which are not supported.
Result<AstraSystem> read_astra_system(std::string_view network_yml, const std::string& yml_where,
                                      std::string_view system_json, const std::string& json_where);

}  // namespace ns_dist
