#include "ns_dist/fair_sharing.h"

#include <gtest/gtest.h>

#include "links.h"
#include "support/clusters.h"
#include "support/completion_times.h"

namespace ns_dist {
namespace {

using namespace units;
using test::completion_times;
using test::TimedFlow;

std::vector<double> rates(const std::vector<BytesPerSecond>& capacities, const std::vector<SharedFlow>& flows) {
  const std::vector<BytesPerSecond> shared = max_min_rates(capacities, flows).value();
  std::vector<double> result;
  for (const BytesPerSecond rate : shared) result.push_back(rate / (GB / s));
  return result;
}

TimedFlow flow(std::vector<LinkUse> uses, Bytes size = 1 * GB, Seconds start = 0 * s) {
  TimedFlow result;
  result.uses = std::move(uses);
  result.size = size;
  result.start = start;
  return result;
}

// Bertsekas and Gallager 1992, figure 6.16 in kind: a long flow over two links, one short flow on each. The first link
// is shared in two; what the long flow leaves of the second goes to its short flow.
TEST(FairSharing, ParkingLotByHand) {
  const std::vector<BytesPerSecond> links = {10 * GB / s, 30 * GB / s};
  EXPECT_EQ(rates(links, {flow({{0}, {1}}), flow({{0}}), flow({{1}})}), (std::vector<double>{5, 5, 25}));
}

// A flow's own limit leaves its share to the others: 12 = 2 + 5 + 5.
TEST(FairSharing, LimitedFlowByHand) {
  std::vector<SharedFlow> flows = {flow({{0}}), flow({{0}}), flow({{0}})};
  flows[0].limit = 2 * GB / s;
  EXPECT_EQ(rates({12 * GB / s}, flows), (std::vector<double>{2, 5, 5}));
}

// Two flows of 10 and 4 GB on a link of 2 GB/s, the second from 1 s on. 1 s alone: 8 GB left. Then 1 GB/s each: the
// second ends after 4 s more, the first has 4 GB left and takes 2 s more alone.
TEST(FairSharing, CompletionByHand) {
  const auto ends =
      completion_times(std::vector{2 * GB / s}, std::vector{flow({{0}}, 10 * GB), flow({{0}}, 4 * GB, 1 * s)});
  ASSERT_TRUE(ends);
  EXPECT_NEAR((*ends)[0] / s, 7, 1e-9);
  EXPECT_NEAR((*ends)[1] / s, 5, 1e-9);
}

TEST(FairSharing, SharesWeighOnLinks) {
  // A flow that puts two bytes on the link for each of its own gets as many bytes as the other: 9 = 2 x 3 + 3.
  EXPECT_EQ(rates({9 * GB / s}, {flow({{0, 2}}), flow({{0, 1}})}), (std::vector<double>{3, 3}));
}

TEST(FairSharing, GapsBetweenFlowsPass) {
  const auto ends =
      completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, 1 * GB), flow({{0}}, 1 * GB, 5 * s)});
  EXPECT_NEAR((*ends)[0] / s, 1, 1e-12);
  EXPECT_NEAR((*ends)[1] / s, 6, 1e-12);
}

TEST(FairSharing, NothingAndLinklessFlowsEndAtOnce) {
  EXPECT_TRUE(completion_times({}, std::vector<TimedFlow>())->empty());
  const auto ends =
      completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, 0 * GB, 2 * s), flow({}, 1 * GB)});
  ASSERT_TRUE(ends);
  EXPECT_DOUBLE_EQ((*ends)[0] / s, 2);
  EXPECT_DOUBLE_EQ((*ends)[1] / s, 0);
}

TEST(FairSharing, RefusesWhatCannotBe) {
  EXPECT_FALSE(max_min_rates(std::vector{0 * GB / s}, {}));
  EXPECT_FALSE(max_min_rates(std::vector{1 * GB / s}, std::vector<SharedFlow>{flow({{1}})}));
  EXPECT_FALSE(max_min_rates(std::vector{1 * GB / s}, std::vector<SharedFlow>{flow({{0, -1}})}));
  EXPECT_FALSE(completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, -1 * GB)}));
  EXPECT_FALSE(completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, 1 * GB, -1 * s)}));
}

TEST(Footprint, CountsBytesIntoEachLevel) {
  const Cluster cluster = test::dgx_a100();
  const auto taken = *footprint(cluster, {CollectiveKind::kAllReduce, 64 * MB, {0, {{8, 1}, {4, 8}}}}, 1 * s);
  const auto bytes = [&](std::size_t level) {
    return taken.ports[level] * network::link_of(cluster.levels[level], cluster.gpu).bandwidth;
  };
  // Of 2 x 31 / 32 of the data, a GPU sends 3 / 32 twice through its port, the rest to the others of its node.
  EXPECT_NEAR(bytes(0), 2 * 28.0 / 32 * 64e6, 1e-3);
  EXPECT_NEAR(bytes(1), 2 * 3.0 / 4 * 64e6 / 8, 1e-3);
  EXPECT_NEAR(taken.memory_traffic / (B / s), 3 * 2 * 31.0 / 32 * 64e6, 1e-3);
}

// A leaf switch joins two nodes of four GPUs, a spine the leaves. Each byte is counted once, by where it goes: to the 3
// others of the node, to the 4 of the other node of the leaf, through both switches to the other leaves' 8.
TEST(Footprint, CountsEachByteOnce) {
  Cluster cluster = test::dgx_a100();
  cluster.levels[0].size = 4;
  cluster.levels[1].size = 2;
  cluster.levels.push_back(cluster.levels[1]);
  cluster.levels[2].size = 0;
  struct Case {
    CollectiveKind kind;
    double node, leaf, spine;  // over the size
    double passes = 2;         // through memory
  };
  const double rank = 1.0 / 16;
  for (const Case& want : {
           Case{CollectiveKind::kAllToAll, 3 * rank, 12 * rank, 8 * rank},
           Case{CollectiveKind::kScatter, 3 * rank, 12 * rank, 8 * rank},
           Case{CollectiveKind::kGather, 3 * rank, 12 * rank, 8 * rank},
           // A ring: of 15/16, what leaves a node is the share of one of its four GPUs.
           Case{CollectiveKind::kAllGather, 15 * rank - 12 * rank / 4, 12 * rank / 4, 8 * rank / 8},
           Case{CollectiveKind::kAllReduce, 2 * (15 * rank - 12 * rank / 4), 2 * 12 * rank / 4, 2 * 8 * rank / 8, 3},
           Case{CollectiveKind::kBroadcast, 1 - 1.0 / 4, 1.0 / 4, 1.0 / 8},
       }) {
    const auto taken = *footprint(cluster, {want.kind, 64 * MB, {0, {{16, 1}}}}, 1 * s);
    const std::vector<network::Link> links = network::links_of(cluster);
    const auto share = [&](std::size_t level) { return taken.ports[level] * links[level].bandwidth / 64e6; };
    EXPECT_NEAR(share(0), want.node, 1e-9) << name_of(want.kind);
    EXPECT_NEAR(share(1), want.leaf, 1e-9) << name_of(want.kind);
    EXPECT_NEAR(share(2), want.spine, 1e-9) << name_of(want.kind);
    EXPECT_NEAR(taken.memory_traffic / (B / s) / 64e6, want.passes * (want.node + want.leaf), 1e-9)
        << name_of(want.kind);
  }
}

// One copy of a token for each node crosses the network; in the node one goes on to each rank.
TEST(Footprint, CountsCopiesOfTokensForNodes) {
  const Cluster cluster = test::dgx_a100();
  const Routing routing{256, 8, 8, 4};
  const double tokens = 64e6, ranks = parts_reached(routing, 64);
  const Collective call{
      .kind = CollectiveKind::kAllToAll, .size = ranks * tokens * B, .group = {0, {{64, 1}}}, .routing = routing};
  const auto taken = *footprint(cluster, call, 1 * s);
  const auto bytes = [&](std::size_t level) {
    return taken.ports[level] * network::link_of(cluster.levels[level], cluster.gpu).bandwidth;
  };
  EXPECT_NEAR(bytes(0), ranks * 7 / 8 * tokens, 1e-3);
  EXPECT_NEAR(bytes(1), parts_reached(routing, 8) * 7 / 8 * tokens, 1e-3);
}

// Two ports of 25 GB/s (0.94 reached) have two channels each, on a PCIe that passes both. One that fills less than a
// port (0.75 of 16 GB/s) leaves the other one idle.
TEST(Footprint, PortsThatPcieCannotFillHaveNoChannels) {
  Cluster cluster = test::dgx_a100();
  cluster.levels[1].nics_per_gpu = 2;
  const auto channels = [&](double pcie) {
    cluster.gpu.pcie_bandwidth = pcie * GB / s;
    return footprint(cluster, {CollectiveKind::kAllReduce, 64 * MB, {0, {{2, 8}}}}, 1 * s)->channels;
  };
  EXPECT_DOUBLE_EQ(channels(64), 4);
  EXPECT_DOUBLE_EQ(channels(32), 2 * 0.75 * 32 / (0.94 * 25));
  EXPECT_DOUBLE_EQ(channels(16), 2);
}

}  // namespace
}  // namespace ns_dist
