#include "ns_dist/collective_calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Cluster dgx() { return *Catalog::standard().cluster("dgx-h100"); }

// All-reduces and all-gathers of 8 ranks, 64 KiB to 1 GiB, which took `factor(row)` times the forecast.
std::vector<MeasuredCollective> measured(const std::function<double(std::size_t)>& factor) {
  CollectiveForecaster forecaster([](auto, auto) -> Result<Cluster> { return dgx(); });
  std::vector<MeasuredCollective> rows;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather}) {
    for (int octave = 16; octave <= 30; octave += 2) {
      CollectiveRow row;
      row.cluster = "dgx-h100", row.kind = kind, row.ranks = 8, row.size = std::exp2(octave) * units::B;
      row.latency_ms = forecaster.forecast(row)->forecast.latency / units::ms * factor(rows.size());
      rows.push_back({row, fmt::format("mine.csv:{}", rows.size() + 2)});
    }
  }
  return rows;
}

CollectiveCalibration calibrated(std::vector<MeasuredCollective> rows) {
  auto found = calibrate_collectives(dgx(), std::move(rows), "mine.csv");
  EXPECT_TRUE(found) << to_text(found.error());
  return *found;
}

// A machine that is slow as a whole: each row is forecast by the others.
TEST(CollectiveCalibration, TheErrorIsThatOfRowsThatAreHeldOut) {
  const CollectiveCalibration slow = calibrated(measured([](std::size_t) { return 1.4; }));
  EXPECT_NEAR(slow.before, 1 - 1 / 1.4, 1e-3);
  EXPECT_LT(slow.after, 0.01);
  EXPECT_THAT(slow.notes, ElementsAre());
  EXPECT_EQ(slow.rows, 16U);
  // Noise that tells nothing of other sizes: the curve is nearer to its own rows than to those that it did not see.
  const CollectiveCalibration noisy = calibrated(measured([](std::size_t i) { return i % 2 == 0 ? 0.85 : 1.18; }));
  EXPECT_GT(noisy.after, noisy.before);
}

TEST(CollectiveCalibration, AWildRowIsLeftOutAndNamed) {
  for (const double wild : {1e3, 20., 0.02}) {
    const auto found = calibrated(measured([&](std::size_t i) { return i == 12 ? wild : 1.2; }));
    ASSERT_EQ(found.notes.size(), 1U) << wild;
    EXPECT_THAT(found.notes[0], HasSubstr("mine.csv:14: left out, because it takes"));
    EXPECT_EQ(found.rows, 15U);
    EXPECT_LT(found.after, 0.02) << wild;
  }
  // The smallest of five sizes, which bends the curve of the others.
  std::vector<MeasuredCollective> few = measured([](std::size_t i) { return i == 0 ? 1e3 : 1.2; });
  few.erase(few.begin() + 5, few.begin() + 8);
  const auto smallest = calibrated(few);
  ASSERT_EQ(smallest.notes.size(), 1U);
  EXPECT_THAT(smallest.notes[0], HasSubstr("mine.csv:2: left out"));
  // One in each collective.
  const auto two = calibrated(measured([&](std::size_t i) { return i == 3 || i == 12 ? 1e3 : 1.2; }));
  EXPECT_EQ(two.notes.size(), 2U);
  EXPECT_LT(two.after, 0.02);
}

TEST(CollectiveCalibration, RowsThatContradictEachOtherAreNamed) {
  std::vector<MeasuredCollective> rows = measured([](std::size_t) { return 1.; });
  MeasuredCollective again = rows[5];
  *again.row.latency_ms *= 1.35;
  again.place = "mine.csv:18";
  rows.push_back(again);
  const CollectiveCalibration found = calibrated(rows);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_EQ(found.notes[0],
            "1 collective has rows that contradict each other, most of all all_reduce of 8 ranks, 67.108864 MB: one "
            "takes 1.35 times as long as another (mine.csv:18, mine.csv:7)");
}

// All-to-alls whose busiest rank receives more take longer, and contradict no others of their size.
TEST(CollectiveCalibration, UnevenRowsContradictNoEvenOnes) {
  CollectiveForecaster forecaster([](auto, auto) -> Result<Cluster> { return dgx(); });
  std::vector<MeasuredCollective> rows;
  for (const double imbalance : {1.0, 2.0}) {
    for (const double mib : {1, 16, 256}) {
      CollectiveRow row;
      row.cluster = "dgx-h100", row.kind = CollectiveKind::kAllToAll, row.ranks = 8, row.size = mib * units::MiB;
      row.imbalance = imbalance;
      row.latency_ms = forecaster.forecast(row)->forecast.latency / units::ms;
      rows.push_back({row, fmt::format("mine.csv:{}", rows.size() + 2)});
    }
  }
  ASSERT_GT(*rows[5].row.latency_ms, 1.5 * *rows[2].row.latency_ms);
  EXPECT_THAT(calibrated(rows).notes, ElementsAre());
}

// One collective in another unit is no measurement of it; nor is what no link allows.
TEST(CollectiveCalibration, WhatCannotBeIsLeftOut) {
  const CollectiveCalibration unit = calibrated(measured([](std::size_t i) { return i < 8 ? 1000. : 1.2; }));
  ASSERT_FALSE(unit.notes.empty());
  EXPECT_THAT(unit.notes[0], HasSubstr("all_reduce of 8 ranks: the middle one takes 1000 times as long as forecast"));
  EXPECT_EQ(unit.rows, 8U);
  EXPECT_LT(unit.after, 0.02);
  const auto fast = calibrated(measured([](std::size_t i) { return i % 8 == 7 ? 0.3 : 1.2; }));
  ASSERT_FALSE(fast.notes.empty());
  EXPECT_THAT(fast.notes[0], HasSubstr("2 rows are faster than the links of the data sheet allow (mine.csv:9, ...)"));
  const auto all = calibrate_collectives(dgx(), measured([](std::size_t) { return 0.2; }), "mine.csv");
  ASSERT_FALSE(all);
  EXPECT_THAT(to_text(all.error()), HasSubstr("10 of 16 rows are faster than the links of the data sheet allow"));
}

// Of two sizes nobody knows what the others take.
TEST(CollectiveCalibration, FewSizesAreLeftOut) {
  std::vector<MeasuredCollective> rows = measured([](std::size_t) { return 1.3; });
  rows.erase(rows.begin() + 2, rows.begin() + 8);
  const CollectiveCalibration found = calibrated(rows);
  EXPECT_EQ(found.rows, 8U);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_THAT(found.notes[0], HasSubstr("all_reduce of 8 ranks: 2 sizes, and a correction needs 3"));
  for (const CalibrationCurve& curve : found.curves.curves) EXPECT_EQ(curve.kind, CollectiveKind::kAllGather);
  // Rows that name full nodes are of the same groups as rows that say nothing.
  std::vector<MeasuredCollective> named = measured([](std::size_t) { return 1.3; });
  named.erase(named.begin() + 4, named.end());
  for (std::size_t i = 0; i < 4; i += 2) named[i].row.gpus_per_node = 8;
  EXPECT_EQ(calibrated(named).rows, 4U);
  // A barrier has one size.
  MeasuredCollective barrier = named[0];
  barrier.row.kind = CollectiveKind::kBarrier, barrier.row.size = Bytes();
  named.push_back(barrier);
  const CollectiveCalibration with_barrier = calibrated(named);
  EXPECT_EQ(with_barrier.rows, 5U);
  EXPECT_THAT(with_barrier.notes, ElementsAre());
  rows.resize(2);
  const auto refused = calibrate_collectives(dgx(), rows, "mine.csv");
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()),
              ::testing::AllOf(HasSubstr("mine.csv: too few measurements of dgx-h100"), HasSubstr("2 sizes")));
}

}  // namespace
}  // namespace ns_dist
