// Is a cluster the same machine in ASTRA-Sim's words?
#include "ns_dist/astra_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

FabricLevel level_of(FabricKind kind, double gigabytes_per_second, Seconds latency, std::int64_t size) {
  return {{"fabric", "fabric", kind, gigabytes_per_second * GB / s, latency}, size, 1, 1};
}

// `nodes` nodes (0: open) of eight GPUs.
Cluster dgx_a100(std::int64_t nodes = 0) {
  Cluster cluster;
  cluster.id = "dgx-a100";
  cluster.gpu.memory_bandwidth = 2039 * GB / s;
  cluster.levels = {level_of(FabricKind::kNvswitch, 300, 0.6 * us, 8),
                    level_of(FabricKind::kInfiniband, 25, 2.7 * us, nodes)};
  return cluster;
}

TEST(AstraNetwork, ClusterKeepsItsBandwidthAndLatency) {
  const auto system = to_astra(dgx_a100(), 32);
  ASSERT_TRUE(system) << to_text(system.error());
  ASSERT_EQ(system->dimensions.size(), 2u);
  EXPECT_EQ(system->dimensions[0].npus, 8);
  EXPECT_EQ(system->dimensions[1].npus, 4);
  EXPECT_EQ(system->dimensions[0].topology, AstraTopology::kSwitch);
  EXPECT_NEAR(system->dimensions[0].bandwidth_gib * 1073741824, 300e9, 3000);
  EXPECT_DOUBLE_EQ(system->dimensions[0].latency_ns * 2, 600);
  EXPECT_DOUBLE_EQ(system->local_memory_gbs, 2039);
  EXPECT_FALSE(to_astra(dgx_a100(), 12));
  EXPECT_FALSE(to_astra(dgx_a100(2), 32));
  EXPECT_FALSE(to_astra(dgx_a100(), 1));
}

TEST(AstraNetwork, FullConnectionsShareOutAGpusBandwidth) {
  // One link to each of the level's seven peers, however many of them take part.
  for (const std::int64_t npus : {2, 4, 8}) {
    const AstraDimension d = astra_dimension(level_of(FabricKind::kXgmi, 448, 600 * ns, 8), npus);
    EXPECT_EQ(d.topology, AstraTopology::kFullyConnected);
    EXPECT_NEAR(d.bandwidth_gib * 1073741824, 64e9, 640) << npus;
    EXPECT_DOUBLE_EQ(d.latency_ns, 600);
  }
  EXPECT_NEAR(astra_dimension(level_of(FabricKind::kNvlink, 300, 1 * us, 0), 4).bandwidth_gib * 1073741824, 100e9,
              1000);
}

TEST(AstraNetwork, TorusDimensionsAreRingsOfHalfTheBandwidth) {
  FabricLevel level = level_of(FabricKind::kXgmi, 900, 600 * ns, 4);
  level.ring = true;
  const AstraDimension d = astra_dimension(level, 4);
  EXPECT_EQ(d.topology, AstraTopology::kRing);
  EXPECT_NEAR(d.bandwidth_gib * 1073741824, 450e9, 4500);
  EXPECT_DOUBLE_EQ(d.latency_ns, 600);
}

TEST(AstraNetwork, YmlHasFourLists) {
  AstraSystem system;
  system.dimensions = {{AstraTopology::kFullyConnected, 8, 279.3968, 300.25, "ring"},
                       {AstraTopology::kRing, 4, 10, 7, "ring"},
                       {AstraTopology::kSwitch, 128, 23.2830644, 1350, "ring"}};
  EXPECT_THAT(to_network_yml(system), HasSubstr("\ntopology: [ FullyConnected, Ring, Switch ]\n"
                                                "npus_count: [ 8, 4, 128 ]\n"
                                                "bandwidth: [ 279.3968, 10, 23.2830644 ]\n"
                                                "latency: [ 300.25, 7, 1350 ]\n"));
}

}  // namespace
}  // namespace ns_dist
