#include "host_work.h"

#include <fmt/format.h>

#include <algorithm>

namespace ns_dist {
namespace {

// Share of a data sheet's bandwidth, and how many times as long or short it may take.
struct Efficiency {
  double share, shorter, longer;
};
// Pinned copies reach 25 of 32 GB/s on PCIe 4 and 55 of 64 GB/s on PCIe 5 (NVIDIA's bandwidthTest), 375 GB/s to and
// 297 GB/s from the GPU of the 450 GB/s of NVLink-C2C (Schieffer et al. 2024, arXiv 2407.07850). Two GPUs behind one
// PCIe switch, as in a DGX, have half of that each.
constexpr Efficiency kLink = {0.8, 0.85, 2};
// An assumption: half of the data-sheet rate, never more than 0.9 of it. PyTorch's own Adam on a CPU takes five to
// seven times as long as DeepSpeed's (docstring of DeepSpeedCPUAdam).
constexpr Efficiency kHostMemory = {0.5, 0.56, 6};

}  // namespace

HostLink host_link(const Gpu& gpu) { return {gpu.host ? gpu.host->bandwidth : gpu.pcie_bandwidth, kLink.share}; }

double shares_of_host(const Cluster& cluster, std::int64_t ranks) {
  const std::int64_t node = cluster.gpus_per_node(), used = std::min(node, ranks);
  return used > 0 ? static_cast<double>(node + cluster.spare_per_node()) / static_cast<double>(used) : 1;
}

Result<Forecast> forecast_host_work(const HostWork& work, const Gpu& gpu, const Host& host, double shares) {
  const BytesPerSecond link = host_link(gpu).data_sheet;
  if (work.link > Bytes() && !(link > BytesPerSecond())) {
    return fail({ErrorCode::kInvalidInput, fmt::format("the link from \"{}\" to its host is unknown", gpu.id),
                 "machine/gpu", "a GPU whose file has \"pcie\" or \"host\"",
                 "leave the plan's offloading out, or complete the file"});
  }
  const BytesPerSecond memory = host.memory_bandwidth > BytesPerSecond()
                                    ? host.memory_bandwidth
                                    : (gpu.host ? gpu.host->memory_bandwidth : shares * kUsualHostMemory);
  Forecast forecast;
  const auto add = [&forecast](Seconds floor, const Efficiency& efficiency) {
    const Seconds time = floor / efficiency.share;
    forecast.floor += floor;
    forecast.latency += time;
    forecast.low += efficiency.shorter * time;
    forecast.high += efficiency.longer * time;
  };
  if (work.link > Bytes()) add(work.link / link, kLink);
  if (work.memory > Bytes()) add(work.memory / memory, kHostMemory);
  forecast.bound = Bound::kBandwidth;
  forecast.utilization = forecast.floor / forecast.latency;
  forecast.method = "bytes over the host's bandwidth";
  forecast.extrapolated = true;
  return forecast;
}

}  // namespace ns_dist
