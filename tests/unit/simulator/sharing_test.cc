// What runs at the same time takes from each other: cases computed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costs.h"
#include "ns_dist/fair_sharing.h"
#include "ns_dist/simulator.h"
#include "support/planned_graph.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;

Demand flow_over(std::vector<double> ports, double sms = 0, double memory = 0) {
  return {std::move(ports), sms, memory, {}};
}
Demand kernel_bound_by(Bound bound) { return {{}, 0, 0, bound}; }

// Nodes of a sketch in the order in which they were added have demands in the same order.
Timeline shared(GraphSketch& sketch, const ExecutionGraph& graph, std::vector<Demand> demands) {
  return schedule(graph, sketch.durations(), demands);
}

double end_of(const Timeline& timeline, NodeId node) { return timeline.spans[index(node)].end / s; }
double start_of(const Timeline& timeline, NodeId node) { return timeline.spans[index(node)].start / s; }

constexpr double kGrid = 1e-10;  // times are multiples of 2^-40 s, and shares of 2^-40

constexpr auto kDp = Stream::kDataParallel;
constexpr auto kEp = Stream::kExpertParallel;
constexpr auto kTp = Stream::kTensorParallel;

TEST(Contention, TwoCollectivesOnOnePortTakeTurns) {
  GraphSketch sketch(1);
  const NodeId reduce = sketch.collective(0, kDp, Category::kDataParallel, 10 * s);
  const NodeId exchange = sketch.collective(0, kEp, Category::kExpertParallel, 4 * s);
  const ExecutionGraph graph = sketch.build();
  // Half the port each: the shorter one has its 4 s after 8; the longer one has done 4 of its 10 s then.
  const Timeline full = shared(sketch, graph, {flow_over({1}), flow_over({1})});
  EXPECT_DOUBLE_EQ(end_of(full, exchange), 8);
  EXPECT_DOUBLE_EQ(end_of(full, reduce), 14);
  // 0.6 and 0.6 of a port: both go at 1 / 1.2.
  const Timeline partly = shared(sketch, graph, {flow_over({0.6}), flow_over({0.6})});
  EXPECT_NEAR(end_of(partly, exchange), 4.8, kGrid);
  EXPECT_NEAR(end_of(partly, reduce), 10.8, kGrid);
  // Together they fit: nobody waits. On ports of different levels neither.
  EXPECT_DOUBLE_EQ(shared(sketch, graph, {flow_over({0.6}), flow_over({0.4})}).step / s, 10);
  EXPECT_DOUBLE_EQ(shared(sketch, graph, {flow_over({1, 0}), flow_over({0, 1})}).step / s, 10);
}

TEST(Contention, TheOneWithTheSmallShareIsServedFirst) {
  GraphSketch sketch(1);
  const NodeId a = sketch.collective(0, kDp, Category::kDataParallel, 6 * s);
  const NodeId b = sketch.collective(0, kEp, Category::kExpertParallel, 6 * s);
  const NodeId c = sketch.collective(0, kTp, Category::kTensorParallel, 6 * s);
  const ExecutionGraph graph = sketch.build();
  // Level 0 holds a and b (1 + 1), level 1 holds b and c (1 + 0.5). a and b get 1/2 each of level 0; on level 1 that
  // leaves 1/2 for c, which needs just that: c ends at 6, a and b at 12.
  const Timeline timeline = shared(sketch, graph, {flow_over({1, 0}), flow_over({1, 1}), flow_over({0, 0.5})});
  EXPECT_DOUBLE_EQ(end_of(timeline, c), 6);
  EXPECT_DOUBLE_EQ(end_of(timeline, a), 12);
  EXPECT_DOUBLE_EQ(end_of(timeline, b), 12);
}

TEST(Contention, StartsWhenTheOtherStarts) {
  GraphSketch sketch(1);
  const NodeId reduce = sketch.collective(0, kDp, Category::kDataParallel, 10 * s);
  const NodeId before = sketch.compute(0, 4 * s);
  const NodeId exchange = sketch.collective(0, kEp, Category::kExpertParallel, 2 * s, {before});
  const ExecutionGraph graph = sketch.build();
  // Alone until 4, half speed until the exchange has its 2 s at 8, alone again with 4 s left.
  const Timeline timeline = shared(sketch, graph, {flow_over({1}), kernel_bound_by(Bound::kLaunch), flow_over({1})});
  EXPECT_DOUBLE_EQ(start_of(timeline, exchange), 4);
  EXPECT_DOUBLE_EQ(end_of(timeline, exchange), 8);
  EXPECT_DOUBLE_EQ(end_of(timeline, reduce), 12);
}

TEST(Contention, LinksCarryBothDirectionsAtOnce) {
  GraphSketch sketch(2);
  const NodeId there = sketch.message(0, 1, 5 * s);
  const NodeId back = sketch.message(1, 0, 5 * s);
  const NodeId reduce = sketch.collective(1, kDp, Category::kDataParallel, 5 * s);
  const ExecutionGraph graph = sketch.build();
  const Timeline messages = shared(sketch, graph, {flow_over({1}), flow_over({1}), flow_over({0})});
  EXPECT_DOUBLE_EQ(messages.step / s, 5);
  // A collective of stage 1 sends beside the message back and receives beside the message there.
  const Timeline all = shared(sketch, graph, {flow_over({1}), flow_over({1}), flow_over({1})});
  for (const NodeId node : {there, back, reduce}) EXPECT_DOUBLE_EQ(end_of(all, node), 10);
}

TEST(ComputeSlowdown, KernelsHaveWhatCollectivesLeave) {
  for (const auto& [bound, expected] :
       {std::pair{Bound::kCompute, 4 + (10 - 4 * 0.8)}, std::pair{Bound::kMemory, 4 + (10 - 4 * 0.5)},
        std::pair{Bound::kLaunch, 10.0}}) {
    GraphSketch sketch(1);
    const NodeId reduce = sketch.collective(0, kDp, Category::kDataParallel, 4 * s);
    const NodeId gemm = sketch.compute(0, 10 * s);
    const ExecutionGraph graph = sketch.build();
    const Timeline timeline = shared(sketch, graph, {flow_over({1}, 0.2, 0.5), kernel_bound_by(bound)});
    EXPECT_DOUBLE_EQ(end_of(timeline, reduce), 4);
    EXPECT_NEAR(end_of(timeline, gemm), expected, kGrid);
  }
}

TEST(ComputeSlowdown, EndsAmidARowOfKernels) {
  GraphSketch sketch(1);
  sketch.collective(0, kDp, Category::kDataParallel, 3 * s);
  const NodeId first = sketch.compute(0, 2 * s), second = sketch.compute(0, 2 * s), third = sketch.compute(0, 2 * s);
  const ExecutionGraph graph = sketch.build();
  // 1.5 s of the first kernel in 3 s at half its SMs, the rest alone.
  const Timeline timeline = shared(sketch, graph,
                                   {flow_over({1}, 0.5, 0), kernel_bound_by(Bound::kCompute),
                                    kernel_bound_by(Bound::kMemory), kernel_bound_by(Bound::kCompute)});
  EXPECT_DOUBLE_EQ(end_of(timeline, first), 3.5);
  EXPECT_DOUBLE_EQ(start_of(timeline, second), 3.5);
  EXPECT_DOUBLE_EQ(end_of(timeline, second), 5.5);
  EXPECT_DOUBLE_EQ(end_of(timeline, third), 7.5);
}

TEST(ComputeSlowdown, StartsAmidARowOfKernels) {
  GraphSketch sketch(2);
  const NodeId elsewhere = sketch.compute(1, 3 * s);
  const NodeId first = sketch.compute(0, 2 * s), second = sketch.compute(0, 4 * s), third = sketch.compute(0, 2 * s);
  const NodeId send = sketch.message(1, 0, 2 * s, {elsewhere});
  const ExecutionGraph graph = sketch.build();
  // The message arrives from 3 to 5 and takes half of the memory bandwidth: 1 s of the second kernel instead of 2.
  const Timeline timeline =
      shared(sketch, graph,
             {kernel_bound_by(Bound::kLaunch), kernel_bound_by(Bound::kMemory), kernel_bound_by(Bound::kMemory),
              kernel_bound_by(Bound::kMemory), flow_over({1}, 0, 0.5)});
  EXPECT_DOUBLE_EQ(end_of(timeline, send), 5);
  EXPECT_DOUBLE_EQ(end_of(timeline, first), 2);
  EXPECT_DOUBLE_EQ(end_of(timeline, second), 7);
  EXPECT_DOUBLE_EQ(end_of(timeline, third), 9);
}

TEST(ComputeSlowdown, ASlowedCollectiveCopiesLess) {
  GraphSketch sketch(1);
  sketch.collective(0, kDp, Category::kDataParallel, 4 * s);
  sketch.collective(0, kEp, Category::kExpertParallel, 4 * s);
  const NodeId copy = sketch.compute(0, 8 * s);
  const ExecutionGraph graph = sketch.build();
  // Both at half speed for 8 s: together they take 0.5 of the memory bandwidth, not 1.
  const Timeline timeline =
      shared(sketch, graph, {flow_over({1}, 0, 0.5), flow_over({1}, 0, 0.5), kernel_bound_by(Bound::kMemory)});
  EXPECT_DOUBLE_EQ(end_of(timeline, copy), 8 + 4);
}

TEST(Sharing, NothingDemandedIsThePlainSchedule) {
  const Scenario scenario = small_scenario();
  const ParallelPlan plan{.tp = 2, .pp = 4, .dp = 2, .overlap_grad_reduce = true, .overlap_param_gather = true};
  const auto graph = planned_graph(scenario.model, plan, scenario.training);
  ASSERT_TRUE(graph);
  std::vector<Seconds> durations;
  for (std::size_t i = 0; i < graph->works().size(); ++i) durations.push_back((1.0 + static_cast<double>(i % 7)) * us);
  const Timeline plain = schedule(*graph, durations);
  const Timeline events = schedule(*graph, durations, std::vector<Demand>(durations.size()));
  ASSERT_EQ(plain.spans.size(), events.spans.size());
  EXPECT_EQ(plain.step / s, events.step / s);
  for (std::size_t n = 0; n < plain.spans.size(); ++n) {
    ASSERT_EQ(plain.spans[n].start / s, events.spans[n].start / s) << n;
    ASSERT_EQ(plain.spans[n].end / s, events.spans[n].end / s) << n;
  }
}

// A DGX A100 by its data sheet: NCCL reaches 240 of 300 GB/s on NVLink, 23.5 of 25 GB/s on a port.
TEST(Footprint, OfATensorParallelAllGather) {
  Cluster cluster = small_scenario().cluster;
  cluster.gpu.scale_up = ScaleUpLink{"nvlink", 3, 12, 300 * GB / s};
  const Seconds alone = 1 * ms;
  const auto taken = footprint(cluster, {CollectiveKind::kAllGather, 160 * MB, RankGroup{0, {{8, 1}}}}, alone);
  ASSERT_TRUE(taken);
  ASSERT_EQ(taken->ports.size(), 2u);
  EXPECT_NEAR(taken->ports[0], 140e6 / 1e-3 / 240e9, 1e-12);  // 7/8 of the bytes leave a GPU
  EXPECT_EQ(taken->ports[1], 0);
  EXPECT_EQ(taken->channels, 24);  // 12 links of 20 GB/s, twice
  EXPECT_NEAR(taken->memory_traffic / (GB / s), 2 * 140, 1e-9);
}

// NCCL runs two channels over PCIe, whatever bridges the GPUs have beside it.
TEST(Footprint, BridgesTakeNoSmsOfCollectivesOverPcie) {
  Cluster cluster = *Catalog::built_in().cluster("h100-pcie-server");
  ASSERT_TRUE(cluster.gpu.scale_up);
  const auto taken = footprint(cluster, {CollectiveKind::kAllGather, 160 * MB, RankGroup{0, {{8, 1}}}}, 10 * ms);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->channels, 2);
}

TEST(Footprint, OfReductionsAndMessagesBetweenNodes) {
  const Cluster cluster = small_scenario().cluster;
  // One rank a node: 2 (4 - 1) / 4 of the bytes leave it through its port; two channels serve a port.
  const auto reduce = footprint(cluster, {CollectiveKind::kAllReduce, 20 * MB, RankGroup{0, {{4, 8}}}}, 2 * ms);
  ASSERT_TRUE(reduce);
  EXPECT_EQ(reduce->ports[0], 0);
  EXPECT_NEAR(reduce->ports[1], 30e6 / 2e-3 / 23.5e9, 1e-12);
  EXPECT_EQ(reduce->channels, 2);
  EXPECT_NEAR(reduce->memory_traffic / (GB / s), 3 * 15, 1e-9);
  const auto send = footprint(cluster, {CollectiveKind::kSendRecv, 10 * MB, RankGroup{0, {{2, 8}}}}, 1 * ms);
  ASSERT_TRUE(send);
  EXPECT_NEAR(send->ports[1], 10e6 / 1e-3 / 23.5e9, 1e-12);
  EXPECT_FALSE(footprint(cluster, {CollectiveKind::kSendRecv, 10 * MB, RankGroup{-1, {{2, 8}}}}, 1 * ms));
}

// A spine above the leaves: what crosses it leaves through the same port.
TEST(Footprint, PortsCarryWhatGoesFurtherOut) {
  Cluster cluster = small_scenario().cluster;
  cluster.levels[1].size = 4;
  cluster.levels.push_back(cluster.levels[1]);
  cluster.levels[2].size = 0;
  const auto taken = footprint(cluster, {CollectiveKind::kSendRecv, 10 * MB, RankGroup{0, {{2, 32}}}}, 1 * ms);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->ports[0], 0);
  EXPECT_GT(taken->ports[1], 0);
  EXPECT_EQ(taken->ports[1], taken->ports[2]);
}

TEST(DemandOf, EachEffectHasItsSwitch) {
  Scenario scenario = small_scenario();
  scenario.plan = {.tp = 8, .pp = 1, .dp = 2, .sequence_parallel = true, .overlap_grad_reduce = true};
  const auto step = [&](bool contention, bool slowdown) {
    scenario.network.contention = contention;
    scenario.network.compute_slowdown = slowdown;
    const auto simulation = simulate(scenario);
    EXPECT_TRUE(simulation);
    return simulation ? simulation->step / s : 0;
  };
  const double alone = step(false, false);
  EXPECT_GE(step(true, false), alone);
  EXPECT_GT(step(false, true), alone);
  EXPECT_GE(step(true, true), step(false, true));
}

// NCCL runs a thread block for each channel, and one fills an SM: 24 channels leave 84 of A100's 108 SMs to kernels.
TEST(DemandOf, AChannelIsAnSm) {
  Cluster cluster = small_scenario().cluster;
  cluster.gpu.scale_up = ScaleUpLink{"nvlink", 3, 12, 300 * GB / s};
  const WorkItem gather{"gather", Category::kTensorParallel,
                        Collective{CollectiveKind::kAllGather, 160 * MB, RankGroup{0, {{8, 1}}}}};
  const auto demand = demand_of(gather, Mesh::innermost_first({"tp"}, {8}), exactly(1 * ms), cluster, false, true);
  ASSERT_TRUE(demand);
  EXPECT_DOUBLE_EQ(demand->sms, 24.0 / 108);
  EXPECT_TRUE(demand->ports.empty());
}

// Two groups that reduce over the same ports at once: gradients of experts and of everything else.
TEST(DemandOf, ReductionsOnTheSamePortsSlowEachOther) {
  const Scenario scenario = small_scenario();
  ExecutionGraph::Builder builder(Mesh::innermost_first({"dp"}, {64}), 1);
  const Collective reduce{CollectiveKind::kAllReduce, 100 * MB, RankGroup{0, {{8, 8}}}};
  const WorkId a = builder.add_work({"a", Category::kDataParallel, reduce});
  const WorkId b = builder.add_work({"b", Category::kDataParallel, reduce});
  builder.add(ExecutionGraph::lane_of(0, kDp), a, {}, {});
  builder.add(ExecutionGraph::lane_of(0, kEp), b, {}, {});
  const ExecutionGraph graph = std::move(builder).build();
  // 2 x 7/8 x 100 MB at 23.5 GB/s take 7.45 ms; a forecast of 10 ms leaves a quarter of the port to the other.
  std::vector<Demand> demands;
  for (const WorkItem& item : graph.works()) {
    demands.push_back(*demand_of(item, graph.mesh(), exactly(10 * ms), scenario.cluster, true, false));
  }
  const std::vector<Seconds> durations(2, 10 * ms);
  EXPECT_NEAR(schedule(graph, durations, demands).step / ms, 2 * 175e6 / 23.5e9 * 1e3, 1e-9);
}

}  // namespace
}  // namespace ns_dist
