#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costs.h"
#include "ns_dist/simulator.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

TEST(Schedule, LanesRunInOrderAndWaitForOtherLanes) {
  GraphSketch sketch(1);
  const NodeId a = sketch.compute(0, 3 * s);
  const NodeId reduce = sketch.collective(0, Stream::kTensorParallel, Category::kTensorParallel, 5 * s, {a});
  const NodeId b = sketch.compute(0, 2 * s);            // beside the collective
  const NodeId c = sketch.compute(0, 1 * s, {reduce});  // after it
  const ExecutionGraph graph = sketch.build();
  const Timeline timeline = schedule(graph, sketch.durations());
  EXPECT_EQ(timeline.spans[index(a)].end / s, 3);
  EXPECT_EQ(timeline.spans[index(reduce)].start / s, 3);
  EXPECT_EQ(timeline.spans[index(b)].start / s, 3);
  EXPECT_EQ(timeline.spans[index(c)].start / s, 8);
  EXPECT_EQ(timeline.step / s, 9);
}

TEST(Schedule, NodesMayWaitForNodesAddedLater) {
  GraphSketch sketch(2);
  const NodeId first = sketch.compute(0, 1 * s);
  const NodeId second = sketch.compute(1, 4 * s);
  sketch.depend(first, second);
  const ExecutionGraph graph = sketch.build();
  EXPECT_EQ(schedule(graph, sketch.durations()).spans[index(first)].start / s, 4);
}

struct Pipeline {
  const char* schedule;
  std::int64_t stages, microbatches, chunks;
};

class PipelineTest : public ::testing::TestWithParam<Pipeline> {};

// Narayanan et al. 2021, s.2.2: with equal passes a pipeline of p stages takes (m + (p - 1) / v) (f + b), where f and b
// are what all v chunks of a stage take together.
TEST_P(PipelineTest, TakesWhatTheClosedFormSays) {
  const auto [name, p, m, v] = GetParam();
  const Seconds forward = 1 * s, backward = 2 * s;
  const PassGraph passes = pipeline_of_passes(**pipeline_schedule(name), {p, m, v}, forward / static_cast<double>(v),
                                              backward / static_cast<double>(v));
  const Timeline timeline = schedule(passes.graph, passes.durations);
  const double bubbles = static_cast<double>(p - 1) / static_cast<double>(v);
  const Seconds expected = (static_cast<double>(m) + bubbles) * (forward + backward);
  EXPECT_NEAR(timeline.step / expected, 1, 1e-12);

  const Breakdown parts = breakdown(passes.graph, timeline);
  EXPECT_NEAR(parts.bubble / (bubbles * (forward + backward)), p == 1 ? parts.bubble / s : 1, 1e-9);
  EXPECT_NEAR(parts.compute / (static_cast<double>(m) * (forward + backward)), 1, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PipelineTest,
                         ::testing::Values(Pipeline{"1f1b", 2, 2, 1}, Pipeline{"1f1b", 4, 8, 1},
                                           Pipeline{"1f1b", 16, 192, 1}, Pipeline{"1f1b", 8, 3, 1},
                                           Pipeline{"gpipe", 4, 8, 1}, Pipeline{"gpipe", 8, 3, 1},
                                           Pipeline{"interleaved", 4, 8, 2}, Pipeline{"interleaved", 8, 16, 3},
                                           Pipeline{"interleaved", 2, 4, 6}));

TEST(ForecastWork, AsksForMessagesBetweenRepresentatives) {
  const Mesh mesh = Mesh::innermost_first({"tp", "cp", "dp", "pp"}, {4, 1, 2, 3});
  std::vector<Collective> asked;
  const FakeCompute compute([](const Operator&) { return Seconds(); });
  const FakeNetwork network([&](const Collective& collective) {
    asked.push_back(collective);
    return 1 * ms;
  });
  for (const Message& message : {Message{1, 2, 64 * MiB}, Message{2, 1, 64 * MiB}}) {
    EXPECT_TRUE(forecast_work({"send", Category::kPipelineParallel, message}, mesh, compute, network));
  }
  // A stage is 4 x 2 ranks; both directions of a link are equally fast.
  Collective expected{CollectiveKind::kSendRecv, 64 * MiB, RankGroup{8, {{2, 8}}}};
  expected.stages = {3, 8};
  EXPECT_THAT(asked, ::testing::ElementsAre(expected, expected));
}

TEST(ForecastWork, NamesTheWorkThatCannotBeForecast) {
  class Refusing final : public ComputeCost {
    Result<Forecast> forecast(const Operator&) const override {
      return fail({ErrorCode::kInvalidInput, "no fp8 here", ""});
    }
    Result<Explanation> explain(const Operator&) const override { return Explanation{}; }
  };
  const FakeNetwork network([](const Collective&) { return Seconds(); });
  const auto refused = forecast_work({"qkv", Category::kForward, Operator{Gemm{}}}, Mesh(), Refusing(), network);
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), ::testing::AllOf(HasSubstr("qkv"), HasSubstr("no fp8 here")));
}

}  // namespace
}  // namespace ns_dist
