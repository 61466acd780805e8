#include "ns_dist/interval_sum.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ns_dist {
namespace {

// Half-widths 3 and 4 below, 6 and 8 above.
IntervalSum two() {
  IntervalSum sum;
  sum.add({10, 7, 16});
  sum.add({20, 16, 28});
  return sum;
}

TEST(IntervalSum, OnePartKeepsItsIntervalWhateverIsShared) {
  for (const double share : {0.0, 0.3, 1.0}) {
    IntervalSum sum;
    sum.add({10, 7, 16});
    EXPECT_DOUBLE_EQ(sum.estimate(share).value, 10);
    EXPECT_DOUBLE_EQ(sum.estimate(share).low, 7);
    EXPECT_DOUBLE_EQ(sum.estimate(share).high, 16);
  }
}

TEST(IntervalSum, EndsAddWhenAllIsSharedAndSquaresWhenNothingIs) {
  EXPECT_DOUBLE_EQ(two().estimate(1).low, 30 - (3 + 4));
  EXPECT_DOUBLE_EQ(two().estimate(1).high, 30 + (6 + 8));
  EXPECT_DOUBLE_EQ(two().estimate(0).low, 30 - 5);    // 3, 4, 5
  EXPECT_DOUBLE_EQ(two().estimate(0).high, 30 + 10);  // 6, 8, 10
  EXPECT_DOUBLE_EQ(two().estimate(0.6).low, 30 - std::sqrt(0.36 * 49 + 0.64 * 25));
}

TEST(IntervalSum, TheSamePartManyTimesErrsAsOne) {
  IntervalSum sum, more;
  sum.add({1, 0.5, 2}, 24);
  EXPECT_DOUBLE_EQ(sum.estimate(0).low, 12);
  EXPECT_DOUBLE_EQ(sum.estimate(0).high, 48);
  more.add(two(), 3);
  EXPECT_DOUBLE_EQ(more.value(), 90);
  EXPECT_DOUBLE_EQ(more.estimate(0).low, 90 - 15);
  EXPECT_DOUBLE_EQ(more.estimate(1).high, 90 + 42);
}

TEST(IntervalSum, SumsOfSumsAreSumsOfTheirParts) {
  IntervalSum all = two(), parts = two();
  all.add(two());
  parts.add({10, 7, 16});
  parts.add({20, 16, 28});
  EXPECT_DOUBLE_EQ(all.estimate(0.5).low, parts.estimate(0.5).low);
  EXPECT_DOUBLE_EQ(all.estimate(0.5).high, parts.estimate(0.5).high);
}

}  // namespace
}  // namespace ns_dist
