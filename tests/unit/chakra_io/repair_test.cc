// Is what PyTorch's traces leave out put back, each change counted, and everything else left alone?
#include <gtest/gtest.h>

#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

TraceNode recorded(std::uint64_t id, TraceNodeType type, std::vector<TraceAttribute> attributes,
                   std::vector<std::uint64_t> parents = {}, std::uint64_t start = 0) {
  TraceNode out;
  out.id = id;
  out.name = "node " + std::to_string(id);
  out.type = type;
  out.data_deps = std::move(parents);
  out.start_micros = start;
  out.duration_micros = 10;
  out.attributes = std::move(attributes);
  return out;
}

TraceNode kernel_of_stream(std::uint64_t id, std::int64_t stream, std::vector<std::uint64_t> parents = {},
                           std::uint64_t start = 0) {
  return recorded(id, TraceNodeType::kCompute, {{"is_cpu_op", false}, {"tid", stream}}, std::move(parents), start);
}

std::vector<TraceNode> repaired(const std::vector<TraceNode>& nodes, RepairReport* report) {
  const ScratchFolder folder;
  EXPECT_TRUE(write_trace(folder.path() / "in.et", nodes));
  const auto done = repair(folder.path() / "in.et", folder.path() / "out.et");
  EXPECT_TRUE(done) << to_text(done.error());
  if (done) *report = *done;
  return *read_trace(folder.path() / "out.et");
}

TEST(Repair, KernelsOfAStreamAreChainedInTheOrderOfTheirLaunches) {
  const TraceNode host = recorded(1, TraceNodeType::kCompute, {{"is_cpu_op", true}, {"tid", std::int64_t{7}}});
  // The file's order is not that of the dependencies: 5 is launched by 9, which comes after 4.
  const TraceNode launch = recorded(9, TraceNodeType::kCompute, {{"is_cpu_op", true}}, {4});
  std::vector<TraceNode> nodes = {
      host,   kernel_of_stream(5, 7, {9}), kernel_of_stream(4, 7, {1}), kernel_of_stream(3, 20, {1}),
      launch, kernel_of_stream(6, 7, {5})};
  RepairReport report;
  const auto out = repaired(nodes, &report);
  EXPECT_EQ(report, (RepairReport{.chained = 1}));  // 6 waits for 5 already, 3 is alone
  nodes[1].ctrl_deps = {4};
  EXPECT_EQ(out, nodes);
}

// Two nodes of one id are another mistake: neither waits for itself.
TEST(Repair, ANodeDoesNotWaitForItsOwnId) {
  RepairReport report;
  for (const TraceNode& node : repaired({kernel_of_stream(1, 7, {}, 10), kernel_of_stream(1, 7, {}, 20)}, &report)) {
    EXPECT_TRUE(node.ctrl_deps.empty());
  }
}

TEST(Repair, StartTimesOrderWhatIsReadyTogether) {
  RepairReport report;
  const auto out = repaired(
      {kernel_of_stream(1, 7, {}, 30), kernel_of_stream(2, 7, {}, 10), kernel_of_stream(3, 7, {}, 20)}, &report);
  EXPECT_EQ(report.chained, 2U);
  EXPECT_EQ(out[0].ctrl_deps, std::vector<std::uint64_t>{3});
  EXPECT_TRUE(out[1].ctrl_deps.empty());
  EXPECT_EQ(out[2].ctrl_deps, std::vector<std::uint64_t>{2});
}

TEST(Repair, DependenciesOnMissingNodesGo) {
  TraceNode second = kernel_of_stream(2, 8, {77, 1, 300'000});
  second.ctrl_deps = {1, 78};
  TraceNode third = kernel_of_stream(3, 9, {});
  third.ctrl_deps = {79};
  RepairReport report;
  const auto out = repaired({kernel_of_stream(1, 7), second, third}, &report);
  EXPECT_EQ(report, (RepairReport{.dangling = 4}));
  EXPECT_EQ(out[1].data_deps, std::vector<std::uint64_t>{1});
  EXPECT_EQ(out[1].ctrl_deps, std::vector<std::uint64_t>{1});
  EXPECT_TRUE(out[2].ctrl_deps.empty());
}

// A launcher that is told to wait for its own kernel, as Chakra's converter writes it; what waits for both stays.
TEST(Repair, CirclesAreCutAtAControlDependency) {
  TraceNode launch = recorded(3, TraceNodeType::kCompute, {{"is_cpu_op", true}}, {1});
  launch.ctrl_deps = {4};
  const std::vector<TraceNode> nodes = {kernel_of_stream(2, 7, {4}), kernel_of_stream(1, 8), launch,
                                        kernel_of_stream(4, 9, {3})};
  RepairReport report;
  const auto out = repaired(nodes, &report);
  EXPECT_EQ(report, (RepairReport{.circles = 1}));
  EXPECT_TRUE(out[2].ctrl_deps.empty());
  EXPECT_EQ(out[2].data_deps, launch.data_deps);
  EXPECT_EQ(out[0], nodes[0]);
  EXPECT_EQ(out[3], nodes[3]);
}

TEST(Repair, WhatTheFeederRefusesBecomesACpuOperator) {
  const TraceNode collective =
      recorded(1, TraceNodeType::kCollective, {{"is_cpu_op", true}, {"comm_type", std::int64_t{0}}});
  const TraceNode on_gpu = recorded(
      2, TraceNodeType::kCollective,
      {{"is_cpu_op", false}, {"comm_type", std::int64_t{0}}, {"comm_size", std::int64_t{8}}, {"tid", std::int64_t{7}}},
      {1});
  const TraceNode groups = recorded(3, TraceNodeType::kMetadata, {{"anything", std::string("x")}});
  const TraceNode invalid = recorded(4, TraceNodeType::kInvalid, {}, {3});
  RepairReport report;
  const auto out = repaired({collective, on_gpu, groups, invalid, kernel_of_stream(5, 7)}, &report);
  EXPECT_EQ(report, (RepairReport{.chained = 1, .cpu_collectives = 1, .not_run = 2}));
  for (const std::size_t i : {0U, 2U, 3U}) {
    EXPECT_EQ(out[i].type, TraceNodeType::kCompute) << i;
    EXPECT_EQ(attribute_as<bool>(out[i], "is_cpu_op"), true) << i;
  }
  EXPECT_EQ(attribute_as<std::string>(out[2], "anything"), "x");
  EXPECT_EQ(out[1].type, TraceNodeType::kCollective);
  EXPECT_EQ(out[4].ctrl_deps, std::vector<std::uint64_t>{2});  // a GPU's collective has its place on the stream
}

// Ours need nothing, and stay byte for byte.
TEST(Repair, ATraceWithoutFaultStaysAsItIs) {
  const ScratchFolder folder;
  const std::vector<TraceNode> nodes = {recorded(1, TraceNodeType::kCompute, {{"is_cpu_op", false}}),
                                        recorded(2, TraceNodeType::kCompute, {{"is_cpu_op", false}}, {1})};
  RepairReport report;
  EXPECT_EQ(repaired(nodes, &report), nodes);
  EXPECT_EQ(report, RepairReport());
}

// What ran into a hang or an error runs to its end.
TEST(Repair, ARepairedTraceRuns) {
  std::vector<TraceNode> nodes = {recorded(1, TraceNodeType::kMetadata, {}),
                                  recorded(2, TraceNodeType::kCollective, {{"is_cpu_op", true}}, {1}),
                                  kernel_of_stream(3, 7, {2, 99}), kernel_of_stream(4, 7, {2})};
  using Traces = std::vector<std::vector<TraceNode>>;
  EXPECT_FALSE(replay(Traces{nodes}, {}).ok());
  RepairReport ignored;
  const ReplayReport report = replay(Traces{repaired(nodes, &ignored)}, {});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.finish_ns.at(0), 40'000U);  // two CPU operators, two kernels
}

}  // namespace
}  // namespace ns_dist
