#include "learn/fit_sums.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

constexpr std::array<std::string_view, 2> kNames = {"launch", "work"};
const SumKind kKind{.terms = kNames, .reach = {1, 1, 1, 1, 1, 1, 1, 1}, .prior = 1e-6, .wider = 1e-6, .gpu = 1e-6};

// A kernel of `work` s of work, with coefficients that differ by GPU.
MeasuredSum row(const char* gpu, double work, double launch, double share) {
  MeasuredSum one;
  one.sum.kernel = std::string("forward/") + gpu;
  one.sum.terms = {1e-6, work};
  one.sum.prior = {3, 1.1};
  one.seconds = launch * 1e-6 + share * work;
  return one;
}

TEST(FitSums, FindsTheCoefficientsOfEachGpu) {
  std::vector<MeasuredSum> rows;
  for (const double work : {1e-6, 1e-5, 1e-4, 1e-3}) {
    rows.push_back(row("one", work, 2, 1.5));
    rows.push_back(row("two", work, 5, 1.2));
  }
  const Sums sums = fit_sums(kKind, rows);
  ASSERT_EQ(sums.size(), 3U);
  EXPECT_NEAR(sums.at("forward/one")[0], 2, 1e-3);
  EXPECT_NEAR(sums.at("forward/one")[1], 1.5, 1e-3);
  EXPECT_NEAR(sums.at("forward/two")[0], 5, 1e-3);
  const Terms& both = sums.at("forward");
  EXPECT_GT(both[1], 1.2);
  EXPECT_LT(both[1], 1.5);
  EXPECT_EQ(coefficients_of(sums, row("three", 1, 0, 0).sum), both) << "a GPU that was not measured";
  TermSum other = rows[0].sum;
  other.kernel = "backward/one";
  EXPECT_EQ(coefficients_of(sums, other), other.prior) << "a kernel that was not measured";
}

// Work that costs less the more there is of it would have a negative share.
TEST(FitSums, CoefficientsAreNotNegative) {
  const Sums sums = fit_sums(kKind, {row("one", 1e-6, 10, -2), row("one", 2e-6, 10, -2), row("one", 3e-6, 10, -2)});
  for (const auto& [kernel, coefficients] : sums) {
    for (const double coefficient : coefficients) EXPECT_GE(coefficient, 0) << kernel;
  }
  EXPECT_EQ(sums.at("forward")[1], 0);
}

// One row of 21 that takes a tenth of the time moves the others' forecast by less than 5 %; squares alone would put it
// to a quarter.
TEST(FitSums, OneRowThatIsFarOffCountsLittle) {
  std::vector<MeasuredSum> rows;
  for (int i = 1; i <= 20; ++i) rows.push_back(row("one", i * 1e-4, 0, 1));
  rows.push_back(row("one", 5e-4, 0, 0.1));
  EXPECT_NEAR(fit_sums(kKind, rows).at("forward")[1], 1, 0.05);
}

// With few rows of its own a GPU stays near its class.
TEST(FitSums, APriceKeepsCoefficientsNearTheWiderClass) {
  SumKind dear = kKind;
  dear.gpu = 1e6;
  std::vector<MeasuredSum> rows;
  for (const double work : {1e-4, 1e-3, 1e-2}) {
    for (int i = 0; i < 10; ++i) rows.push_back(row("one", work, 2, 1));
  }
  rows.push_back(row("two", 1e-3, 2, 1.3));
  const Sums sums = fit_sums(dear, rows);
  EXPECT_NEAR(sums.at("forward/two")[1], sums.at("forward")[1], 1e-3);
  EXPECT_NEAR(fit_sums(kKind, rows).at("forward/two")[1], 1.3, 1e-2);
}

}  // namespace
}  // namespace ns_dist
