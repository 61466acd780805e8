#include "ns_dist/critical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ns_dist/report.h"
#include "ns_dist/simulator.h"
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

TEST(Hotspots, SumEqualNamesAndKinds) {
  ExecutionGraph::Builder builder(Mesh::innermost_first({"pp"}, {1}), 1);
  const WorkId big = builder.intern({"mlp", Category::kForward, Operator{Gemm{.m = 2}}});
  const WorkId small = builder.intern({"mlp", Category::kForward, Operator{Gemm{.m = 1}}});
  const WorkId reduce = builder.intern({"tp.all_reduce", Category::kTensorParallel, Collective{}});
  for (const WorkId work : {big, reduce, small, big}) {
    builder.add(ExecutionGraph::lane_of(0, Stream::kCompute), work, {}, {});
  }
  const ExecutionGraph graph = std::move(builder).build();
  const std::vector<Seconds> durations = {2 * s, 1 * s, 10 * s};
  const std::vector<Hotspot> spots = hotspots(graph, critical_path(graph, durations), schedule(graph, durations));
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
  ExecutionGraph::Builder builder(Mesh::innermost_first({"pp"}, {1}), 1);
  const WorkId gemm = builder.intern({"mlp", Category::kForward, Operator{Gemm{}}});
  const WorkId reduce = builder.intern({"tp.all_reduce", Category::kTensorParallel, Collective{}});
  for (const WorkId work : {gemm, reduce, gemm}) {
    builder.add(ExecutionGraph::lane_of(0, Stream::kCompute), work, {}, {});
  }
  const ExecutionGraph graph = std::move(builder).build();
  std::vector<Forecast> forecasts = {exactly(10 * s), exactly(20 * s)};
  forecasts[0].low = 9 * s, forecasts[0].high = 12 * s;
  forecasts[1].low = 17 * s, forecasts[1].high = 23 * s;
  const std::vector<Seconds> durations = {10 * s, 20 * s};
  const Interval interval = path_interval(graph, critical_path(graph, durations), forecasts);
  EXPECT_NEAR(interval.low / s, 40 - std::sqrt(2.0 * 2 + 3 * 3), 1e-12);
  EXPECT_NEAR(interval.high / s, 40 + std::sqrt(4.0 * 4 + 3 * 3), 1e-12);
}

}  // namespace
}  // namespace ns_dist
