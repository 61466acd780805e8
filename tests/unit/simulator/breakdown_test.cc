#include <gtest/gtest.h>

#include "ns_dist/simulator.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;

Breakdown parts_of(GraphSketch& sketch) {
  const ExecutionGraph graph = sketch.build();
  const Timeline timeline = schedule(graph, sketch.durations());
  const Breakdown parts = breakdown(graph, timeline);
  EXPECT_NEAR(parts.total() / timeline.step, 1, 1e-12);
  return parts;
}

TEST(Breakdown, CountsComputeByItsCategory) {
  GraphSketch sketch(1);
  sketch.compute(0, 1 * s, {}, Category::kForward);
  sketch.compute(0, 2 * s, {}, Category::kBackward);
  sketch.compute(0, 4 * s, {}, Category::kRecompute);
  sketch.compute(0, 8 * s, {}, Category::kOptimizer);
  sketch.compute(0, 16 * s, {}, Category::kOther);
  sketch.compute(0, 32 * s, {}, Category::kLaunches);
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.compute / s, 3);
  EXPECT_EQ(parts.recompute / s, 4);
  EXPECT_EQ(parts.optimizer / s, 8);
  EXPECT_EQ(parts.other / s, 16);
  EXPECT_EQ(parts.launches / s, 32);
}

TEST(Breakdown, CountsOnlyTheExposedPartOfACollective) {
  GraphSketch sketch(1);
  const NodeId a = sketch.compute(0, 1 * s);
  const NodeId reduce = sketch.collective(0, Stream::kTensorParallel, Category::kTensorParallel, 5 * s, {a});
  sketch.compute(0, 2 * s);
  sketch.compute(0, 1 * s, {reduce});
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.compute / s, 4);
  EXPECT_EQ(parts.tp_exposed / s, 3);
  EXPECT_EQ(parts.bubble / s, 0);
}

// A wait is told apart by what it waits for, not by what else happens to run: the expert all-to-all is hidden.
TEST(Breakdown, FollowsChainsOfCollectives) {
  GraphSketch sketch(1);
  const NodeId a = sketch.compute(0, 1 * s);
  const NodeId gather = sketch.collective(0, Stream::kTensorParallel, Category::kTensorParallel, 2 * s, {a});
  const NodeId exchange = sketch.collective(0, Stream::kContextParallel, Category::kContextParallel, 3 * s, {gather});
  sketch.collective(0, Stream::kExpertParallel, Category::kExpertParallel, 4 * s, {a});
  sketch.compute(0, 1 * s, {exchange});
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.tp_exposed / s, 2);
  EXPECT_EQ(parts.cp_exposed / s, 3);
  EXPECT_EQ(parts.ep_exposed / s, 0);
}

// The second stage waits 4 s: 3 s until the first has computed (bubble), 1 s for the message. The first stage ends 2 s
// before the step does.
TEST(Breakdown, TellsMessagesFromBubbles) {
  GraphSketch sketch(2);
  const NodeId a = sketch.compute(0, 3 * s);
  const NodeId message = sketch.message(0, 1, 1 * s, {a});
  sketch.compute(1, 1 * s, {message});
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.compute / s, 2);       // (3 + 1) / 2
  EXPECT_EQ(parts.pp_exposed / s, 0.5);  // (0 + 1) / 2
  EXPECT_EQ(parts.bubble / s, 2.5);      // (2 + 3) / 2
}

// A sender that waits for its own message is exposed to it as well.
TEST(Breakdown, CountsMessagesThatTheSenderWaitsFor) {
  GraphSketch sketch(2);
  const NodeId a = sketch.compute(0, 2 * s);
  const NodeId message = sketch.message(0, 1, 1 * s, {a});
  sketch.compute(0, 2 * s, {message});
  sketch.compute(1, 2 * s, {message});
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.pp_exposed / s, 1);  // 1 on either stage
  EXPECT_EQ(parts.bubble / s, 1);      // 2 s on the second
}

TEST(Breakdown, CountsWhatFollowsTheLastKernel) {
  GraphSketch sketch(1);
  const NodeId a = sketch.compute(0, 2 * s);
  sketch.collective(0, Stream::kDataParallel, Category::kDataParallel, 3 * s, {a});
  const Breakdown parts = parts_of(sketch);
  EXPECT_EQ(parts.compute / s, 2);
  EXPECT_EQ(parts.dp_exposed / s, 3);
}

TEST(Breakdown, CountsWhatPrecedesTheFirstKernel) {
  GraphSketch sketch(1);
  const NodeId gather = sketch.collective(0, Stream::kDataParallel, Category::kDataParallel, 3 * s);
  sketch.compute(0, 2 * s, {gather});
  EXPECT_EQ(parts_of(sketch).dp_exposed / s, 3);
}

}  // namespace
}  // namespace ns_dist
