#include "ns_dist/routing.h"

#include <gtest/gtest.h>

#include <bit>

namespace ns_dist {
namespace {

// DeepSeek-V3: 256 experts in 8 groups, 8 for each token out of 4 groups, a group on each of 8 nodes.
constexpr Routing kLimited = {256, 8, 8, 4};

// The mean over all choices of groups, and of experts in them.
double counted(const Routing& routing, std::int64_t parts) {
  const std::int64_t in_group = routing.experts / routing.groups;
  double sum = 0, choices = 0;
  for (std::uint32_t experts = 0; experts < 1u << routing.experts; ++experts) {
    if (std::popcount(experts) != routing.top_k) continue;
    // Choices of groups that hold these experts; each choice of groups has as many choices of experts.
    double ways = 0;
    for (std::uint32_t groups = 0; groups < 1u << routing.groups; ++groups) {
      if (std::popcount(groups) != routing.top_groups) continue;
      bool holds = true;
      for (std::int64_t e = 0; e < routing.experts; ++e) {
        holds = holds && (((experts >> e) & 1) == 0 || ((groups >> (e / in_group)) & 1) == 1);
      }
      ways += holds ? 1 : 0;
    }
    std::uint32_t reached = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t first = routing.experts * part / parts, end = routing.experts * (part + 1) / parts;
      const std::uint32_t here = (1u << end) - (1u << first);
      reached += (experts & here) != 0 ? 1 : 0;
    }
    sum += ways * reached, choices += ways;
  }
  return sum / choices;
}

// Parts that are groups, parts of groups, several groups, and neither.
TEST(Routing, IsTheMeanOverAllChoices) {
  for (const Routing& routing : {Routing{12, 3, 4, 2}, Routing{12, 2, 3, 1}, Routing{12, 4, 6, 3}, Routing{12, 3}}) {
    for (const std::int64_t parts : {1, 2, 3, 4, 5, 6, 8, 12}) {
      EXPECT_NEAR(parts_reached(routing, parts), counted(routing, parts), 1e-12)
          << routing.groups << " groups, " << routing.top_groups << " of them, " << parts << " parts";
    }
  }
}

TEST(Routing, NodesOfDeepSeekV3) {
  // A token misses one of its 4 groups with C(96, 8) / C(128, 8), a product of eight factors.
  double missed = 1;
  for (int i = 0; i < 8; ++i) missed *= (96.0 - i) / (128.0 - i);
  EXPECT_NEAR(parts_reached(kLimited, 8), 4 * (1 - missed), 1e-12);
  EXPECT_NEAR(parts_reached(kLimited, 8), 3.63, 0.005);
  EXPECT_NEAR(parts_reached({256, 8}, 8), 5.29, 0.005);  // without the limit
}

TEST(Routing, OneGroupAndAllGroupsAreNoLimit) {
  for (const std::int64_t parts : {2, 8, 64}) {
    double missed = 1;
    const double here = 256.0 / static_cast<double>(parts);
    for (int i = 0; i < 8; ++i) missed *= (256 - here - i) / (256.0 - i);
    EXPECT_NEAR(parts_reached({256, 8, 1, 1}, parts), static_cast<double>(parts) * (1 - missed), 1e-12);
    EXPECT_EQ(parts_reached({256, 8, 8, 8}, parts), parts_reached({256, 8, 1, 1}, parts));
  }
}

TEST(Routing, FewerGroupsNeverReachMoreParts) {
  for (const std::int64_t parts : {2, 3, 4, 8, 16, 64, 256}) {
    for (std::int64_t top = 2; top <= 8; ++top) {
      EXPECT_LE(parts_reached({256, 8, 8, top - 1}, parts), parts_reached({256, 8, 8, top}, parts) + 1e-12)
          << top << " groups, " << parts << " parts";
    }
  }
  EXPECT_NEAR(parts_reached({256, 8, 8, 1}, 8), 1, 1e-12);
  EXPECT_NEAR(parts_reached(kLimited, 256), 8, 1e-12);  // a part for each expert
  EXPECT_NEAR(parts_reached(kLimited, 1), 1, 1e-12);
}

TEST(Routing, TopGroupsHoldTheExpertsOfAToken) {
  EXPECT_TRUE(is_possible(kLimited));
  EXPECT_FALSE(is_possible({256, 8, 7, 4}));
  EXPECT_FALSE(is_possible({256, 8, 8, 9}));
  EXPECT_FALSE(is_possible({16, 8, 8, 3}));
  EXPECT_FALSE(is_possible({8, 9}));
}

}  // namespace
}  // namespace ns_dist
