// What ASTRA-Sim's analytical backends read beside the traces. Keys, units and defaults: its Sys.cc and its analytical
// network's parser, March 2026.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "ns_dist/chakra_io.h"

namespace ns_dist {
namespace {

struct NetworkDimension {
  std::string_view topology;
  std::int64_t size = 0;
  double gib_per_s = 0, latency_ns = 0;
};

NetworkDimension dimension_of(const FabricLevel& level, std::int64_t size) {
  NetworkDimension out{"Switch", size, level.bandwidth_per_gpu() / (units::GiB / units::s),
                       level.fabric.latency / units::ns};
  switch (level.fabric.kind) {
    case FabricKind::kNvlink:  // bridges and xGMI join pairs of GPUs, so a GPU's links are shared out among its peers
    case FabricKind::kXgmi:
      out.topology = "FullyConnected";
      out.gib_per_s /= static_cast<double>(size - 1);
      return out;
    case FabricKind::kNvswitch:
    case FabricKind::kPcie:
    case FabricKind::kInfiniband:
    case FabricKind::kRoce:
    case FabricKind::kEthernet:
    case FabricKind::kEfa:
    case FabricKind::kSlingshot:
    case FabricKind::kOmniPath:
      break;
  }
  out.latency_ns /= 2;  // the backend counts two hops through a switch, our fabrics one
  return out;
}

Result<std::vector<NetworkDimension>> dimensions_of(const Cluster& cluster, std::int64_t ranks) {
  std::vector<NetworkDimension> out;
  std::int64_t left = ranks;
  for (std::size_t i = 0; i < cluster.levels.size() && left > 1; ++i) {
    const FabricLevel& level = cluster.levels[i];
    const bool outermost = i + 1 == cluster.levels.size();
    const std::int64_t size = level.size == 0 || left < level.size ? left : level.size;
    if (left % size != 0 || (outermost && size < left)) {
      return fail({ErrorCode::kInfeasible,
                   fmt::format("{} ranks do not fill the cluster's levels evenly", ranks),
                   cluster.id,
                   fmt::format("a multiple of {} at level {} ({})", size, i, level.fabric.name),
                   "ASTRA-Sim's network is a grid: choose a plan whose ranks fill whole nodes",
                   {}});
    }
    if (size > 1) out.push_back(dimension_of(level, size));
    left /= size;
  }
  if (out.empty() || left > 1) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("no network joins {} rank(s)", ranks),
                 cluster.id,
                 "at least two ranks, on a cluster that holds them",
                 "",
                 {}});
  }
  return out;
}

template <class Text>
std::string list_of(const std::vector<NetworkDimension>& dimensions, const Text& text) {
  std::string out = "[ ";
  for (std::size_t i = 0; i < dimensions.size(); ++i) out += (i == 0 ? "" : ", ") + text(dimensions[i]);
  return out + " ]";
}

// Nine digits: exact values such as 500 ns come back as they are, where 499.99999999999994 would be cut to 499.
std::string network_yml(const std::vector<NetworkDimension>& dimensions) {
  return fmt::format(
      "# Bandwidths in GiB/s: ASTRA-Sim's \"GB/s\" is 2^30 bytes. Latencies in ns a hop; a Switch has two hops.\n"
      "topology: {}\nnpus_count: {}\nbandwidth: {}\nlatency: {}\n",
      list_of(dimensions, [](const NetworkDimension& d) { return std::string(d.topology); }),
      list_of(dimensions, [](const NetworkDimension& d) { return fmt::format("{}", d.size); }),
      list_of(dimensions, [](const NetworkDimension& d) { return fmt::format("{:.9g}", d.gib_per_s); }),
      list_of(dimensions, [](const NetworkDimension& d) { return fmt::format("{:.9g}", d.latency_ns); }));
}

std::string system_json(const Gpu& gpu, std::size_t dimensions, TraceEncoding encoding) {
  FlopsPerSecond peak;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    if (peak == FlopsPerSecond()) peak = gpu.matrix_peak(dtype);
  }
  const bool roofline = encoding == TraceEncoding::kRoofline;
  std::string rings = "[";
  for (std::size_t i = 0; i < dimensions; ++i) rings += i == 0 ? "\"ring\"" : ", \"ring\"";
  rings += "]";
  return fmt::format(R"({{
  "scheduling-policy": "FIFO",
  "collective-optimization": "baseline",
  "all-reduce-implementation": {0},
  "all-gather-implementation": {0},
  "reduce-scatter-implementation": {0},
  "all-to-all-implementation": {0},
  "preferred-dataset-splits": 1,
  "active-chunks-per-dimension": 1,
  "endpoint-delay": 10,
  "local-mem-bw": {1},
  "peak-perf": {2},
  "roofline-enabled": {3}
}}
)",
                     rings, gpu.memory_bandwidth / (units::GB / units::s),
                     roofline ? 1.0 : peak / (units::TFLOP / units::s), roofline ? 1 : 0);
}

std::string readme(std::int64_t ranks, const ExportOptions& options, std::size_t dimensions) {
  return fmt::format(
      R"(# One training step as Chakra traces, {0} ranks

`{1}.<rank>.et`: one Chakra trace a rank. `comm_groups.json`: communicator groups. Run them from this folder with
ASTRA-Sim's analytical backend:

    ulimit -n {2}
    AstraSim_Analytical_Congestion_Unaware \
      --workload-configuration={1} --comm-group-configuration=comm_groups.json \
      --system-configuration=system.json --network-configuration=network.yml \
      --remote-memory-configuration=remote_memory.json

Good to know:
- It must say "finished" for each of the {0} ranks; a deadlock ends with exit code 0 and fewer lines.
- It opens traces for writing, and ignores a group file whose path contains the word "empty".
- {3}
- Collectives and sends of a rank run one at a time there; streams that overlap on a GPU do not.
- The congestion-unaware network charges a message between nodes only its innermost differing dimension.
{4})",
      ranks, options.prefix, ranks + 64,
      options.encoding == TraceEncoding::kRoofline
          ? "Durations are exact to the nanosecond: `num_ops` is 1000 a nanosecond at the 1 TFLOP/s of "
            "`system.json`. Keep `peak-perf` and `roofline-enabled` as they are."
          : "Kernel durations are whole microseconds; the remainder is carried along, so a rank's total is "
            "exact to half a microsecond.",
      dimensions == 1 ? "- With a network of one dimension it may abort (a double free) after all results "
                        "are printed.\n"
                      : "- The congestion-aware backend takes networks of one dimension only.\n");
}

Result<void> write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) {
    return fail({ErrorCode::kInvalidInput, "cannot write", path.string(), "a writable place with room left", "", {}});
  }
  return {};
}

}  // namespace

Result<void> write_astra_inputs(const Cluster& cluster, std::int64_t ranks, const ExportOptions& options) {
  NS_TRY(const std::vector<NetworkDimension> dimensions, dimensions_of(cluster, ranks));
  std::error_code failed;
  std::filesystem::create_directories(options.directory, failed);
  const std::array<std::pair<const char*, std::string>, 4> files = {{
      {"network.yml", network_yml(dimensions)},
      {"system.json", system_json(cluster.gpu, dimensions.size(), options.encoding)},
      {"remote_memory.json", "{ \"memory-type\": \"NO_MEMORY_EXPANSION\" }\n"},
      {"README.md", readme(ranks, options, dimensions.size())},
  }};
  for (const auto& [name, text] : files) {
    NS_TRY_VOID(write_text(options.directory / name, text));
  }
  return {};
}

}  // namespace ns_dist
