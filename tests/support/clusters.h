// Clusters built by hand, with data-sheet numbers.
#pragma once

#include "ns_dist/cluster.h"

namespace ns_dist::test {

inline Fabric nvswitch(double gigabytes_per_second) {
  using namespace units;
  return {"nvswitch", "NVSwitch", FabricKind::kNvswitch, gigabytes_per_second * GB / s, 0.6 * us};
}

inline Fabric infiniband(double gigabytes_per_second) {
  using namespace units;
  return {"infiniband", "InfiniBand", FabricKind::kInfiniband, gigabytes_per_second * GB / s, 2.7 * us};
}

// `nodes` nodes (0: open) of 8 GPUs with 300 GB/s of NVLink and one 200 Gbit/s port each: a DGX A100.
inline Cluster dgx_a100(std::int64_t nodes = 0) {
  Cluster cluster;
  cluster.id = "dgx-a100";
  cluster.gpu.id = "a100-sxm-80gb";
  cluster.gpu.vendor = "nvidia";
  cluster.gpu.architecture = "ampere";
  cluster.levels = {{nvswitch(300), 8, 1, 1}, {infiniband(25), nodes, 1, 1}};
  return cluster;
}

// The same of 450 GB/s and 400 Gbit/s, at 1980 MHz: a DGX H100.
inline Cluster dgx_h100() {
  using namespace units;
  Cluster cluster = dgx_a100();
  cluster.id = "dgx-h100";
  cluster.gpu.id = "h100-sxm-80gb";
  cluster.gpu.architecture = "hopper";
  cluster.gpu.boost_clock = 1980 * MHz;
  cluster.levels = {{nvswitch(450), 8, 1, 1}, {infiniband(50), 0, 1, 1}};
  return cluster;
}

}  // namespace ns_dist::test
