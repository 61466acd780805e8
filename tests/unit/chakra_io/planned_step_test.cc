// Do the planner's own steps arrive whole at every rank, and does the feeder run them to their end?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/planned_graph.h"
#include "unit/chakra_io/traces.h"

namespace ns_dist {
namespace {

Model small_model(bool tied) {
  Model model;
  model.id = model.name = "small";
  model.layers = 4;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.head_dim = 16;
  model.ffn = 256;
  model.vocabulary = 512;
  model.sequence = 32;
  model.tied_embeddings = tied;
  return model;
}

struct Case {
  const char* name;
  ParallelPlan plan;
  bool tied = true;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&out](const char* name, std::int64_t tp, std::int64_t pp, std::int64_t dp) -> ParallelPlan& {
    Case& added = out.emplace_back();
    added.name = name;
    added.plan.tp = tp, added.plan.pp = pp, added.plan.dp = dp;
    added.plan.sequence_parallel = tp > 1;
    return added.plan;
  };
  add("one rank", 1, 1, 1);
  add("tensor parallel", 4, 1, 1);
  add("data parallel", 1, 1, 4).zero = ZeroStage::kNone;
  add("two stages", 1, 2, 1);
  add("all three", 2, 2, 2);
  add("all three, four stages", 2, 4, 2).recompute = Recompute::kFull;
  add("without sequence parallelism", 2, 4, 1).sequence_parallel = false;
  ParallelPlan& overlapped = add("overlapped", 2, 2, 2);
  overlapped.overlap_grad_reduce = overlapped.overlap_param_gather = overlapped.overlap_p2p = true;
  add("gpipe", 1, 4, 2).schedule = "gpipe";
  ParallelPlan& interleaved = add("interleaved", 2, 2, 2);
  interleaved.vpp = 2;
  interleaved.schedule = "interleaved";
  ParallelPlan& both = add("interleaved and overlapped", 1, 2, 2);
  both.vpp = 2;
  both.schedule = "interleaved";
  both.overlap_grad_reduce = both.overlap_param_gather = both.overlap_p2p = true;
  add("ring of context parallelism", 2, 2, 1).cp = 4;
  ParallelPlan& hierarchical = add("rings of heads", 1, 1, 2);
  hierarchical.cp = 4, hierarchical.cp_inner = 2;
  hierarchical.cp_comm = ContextExchange::kHierarchical;
  add("untied embeddings", 2, 2, 2);
  out.back().tied = false;
  return out;
}

TEST(PlannedStep, EveryRankRunsItToItsEnd) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const Training training{
        .global_batch = 8 * each.plan.dp, .micro_batch = 1, .sequence = 32, .precision = Precision::kBf16};
    const auto graph = planned_graph(small_model(each.tied), each.plan, training);
    ASSERT_TRUE(graph) << to_text(graph.error());
    // Durations that differ from work to work, so that streams race.
    const auto duration = [&](NodeId node) { return (1 + (index(graph->node(node).work) * 37) % 11) * units::us; };
    const Timeline timeline = timeline_of(*graph, duration);
    const ScratchFolder folder;
    const auto written = write_and_read(*graph, timeline, folder.path());
    ASSERT_TRUE(written) << to_text(written.error());
    EXPECT_TRUE(written->replayed.ok()) << text_of(written->replayed);
    EXPECT_EQ(written->summary.ranks, each.plan.tp * each.plan.cp * each.plan.pp * each.plan.dp);

    // Kernels: those of the stage, on each of its ranks.
    std::vector<std::size_t> kernels(static_cast<std::size_t>(each.plan.pp), 0);
    for (std::uint32_t n = 0; n < graph->node_count(); ++n) {
      if (!std::holds_alternative<Operator>(graph->work_of(NodeId{n}).work)) continue;
      ++kernels[static_cast<std::size_t>(ExecutionGraph::stage_of(graph->node(NodeId{n}).lane))];
    }
    for (Rank rank = 0; rank < written->summary.ranks; ++rank) {
      const std::vector<TraceNode>& trace = written->traces[static_cast<std::size_t>(rank)];
      EXPECT_EQ(
          static_cast<std::size_t>(std::count_if(
              trace.begin(), trace.end(), [](const TraceNode& node) { return node.type == TraceNodeType::kCompute; })),
          kernels[static_cast<std::size_t>(graph->mesh().coordinate(rank, "pp"))])
          << "rank " << rank;
    }
    EXPECT_EQ(disagreement(*written), "");
    EXPECT_EQ(communication_of(*written).sends.empty(), each.plan.pp == 1 && each.plan.cp == 1);
  }
}

// With communication as long as the timeline says and no collective beside another, the replay is the timeline.
TEST(PlannedStep, ReplayAgreesWithTheTimelineWhereStreamsDoNotOverlap) {
  ParallelPlan plan;
  plan.tp = 2;
  plan.pp = 1;
  plan.sequence_parallel = false;  // all-reduces beside weight gradients: two slots, as on the GPU
  const Training training{.global_batch = 4, .micro_batch = 1, .sequence = 32, .precision = Precision::kBf16};
  const auto graph = planned_graph(small_model(true), plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  const auto duration = [&](NodeId node) { return (1 + (index(graph->node(node).work) * 37) % 11) * units::us; };
  const Timeline timeline = timeline_of(*graph, duration);
  const ScratchFolder folder;
  const auto written = write_and_read(*graph, timeline, folder.path());
  ASSERT_TRUE(written) << to_text(written.error());
  for (const std::uint64_t finish : written->replayed.finish_ns) {
    EXPECT_NEAR(static_cast<double>(finish), timeline.step / units::ns, 1);
  }
}

}  // namespace
}  // namespace ns_dist
