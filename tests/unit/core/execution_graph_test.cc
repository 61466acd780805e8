#include "ns_dist/execution_graph.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

WorkItem gemm(const char* name) { return {name, Category::kForward, Operator{Gemm{1, 8, 8, 8}, DType::kBf16}}; }

TEST(ExecutionGraph, LanesChainAndEdgesMayPointForward) {
  ExecutionGraph::Builder builder(Mesh(), 2);
  const WorkId work = builder.add_work(gemm("a"));
  const LaneId first = ExecutionGraph::lane_of(0, Stream::kCompute);
  const LaneId second = ExecutionGraph::lane_of(1, Stream::kPipelineForward);
  const NodeId a = builder.add(first, work, {}, {});
  const NodeId b = builder.add(first, work, {}, {});
  const NodeId c = builder.add(second, work, {7, 3}, {});
  builder.depend(a, c);
  builder.depend(b, c);
  const ExecutionGraph graph = std::move(builder).build();
  EXPECT_EQ(graph.previous_on_lane(b), a);
  EXPECT_EQ(graph.previous_on_lane(c), kNoNode);
  EXPECT_EQ(ExecutionGraph::stage_of(second), 1);
  EXPECT_EQ(ExecutionGraph::stream_of(second), Stream::kPipelineForward);
  EXPECT_EQ(graph.dependencies(a).size(), 1u);
  EXPECT_EQ(graph.dependencies(b).size() + graph.dependencies(c).size(), 1u);
  EXPECT_EQ(graph.node(c).origin, (Origin{7, 3}));
  EXPECT_EQ(graph.topological_order(), (std::vector<NodeId>{c, a, b}));
}

TEST(ExecutionGraph, ACycleShowsAsAShortOrder) {
  ExecutionGraph::Builder builder(Mesh(), 1);
  const WorkId work = builder.add_work(gemm("a"));
  const NodeId a = builder.add(ExecutionGraph::lane_of(0, Stream::kCompute), work, {}, {});
  const NodeId b = builder.add(ExecutionGraph::lane_of(0, Stream::kDataParallel), work, {}, {{a}});
  builder.depend(a, b);
  EXPECT_TRUE(std::move(builder).build().topological_order().empty());
}

}  // namespace
}  // namespace ns_dist
