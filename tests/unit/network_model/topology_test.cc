#include "topology.h"

#include <gtest/gtest.h>

#include "support/clusters.h"

namespace ns_dist::network {
namespace {

Placement place(const Cluster& cluster, const RankGroup& group) {
  const Result<Topology> topology = Topology::of(cluster);
  EXPECT_TRUE(topology) << (topology ? "" : to_text(topology.error()));
  const Result<Placement> placement = topology->place(group);
  EXPECT_TRUE(placement) << (placement ? "" : to_text(placement.error()));
  return *placement;
}

TEST(Topology, TensorParallelGroupStaysInsideTheNode) {
  const Placement p = place(test::dgx_a100(), {16, {{8, 1}}});
  ASSERT_EQ(p.tier_count, 1u);
  EXPECT_EQ(p.tiers[0].level, 0u);
  EXPECT_EQ(p.tiers[0].parts, 8);
  EXPECT_EQ(p.tiers[0].members, 1);
}

TEST(Topology, DataParallelGroupHasOneRankANode) {
  const Placement p = place(test::dgx_a100(), {3, {{16, 8}}});
  ASSERT_EQ(p.tier_count, 1u);
  EXPECT_EQ(p.tiers[0].level, 1u);
  EXPECT_EQ(p.tiers[0].parts, 16);
  EXPECT_EQ(p.tiers[0].members, 1);
}

TEST(Topology, GroupOverSeveralNodesSpansBothLevels) {
  const Placement p = place(test::dgx_a100(4), {0, {{4, 2}, {4, 8}}});
  ASSERT_EQ(p.tier_count, 2u);
  EXPECT_EQ(p.tiers[0].parts, 4);
  EXPECT_EQ(p.tiers[0].all_parts, 16);
  EXPECT_EQ(p.tiers[1].parts, 4);
  EXPECT_EQ(p.tiers[1].members, 4);
}

TEST(Topology, GroupThatCrossesANodeUnevenlyIsCounted) {
  const Placement p = place(test::dgx_a100(2), {6, {{3, 1}}});  // ranks 6, 7 | 8
  ASSERT_EQ(p.tier_count, 2u);
  EXPECT_EQ(p.tiers[0].parts, 2);
  EXPECT_EQ(p.tiers[1].parts, 2);
  EXPECT_EQ(p.tiers[1].members, 1);
  EXPECT_EQ(p.tiers[1].max_members, 2);
}

// The ranks of a plan whose number is no multiple of a node's: 16 x 99,991, two nodes of eight to each replica.
TEST(Topology, AsManyRanksAsAPlanHasAreCounted) {
  const Placement p = place(test::dgx_a100(0), {0, {{1'599'857, 1}}});
  EXPECT_EQ(p.ranks, 1'599'857);
  EXPECT_EQ(p.tiers[1].all_parts, 199'983);
}

TEST(Topology, AlignedAndCountedPlacementsAgree) {
  // The second group holds the same ranks, with a stride of one member that defeats no alignment.
  Cluster cluster = test::dgx_a100(8);
  cluster.levels[1].size = 4;
  cluster.levels.push_back({test::infiniband(25), 2, 1, 2});  // leaf of 4 nodes, spine of 2 leaves
  const Placement p = place(cluster, {0, {{8, 8}}});
  ASSERT_EQ(p.tier_count, 2u);
  EXPECT_EQ(p.tiers[0].level, 1u);
  EXPECT_EQ(p.tiers[0].parts, 4);
  EXPECT_EQ(p.tiers[0].all_parts, 8);
  EXPECT_EQ(p.tiers[1].level, 2u);
  EXPECT_EQ(p.tiers[1].members, 4);
  const Placement shifted = place(cluster, {0, {{7, 8}}});  // 7 x 8 does not divide 32
  ASSERT_EQ(shifted.tier_count, 2u);
  EXPECT_EQ(shifted.tiers[1].members, 3);
  EXPECT_EQ(shifted.tiers[1].max_members, 4);
}

TEST(Topology, RefusesWhatDoesNotLieOnTheCluster) {
  const Topology topology = *Topology::of(test::dgx_a100(2));
  EXPECT_FALSE(topology.place({0, {{17, 1}}}));
  EXPECT_FALSE(topology.place({-1, {{2, 1}}}));
  EXPECT_FALSE(topology.place({0, {{0, 1}}}));
  EXPECT_FALSE(topology.place({0, {{2, 0}}}));
  EXPECT_FALSE(topology.place({0, {{4, 1}, {2, 2}}}));
  EXPECT_FALSE(topology.place({0, {{std::int64_t{1} << 62, 1}}}));
  EXPECT_EQ(topology.place({0, {{2, 16}}}).error().code, ErrorCode::kInfeasible);
}

TEST(Topology, RefusesContradictoryClusters) {
  Cluster cluster = test::dgx_a100(2);
  cluster.levels.front().size = 0;
  EXPECT_FALSE(Topology::of(cluster));
  cluster.levels.clear();
  EXPECT_FALSE(Topology::of(cluster));
}

}  // namespace
}  // namespace ns_dist::network
