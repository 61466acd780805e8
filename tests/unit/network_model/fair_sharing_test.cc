#include "ns_dist/fair_sharing.h"

#include <gtest/gtest.h>

#include "clusters.h"
#include "ns_dist/network_model.h"

namespace ns_dist {
namespace {

using namespace units;

std::vector<double> rates(const std::vector<BytesPerSecond>& capacities, const std::vector<SharedFlow>& flows) {
  const std::vector<BytesPerSecond> shared = max_min_rates(capacities, flows).value();
  std::vector<double> result;
  for (const BytesPerSecond rate : shared) result.push_back(rate / (GB / s));
  return result;
}

SharedFlow flow(std::vector<LinkUse> uses, Bytes size = 1 * GB, Seconds start = 0 * s) {
  SharedFlow result;
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
  EXPECT_TRUE(completion_times({}, {})->empty());
  const auto ends =
      completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, 0 * GB, 2 * s), flow({}, 1 * GB)});
  ASSERT_TRUE(ends);
  EXPECT_DOUBLE_EQ((*ends)[0] / s, 2);
  EXPECT_DOUBLE_EQ((*ends)[1] / s, 0);
}

TEST(FairSharing, RefusesWhatCannotBe) {
  EXPECT_FALSE(max_min_rates(std::vector{0 * GB / s}, {}));
  EXPECT_FALSE(max_min_rates(std::vector{1 * GB / s}, std::vector{flow({{1}})}));
  EXPECT_FALSE(max_min_rates(std::vector{1 * GB / s}, std::vector{flow({{0, -1}})}));
  EXPECT_FALSE(completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, -1 * GB)}));
  EXPECT_FALSE(completion_times(std::vector{1 * GB / s}, std::vector{flow({{0}}, 1 * GB, -1 * s)}));
}

TEST(ConcurrentCollectives, AloneTheyTakeTheirForecast) {
  const Cluster cluster = test::dgx_a100();
  const auto network = *make_network_model(cluster);
  const Collective call{CollectiveKind::kAllReduce, 256 * MiB, {0, {{8, 8}}}};
  const auto ends = concurrent_collectives(cluster, *network, std::vector<TimedCollective>{{call, 1 * ms}});
  ASSERT_TRUE(ends);
  EXPECT_NEAR((*ends)[0] / (1 * ms + network->forecast(call)->latency), 1, 1e-9);
}

TEST(ConcurrentCollectives, SamePortsAreSharedOthersAreNot) {
  const Cluster cluster = test::dgx_a100();
  const auto network = *make_network_model(cluster);
  const Collective across{CollectiveKind::kAllGather, 1 * GiB, {0, {{8, 8}}}};
  const Collective inside{CollectiveKind::kAllGather, 1 * GiB, {0, {{8, 1}}}};
  const double alone = network->forecast(across)->latency / s;
  const auto both =
      *concurrent_collectives(cluster, *network, std::vector<TimedCollective>{{across, {}}, {across, {}}});
  EXPECT_GT(both[0] / s, 1.7 * alone);  // their latencies overlap, their bytes do not
  EXPECT_LE(both[0] / s, 2 * alone * (1 + 1e-9));
  const auto apart =
      *concurrent_collectives(cluster, *network, std::vector<TimedCollective>{{across, {}}, {inside, {}}});
  EXPECT_NEAR(apart[0] / s, alone, 1e-9 * alone);
  EXPECT_NEAR(apart[1] / s, network->forecast(inside)->latency / s, 1e-9 * alone);
}

TEST(LevelLoads, CountBytesIntoEachLevel) {
  const Cluster cluster = test::dgx_a100();
  const auto loads = *level_loads(cluster, {CollectiveKind::kAllReduce, 64 * MB, {0, {{8, 1}, {4, 8}}}});
  EXPECT_DOUBLE_EQ(loads[0] / MB, 2 * 31.0 / 32 * 64);
  EXPECT_DOUBLE_EQ(loads[1] / MB, 2 * 3.0 / 4 * 64 / 8);
}

}  // namespace
}  // namespace ns_dist
