// What ASTRA-Sim's analytical backends read beside the traces. Keys, units and defaults: its Sys.cc and its analytical
// network's parser, March 2026.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ns_dist/astra_network.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/printable.h"

namespace ns_dist {
namespace {

std::string system_json(const AstraSystem& system, const Gpu& gpu, TraceEncoding encoding) {
  FlopsPerSecond peak;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    if (peak == FlopsPerSecond()) peak = gpu.matrix_peak(dtype);
  }
  const bool roofline = encoding == TraceEncoding::kRoofline;
  const auto algorithms_of = [&](CollectiveKind kind) {
    std::string list;
    for (const AstraDimension& d : system.dimensions) {
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", d.algorithm.of(kind));
    }
    return list;
  };
  // A roofline of no memory bandwidth would make every kernel endless. This one takes the nanoseconds of a kernel from
  // num_ops alone, and adds nothing to messages below 1 GB.
  constexpr double kUnbounded = 1e9;
  return fmt::format(
      R"({{
  "scheduling-policy": "FIFO",
  "collective-optimization": "{1}",
  "all-reduce-implementation": [{0}],
  "all-gather-implementation": [{8}],
  "reduce-scatter-implementation": [{9}],
  "all-to-all-implementation": [{10}],
  "preferred-dataset-splits": {2},
  "active-chunks-per-dimension": {3},
  "endpoint-delay": {4},
  "local-mem-bw": {5},
  "peak-perf": {6},
  "roofline-enabled": {7}
}}
)",
      algorithms_of(CollectiveKind::kAllReduce), system.local_bandwidth_aware ? "localBWAware" : "baseline",
      system.splits, system.active_chunks, system.endpoint_delay_ns, roofline ? kUnbounded : system.local_memory_gbs,
      roofline ? 1.0 : peak / (units::TFLOP / units::s), roofline ? 1 : 0, algorithms_of(CollectiveKind::kAllGather),
      algorithms_of(CollectiveKind::kReduceScatter), algorithms_of(CollectiveKind::kAllToAll));
}

std::string readme(std::int64_t ranks, const ExportOptions& options, const AstraSystem& system, bool fitted) {
  const bool fully_connected =
      std::any_of(system.dimensions.begin(), system.dimensions.end(),
                  [](const AstraDimension& d) { return d.topology == AstraTopology::kFullyConnected; });
  constexpr std::int64_t kBesideTraces = 64, kUsualLimit = 1024;  // of open files
  const std::int64_t files = ranks + kBesideTraces;
  return fmt::format(
      R"(# One training step as Chakra traces, {0} ranks

`{1}.<rank>.et`: one Chakra trace a rank. `comm_groups.json`: communicator groups. Run them from this folder with
ASTRA-Sim's analytical backend:

{2}    AstraSim_Analytical_Congestion_Unaware \
      --workload-configuration={7} --comm-group-configuration=comm_groups.json \
      --system-configuration=system.json --network-configuration=network.yml \
      --remote-memory-configuration=remote_memory.json

Good to know:
- It must say "finished" for each of the {0} ranks; a deadlock ends with exit code 0 and fewer lines.
- It opens traces for writing, and ignores a group file whose path contains the word "empty".
- {3}
- Collectives and sends of a rank run one at a time there; streams that overlap on a GPU do not.
- The congestion-unaware network charges a message only the innermost dimension in which its two ranks differ.
- All-to-alls are direct exchanges; on a Switch each message of one has the whole port. On a network of several dimensions
  an all-to-all of some ranks is a ring there, whatever `system.json` says.
{4}{5}{6}{8})",
      ranks, options.prefix, files > kUsualLimit ? fmt::format("    ulimit -Sn {}\n", files) : "",
      options.encoding == TraceEncoding::kRoofline
          ? "Durations are exact to the nanosecond: `num_ops` is 1000 a nanosecond at the 1 TFLOP/s of "
            "`system.json`. Keep `peak-perf` and `roofline-enabled` as they are."
          : "Kernel durations are whole microseconds; the remainder is carried along, so a stream's total is exact to "
            "half a microsecond. Where kernels wait for other streams often, a rank ends some microseconds off.",
      fully_connected
          ? "- A ring uses one link of a GPU at a time: on a FullyConnected dimension the others are idle, and "
            "collectives are slower than RCCL's or NCCL's. \"direct\" in `system.json` uses them all, in a "
            "network of one dimension.\n"
          : "",
      system.dimensions.size() == 1
          ? "- With a network of one dimension it may abort (a double free) after all results "
            "are printed.\n"
          : "- The congestion-aware backend takes networks of one dimension only.\n",
      fitted ? "- Bandwidths and latencies of `network.yml` are fitted to this plan's collectives as NCCL runs them "
               "(`manifest.json`: how well). They are no data sheet's, and hold for no other plan.\n"
             : "",
      shell_word(options.prefix),
      options.host_work
          ? "- Copies to and from the host are CPU operators. ASTRA-Sim's statistics at the end fail on "
            "them: it prints none,\n  or ends before it says \"finished\". `ns-dist replay` has its times.\n"
          : "");
}

}  // namespace

Result<void> write_astra_inputs(const Cluster& cluster, std::int64_t ranks, const ExportOptions& options,
                                const std::optional<AstraSystem>& fitted) {
  NS_TRY(const AstraSystem system, fitted ? Result<AstraSystem>(*fitted) : to_astra(cluster, ranks));
  std::error_code failed;
  std::filesystem::create_directories(options.directory, failed);
  const std::array<std::pair<const char*, std::string>, 4> files = {{
      {"network.yml", to_network_yml(system)},
      {"system.json", system_json(system, cluster.gpu, options.encoding)},
      {"remote_memory.json", "{ \"memory-type\": \"NO_MEMORY_EXPANSION\" }\n"},
      {"README.md", readme(ranks, options, system, fitted.has_value())},
  }};
  for (const auto& [name, text] : files) {
    NS_TRY_VOID(write_text(options.directory / name, text));
  }
  return {};
}

}  // namespace ns_dist
