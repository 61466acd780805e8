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

}  // namespace ns_dist::test
