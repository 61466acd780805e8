// Corrections of the network model, fitted on measurements: the ratio of measured times to those from NCCL's published
// constants, for each fabric class, GPU architecture, collective and group shape.
//
//   NS_TRY(const NetworkCalibration calibration, fit_network(clusters, measurements));
//   std::ofstream("collectives.json") << to_json(calibration);
//   NS_TRY(const auto network, make_network_model(cluster, {.calibration = std::make_shared<...>(calibration)}));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/collective.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct CollectiveMeasurement {
  std::size_t cluster = 0;  // index into the clusters given beside it
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2, ranks_per_node = 2;  // ranks_per_node 0: the first ranks, node after node
  Bytes size;
  Seconds latency;
  bool integer = false;  // elements are integers
  double imbalance = 1;  // Collective::imbalance
};

// A step of the logarithm at the modeled time where NCCL changes its protocol; it is a twentieth of an octave wide.
struct CalibrationStep {
  Seconds modeled;
  double height = 0;  // positive
  friend bool operator==(const CalibrationStep&, const CalibrationStep&) = default;
};

// ln(measured / modeled time) at 23 knots of the modeled time, 5 us x 2^(k/2), and steps that are added to it.
struct CalibrationCurve {
  std::string cluster;       // id of the one cluster that it holds for; empty: all with this fabric and architecture
  std::string gpu;           // id of the one GPU that it holds for; empty: all of this architecture
  std::string fabric;        // class of the outermost level that the group spans: nvlink, pcie, xgmi, network
  std::string architecture;  // of the GPU: "ampere", "hopper", ...
  BytesPerSecond link;       // that a measured GPU has on this level, by data sheets; 0: several, or not written down
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2, ranks_per_node = 2;
  bool in_switch = false;  // for reduction in the switch (NVLS), not for messages between ranks
  bool integer = false;    // for reductions of integers
  std::vector<double> log_ratio;
  std::vector<CalibrationStep> steps;
  bool blurred = false;  // steps rise over an octave: they are those of other numbers of ranks
  // Standard deviation of ln(measured / forecast) on held-out sizes (each size of each machine in turn): of messages
  // from 1 MiB on, and of shorter ones.
  double deviation = 0, deviation_short = 0;
  Bytes least, most;  // sizes that were measured, of a few measurements of one cluster; 0: many, not written down
  bool compiled_in = false;  // not in the JSON: of builtin_network_calibration(), not of the user
  friend bool operator==(const CalibrationCurve&, const CalibrationCurve&) = default;
};

struct NetworkCalibration {
  std::string source;  // what was measured, for the reader
  std::vector<CalibrationCurve> curves;
  // Of a fit over a base, and not in its JSON: measurements (indices) across nodes that tell nothing of the network,
  // because what stays in a node takes longer there.
  std::vector<std::size_t> left_out = {};
  friend bool operator==(const NetworkCalibration&, const NetworkCalibration&) = default;
};

// "network/calibration was measured on dgx-h100; it changes nothing on dgx-b200": where no curve holds for any of these
// clusters (ids). Empty where one does, or where there are no curves.
std::string measured_elsewhere(const NetworkCalibration& calibration, std::span<const std::string> clusters);

// "network/calibration was measured with 450 GB/s a GPU inside nodes, and this machine has 225 GB/s: ...": where a
// curve of this cluster has another link than the cluster now. Empty where none does.
std::string measured_on_other_links(const NetworkCalibration& calibration, const Cluster& cluster);

// Of each node, where so many ranks fill nodes one after the other.
std::int64_t ranks_of_full_nodes(const Cluster& cluster, std::int64_t ranks);

struct NetworkFitOptions {
  std::string source = "";
  bool for_one_cluster = false;  // curves hold for the measured clusters only (by id), not for all of the same kind
  // Weights of squared second differences against squared residuals of one size. `smoothness`: of the curve that a
  // family's all-gathers and reduce-scatters (or another collective) share. `group_penalty`: of the difference that
  // each collective, and each GPU of the family, adds to the shared curve.
  double smoothness = 0.03, group_penalty = 3;
  // A calibration to which only a smooth difference is fitted (`group_penalty`): for a few measurements of one cluster.
  // Null: the curves start from NCCL's constants.
  const NetworkCalibration* base = nullptr;
  std::vector<std::string> places = {};  // of the measurements, for errors ("mine.csv:2"); none: their numbers
};

// One curve for each measured fabric class, architecture (or cluster), collective and group shape. Where several GPUs
// of an architecture were measured, also one for each GPU. Errors: no measurement, or with a base none that tells
// something; an index without a cluster, a collective that the cluster cannot run, a latency that is not positive.
Result<NetworkCalibration> fit_network(std::span<const Cluster> clusters,
                                       std::span<const CollectiveMeasurement> measurements,
                                       const NetworkFitOptions& options = {});

// How a file of network_model/weights/ is fitted: all rows of one table of measurements.
struct CalibrationRecipe {
  std::string_view table;   // its name in the folder of measurements: "nccl"
  std::string_view source;  // NetworkCalibration::source
  bool for_one_cluster = false;
};
inline constexpr CalibrationRecipe kFamiliesRecipe = {
    "nccl",
    "NCCL 2.23-2.29, one node, 2-8 ranks, 512 B - 512 MiB: A100 SXM, H100, H200, B200, B300, GB200, L40S (NVIDIA "
    "aiconfigurator's measurements, Apache-2.0)"};
inline constexpr CalibrationRecipe kClustersRecipe = {
    "dgx",
    "NCCL all_reduce and send_recv, 2 KiB - 512 MiB, on pairs of A100 DGX (a100_dgx; its network gives a GPU about 8 "
    "GB/s) and of servers with A100 and A40 in NVLink pairs (vidur's profiling data, MIT)",
    true};

// The ranks of a measurement of `ranks` ranks with `ranks_per_node` in each node: the first ranks of the first nodes.
// With `ranks_per_node` 0: the first ranks, node after node.
// Errors: ranks_per_node does not divide ranks or exceeds a node.
Result<RankGroup> measured_group(const Cluster& cluster, std::int64_t ranks, std::int64_t ranks_per_node);

std::string to_json(const NetworkCalibration& calibration);
// Errors: no JSON, an unknown key, another schema, a curve without 23 finite values; `where` names the file.
Result<NetworkCalibration> read_network_calibration(std::string_view json, const std::string& where);

// The calibration that is compiled in (network_model/weights/).
const NetworkCalibration& builtin_network_calibration();

// `calibration`, with the compiled-in one as a fallback for collectives that it does not have.
NetworkCalibration before_builtin(const NetworkCalibration& calibration);

}  // namespace ns_dist
