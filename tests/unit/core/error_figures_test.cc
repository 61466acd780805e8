#include "ns_dist/error_figures.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

TEST(ErrorFigures, OfNoneIsZero) {
  const ErrorFigures none = figures_of({});
  EXPECT_EQ(none.rows, 0u);
  EXPECT_EQ(none.mean, 0);
  EXPECT_EQ(none.largest, 0);
}

TEST(ErrorFigures, OfOneIsThatOne) {
  const ErrorFigures one = figures_of({-0.25});
  EXPECT_EQ(one.rows, 1u);
  for (const double figure : {one.mean, one.median, one.p90, one.largest}) EXPECT_EQ(figure, 0.25);
  EXPECT_EQ(one.bias, -0.25);
}

TEST(ErrorFigures, SizesWithoutSignsAndTheBiasWithThem) {
  // 0.01, -0.02, 0.03, ..., -0.10
  std::vector<double> errors;
  for (int i = 1; i <= 10; ++i) errors.push_back((i % 2 == 0 ? -0.01 : 0.01) * i);
  const ErrorFigures ten = figures_of(errors);
  EXPECT_EQ(ten.rows, 10u);
  EXPECT_NEAR(ten.mean, 0.055, 1e-12);
  EXPECT_NEAR(ten.bias, -0.005, 1e-12);
  EXPECT_DOUBLE_EQ(ten.median, 0.055);  // of 0.05 and 0.06
  EXPECT_DOUBLE_EQ(ten.p90, 0.10);      // nine below
  EXPECT_DOUBLE_EQ(ten.largest, 0.10);
}

}  // namespace
}  // namespace ns_dist
