#include "ns_dist/next_measurements.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "calibration.h"
#include "ns_dist/kernel_table.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

using Steps = std::vector<std::vector<KernelUse>>;

Operator product(std::int64_t m, std::int64_t k = 4096) { return {Gemm{.m = m, .n = 4096, .k = k}, DType::kBf16}; }
Operator norm(std::int64_t rows) {
  return {Normalization{.kind = NormalizationKind::kRmsNorm, .rows = rows, .columns = 4096}, DType::kBf16};
}
Operator adam(std::int64_t parameters) { return {OptimizerStep{parameters}, DType::kBf16}; }

// Products and normalizations that take the same time, and an optimizer of which there are two kernels only.
std::vector<KernelUse> step() {
  const auto model = make_compute_model(h100());
  std::vector<KernelUse> kernels;
  for (const std::int64_t size : {256, 1024, 4096, 16384}) {
    for (const Operator& op : {product(size), norm(4 * size)}) {
      kernels.push_back({op, 1e-3 / ((*model)->forecast(op)->latency / units::s)});
    }
  }
  kernels.push_back({adam(1 << 20), 1});
  kernels.push_back({adam(1 << 24), 1});
  return kernels;
}

MeasurementAdvice advice(const KernelCalibration& calibration, std::size_t most = 20) {
  const Steps steps = {step()};
  auto found = next_measurements(h100(), calibration, steps, most);
  EXPECT_TRUE(found) << to_text(found.error());
  return *found;
}

// Measurements that took as long as forecast.
KernelCalibration measured(const std::vector<Operator>& ops) {
  const auto model = make_compute_model(h100());
  std::string text = kernel_rows("h100", ops);
  std::string with;
  std::size_t line = 0;
  for (std::size_t from = 0; from < text.size(); ++line) {
    const std::size_t end = text.find('\n', from);
    with += text.substr(from, end - from);
    with += line == 0 ? ",latency_ms" : fmt::format(",{}", (*model)->forecast(ops[line - 1])->latency / units::ms);
    with += '\n';
    from = end + 1;
  }
  const auto table = CsvTable::parse(with, "measured.csv");
  const auto calibration = calibrate_kernels(h100(), *table, {});
  EXPECT_TRUE(calibration) << to_text(calibration.error());
  return *calibration;
}

const KernelCalibration kNothing{"h100", Mode::kSustained, {}};

// Of a normally distributed error with a variance of 0.15^2 + 0.12^2 + 0.16^2 + 0.07^2 + 0.04^2 the mean size is
// sqrt(2 / pi) of its standard deviation.
TEST(NextMeasurements, WhereNothingWasMeasuredTheErrorIsThatOfTheProcess) {
  const double variance = 0.15 * 0.15 + 0.12 * 0.12 + 0.16 * 0.16 + 0.07 * 0.07 + 0.04 * 0.04;
  const double error = std::sqrt(2 / std::numbers::pi * variance);
  const MeasurementAdvice first = advice(kNothing);
  EXPECT_NEAR(first.error, error, 1e-12);
  for (const NextMeasurement& row : first.rows) EXPECT_NEAR(row.error, error, 1e-12);
}

// A family is corrected from three rows on, and one of two kernels can never be.
TEST(NextMeasurements, AFamilyWithoutRowsGetsThreeAtOnce) {
  const MeasurementAdvice three = advice(kNothing, 3);
  ASSERT_EQ(three.rows.size(), 3u);
  for (const NextMeasurement& row : three.rows) EXPECT_EQ(family_of(row.work), family_of(three.rows.front().work));
  EXPECT_TRUE(advice(kNothing, 2).rows.empty());
  const MeasurementAdvice all = advice(kNothing);
  EXPECT_GE(all.rows.size(), 6u);
  for (const NextMeasurement& row : all.rows) EXPECT_NE(family_of(row.work), "optimizer");
}

TEST(NextMeasurements, AFamilyWithoutRowsComesBeforeOneThatWasMeasured) {
  for (const bool products : {true, false}) {
    std::vector<Operator> ops;
    for (const std::int64_t size : {256, 1024, 4096}) ops.push_back(products ? product(size) : norm(4 * size));
    const MeasurementAdvice next = advice(measured(ops));
    ASSERT_GE(next.rows.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(family_of(next.rows[i].work), products ? "normalization" : "gemm");
  }
}

TEST(NextMeasurements, WhatWasMeasuredOftenIsNotProposed) {
  std::vector<Operator> ops;
  for (std::int64_t size = 256; size <= 16384; size *= 2) {
    for (const int k : {4096, 4224, 4352}) ops.push_back(product(size, k)), ops.push_back(norm(4 * size + k - 4096));
  }
  const MeasurementAdvice next = advice(measured(ops));
  EXPECT_TRUE(next.rows.empty());
  EXPECT_LT(next.error, 0.5 * advice(kNothing).error);
}

// What the greedy choice says will be left is what a calibration with these rows leaves.
TEST(NextMeasurements, TheErrorThatIsLeftIsThatOfTheNextCalibration) {
  const MeasurementAdvice first = advice(kNothing);
  std::vector<Operator> ops;
  double before = first.error;
  for (const NextMeasurement& row : first.rows) {
    EXPECT_LT(row.left, before);
    before = row.left;
    ops.push_back(row.work);
  }
  EXPECT_NEAR(advice(measured(ops)).error, first.rows.back().left, 1e-9);
}

// Twenty kernels of nearly one size are one question.
TEST(NextMeasurements, TwinsAreNotProposed) {
  std::vector<KernelUse> step;
  for (int i = 0; i < 20; ++i) step.push_back({product(8192 + 8 * i), 1});
  const auto next = next_measurements(h100(), kNothing, Steps{step}, 20);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->rows.size(), 3u);
}

TEST(NextMeasurements, StepsCountAlikeAndKernelsThatDoNotRunCountNothing) {
  std::vector<KernelUse> products, norms;
  for (const std::int64_t size : {1024, 4096, 16384})
    products.push_back({product(size), 1000}), norms.push_back({norm(size), 1});
  const auto both = next_measurements(h100(), kNothing, Steps{products, norms}, 20);
  ASSERT_TRUE(both);
  double share = 0;
  for (const NextMeasurement& row : both->rows) share += family_of(row.work) == "gemm" ? row.share : 0;
  EXPECT_NEAR(share, 0.5, 1e-12);
  for (KernelUse& use : norms) use.runs = 0;
  const auto one = next_measurements(h100(), kNothing, Steps{products, norms}, 20);
  ASSERT_TRUE(one);
  for (const NextMeasurement& row : one->rows) EXPECT_EQ(family_of(row.work), "gemm");
}

TEST(NextMeasurements, TheOrderOfTheKernelsDoesNotMatter) {
  std::vector<KernelUse> kernels = step();
  const auto forward = next_measurements(h100(), kNothing, Steps{kernels}, 20);
  std::reverse(kernels.begin(), kernels.end());
  const auto backward = next_measurements(h100(), kNothing, Steps{kernels}, 20);
  ASSERT_TRUE(forward && backward);
  ASSERT_EQ(forward->rows.size(), backward->rows.size());
  for (std::size_t i = 0; i < forward->rows.size(); ++i) EXPECT_EQ(forward->rows[i].work, backward->rows[i].work);
}

TEST(NextMeasurements, AnotherGpuIsAnError) {
  EXPECT_FALSE(next_measurements(h100(), {"a100", Mode::kSustained, {}}, Steps{step()}, 20));
}

}  // namespace
}  // namespace ns_dist
