// A cluster: GPUs of one kind joined by fabrics. Levels are listed from the inside out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/gpu.h"
#include "ns_dist/names.h"
#include "ns_dist/units.h"

namespace ns_dist {

enum class FabricKind {
  kNvlink,
  kNvswitch,
  kXgmi,
  kUalink,
  kPcie,
  kInfiniband,
  kRoce,
  kEthernet,
  kEfa,
  kSlingshot,
  kOmniPath
};

template <>
inline constexpr auto kEnumeratorNames<FabricKind> = std::to_array<std::string_view>({"nvlink", "nvswitch", "xgmi",
                                                                                      "ualink", "pcie", "infiniband",
                                                                                      "roce", "ethernet", "efa",
                                                                                      "slingshot", "omni-path"});

// Whether it joins nodes, and not GPUs inside one.
constexpr bool is_network(FabricKind kind) {
  switch (kind) {
    case FabricKind::kNvlink:
    case FabricKind::kNvswitch:
    case FabricKind::kXgmi:
    case FabricKind::kUalink:
    case FabricKind::kPcie:
      return false;
    case FabricKind::kInfiniband:
    case FabricKind::kRoce:
    case FabricKind::kEthernet:
    case FabricKind::kEfa:
    case FabricKind::kSlingshot:
    case FabricKind::kOmniPath:
      return true;
  }
  return true;
}

// Whether its links join pairs of GPUs, without a switch.
constexpr bool is_point_to_point(FabricKind kind) { return kind == FabricKind::kNvlink || kind == FabricKind::kXgmi; }

// Whether switches join the GPUs of a node.
constexpr bool is_switch_of_node(FabricKind kind) {
  return kind == FabricKind::kNvswitch || kind == FabricKind::kUalink;
}

// A kind of link, as configs/fabrics/<id>.json describes it.
struct Fabric {
  std::string id, name;
  FabricKind kind = FabricKind::kNvswitch;
  BytesPerSecond bandwidth;  // of a GPU (scale-up) or of a network port (scale-out), one direction
  Seconds latency;           // one hop, small message
  // Of point-to-point links: a pair of GPUs may have several of them, or none (a cube mesh), and not equally many each.
  bool uneven_mesh = false;
  // GPUs that it joins at most (a bridge between two cards, the mesh of a board); 0: as many as there are. The links of
  // a mesh lead to so many GPUs, whether a node has them all or not.
  std::int64_t most_units = 0;
  // Of PCIe: GPUs are known to reach each other with this bandwidth, and not through the host's memory.
  bool peer_to_peer = false;
  friend bool operator==(const Fabric&, const Fabric&) = default;
};

// One level of a cluster: `size` units of the level below, joined by `fabric`.
struct FabricLevel {
  Fabric fabric;
  std::int64_t size = 0;        // units of the level below; 0: as many as the plan needs (outermost level only)
  double nics_per_gpu = 1;      // network ports a GPU; 1 for scale-up fabrics
  double oversubscription = 1;  // >= 1: bandwidth of its GPUs' ports together over that of this level
  // A dimension of a torus: the units form a ring of direct links, half of the ports to each neighbor. Several
  // dimensions are several levels, the first one innermost.
  bool ring = false;
  std::int64_t spare = 0;  // units that exist in addition to `size` and stay idle

  // Bandwidth of one GPU into this level, one direction, when all its peers send at the same time.
  BytesPerSecond bandwidth_per_gpu() const { return fabric.bandwidth * nics_per_gpu / oversubscription; }
  // Point-to-point links between all pairs of its units, and no switch.
  bool fully_connected() const { return !ring && is_point_to_point(fabric.kind); }
  // Units of such a mesh, over whose pairs a unit's links are divided; `used` of an open level.
  std::int64_t mesh_units(std::int64_t used) const {
    return std::max(size > 0 ? size + spare : used, fabric.most_units);
  }
  friend bool operator==(const FabricLevel&, const FabricLevel&) = default;
};

struct Cluster {
  std::string id, name;
  Gpu gpu;
  std::string made_for;             // the id of the GPU whose machine it is, if another one has taken its place
  std::vector<FabricLevel> levels;  // inside out: levels[0] joins GPUs

  // GPUs of the whole cluster; 0 when the outermost level is open.
  std::int64_t gpu_count() const {
    std::int64_t count = levels.empty() ? 1 : levels.front().size;
    for (std::size_t i = 1; i < levels.size(); ++i) count *= levels[i].size;
    return count;
  }
  // Levels inside a node: the innermost one, and those behind it up to the first network. Where there is no network,
  // the outermost of several levels joins nodes (racks of switches), unless it is PCIe.
  std::size_t node_levels() const {
    std::size_t inside = levels.empty() ? 0 : 1;
    while (inside < levels.size() && !is_network(levels[inside].fabric.kind)) ++inside;
    const bool joins_nodes = inside == levels.size() && inside > 1 && levels.back().fabric.kind != FabricKind::kPcie;
    return joins_nodes ? inside - 1 : inside;
  }
  std::int64_t gpus_per_node() const {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < node_levels(); ++i) count *= levels[i].size;
    return count;
  }
  // That stay idle, beside gpus_per_node().
  std::int64_t spare_per_node() const {
    std::int64_t all = 1;
    for (std::size_t i = 0; i < node_levels(); ++i) all *= levels[i].size > 0 ? levels[i].size + levels[i].spare : 0;
    return all > 0 ? all - gpus_per_node() : 0;
  }
  // A level as the plan uses it: idle units of the level below leave their share of its links to the others. Where
  // several GPUs share a port, each has the whole port while the others do not send.
  FabricLevel used_level(std::size_t i) const {
    FabricLevel level = levels[i];
    if (shares_ports(level)) {
      level.oversubscription /= level.nics_per_gpu;
      level.nics_per_gpu = 1;
    }
    level.oversubscription = std::max(1.0, level.oversubscription / idle_share(i));
    return level;
  }
  // What each GPU has of a port of a level where all send, at most all of it.
  double port_share(std::size_t i) const {
    return shares_ports(levels[i]) ? std::min(1.0, levels[i].nics_per_gpu * idle_share(i)) : 1;
  }
  friend bool operator==(const Cluster&, const Cluster&) = default;

 private:
  static bool shares_ports(const FabricLevel& level) {
    return !level.ring && level.nics_per_gpu > 0 && level.nics_per_gpu < 1;
  }
  // Units of the level below over those that the plan uses.
  double idle_share(std::size_t i) const {
    if (i == 0 || levels[i - 1].spare == 0) return 1;
    return static_cast<double>(levels[i - 1].size + levels[i - 1].spare) / static_cast<double>(levels[i - 1].size);
  }
};

// Whose links are used, if they are those of another GPU's machine; otherwise empty.
std::string warning_of(const Cluster& cluster);

// A machine with another GPU: its switches are at most as fast as the GPU's own links.
Cluster with_gpu(const Cluster& cluster, const Gpu& gpu);
// The same machine as it is built for another GPU: its switches are as fast as that GPU's links.
Cluster built_for(const Gpu& gpu, const Cluster& cluster);

}  // namespace ns_dist
