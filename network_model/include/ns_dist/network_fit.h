// What measurements teach the network model: by how much measured collectives differ from NCCL's published constants,
// per fabric class, GPU architecture, collective and group shape.
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
  std::int64_t ranks = 2, ranks_per_node = 2;
  Bytes size;
  Seconds latency;
  bool integer = false;  // elements are integers
};

// A step of the logarithm, as wide as a twentieth of an octave, where the modelled choice changes.
struct CalibrationStep {
  Seconds modelled;
  double height = 0;  // positive
  friend bool operator==(const CalibrationStep&, const CalibrationStep&) = default;
};

// Logarithm of measured over modelled time at 23 knots of modelled time, 5 us x 2^(k/2), and steps on top.
struct CalibrationCurve {
  std::string cluster;       // id of the one cluster that it holds for; empty: all with this fabric and architecture
  std::string gpu;           // id of the one GPU that it holds for; empty: all of this architecture
  std::string fabric;        // class of the outermost level that the group spans: nvlink, pcie, xgmi, network
  std::string architecture;  // of the GPU: "ampere", "hopper", ...
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2, ranks_per_node = 2;
  bool in_switch = false;  // for reduction in the switch (NVLS), not for messages between ranks
  bool integer = false;    // for reductions of integers
  std::vector<double> log_ratio;
  std::vector<CalibrationStep> steps;
  // Standard deviation of the logarithm of what the curve was not fitted on (each size of each machine left out), of
  // messages from 1 MiB and below.
  double deviation = 0, deviation_short = 0;
  friend bool operator==(const CalibrationCurve&, const CalibrationCurve&) = default;
};

struct NetworkCalibration {
  std::string source;  // what was measured, for the reader
  std::vector<CalibrationCurve> curves;
  friend bool operator==(const NetworkCalibration&, const NetworkCalibration&) = default;
};

struct NetworkFitOptions {
  std::string source = "";
  bool for_one_cluster = false;  // curves hold for the clusters measured (by id), not for all like them
  // Weights of squared second differences against squared residuals of one size: of what a family's all-gathers and
  // reduce-scatters (and each other collective) have in common, and of what sets each of them, and each GPU of the
  // family, apart from it.
  double smoothness = 0.03, apart = 3;
  // What is known already, to which only a smooth difference is learned (`apart`): for a few measurements of one
  // cluster. Null: the curves start from NCCL's constants.
  const NetworkCalibration* base = nullptr;
};

// One curve per fabric class, architecture (or cluster), collective and group shape that was measured, and one for each
// GPU where several of an architecture were. Errors: no
// measurement, an index without a cluster, a collective that the cluster cannot run, a latency that is not positive.
Result<NetworkCalibration> fit_network(std::span<const Cluster> clusters,
                                       std::span<const CollectiveMeasurement> measurements,
                                       const NetworkFitOptions& options = {});

// The group that a measurement with `ranks` ranks, `ranks_per_node` in each node, stands for: the first ranks of the
// first nodes. Errors: ranks_per_node does not divide ranks or exceeds a node.
Result<RankGroup> measured_group(const Cluster& cluster, std::int64_t ranks, std::int64_t ranks_per_node);

std::string to_json(const NetworkCalibration& calibration);
// Errors: no JSON, an unknown key, another schema, a curve without 23 finite values; `where` names the file.
Result<NetworkCalibration> read_network_calibration(std::string_view json, const std::string& where);

// What is compiled in (network_model/weights/).
const NetworkCalibration& builtin_network_calibration();

// `calibration`, and what is compiled in for all that it does not cover.
NetworkCalibration before_builtin(const NetworkCalibration& calibration);

}  // namespace ns_dist
