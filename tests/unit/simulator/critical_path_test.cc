#include "ns_dist/critical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ns_dist/report.h"
#include "step_interval.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::ElementsAre;

TEST(CriticalPath, TakesTheLongerBranchAndTheOrderOfTheLane) {
  GraphSketch sketch(1);
  const NodeId a = sketch.compute(0, 1 * s);
  const NodeId slow = sketch.collective(0, Stream::kTensorParallel, Category::kTensorParallel, 5 * s, {a});
  sketch.compute(0, 2 * s);
  const NodeId c = sketch.compute(0, 1 * s, {slow});
  const NodeId d = sketch.compute(0, 1 * s);
  const ExecutionGraph graph = sketch.build();
  const CriticalPath path = critical_path(graph, sketch.durations());
  EXPECT_THAT(path.nodes, ElementsAre(a, slow, c, d));
  EXPECT_EQ(path.length / s, 8);
}

TEST(CriticalPath, OfNothingIsNothing) {
  GraphSketch sketch(1);
  const ExecutionGraph graph = sketch.build();
  const CriticalPath path = critical_path(graph, sketch.durations());
  EXPECT_TRUE(path.nodes.empty());
  EXPECT_EQ(path.length, Seconds());
}

TEST(Hotspots, WhatDoesNothingIsAWait) {
  const auto kind = [](UnknownOperator op) {
    return kind_of(WorkItem{op.name, Category::kOther, Operator{op, DType::kBf16}});
  };
  EXPECT_EQ(kind({"host.launches", {}, {}, {}}), "wait");
  EXPECT_EQ(kind({"mine", 1 * units::FLOP, {}, {}}), "unknown");
  EXPECT_EQ(kind({"mine", {}, {}, 1 * units::B}), "unknown");
}

TEST(Hotspots, SumEqualNamesAndKinds) {
  const std::vector<PathEntry> path = {{"mlp", "gemm", exactly(2 * s), 2, 4 * s},
                                       {"tp.all_reduce", "all_reduce", exactly(10 * s), 1, 10 * s},
                                       {"mlp", "gemm", exactly(1 * s), 1, 1 * s}};
  const std::vector<Hotspot> spots = hotspots(path);
  ASSERT_EQ(spots.size(), 2u);
  EXPECT_EQ(spots[0].name, "tp.all_reduce");
  EXPECT_EQ(spots[0].kind, "all_reduce");
  EXPECT_EQ(spots[1].name, "mlp");
  EXPECT_EQ(spots[1].kind, "gemm");
  EXPECT_EQ(spots[1].count, 3);
  EXPECT_EQ(spots[1].seconds / s, 5);
}

// Two gemms err together: 1 + 1 below, 2 + 2 above. The collective errs by itself: 3 below, 3 above.
TEST(PathInterval, AddsWithinAFamilyAndInQuadratureAcross) {
  std::vector<PathEntry> path = {{"mlp", "gemm", exactly(10 * s), 2, 20 * s},
                                 {"tp.all_reduce", "all_reduce", exactly(20 * s), 1, 20 * s}};
  path[0].forecast.low = 9 * s;
  path[0].forecast.high = 12 * s;
  path[1].forecast.low = 17 * s;
  path[1].forecast.high = 23 * s;
  const Interval interval = path_interval(path);
  EXPECT_NEAR(interval.low / s, 40 - std::sqrt(2.0 * 2 + 3 * 3), 1e-12);
  EXPECT_NEAR(interval.high / s, 40 + std::sqrt(4.0 * 4 + 3 * 3), 1e-12);
}

// Whatever they are called: two products, each 3 s below and 4 s above, are 6 below and 8 above together.
TEST(PathInterval, AFamilyErrsTogetherUnderAllItsNames) {
  std::vector<PathEntry> path = {{"mlp.fc1", "gemm", exactly(10 * s), 1, 10 * s},
                                 {"attention.qkv", "gemm", exactly(10 * s), 1, 10 * s}};
  for (PathEntry& entry : path) entry.forecast.low = 7 * s, entry.forecast.high = 14 * s;
  const Interval interval = path_interval(path);
  EXPECT_NEAR(interval.low / s, 20 - 6, 1e-12);
  EXPECT_NEAR(interval.high / s, 20 + 8, 1e-12);
}

// Independent errors: 3 % and 4 % are 5 %, 5 % and 12 % are 13 %.
TEST(StepInterval, AddsInQuadrature) {
  IntervalParts parts;
  parts.forecasts_below = 0.03, parts.rest_below = 0.04;
  parts.forecasts_above = 0.05, parts.rest_above = 0.12;
  const Interval interval = step_interval(10 * s, parts);
  EXPECT_NEAR(interval.low / s, 9.5, 1e-12);
  EXPECT_NEAR(interval.high / s, 11.3, 1e-12);
}

// Published steps of Grok-1, DeepSeek-V2 and -V3 and Qwen3 are up to 40 % longer, of dense models hardly ever 15 %.
TEST(StepInterval, ExpertsAreLessCertain) {
  Scenario scenario = small_scenario();
  EXPECT_LT(unexplained(scenario).above, 0.15);
  scenario.model.moe = Experts{};
  EXPECT_GE(unexplained(scenario).above, 0.4);
  EXPECT_GE(unexplained(scenario).below, 0.1);
}

// Steps of MaxText, PAXML and fms-fsdp are up to 14 % shorter and 21 % longer; of torchtitan none were compared.
TEST(StepInterval, FrameworksWithoutComparableStepsAreLessCertain) {
  for (const bool experts : {false, true}) {
    Scenario compared = small_scenario(), not_compared = compared;
    if (experts) compared.model.moe = not_compared.model.moe = Experts{};
    compared.compared_with = "22 runs on B200";
    not_compared.compared_with.clear();
    EXPECT_LE(unexplained(compared).above, unexplained(not_compared).above);
    EXPECT_LT(unexplained(compared).below, unexplained(not_compared).below);
    EXPECT_LE(unexplained(compared).between, unexplained(not_compared).between);
    EXPECT_GE(unexplained(not_compared).below, 0.14);
    EXPECT_GE(unexplained(not_compared).above, 0.21);
    EXPECT_NE(unexplained(compared).situation, unexplained(not_compared).situation);
  }
}

// The largest step that was compared ran on 6,144 GPUs. A hundred thousand are sixteen times as many.
TEST(StepInterval, MoreGpusThanAnyComparedStepAreLessCertain) {
  for (const bool experts : {false, true}) {
    Scenario scenario = small_scenario();
    if (experts) scenario.model.moe = Experts{};
    const auto on = [&](std::int64_t gpus) {
      scenario.plan.dp = gpus / (scenario.plan.tp * scenario.plan.pp * scenario.plan.cp);
      return unexplained(scenario);
    };
    const Unexplained compared = on(6'144), one = on(8'192), two = on(16'384), all = on(98'304);
    EXPECT_EQ(compared.above, on(64).above);
    EXPECT_EQ(compared.situation, on(64).situation);
    EXPECT_LT(compared.below, one.below);
    EXPECT_LT(one.below, two.below);
    EXPECT_NE(compared.situation, one.situation);
    EXPECT_EQ(all.below, on(1'000'000).below);
    scenario.compared_with.clear();
    EXPECT_EQ(all.below, unexplained(scenario).below);
    EXPECT_EQ(all.above, unexplained(scenario).above);
    EXPECT_EQ(all.between, unexplained(scenario).between);
    // Four times as many are half of the way.
    scenario.compared_with = "22 runs on B200";
    EXPECT_NEAR(on(4 * 6'144).below, (compared.below + all.below) / 2, 1e-12);
    EXPECT_NEAR(on(4 * 6'144).above, (compared.above + all.above) / 2, 1e-12);
  }
}

}  // namespace
}  // namespace ns_dist
