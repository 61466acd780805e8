#include "ns_dist/astra_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace ns_dist {
namespace {

// To nine digits: exact values such as 500 ns come back as they are, where ASTRA-Sim would cut 499.99999999999994 to
// 499.
double rounded(double value) {
  const std::string text = fmt::format("{:.9g}", value);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

AstraTopology topology_of(const FabricLevel& level) {
  if (level.ring) return AstraTopology::kRing;
  switch (level.fabric.kind) {
    case FabricKind::kNvlink:
    case FabricKind::kXgmi:
      return AstraTopology::kFullyConnected;
    case FabricKind::kNvswitch:
    case FabricKind::kPcie:
    case FabricKind::kInfiniband:
    case FabricKind::kRoce:
    case FabricKind::kEthernet:
    case FabricKind::kEfa:
    case FabricKind::kSlingshot:
    case FabricKind::kOmniPath:
      return AstraTopology::kSwitch;
  }
  return AstraTopology::kSwitch;
}

template <class Number>
std::string list_of(const AstraSystem& system, Number&& of) {
  std::string text;
  for (const AstraDimension& d : system.dimensions) text += fmt::format("{}{}", text.empty() ? "" : ", ", of(d));
  return text;
}

}  // namespace

std::string_view name_of(AstraTopology topology) {
  constexpr std::array<std::string_view, 3> kNames = {"Ring", "FullyConnected", "Switch"};
  return kNames[static_cast<std::size_t>(topology)];
}

AstraDimension astra_dimension(const FabricLevel& level, std::int64_t npus) {
  AstraDimension d;
  d.topology = topology_of(level);
  d.npus = npus;
  double bandwidth = level.bandwidth_per_gpu() / (units::GiB / units::s);
  double latency = level.fabric.latency / units::ns;
  switch (d.topology) {
    case AstraTopology::kRing:
      bandwidth /= 2;
      break;
    case AstraTopology::kFullyConnected:
      bandwidth /= static_cast<double>(std::max<std::int64_t>((level.size > 0 ? level.size : npus) - 1, 1));
      break;
    case AstraTopology::kSwitch:
      latency /= 2;
      break;
  }
  d.bandwidth_gib = rounded(bandwidth);
  d.latency_ns = rounded(latency);
  return d;
}

double astra_local_memory(const Gpu& gpu) { return rounded(gpu.memory_bandwidth / (units::GB / units::s)); }

Result<AstraSystem> to_astra(const Cluster& cluster, std::int64_t gpus) {
  AstraSystem system;
  system.local_memory_gbs = astra_local_memory(cluster.gpu);
  std::int64_t left = gpus;
  for (std::size_t i = 0; i < cluster.levels.size() && left > 1; ++i) {
    const FabricLevel& level = cluster.levels[i];
    const bool outermost = i + 1 == cluster.levels.size();
    const std::int64_t size = level.size == 0 || left < level.size ? left : level.size;
    if (size < 1 || left % size != 0 || (outermost && size < left)) {
      return fail({ErrorCode::kInfeasible,
                   fmt::format("{} GPUs do not fill the levels of \"{}\" evenly", gpus, cluster.id),
                   cluster.id,
                   fmt::format("a multiple of {} at level {} ({}), at most all GPUs", size, i, level.fabric.name),
                   "ASTRA-Sim's network is a grid: choose a plan whose ranks fill whole nodes",
                   {}});
    }
    if (size > 1) system.dimensions.push_back(astra_dimension(level, size));
    left /= size;
  }
  if (left != 1 || system.dimensions.empty()) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("no network joins {} GPU(s) of \"{}\"", gpus, cluster.id),
                 cluster.id,
                 "at least two GPUs, on a cluster that has them",
                 "",
                 {}});
  }
  return system;
}

std::string to_network_yml(const AstraSystem& system) {
  return fmt::format(
      "# Bandwidths in GiB/s a link and direction: ASTRA-Sim's \"GB/s\" is 2^30 bytes. Latencies in ns a hop; a Switch "
      "has two hops.\n"
      "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n",
      list_of(system, [](const auto& d) { return name_of(d.topology); }),
      list_of(system, [](const auto& d) { return d.npus; }),
      list_of(system, [](const auto& d) { return fmt::format("{:.9g}", d.bandwidth_gib); }),
      list_of(system, [](const auto& d) { return fmt::format("{:.9g}", d.latency_ns); }));
}

}  // namespace ns_dist
