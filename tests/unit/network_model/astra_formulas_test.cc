#include "ns_dist/astra_formulas.h"

#include <gtest/gtest.h>

#include "clusters.h"
#include "ns_dist/network_model.h"

namespace ns_dist {
namespace {

using namespace units;

// 2^30 / 1e9 B/ns: with this bandwidth a message of 2^30 bytes takes 1e9 ns. Times are truncated to whole ns: the
// fraction of the latency keeps rounding errors away from the border.
AstraSystem one(AstraTopology topology, std::int64_t npus, const std::string& algorithm) {
  AstraSystem system;
  system.dimensions = {{topology, npus, 1, 100.2, algorithm}};
  return system;
}
constexpr std::int64_t kChunk = std::int64_t{1} << 30;

TEST(Astra, RingAllReduce) {
  // 2 (N - 1) messages of S / N, 2 (N - 1) + 1 endpoint delays.
  const auto t = astra_time_ns(one(AstraTopology::kRing, 4, "ring"), CollectiveKind::kAllReduce, kChunk);
  ASSERT_TRUE(t) << to_text(t.error());
  EXPECT_EQ(*t, 6 * (100 + 250'000'000) + 7 * 10);
}

TEST(Astra, ReductionReadsTwiceAndWritesOnce) {
  AstraSystem system = one(AstraTopology::kRing, 4, "ring");
  system.local_memory_gbs = 1;  // B/ns
  const auto t = astra_time_ns(system, CollectiveKind::kReduceScatter, kChunk);
  EXPECT_EQ(*t, 3 * (100 + 250'000'000) + 4 * 10 + 3 * 3 * (kChunk / 4));
}

TEST(Astra, SwitchCountsTwoHops) {
  const auto t = astra_time_ns(one(AstraTopology::kSwitch, 2, "ring"), CollectiveKind::kAllGather, kChunk);
  EXPECT_EQ(*t, 200 + 1'000'000'000 + 2 * 10);
}

TEST(Astra, CongestionAwareSwitchStoresAndForwards) {
  AstraSystem system = one(AstraTopology::kSwitch, 2, "ring");
  system.congestion_aware = true;
  const auto t = astra_time_ns(system, CollectiveKind::kAllGather, kChunk);
  EXPECT_EQ(*t, 2 * (100 + 1'000'000'000) + 2 * 10);
}

TEST(Astra, LogicalRingForwardsAllToAllHopByHop) {
  const auto t = astra_time_ns(one(AstraTopology::kRing, 4, "ring"), CollectiveKind::kAllToAll, kChunk);
  EXPECT_EQ(*t, 6 * (100 + 250'000'000) + 7 * 10);  // N (N - 1) / 2 steps
}

TEST(Astra, DirectGoesAsFarAsTheFarthestPeer) {
  const auto ring = astra_time_ns(one(AstraTopology::kRing, 8, "direct"), CollectiveKind::kAllToAll, kChunk);
  EXPECT_EQ(*ring, 4 * 100 + 125'000'000 + 2 * 10);
  const auto full = astra_time_ns(one(AstraTopology::kFullyConnected, 8, "direct"), CollectiveKind::kAllReduce, kChunk);
  EXPECT_EQ(*full, 2 * (100 + 125'000'000) + 3 * 10);
}

TEST(Astra, ChunkThatDoesNotDivideCostsOneMore) {
  AstraSystem system = one(AstraTopology::kRing, 2, "ring");
  system.splits = 4;
  const auto even = astra_time_ns(system, CollectiveKind::kAllReduce, 4 << 20);
  const auto odd = astra_time_ns(system, CollectiveKind::kAllReduce, (4 << 20) + 1);
  EXPECT_EQ(*odd * 4, *even * 5);
}

TEST(Astra, AllReduceOnTwoDimensionsScattersUpAndGathersDown) {
  AstraSystem system;
  system.dimensions = {{AstraTopology::kRing, 2, 1, 0.2, "ring"}, {AstraTopology::kRing, 4, 1, 0.2, "ring"}};
  system.endpoint_delay_ns = 0;
  const std::int64_t second = 1'000'000'000;
  // RS of 1 on 2: 1/2; AR of 1/2 on 4: 2 x 3 x 1/8; AG back: 1/2.
  EXPECT_EQ(*astra_time_ns(system, CollectiveKind::kAllReduce, kChunk), second / 2 + 6 * second / 8 + second / 2);
  system.local_bandwidth_aware = false;  // a full all-reduce on either
  EXPECT_EQ(*astra_time_ns(system, CollectiveKind::kAllReduce, kChunk), second + 6 * second / 4);
}

TEST(Astra, SaysWhereNoFormIsKnown) {
  AstraSystem system = one(AstraTopology::kRing, 8, "direct");
  EXPECT_FALSE(astra_time_ns(system, CollectiveKind::kAllReduce, kChunk));
  system.dimensions[0].algorithm = "rings";
  EXPECT_FALSE(astra_time_ns(system, CollectiveKind::kAllReduce, kChunk));
  system.dimensions[0].algorithm = "ring";
  EXPECT_FALSE(astra_time_ns(system, CollectiveKind::kBarrier, kChunk));
  EXPECT_FALSE(astra_time_ns(system, CollectiveKind::kAllReduce, 0));
  system.dimensions[0].npus = 1;
  EXPECT_FALSE(astra_time_ns(system, CollectiveKind::kAllReduce, kChunk));
  EXPECT_FALSE(astra_time_ns(AstraSystem(), CollectiveKind::kAllReduce, kChunk));
}

TEST(Astra, ModelAnswersWithTheFormula) {
  const auto model = make_network_model(test::dgx_a100(), {.model = "astra"});
  ASSERT_TRUE(model);
  const Collective call{CollectiveKind::kAllReduce, 1 * GiB, {0, {{32, 1}}}};
  const auto f = (*model)->forecast(call);
  ASSERT_TRUE(f) << to_text(f.error());
  EXPECT_DOUBLE_EQ(f->latency / ns,
                   static_cast<double>(*astra_time_ns(*to_astra(test::dgx_a100(), 32), call.kind, kChunk)));
  // Four ranks of a node are a group of their own: one flat ring.
  EXPECT_EQ((*model)->forecast({CollectiveKind::kAllReduce, 1 * GiB, {0, {{4, 1}}}})->method, "astra-flat/ring");
  EXPECT_FALSE((*model)->forecast({CollectiveKind::kBroadcast, 1 * GiB, {0, {{8, 1}}}}));
  EXPECT_FALSE(make_network_model(test::dgx_a100(), {.model = "astro"}));
}

TEST(Astra, FullConnectionsAreOneLinkToEachPeer) {
  // xGMI of 420 GB/s, eight GPUs: 60 GB/s a link. A ring of four of them uses the same links as one of all eight.
  Cluster cluster = test::dgx_a100();
  cluster.levels = {{{"xgmi", "xGMI", FabricKind::kXgmi, 420 * GB / s, 1 * us}, 8, 1, 1}};
  const auto model = make_network_model(cluster, {.model = "astra"});
  ASSERT_TRUE(model);
  const double size = 840e6;
  for (const std::int64_t ranks : {4, 8}) {
    const auto f = (*model)->forecast({CollectiveKind::kAllReduce, size * B, {0, {{ranks, 1}}}});
    ASSERT_TRUE(f) << to_text(f.error());
    const auto n = static_cast<double>(ranks);
    const double formula = 2 * (n - 1) * (1000 + size / n / 60) + (2 * (n - 1) + 1) * 10;
    EXPECT_NEAR(f->latency / ns / formula, 1, 1e-6) << ranks;
  }
}

TEST(Astra, TorusDimensionsAreRingsOfHalfTheBandwidth) {
  Cluster cluster = test::dgx_a100();
  cluster.levels = {{{"xgmi", "xGMI", FabricKind::kXgmi, 900 * GB / s, 600 * ns}, 4, 1, 1}};
  cluster.levels.front().ring = true;
  const auto model = make_network_model(cluster, {.model = "astra"});
  ASSERT_TRUE(model);
  const auto f = (*model)->forecast({CollectiveKind::kReduceScatter, 1.8 * GB, {0, {{4, 1}}}});
  ASSERT_TRUE(f) << to_text(f.error());
  EXPECT_NEAR(f->latency / ns, 3 * (600 + 450e6 / 450) + 4 * 10, 3);
}

}  // namespace
}  // namespace ns_dist
