#include "ns_dist/mesh.h"

#include <gtest/gtest.h>

#include <set>

namespace ns_dist {
namespace {

Mesh grid() { return Mesh::innermost_first({"tp", "cp", "dp", "pp"}, {2, 1, 3, 4}); }

TEST(Mesh, StridesFollowTheOrder) {
  EXPECT_EQ(grid().ranks(), 24);
  EXPECT_EQ(grid().stride("tp"), 1);
  EXPECT_EQ(grid().stride("dp"), 2);
  EXPECT_EQ(grid().stride("pp"), 6);
  EXPECT_EQ(grid().coordinate(23, "pp"), 3);
  EXPECT_EQ(grid().coordinate(23, "dp"), 2);
  EXPECT_EQ(grid().coordinate(23, "ep"), 0);
}

// Pairs of mirrored pipeline stages, 8 ranks a stage: stages 1 and 2 of four, 2 and 5 of eight.
TEST(RankGroup, OfAMemberIsTheGroup) {
  const RankGroup inner{8, {{2, 8}}}, outer{16, {{2, 24}}};
  for (const RankGroup& group : {inner, outer}) {
    EXPECT_EQ(group.of(group.at(0)), group);
    EXPECT_EQ(group.of(group.at(1)), group);
    EXPECT_EQ(group.of(group.at(1) + 3), (RankGroup{group.first + 3, group.strides}));
  }
}

TEST(Mesh, GroupsOfAnAxisPartitionTheRanks) {
  for (const std::vector<std::string_view>& axes :
       {std::vector<std::string_view>{"tp"}, {"dp"}, {"pp"}, {"tp", "dp"}, {"tp", "pp"}, {}}) {
    std::set<Rank> seen;
    for (Rank rank = 0; rank < grid().ranks(); ++rank) {
      const RankGroup group = grid().group(rank, axes);
      bool contains = false;
      for (std::int64_t i = 0; i < group.size(); ++i) contains |= group.at(i) == rank;
      EXPECT_TRUE(contains);
      EXPECT_EQ(group.of(rank), group);
      if (group.first == rank) {
        for (std::int64_t i = 0; i < group.size(); ++i) EXPECT_TRUE(seen.insert(group.at(i)).second);
      }
    }
    EXPECT_EQ(seen.size(), 24u);
  }
}

}  // namespace
}  // namespace ns_dist
