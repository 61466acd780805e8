// Closed forms of every algorithm, with NCCL 2.30's constants (src/graph/tuning.cc) written out.
#include "algorithms.h"

#include <gtest/gtest.h>

#include "ns_dist/catalog.h"
#include "ns_dist/network_model.h"
#include "support/clusters.h"

namespace ns_dist {
namespace {

using namespace units;

// Of a DGX H100: 20.6 of 25 GB/s a link in NCCL; 0.94 of a port are reached. At its clock NCCL's latencies are as they
// are.
using test::dgx_h100;
constexpr double kNvlink = 450e9 * 20.6 / 25, kPort = 50e9 * 0.94;

double seconds(const std::string& algorithm, const std::string& protocol, const Collective& call,
               const Cluster& cluster = dgx_h100()) {
  NetworkModelOptions options;
  options.algorithm = algorithm;
  options.protocol = protocol;
  options.calibrated = false;
  const auto model = make_network_model(cluster, options);
  EXPECT_TRUE(model);
  const auto f = (*model)->forecast(call);
  EXPECT_TRUE(f) << (f ? "" : to_text(f.error()));
  return f ? f->latency / s : 0;
}

Collective call(CollectiveKind kind, double bytes, std::vector<Stride> strides) {
  return {kind, bytes * B, {0, std::move(strides)}};
}

constexpr double kTiny = 1e-3;  // bytes: latency alone
constexpr double kHuge = 1e15;  // bytes: bandwidth alone
constexpr double kUs = 1e-6;

TEST(Ring, LatencyIsBasePlusHops) {
  EXPECT_NEAR(seconds("ring", "ll", call(CollectiveKind::kAllReduce, kTiny, {{8, 1}})), (6.6 + 14 * 0.6) * kUs, 1e-9);
  EXPECT_NEAR(seconds("ring", "ll128", call(CollectiveKind::kAllGather, kTiny, {{8, 1}})), (14 + 7 * 1.9) * kUs, 1e-9);
  EXPECT_NEAR(seconds("ring", "simple", call(CollectiveKind::kReduceScatter, kTiny, {{4, 1}})), (8.4 + 3 * 3.4) * kUs,
              1e-9);
}

TEST(Ring, CrossesEachNodesBorderOnce) {
  // Four nodes of eight: 31 hops one way, three of them over the network; 13 us for the proxies. A hop in a node takes
  // at least the network's overhead, 1 us, or 3 us under Simple.
  const auto ring = [](const char* protocol) {
    return seconds("ring", protocol, call(CollectiveKind::kAllGather, kTiny, {{32, 1}}));
  };
  EXPECT_NEAR(ring("ll"), (6.6 + 28 * 1.0 + 3 * 2.7 + 13) * kUs, 1e-9);
  EXPECT_NEAR(ring("ll128"), (14 + 28 * 1.9 + 3 * 4.0 + 13) * kUs, 1e-9);
  EXPECT_NEAR(ring("simple"), (8.4 + 28 * 3.4 + 3 * 14 + 13) * kUs, 1e-9);
  // Links whose hops would take half a microsecond less.
  Cluster quick = dgx_h100();
  quick.levels[0].fabric.latency = 0.1 * us;
  const Collective gather = call(CollectiveKind::kAllGather, kTiny, {{32, 1}});
  EXPECT_NEAR(seconds("ring", "simple", gather, quick), (8.4 + 28 * 3.0 + 3 * 14 + 13) * kUs, 1e-9);
}

// With one rank in each node nothing hides the network: its hops take as long as those of trees, and the device's 2.7.
TEST(Ring, OneRankANodeWaitsForTheNetwork) {
  const auto ring = [](const char* protocol) {
    return seconds("ring", protocol, call(CollectiveKind::kAllGather, kTiny, {{16, 8}}));
  };
  EXPECT_NEAR(ring("ll"), (6.6 + 15 * (5.0 + 2.7) + 13) * kUs, 1e-9);
  EXPECT_NEAR(ring("simple"), (8.4 + 15 * (14 + 2.7) + 13) * kUs, 1e-9);
}

// LL128 needs NVLink's order of stores.
TEST(Ring, NoLl128OverPcie) {
  Cluster cluster = dgx_h100();
  cluster.levels[0].fabric = {"pcie", "PCIe", FabricKind::kPcie, 64 * GB / s, 1 * us};
  NetworkModelOptions options{.protocol = "ll128", .calibrated = false};
  const auto model = *make_network_model(cluster, options);
  for (const std::int64_t ranks : {8, 16}) {
    EXPECT_FALSE(model->forecast(call(CollectiveKind::kAllReduce, 1e6, {{ranks, 1}}))) << ranks;
  }
}

TEST(Ring, MovesTwiceTheBufferLessAnNth) {
  // A GPU's own n-th costs 0.65 of its time on the link once more.
  const double all_reduce = seconds("ring", "simple", call(CollectiveKind::kAllReduce, kHuge, {{8, 1}}));
  EXPECT_NEAR(all_reduce / (kHuge * (2 * 7.0 / 8 + 0.65 / 8) / kNvlink), 1, 1e-6);
  const double one_a_node = seconds("ring", "simple", call(CollectiveKind::kAllGather, kHuge, {{16, 8}}));
  EXPECT_NEAR(one_a_node / (kHuge * 15.0 / 16 / kPort), 1, 1e-6);
}

TEST(Ring, PortsOfAllRanksOfANodeWorkTogether) {
  const double two_a_node = seconds("ring", "simple", call(CollectiveKind::kBroadcast, kHuge, {{2, 1}, {4, 8}}));
  EXPECT_NEAR(two_a_node / (kHuge / (2 * kPort)), 1, 1e-6);
}

TEST(Ring, LlCarriesHalfUpToItsLimit) {
  const double ll = seconds("ring", "ll", call(CollectiveKind::kAllGather, kHuge, {{8, 1}}));
  EXPECT_NEAR(ll / (kHuge * (7.0 / 8 + 0.65 / 8) / 141e9), 1, 1e-6);  // Hopper's limit, below half of the links
}

// Between nodes, too, a flag goes with every four bytes of data.
TEST(Ring, LlCarriesHalfOfAPort) {
  Cluster cluster = dgx_h100();
  cluster.levels[1].fabric.bandwidth = 25 * GB / s;
  for (const std::int64_t nodes : {2, 4}) {
    const auto n = static_cast<double>(nodes);
    const double ll = seconds("ring", "ll", call(CollectiveKind::kAllGather, kHuge, {{nodes, 8}}), cluster);
    EXPECT_NEAR(ll / (kHuge * (n - 1) / n / (kPort / 4)), 1, 1e-6) << nodes;
    const double simple = seconds("ring", "simple", call(CollectiveKind::kAllGather, kHuge, {{nodes, 8}}), cluster);
    EXPECT_NEAR(ll / simple, 2, 1e-6) << nodes;
  }
}

// Eight ports carry more than NCCL lets LL have: with Intel's CPUs 39 GB/s on two nodes, 20.4 GB/s on more; with AMD's,
// as A100's hosts have, 22.5 and 19.
TEST(Ring, LlHasALimitByNodes) {
  const auto ll = [](std::int64_t ranks, const Cluster& cluster) {
    return seconds("ring", "ll", call(CollectiveKind::kAllGather, kHuge, {{ranks, 1}}), cluster);
  };
  for (const auto& [cluster, two, more] :
       {std::tuple(dgx_h100(), 39e9, 20.4e9), std::tuple(test::dgx_a100(), 22.5e9, 19e9)}) {
    EXPECT_NEAR(ll(16, cluster) / (kHuge * (15 + 0.65) / 16 / two), 1, 1e-6);
    EXPECT_NEAR(ll(32, cluster) / (kHuge * (31 + 0.65) / 32 / more), 1, 1e-6);
  }
}

TEST(Tree, GoesUpAndDownInLogarithmicDepth) {
  // Chain of eight inside, three doublings of eight nodes, hop 5.0 us plus the device's 2.7.
  const double expected = (6.8 + 2 * (7 * 0.6 + 3 * (5.0 + 2.7)) + 13) * kUs;
  EXPECT_NEAR(seconds("tree", "ll", call(CollectiveKind::kAllReduce, kTiny, {{64, 1}})), expected, 1e-9);
  const double huge = seconds("tree", "simple", call(CollectiveKind::kAllReduce, kHuge, {{64, 1}}));
  EXPECT_NEAR(huge / (2 * kHuge / (0.92 * kNvlink)), 1, 1e-6);  // eight ports carry more than one GPU's NVLink
}

// A tree of six nodes is as deep as one of eight.
TEST(Tree, HasWholeLevels) {
  const double expected = (6.8 + 2 * 3 * (5.0 + 2.7) + 13) * kUs;
  EXPECT_NEAR(seconds("tree", "ll", call(CollectiveKind::kAllReduce, kTiny, {{6, 8}})), expected, 1e-9);
}

// 120 of 128 bytes are data; in a node NCCL counts with 7/9.
TEST(Tree, Ll128CarriesFlags) {
  const auto ll128 = [](std::vector<Stride> strides) {
    return seconds("tree", "ll128", call(CollectiveKind::kAllReduce, kHuge, std::move(strides)));
  };
  EXPECT_NEAR(ll128({{8, 1}}) / (2 * kHuge / (0.92 * kNvlink * 7 / 9)), 1, 1e-6);
  EXPECT_NEAR(ll128({{4, 8}}) / (2 * kHuge / (0.92 * kPort * 120 / 128)), 1, 1e-6);
}

TEST(Nvls, SendsTheBufferOnceAndTheResultsShare) {
  const double t = seconds("nvls", "simple", call(CollectiveKind::kAllReduce, kHuge, {{8, 1}}));
  EXPECT_NEAR(t / (kHuge * 9 / 8 / (0.85 * kNvlink)), 1, 1e-6);
  EXPECT_NEAR(seconds("nvls", "simple", call(CollectiveKind::kAllReduce, kTiny, {{8, 1}})), 25 * kUs, 1e-9);
}

// Of more ranks than a ring serves better, and no more than NCCL's limit.
TEST(Nvls, GathersAndScattersBetween9And32Ranks) {
  const Cluster rack = *Catalog::standard().cluster("gb200-nvl72");
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const double t = seconds("nvls", "simple", call(kind, kHuge, {{16, 1}}), rack);
    const double all = seconds("nvls", "simple", call(CollectiveKind::kAllReduce, kHuge, {{16, 1}}), rack);
    EXPECT_NEAR(t / all, 16.0 / 15 / (17.0 / 16), 1e-6);
    const auto model = *make_network_model(rack, {.algorithm = "nvls"});
    for (const auto& [ranks, goes] :
         {std::pair(8, false), std::pair(9, true), std::pair(32, true), std::pair(33, false)})
      EXPECT_EQ(model->forecast({kind, 1 * MiB, {0, {{ranks, 1}}}, false}).has_value(), goes) << ranks;
    const auto integers = model->forecast({kind, 1 * MiB, {0, {{16, 1}}}, true});
    EXPECT_EQ(integers.has_value(), kind == CollectiveKind::kAllGather);
  }
}

TEST(Nvls, NeedsHopperAndFloatingPoint) {
  const auto refused = [](const Cluster& cluster, bool integer) {
    const auto model = *make_network_model(cluster, {.algorithm = "nvls"});
    return !model->forecast({CollectiveKind::kAllReduce, 1 * MiB, {0, {{8, 1}}}, integer});
  };
  EXPECT_FALSE(refused(dgx_h100(), false));
  EXPECT_TRUE(refused(dgx_h100(), true));
  EXPECT_TRUE(refused(test::dgx_a100(), false));
  Cluster other = dgx_h100();  // its switches may reduce, too, but not by this algorithm
  other.gpu.vendor = "amd";
  EXPECT_TRUE(refused(other, false));
  other.levels[0].fabric.kind = FabricKind::kUalink;
  EXPECT_TRUE(refused(other, false));
}

TEST(NvlsTree, IsAsFastAsItsSlowerLevel) {
  // Four nodes: the tree moves every byte up and down over eight ports, slower than the switch.
  const double t = seconds("nvls-tree", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 1}}));
  EXPECT_NEAR(t / (2 * kHuge / (8 * kPort)), 1, 1e-6);
  EXPECT_NEAR(seconds("nvls-tree", "simple", call(CollectiveKind::kAllReduce, kTiny, {{32, 1}})),
              (25 + 2 * 2 * (20.9 + 2.7) + 13) * kUs, 1e-9);
  // Two nodes exchange: every byte crosses once, faster than the switch adds.
  const double two = seconds("nvls-tree", "simple", call(CollectiveKind::kAllReduce, kHuge, {{16, 1}}));
  EXPECT_NEAR(two / (kHuge * 9 / 8 / (0.85 * kNvlink)), 1, 1e-6);
}

// Four nodes send as much whether two switches join pairs of them or one switch joins all.
TEST(NvlsTree, NodesCountAndNotTheSwitchesAboveThem) {
  Cluster pairs = dgx_h100();
  pairs.levels[1].size = 2;
  pairs.levels.push_back({test::infiniband(50), 0, 1, 1});
  const double t = seconds("nvls-tree", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 1}}), pairs);
  EXPECT_NEAR(t / (2 * kHuge / (8 * kPort)), 1, 1e-6);
}

TEST(Pat, TakesLogarithmicSteps) {
  const double t = seconds("pat", "simple", call(CollectiveKind::kAllGather, kTiny, {{16, 8}}));
  EXPECT_NEAR(t, (8 + 4 * 14 / 3.5 + 2.8 * 16 + 13) * kUs, 1e-9);
  const double huge = seconds("pat", "simple", call(CollectiveKind::kAllGather, kHuge, {{16, 8}}));
  EXPECT_NEAR(huge / (kHuge * 15 / 16 / (0.75 * kPort)), 1, 1e-6);
}

TEST(Collnet, CrossesTheNetworkOnce) {
  const double t = seconds("collnet", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 8}}));
  EXPECT_NEAR(t / (kHuge / kPort), 1, 1e-6);
  // Eight ports of a node are faster than its GPUs scatter and gather.
  const double all = seconds("collnet", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 1}}));
  EXPECT_NEAR(all / (2 * 7.0 / 8 * kHuge / kNvlink), 1, 1e-6);
}

TEST(Direct, SendsToEveryPeer) {
  const double t = seconds("direct", "simple", call(CollectiveKind::kSendRecv, kHuge, {{2, 8}}));
  EXPECT_NEAR(t / (kHuge / kPort), 1, 1e-6);
  // 64 ranks on eight nodes: 56 of 64 pieces leave the node through the rank's own port.
  const double all_to_all = seconds("direct", "simple", call(CollectiveKind::kAllToAll, kHuge, {{64, 1}}));
  EXPECT_NEAR(all_to_all / (kHuge * 56 / 64 / kPort), 1, 1e-6);
}

TEST(Hierarchical, EachLevelWorksOnTheShareBelow) {
  const double t = seconds("hierarchical", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 1}}));
  const double expected = 2 * (7.0 / 8 * kHuge / kNvlink + 3.0 / 4 * kHuge / 8 / kPort);
  EXPECT_NEAR(t / expected, 1, 1e-6);
}

TEST(Hierarchical, WorksOnThreeLevels) {
  Cluster cluster = dgx_h100();
  cluster.levels[1].size = 4;
  cluster.levels.push_back({test::infiniband(50), 0, 1, 2});  // spine, half as wide
  const double t = seconds("hierarchical", "simple", call(CollectiveKind::kReduceScatter, kHuge, {{64, 1}}), cluster);
  const double expected = 7.0 / 8 * kHuge / kNvlink + 3.0 / 4 * kHuge / 8 / kPort + 1.0 / 2 * kHuge / 32 / (kPort / 2);
  EXPECT_NEAR(t / expected, 1, 1e-6);
}

TEST(HalvingDoubling, TakesLogarithmicStepsOfHalves) {
  const double t = seconds("halving-doubling", "simple", call(CollectiveKind::kAllReduce, kTiny, {{8, 1}}));
  EXPECT_NEAR(t, (8.4 + 6 * 3.4) * kUs, 1e-9);
  const double huge = seconds("halving-doubling", "simple", call(CollectiveKind::kAllReduce, kHuge, {{8, 1}}));
  EXPECT_NEAR(huge / (2 * 7.0 / 8 * kHuge / kNvlink), 1, 1e-6);
  const double nodes = seconds("halving-doubling", "simple", call(CollectiveKind::kAllReduce, kHuge, {{32, 1}}));
  EXPECT_NEAR(nodes / (2 * (7.0 / 8 / kNvlink + 3.0 / 4 / 8 / kPort) * kHuge), 1, 1e-6);
  const auto model = *make_network_model(dgx_h100(), {.algorithm = "halving-doubling"});
  EXPECT_FALSE(model->forecast({CollectiveKind::kAllReduce, 1 * MiB, {0, {{6, 1}}}}));
}

TEST(Floor, IsTheCutAroundTheSlowestPart) {
  const auto model = *make_network_model(dgx_h100());
  const auto floor = [&](CollectiveKind kind, std::vector<Stride> strides) {
    return model->forecast({kind, 1 * GB, {0, std::move(strides)}})->floor / s;
  };
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce, {{4, 8}}), 2 * 3.0 / 4 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllGather, {{8, 1}}), 7.0 / 8 / 450);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce, {{8, 1}}), 9.0 / 8 / 450);  // the switch reduces
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllToAll, {{16, 1}}), 8.0 / 16 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kSendRecv, {{2, 8}}), 1.0 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kBarrier, {{8, 1}}), 0);
}

// Nine nodes of eight and one rank more: everything must come to it, and leave it, through its own port.
TEST(Floor, IsThatOfALoneRank) {
  const auto model = *make_network_model(dgx_h100());
  const auto floor = [&](CollectiveKind kind) { return model->forecast({kind, 1 * GB, {0, {{73, 1}}}})->floor / s; };
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllGather), 72.0 / 73 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kReduceScatter), 72.0 / 73 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce), 1.0 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kBroadcast), 1.0 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kReduce), 1.0 / 50);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllToAll), 72.0 / 73 / 50);
}

// A node of eight and one rank more: it sends eight ninths of its buffer through its own port, each of the eight a
// ninth.
TEST(Direct, AllToAllsWaitForTheRankOnItsOwn) {
  const double alone = seconds("direct", "simple", call(CollectiveKind::kAllToAll, kHuge, {{9, 1}}));
  EXPECT_NEAR(alone / kHuge, 8.0 / 9 / 47e9, 1e-3 / 47e9);
  const double nodes = seconds("direct", "simple", call(CollectiveKind::kAllToAll, kHuge, {{16, 1}}));
  EXPECT_NEAR(nodes / kHuge, 8.0 / 16 / 47e9, 1e-3 / 47e9);
}

TEST(Clock, SlowerSmsMakeLongerLatencies) {
  Cluster slow = dgx_h100();
  slow.gpu.boost_clock = 990 * MHz;
  const Collective tiny = call(CollectiveKind::kAllReduce, kTiny, {{8, 1}});
  EXPECT_NEAR(seconds("ring", "ll", tiny, slow) / seconds("ring", "ll", tiny), 2, 1e-9);
}

// A quarter more for the start and for seven hops, from 64 KiB on. What 256 ranks have beyond was not measured.
TEST(Latency, GrowsWithChannelsOverTheHopsThatWereMeasured) {
  Cluster rack = dgx_h100();
  rack.levels[0].size = 256;
  rack.levels[0].fabric.bandwidth *= 1e9;  // latency alone
  const auto ring = [&](std::int64_t ranks) {
    return seconds("ring", "simple", call(CollectiveKind::kAllGather, 65536, {{ranks, 1}}), rack);
  };
  EXPECT_NEAR(ring(8), 1.25 * (8.4 + 7 * 3.4) * kUs, 1e-10);
  EXPECT_NEAR(ring(9), (1.25 * (8.4 + 7 * 3.4) + 3.4) * kUs, 1e-10);
  EXPECT_NEAR(ring(256), (1.25 * (8.4 + 7 * 3.4) + 248 * 3.4) * kUs, 1e-10);
}

// The SMs start a collective, whether a node of one GPU is written as a level of its own or not.
TEST(Clock, IsThatOfTheGpuAlsoWithoutANode) {
  Cluster alone = dgx_h100();
  alone.gpu.boost_clock = 990 * MHz;
  alone.levels[0].size = 1;
  const Collective tiny = call(CollectiveKind::kAllGather, kTiny, {{4, 1}});
  const double expected = (2 * 6.6 + 3 * (5.0 + 2.7) + 13) * kUs;
  EXPECT_NEAR(seconds("ring", "ll", tiny, alone), expected, 1e-9);
  alone.levels.erase(alone.levels.begin());
  EXPECT_NEAR(seconds("ring", "ll", tiny, alone), expected, 1e-9);
}

// Leaves of 4 nodes under a spine that is half as wide.
Cluster leaves() {
  Cluster cluster = dgx_h100();
  cluster.levels[1].size = 4;
  cluster.levels.push_back({test::infiniband(50), 0, 1, 2});
  return cluster;
}

// The fifth node has its leaf's uplinks alone, 16 ports wide: its own 8 ports decide, and not half of them.
TEST(Oversubscription, IsSharedByTheGpusThatTheJobHasUnderALeaf) {
  const auto gather = [](std::int64_t ranks) {
    return seconds("ring", "simple", call(CollectiveKind::kAllGather, kHuge, {{ranks, 1}}), leaves());
  };
  EXPECT_NEAR(gather(40) / ((39 + 0.65) / 40 * kHuge / kNvlink), 1, 1e-6) << "8 ports carry more than a GPU's NVLink";
  EXPECT_NEAR(gather(34) / ((33.0 / 34 / (2 * kPort) + 0.65 / 34 / kNvlink) * kHuge), 1, 1e-6) << "2 ports of 2 GPUs";
  const auto all_to_all = [](std::int64_t ranks, const RankGroup& group) {
    const auto model = *make_network_model(leaves(), {.ranks = ranks, .calibrated = false});
    const Forecast f = *model->forecast({CollectiveKind::kAllToAll, kHuge * B, group});
    return std::pair(f.latency / s / kHuge, f.floor / s / kHuge);
  };
  // 8 ranks send 32 of 40 parts through a port each; 32 full ones send 8 of 40 through half a port each.
  EXPECT_NEAR(all_to_all(0, {0, {{40, 1}}}).first * kPort, 32.0 / 40, 1e-6);
  EXPECT_NEAR(all_to_all(0, {0, {{40, 1}}}).second * 50e9, 32.0 / 40, 1e-9);
  // Two full leaves and a half of one: the ranks of the full ones send 48 of 80 parts through half a port, more than
  // the others their 64 through a whole one.
  EXPECT_NEAR(all_to_all(0, {0, {{80, 1}}}).first * kPort, 2 * 48.0 / 80, 1e-6);
  EXPECT_NEAR(all_to_all(0, {0, {{80, 1}}}).second * 50e9, 2 * 48.0 / 80, 1e-9);
  // One rank of each of five nodes, with seven other groups beside it: the fifth node has its leaf alone.
  EXPECT_NEAR(all_to_all(40, {0, {{5, 8}}}).first * kPort, 4.0 / 5, 1e-6);
  EXPECT_NEAR(all_to_all(64, {0, {{5, 8}}}).first * kPort, 2 * 4.0 / 5, 1e-6) << "the job fills the leaf";
}

// The way out of a leaf begins at the ports of its GPUs.
TEST(Ports, InnerNetworksLimitOuterOnes) {
  Cluster cluster = dgx_h100();
  cluster.levels[1] = {test::infiniband(50), 4, 0.5, 1};
  cluster.levels.push_back({test::infiniband(50), 0, 1, 1});
  for (const std::int64_t stride : {8, 32}) {
    const Collective send = call(CollectiveKind::kSendRecv, kHuge, {{2, stride}});
    EXPECT_NEAR(seconds("direct", "simple", send, cluster) / (kHuge / (0.5 * kPort)), 1, 1e-6) << stride;
    EXPECT_DOUBLE_EQ((*make_network_model(cluster))->forecast(send)->floor / s, kHuge / 25e9) << stride;
  }
  // What goes out of a node is all that its ports carry: the leaf's part of it and the spine's.
  EXPECT_DOUBLE_EQ(
      (*make_network_model(cluster))->forecast(call(CollectiveKind::kAllToAll, kHuge, {{64, 1}}))->floor / s,
      56.0 / 64 * kHuge / 25e9);
}

// Buffers limit a port between sites that are 1 ms apart. A ring leaves a site by the ports of one node, however many
// nodes the site has.
TEST(Ports, ARingLeavesASiteByOneNode) {
  for (const std::int64_t nodes : {4, 128}) {
    Cluster cluster = dgx_h100();
    cluster.levels[1] = {test::infiniband(50), nodes, 1, 1};
    Fabric far = test::infiniband(50);
    far.latency = 1 * units::ms;
    cluster.levels.push_back({far, 2, 1, 1});
    const double ranks = 2.0 * static_cast<double>(nodes) * 8;
    const Collective sum = call(CollectiveKind::kAllReduce, kHuge, {{static_cast<std::int64_t>(ranks), 1}});
    const double port = 2 * 4.0 * 1024 * 1024 / (2 * 1e-3);  // two channels of 4 MiB
    const double one_node = 2 * (ranks - 1) / ranks * kHuge / (8 * port);
    EXPECT_NEAR(seconds("ring", "simple", sum, cluster) / one_node, 1, 0.01);
    // Leaves of nodes between them change nothing; ports that GPUs share do.
    cluster.levels[1].size = nodes / 2;
    cluster.levels.insert(cluster.levels.begin() + 2, {test::infiniband(50), 2, 1, 1});
    EXPECT_NEAR(seconds("ring", "simple", sum, cluster) / one_node, 1, 0.01);
    for (std::size_t level = 1; level < 4; ++level) cluster.levels[level].nics_per_gpu = 0.5;
    EXPECT_NEAR(seconds("ring", "simple", sum, cluster) / one_node, 2, 0.02);
  }
}

// A network port hangs on the GPU's PCIe, whose payload is three quarters of its rate.
TEST(Ports, PcieLimitsTheNetwork) {
  const Collective send = call(CollectiveKind::kSendRecv, kHuge, {{2, 8}});
  Cluster cluster = dgx_h100();
  cluster.gpu.pcie_bandwidth = 32 * GB / s;
  EXPECT_NEAR(seconds("direct", "simple", send, cluster) / (kHuge / 24e9), 1, 1e-6);
  cluster.gpu.pcie_bandwidth = 64 * GB / s;
  EXPECT_NEAR(seconds("direct", "simple", send, cluster) / (kHuge / kPort), 1, 1e-6);
  cluster = dgx_h100();
  cluster.levels[0] = {{"pcie", "PCIe", FabricKind::kPcie, 32 * GB / s, 1 * us}, 8, 1, 1};
  EXPECT_NEAR(seconds("direct", "simple", send, cluster) / (kHuge / 24e9), 1, 1e-6);
}

// Trays of four GPUs and 18 of them in a rack: one NVLink network of 72.
TEST(Switches, OfOneFabricAreOneLevel) {
  Cluster rack = dgx_h100(), trays = rack;
  rack.levels[0].size = 72;
  trays.levels[0].size = 4;
  trays.levels.insert(trays.levels.begin() + 1, {test::nvswitch(450), 18, 1, 1});
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    for (const std::vector<Stride>& strides :
         std::vector<std::vector<Stride>>{{{72, 1}}, {{4, 1}}, {{18, 4}}, {{144, 1}}}) {
      const auto of = [&](const Cluster& cluster) {
        return *(*make_network_model(cluster))->forecast(call(kind, 1e9, strides));
      };
      EXPECT_EQ(of(trays).latency, of(rack).latency) << name_of(kind) << strides[0].count;
      EXPECT_EQ(of(trays).floor, of(rack).floor) << name_of(kind) << strides[0].count;
    }
  }
}

// Where the outer switches are narrower, a GPU's links still carry what goes to all of them.
TEST(Switches, ShareTheLinksOfAGpu) {
  Cluster cluster = dgx_h100();
  cluster.levels[1] = {test::nvswitch(450), 4, 1, 1.25};
  const Collective all = call(CollectiveKind::kAllToAll, kHuge, {{32, 1}});
  EXPECT_NEAR(seconds("direct", "simple", all, cluster) / ((31 + 0.35) / 32 * kHuge / kNvlink), 1, 1e-6);
  EXPECT_DOUBLE_EQ((*make_network_model(cluster))->forecast(all)->floor / s, 31.0 / 32 * kHuge / 450e9);
}

// Eight GPUs with seven links of 64 GB/s, one to each peer: an MI300X node.
Cluster mesh() {
  Cluster cluster = dgx_h100();
  cluster.gpu.architecture = "cdna3";
  cluster.levels = {{{"mesh", "xGMI mesh", FabricKind::kXgmi, 448 * GB / s, 0.6 * us}, 8, 1, 1}};
  return cluster;
}

TEST(Mesh, AGroupUsesTheLinksBetweenItsRanks) {
  const auto model = *make_network_model(mesh());
  const auto floor = [&](CollectiveKind kind, std::vector<Stride> strides) {
    return model->forecast({kind, 1 * GB, {0, std::move(strides)}})->floor / s;
  };
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce, {{2, 1}}), 1.0 / 64);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kSendRecv, {{2, 3}}), 1.0 / 64);
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce, {{4, 2}}), 2 * 3.0 / 4 / (3 * 64));
  EXPECT_DOUBLE_EQ(floor(CollectiveKind::kAllReduce, {{8, 1}}), 2 * 7.0 / 8 / 448);

  const auto transfer = [&](const char* algorithm, CollectiveKind kind, std::int64_t ranks) {
    return seconds(algorithm, "simple", call(kind, kHuge, {{ranks, 1}}), mesh()) / kHuge * 0.7 * 64e9;
  };
  // A copy of what the rank keeps is no traffic of the links: it takes what it takes in a full mesh.
  EXPECT_NEAR(transfer("ring", CollectiveKind::kAllReduce, 2), 1 + 0.65 / 2 / 7, 1e-6);
  EXPECT_NEAR(transfer("ring", CollectiveKind::kAllReduce, 8), (2 * 7.0 / 8 + 0.65 / 8) / 7, 1e-6);
  EXPECT_NEAR(transfer("tree", CollectiveKind::kAllReduce, 2), 2 / 0.92, 1e-6);
  EXPECT_NEAR(transfer("halving-doubling", CollectiveKind::kAllGather, 4), 3.0 / 4 / 3, 1e-6);
  EXPECT_NEAR(transfer("direct", CollectiveKind::kSendRecv, 2), 1, 1e-6);

  Cluster halves = mesh();  // a plan that leaves four of the eight idle does not get their links
  halves.levels[0].size = halves.levels[0].spare = 4;
  EXPECT_DOUBLE_EQ(
      (*make_network_model(halves))->forecast({CollectiveKind::kAllReduce, 1 * GB, {0, {{4, 1}}}})->floor / s,
      2 * 3.0 / 4 / (3 * 64));
  const Explanation told = *model->explain({CollectiveKind::kAllReduce, 1 * GB, {0, {{2, 1}}}});
  EXPECT_NE(told.steps[0].note.find("mesh, links to 1 of 7 peers"), std::string::npos) << told.steps[0].note;
}

// A board's links are wired: two of its eight GPUs have one link between them, in a job of eight as in a job of two.
TEST(Mesh, AJobOfFewGpusHasTheLinksOfTheBoard) {
  Cluster two = mesh();
  two.levels[0].fabric.most_units = 8;
  two.levels[0].size = 2;
  const auto floor = [](const Cluster& cluster) {
    return (*make_network_model(cluster))->forecast({CollectiveKind::kSendRecv, 1 * GB, {0, {{2, 1}}}})->floor / s;
  };
  EXPECT_DOUBLE_EQ(floor(two), 1.0 / 64);
  EXPECT_DOUBLE_EQ(floor(two), floor(mesh()));
  two.levels[0].fabric.most_units = 2;  // a bridge between two
  EXPECT_DOUBLE_EQ(floor(two), 1.0 / 448);
}

// Rings through several nodes pass m ranks of each over m - 1 links, half of them in each direction: a link carries as
// much as in one node alone, whose closed rings use all m.
TEST(Mesh, ManyNodesGatherAsFastAsTheLinksOfOne) {
  Cluster nodes = mesh();
  nodes.levels.push_back({test::infiniband(400), 0, 1, 1});
  const auto gather = [&](std::vector<Stride> strides) {
    return seconds("ring", "simple", call(CollectiveKind::kAllGather, kHuge, std::move(strides)), nodes);
  };
  for (const std::int64_t each : {2, 4, 8}) {
    EXPECT_NEAR(gather({{each, 1}, {64, 8}}) / gather({{each, 1}}), 1, 0.03) << each;
  }
}

TEST(Mesh, ASwitchOrAnUnevenMeshGivesEveryPairThePort) {
  for (const FabricKind kind : {FabricKind::kNvswitch, FabricKind::kUalink, FabricKind::kPcie, FabricKind::kXgmi}) {
    Cluster cluster = mesh();
    cluster.levels[0].fabric.kind = kind;
    cluster.levels[0].fabric.uneven_mesh = kind == FabricKind::kXgmi;
    const auto model = *make_network_model(cluster);
    EXPECT_DOUBLE_EQ(model->forecast({CollectiveKind::kSendRecv, 1 * GB, {0, {{2, 1}}}})->floor / s, 1.0 / 448);
  }
}

// One GPU a node, 50 GB/s to each of its neighbors in each dimension.
Cluster torus(std::vector<std::int64_t> sizes) {
  Cluster cluster = dgx_h100();
  cluster.levels.clear();
  for (const std::int64_t size : sizes) {
    cluster.levels.push_back({test::infiniband(50), size, 2, 1});
    cluster.levels.back().ring = true;
  }
  return cluster;
}

TEST(Torus, AllReduceGoesDimensionByDimension) {
  // Each dimension is a ring with 2 ports a GPU; the second one has a quarter of the bytes left.
  const Collective all = call(CollectiveKind::kAllReduce, kHuge, {{16, 1}});
  const double expected = 2 * (3.0 / 4 + 3.0 / 4 / 4) * kHuge / (2 * kPort);
  EXPECT_NEAR(seconds("hierarchical", "simple", all, torus({4, 4})) / expected, 1, 1e-6);
  // 2 x (3 + 3) neighbors, one after the other.
  const Collective small = call(CollectiveKind::kAllReduce, kTiny, {{16, 1}});
  EXPECT_NEAR(seconds("hierarchical", "ll128", small, torus({4, 4})), (14 + 12 * 4.0 + 13) * kUs, 1e-9);
  EXPECT_LT(seconds("auto", "auto", small, torus({4, 4})), seconds("ring", "auto", small, torus({4, 4})))
      << "chosen by itself: 12 hops instead of 30";
}

TEST(Torus, AllToAllIsBoundByTheBisection) {
  // Half of the GPUs send half of their bytes through two cuts of every ring: P / 4 of a buffer a GPU over its 2 ports;
  // (P^2 - 1) / (4 P) where P is odd.
  for (const auto& [sizes, load] : std::vector<std::pair<std::vector<std::int64_t>, double>>{
           {{4, 4}, 1.0}, {{8, 4}, 2.0}, {{4, 4, 16}, 4.0}, {{5, 5}, 6.0 / 5}, {{2, 2}, 0.5}}) {
    std::int64_t ranks = 1;
    for (const std::int64_t size : sizes) ranks *= size;
    const Collective all = call(CollectiveKind::kAllToAll, kHuge, {{ranks, 1}});
    EXPECT_NEAR(seconds("direct", "simple", all, torus(sizes)) / (load * kHuge / (2 * kPort)), 1, 1e-6) << load;
    const Forecast f = *(*make_network_model(torus(sizes)))->forecast(all);
    EXPECT_NEAR(f.floor / s,
                std::max(load, (static_cast<double>(ranks) - 1) / static_cast<double>(ranks) /
                                   static_cast<double>(sizes.size())) *
                    kHuge / 100e9,
                1e-6 * kHuge / 100e9);
  }
}

TEST(Torus, PartOfARingIsALine) {
  // Two neighbors of a ring of four: one link there, one back.
  const Collective pair = call(CollectiveKind::kAllToAll, kHuge, {{2, 1}});
  EXPECT_NEAR(seconds("direct", "simple", pair, torus({4, 4})) / (0.5 * kHuge / kPort), 1, 1e-6);
  const Collective gather = call(CollectiveKind::kAllGather, kHuge, {{2, 1}});
  EXPECT_NEAR(seconds("ring", "simple", gather, torus({4, 4})) / (0.5 * kHuge / kPort), 1, 1e-6);
}

TEST(Torus, LatencyGrowsWithTheHops) {
  // Rounds of eight peers pay a hop each; the farthest peer is 2 + 2 hops away, 3 of them beyond the first.
  const Collective small = call(CollectiveKind::kAllToAll, kTiny, {{16, 1}});
  EXPECT_NEAR(seconds("direct", "ll", small, torus({4, 4})), (6.6 + 2.7 * (1 + 14.0 / 8) + 3 * 2.7 + 13) * kUs, 1e-9);
}

TEST(Torus, RefusesAlgorithmsThatAssumeASwitch) {
  NetworkModelOptions options;
  options.algorithm = "tree";
  const auto model = make_network_model(torus({4, 4}), options);
  EXPECT_FALSE((*model)->forecast(call(CollectiveKind::kAllReduce, 1e6, {{16, 1}})));
}

}  // namespace
}  // namespace ns_dist
