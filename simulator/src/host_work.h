// How long copies to and from the host take, and the optimizer on the CPU.
#pragma once

#include "ns_dist/execution_graph.h"
#include "ns_dist/forecast.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

// A GPU's share of the CPUs' memory bandwidth where nobody says another: two EPYC 7742 with eight channels of DDR4-3200
// each, 409.6 GB/s, for the eight GPUs of a DGX A100. (DGX H100, DDR5-4800: 76.8 GB/s.)
inline constexpr BytesPerSecond kUsualHostMemory = 51.2 * units::GB / units::s;

// The link of a GPU to its host: NVLink-C2C on superchips, PCIe on others.
struct HostLink {
  BytesPerSecond data_sheet;  // 0: not known
  double share;               // of it that copies reach
  BytesPerSecond reached() const { return share * data_sheet; }
};
HostLink host_link(const Gpu& gpu);

// How many GPUs' shares of the CPUs' memory a rank has: the ranks of a node divide those of its idle GPUs, too.
double shares_of_host(const Cluster& cluster, std::int64_t ranks);

// The bytes over the link, then those of the CPU's memory, of which the GPU has so many usual shares. No measurement
// was fitted, so the interval is wide. Errors: a GPU whose link to the host is unknown.
Result<Forecast> forecast_host_work(const HostWork& work, const Gpu& gpu, const Host& host, double shares = 1);

}  // namespace ns_dist
