// A question: this model, on this cluster, under this plan.
//
//   ScenarioSpec spec;                                         // as a user says it; what is missing has a default
//   spec.tp = 8, spec.pp = 16;
//   NS_TRY(const Scenario scenario, resolve(spec, Catalog::standard()));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/cluster.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/model.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// How collectives are forecast.
struct NetworkSettings {
  std::string model = "nccl";  // NetworkModelOptions::model, ...
  std::string algorithm = "auto", protocol = "auto";
  std::optional<NetworkCalibration> calibration;  // curves that come before those compiled in
  bool contention = true;                         // collectives and messages that overlap share the ports of their GPU
  bool compute_slowdown = true;                   // kernels beside collectives leave them SMs and memory bandwidth
  friend bool operator==(const NetworkSettings&, const NetworkSettings&) = default;
};

// Everything that decides a forecast, resolved: no names to look up, no defaults left to fill in.
struct Scenario {
  Model model;
  Cluster cluster;  // its outermost level may stay open (size 0): as many nodes as the plan needs
  ParallelPlan plan;
  Training training;
  NetworkSettings network;
  std::optional<KernelCalibration> kernel_calibration;  // what measurements of this GPU corrected
  std::vector<InputFile> files;                         // what the nouns above were read from, for the provenance
  friend bool operator==(const Scenario&, const Scenario&) = default;
};

// What a user says. References are catalog ids, aliases or files.
struct ScenarioSpec {
  std::optional<std::string> model, gpu, cluster, intra, inter;
  std::optional<std::int64_t> nodes, gpus_per_node;
  std::optional<BytesPerSecond> intra_bandwidth, inter_bandwidth;  // of a GPU, one direction
  std::optional<std::int64_t> tp, pp, dp, cp, ep, vpp;
  std::optional<std::int64_t> micro_batch, global_batch, sequence;
  std::optional<DType> dtype;
  std::optional<std::string> schedule;
  std::optional<ZeroStage> zero;
  std::optional<Recompute> recompute;
  std::optional<GradAccumulation> grad_accumulation;
  std::optional<bool> sequence_parallel, flash_attention, blocking_tp;
  std::optional<bool> overlap_grad_reduce, overlap_param_gather, overlap_p2p;
  std::optional<std::string> order;  // of the parallel dimensions, innermost first
  std::optional<std::string> network_model, algorithm, protocol;
  std::optional<bool> contention, compute_slowdown;
  std::optional<std::string> calibration;         // a file of network corrections; "none" forgets those of `base`
  std::optional<std::string> kernel_calibration;  // the same of the GPU's kernels
};

// Fills in `base` (or the defaults: GPT-3 175B on H100s, see the command line's help) with what `spec` says.
//
// The machine is the cluster that is named, or the GPU's usual one. A machine whose size is given (nodes, or a sized
// cluster) must be filled by tp x cp x pp x dp ranks, and dp follows from it when it is not given; otherwise there are
// as many nodes as the ranks need.
//
// Errors: unknown names, files with mistakes, sizes that do not match; each names the flag to change.
Result<Scenario> resolve(const ScenarioSpec& spec, const Catalog& catalog, const Scenario* base = nullptr);

// The file of --kernel-calibration; `file`, if any, becomes its path and hash. Errors: it cannot be read, or is larger
// than 16 MiB; as read_kernel_calibration.
Result<KernelCalibration> load_kernel_calibration(const std::string& path, InputFile* file = nullptr);

// tp x cp x pp x dp. Errors: degrees that are not positive, or more ranks than kMostRanks.
Result<std::int64_t> rank_count(const ParallelPlan& plan);

inline constexpr std::int64_t kMostRanks = 10'000'000;  // a hundred times the largest machine built so far

// The scenario as JSON, in the format of the report's `inputs`; numbers are written without loss.
std::string write_scenario(const Scenario& scenario);

// Reads a scenario back from a report, or from its `inputs` alone; `where` names the file in errors.
Result<Scenario> read_scenario(std::string_view json, const std::string& where);

}  // namespace ns_dist
