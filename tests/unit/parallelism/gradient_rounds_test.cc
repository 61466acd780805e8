// ZeRO-2 and 3 that reduce gradients once a round (plan/reduce_each=round): which passes reduce, what the others
// compute, and what a stage keeps whole; and ZeRO-1 and 2 that sum all gradients on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "block.h"
#include "ns_dist/memory.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"
#include "support/planned_graph.h"

namespace ns_dist {
namespace {

using namespace units;

constexpr double kTableSize = 32000 * 512.0, kNormSize = 512;

ParallelPlan in_rounds(ParallelPlan plan) {
  plan.zero = ZeroStage::kGradients;
  plan.reduce_each = ReduceEach::kRound;
  return plan;
}

double layer_of(const Model& model) {
  return parameters_of(layer_block(Shape(model, ParallelPlan{}, Training{}), layer_kind(model, 0))).total();
}

// Rounds of each chunk, by stage: each begins where the weight gradient before it was another chunk's.
std::vector<std::map<std::int32_t, std::int64_t>> rounds_of(const PipelineSchedule& schedule, const ScheduleShape& of) {
  std::vector<std::map<std::int32_t, std::int64_t>> rounds;
  const std::vector<PassList> orders = *schedule.orders(of);
  for (const PassList& order : orders) {
    auto& stage = rounds.emplace_back();
    std::int32_t before = -1;
    for (const SchedulePass& pass : flatten(order)) {
      if (pass.kind != PassKind::kBackward && pass.kind != PassKind::kWeightGradient) continue;
      if (pass.chunk != before) ++stage[pass.chunk];
      before = pass.chunk;
    }
  }
  return rounds;
}

// One reduction for each part of a chunk and each of its rounds. With pp microbatches in a group of the interleaved
// schedule, 16 microbatches have 8 rounds on 2 stages; all are one round where a chunk runs all its backward passes on
// end, or is the only one of its stage.
TEST(GradientRounds, AreReducedOnce) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const double all = 8 * layer_of(model) + 2 * kTableSize + kNormSize;
  const auto expect_rounds = [&](ParallelPlan plan, double rounds) {
    plan.dp = 2;
    const Training training{32, 1, 256, Precision::kBf16};
    const Totals runs = totals_of(model, in_rounds(plan), training);
    EXPECT_EQ(static_cast<double>(runs.nodes.at("gradients.reduce_scatter")), rounds * (8 + 2)) << plan.schedule;
    EXPECT_NEAR(runs.bytes.at("gradients.reduce_scatter"), 4 * rounds * all, 1) << plan.schedule;
    // Each rank adds its share to its sum, and clears the buffer; nothing is packed.
    EXPECT_NEAR(runs.elements.at("gradients.accumulate"), rounds * all / 2, 1) << plan.schedule;
    EXPECT_NEAR(runs.elements.at("gradients.clear"), rounds * all, 1) << plan.schedule;
    EXPECT_EQ(runs.nodes.count("gradients.pack"), 0u) << plan.schedule;
    plan.zero = ZeroStage::kGradients;
    EXPECT_NEAR(totals_of(model, plan, training).bytes.at("gradients.reduce_scatter"), 16 * 4 * all, 1)
        << plan.schedule;
  };
  expect_rounds({.pp = 2, .vpp = 2, .schedule = "interleaved"}, 8);
  expect_rounds({.pp = 2, .vpp = 4, .schedule = "interleaved", .overlap_param_gather = true}, 8);
  expect_rounds({.pp = 4, .vpp = 2, .schedule = "interleaved"}, 4);
  expect_rounds({.pp = 2, .vpp = 4, .schedule = "breadth-first"}, 1);
  expect_rounds({.pp = 4, .schedule = "gpipe"}, 1);
  expect_rounds({.pp = 4, .schedule = "1f1b"}, 1);
  expect_rounds({.pp = 4, .schedule = "zb-h1"}, 1);
  expect_rounds({}, 1);
}

// The loops of every schedule reduce where its passes, written out, change chunks, also where microbatches are no whole
// number of groups.
TEST(GradientRounds, EndWhereAScheduleChangesChunks) {
  const Model model = llama(24, 512, 8, 8, 1024);
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    if (schedule->hides_tokens) continue;  // of experts: below
    for (const std::int64_t chunks : {1, 2, 3}) {
      if (!schedule->has_chunks(chunks)) continue;
      for (const std::int64_t stages : {1, 2, 4}) {
        for (const std::int64_t microbatches : {1, 2, 4, 5, 8, 13, 24}) {
          const ScheduleShape shape{stages, microbatches, chunks};
          if (!schedule->orders(shape)) continue;
          std::int64_t expected = 0;
          const auto rounds = rounds_of(*schedule, shape);
          ParallelPlan plan{.pp = stages, .dp = 2, .vpp = chunks, .schedule = std::string(schedule->name)};
          const Training training{2 * microbatches, 1, 256, Precision::kBf16};
          if (!check_plan(model, in_rounds(plan), training)) continue;
          const Seats seats = schedule->seats(shape);
          for (const std::vector<Seat>& direction : seats) {
            const auto positions = static_cast<std::int64_t>(direction.size());
            for (std::int64_t i = 0; i < positions; ++i) {
              const Seat& seat = direction[static_cast<std::size_t>(i)];
              const auto& of_stage = rounds[static_cast<std::size_t>(seat.stage)];
              const auto of_chunk = of_stage.find(seat.chunk);
              const std::int64_t parts = 24 / positions + (i == 0 ? 1 : 0) + (i + 1 == positions ? 1 : 0);
              if (of_chunk != of_stage.end()) expected += of_chunk->second * parts;
            }
          }
          for (const bool gathers : {false, true}) {
            plan.overlap_param_gather = gathers;
            const Totals runs = totals_of(model, in_rounds(plan), training);
            EXPECT_EQ(runs.nodes.at("gradients.reduce_scatter"), expected)
                << schedule->name << ", stages " << stages << ", chunks " << chunks << ", microbatches "
                << microbatches;
          }
        }
      }
    }
  }
}

// Passes that run beside others: a round's last backward pass runs by itself, and all others hide tokens of experts.
TEST(GradientRounds, HideTokensBetweenReductions) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const ParallelPlan plan =
      in_rounds({.pp = 2, .dp = 4, .ep = 2, .vpp = 2, .schedule = "combined-1f1b", .sequence_parallel = false});
  const Training training{32, 1, 256, Precision::kBf16};  // 8 microbatches: 4 rounds
  const Totals runs = totals_of(model, plan, training);
  EXPECT_EQ(runs.nodes.at("gradients.reduce_scatter"), 4 * (4 + 2));
  EXPECT_EQ(runs.nodes.at("experts.gradients.reduce_scatter"), 4 * 4);
}

// Products and kernels that add to sums are those of whole gradients (ZeRO-1), in every pass.
TEST(GradientRounds, AddUpAsWholeGradientsDo) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  for (const GradAccumulation how :
       {GradAccumulation::kFused, GradAccumulation::kFp32, GradAccumulation::kLow, GradAccumulation::kFusedLow}) {
    const auto kernels = [&](const ParallelPlan& plan) {
      std::multiset<std::string> all;
      const auto graph = planned_graph(model, plan, training);
      for (std::uint32_t n = 0; n < graph->node_count(); ++n) {
        const WorkItem& item = graph->work_of(NodeId{n});
        const auto* op = std::get_if<Operator>(&item.work);
        if (op == nullptr || item.name.starts_with("gradients.") || item.name.starts_with("optimizer.")) continue;
        const auto* gemm = std::get_if<Gemm>(&op->kind);
        all.insert(item.name + (gemm != nullptr ? std::to_string(static_cast<int>(gemm->epilogue)) : ""));
      }
      return all;
    };
    const ParallelPlan whole{.pp = 2, .dp = 2, .vpp = 2, .schedule = "interleaved", .grad_accumulation = how};
    ParallelPlan each = whole;
    each.zero = ZeroStage::kGradients;
    EXPECT_EQ(kernels(in_rounds(whole)), kernels(whole));
    EXPECT_NE(kernels(each), kernels(whole));
  }
}

// A stage has its share of all sums, and whole gradients of its largest chunk; where a kernel adds them up in fp32,
// those of two layers and of the table in 16 bits, too.
TEST(GradientRounds, KeepTheGradientsOfAChunkWhole) {
  const Model model = llama(64, 512, 8, 8, 1024);
  const double layer = layer_of(model);
  ParallelPlan plan = in_rounds({.pp = 2, .dp = 8, .vpp = 2, .schedule = "interleaved"});
  const auto gradients = [&](std::size_t stage) {
    return memory_budget(model, plan, {32, 1, 256, Precision::kBf16})->stages[stage].gradients / B;
  };
  const double first = 32 * layer + kTableSize, last = first + kNormSize;
  EXPECT_NEAR(gradients(0), 4 * (first / 8 + 16 * layer + kTableSize), 1);
  EXPECT_NEAR(gradients(1), 4 * (last / 8 + 16 * layer + kTableSize + kNormSize), 1);
  plan.grad_accumulation = GradAccumulation::kFusedLow;
  EXPECT_NEAR(gradients(0), 2 * (first / 8 + 16 * layer + kTableSize), 1);
  plan.grad_accumulation = GradAccumulation::kFp32;
  EXPECT_NEAR(gradients(0), 4 * (first / 8 + 16 * layer + kTableSize) + 2 * (2 * layer + kTableSize), 1);
  plan.grad_accumulation = GradAccumulation::kFused;
  plan.vpp = 8;
  EXPECT_NEAR(gradients(0), 4 * (first / 8 + 4 * layer + kTableSize), 1);
  plan.vpp = 1, plan.schedule = "1f1b";  // one chunk is all of the stage
  EXPECT_NEAR(gradients(0), 4 * (first / 8 + first), 1);
  plan.reduce_each = ReduceEach::kMicrobatch;
  EXPECT_NEAR(gradients(0), 4 * first / 8 + 2 * (2 * layer + kTableSize), 1);
}

// The loss adds to the gradients of a table that it shares with the embedding, in whose round they are reduced.
TEST(GradientRounds, KeepASharedTable) {
  Model model = llama(8, 512, 8, 8, 1024);
  model.tied_embeddings = true;
  const double layer = layer_of(model), all = 8 * layer + kTableSize + kNormSize;
  const ParallelPlan plan = in_rounds({.dp = 8, .vpp = 2, .schedule = "breadth-first"});
  const StageMemory stage = memory_budget(model, plan, {32, 1, 256, Precision::kBf16})->stages[0];
  EXPECT_NEAR(stage.gradients / B, 4 * (all / 8 + 4 * layer + kTableSize + kNormSize), 1);
}

// Gradients of experts that no other rank has are added up where they stay.
TEST(GradientRounds, LeaveExpertsOfOneRank) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 0, 0, 0};
  const Training training{32, 1, 256, Precision::kBf16};
  for (const std::int64_t ep : {2, 4}) {
    const ParallelPlan plan = in_rounds({.pp = 2, .dp = 4, .ep = ep, .vpp = 2, .schedule = "interleaved"});
    const RankParameters layer = parameters_of(layer_block(Shape(model, plan, training), layer_kind(model, 0)));
    const double copies = 4.0 / static_cast<double>(ep), experts = ep == 4 ? 0 : layer.experts;
    const double rounds = 4;  // 8 microbatches in groups of 2
    const Totals runs = totals_of(model, plan, training);
    EXPECT_EQ(runs.nodes.count("experts.gradients.reduce_scatter"), ep == 4 ? 0u : 1u);
    EXPECT_NEAR(runs.elements.at("gradients.accumulate"),
                rounds * (4 * (layer.dense / 4 + experts / copies) + (2 * kTableSize + kNormSize) / 4), 10 * rounds);
    const StageMemory stage = memory_budget(model, plan, training)->stages[0];
    EXPECT_NEAR(
        stage.gradients / B,
        4 * (2 * (layer.dense / 4 + layer.experts / copies) + kTableSize / 4 + layer.dense + experts + kTableSize), 1);
  }
}

// Frozen weights have no gradients: adapters alone are reduced, of 8 layers in 8 rounds.
TEST(GradientRounds, OfAdapters) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  const ParallelPlan plan = in_rounds({.pp = 2, .dp = 2, .vpp = 2, .schedule = "interleaved", .lora_rank = 8});
  const double layer = adapters_of(layer_block(Shape(model, plan, training), layer_kind(model, 0))).total();
  const Totals runs = totals_of(model, plan, training);
  EXPECT_EQ(runs.nodes.at("gradients.reduce_scatter"), 8 * 8);
  EXPECT_NEAR(runs.bytes.at("gradients.reduce_scatter"), 4 * 8 * 8 * layer, 1);
  EXPECT_NEAR(runs.elements.at("gradients.clear"), 8 * 8 * layer, 1);
  const StageMemory stage = memory_budget(model, plan, training)->stages[0];
  EXPECT_NEAR(stage.gradients / B, 4 * (4 * layer / 2 + 2 * layer), 1);
}

// FSDP under no_sync: every pass gathers weights, the last one reduces what all have added up, whose buffer is there
// beside the shares in fp32.
TEST(GradientRounds, OfZero3GatherInEachPass) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  const double all = 8 * layer_of(model) + 2 * kTableSize + kNormSize;
  ParallelPlan plan{.dp = 4};
  plan.zero = ZeroStage::kParameters, plan.zero_library = ZeroLibrary::kFsdp2;
  plan.grad_accumulation = GradAccumulation::kLow;
  const Totals each = totals_of(model, plan, training);
  const StageMemory small = memory_budget(model, plan, training)->stages[0];
  plan.reduce_each = ReduceEach::kRound;
  const Totals once = totals_of(model, plan, training);
  const StageMemory large = memory_budget(model, plan, training)->stages[0];
  EXPECT_EQ(once.nodes.at("weights.all_gather"), each.nodes.at("weights.all_gather"));
  EXPECT_EQ(once.bytes.at("weights.all_gather"), each.bytes.at("weights.all_gather"));
  EXPECT_NEAR(each.bytes.at("gradients.reduce_scatter"), 8 * 2 * all, 1);
  EXPECT_NEAR(once.bytes.at("gradients.reduce_scatter"), 2 * all, 1);
  EXPECT_NEAR(large.gradients / B, 4 * all / 4 + 2 * all, 1);
  EXPECT_LT(small.gradients, large.gradients);
}

// DeepSpeed's ZeRO-1 sums once a step, its ZeRO-2 in each pass, where the next layer waits for it unless it overlaps.
TEST(GradientRounds, OfDeepSpeedAreAllReduces) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  const double all = 8 * layer_of(model) + 2 * kTableSize + kNormSize;
  for (const auto& [zero, passes] : {std::pair(ZeroStage::kOptimizer, 1.0), std::pair(ZeroStage::kGradients, 8.0)}) {
    ParallelPlan plan{.dp = 4};
    plan.zero = zero, plan.grad_accumulation = GradAccumulation::kLow;
    const Totals scattered = totals_of(model, plan, training);
    plan.gradient_exchange = GradientExchange::kAllReduce;
    const Totals summed = totals_of(model, plan, training);
    EXPECT_NEAR(scattered.bytes.at("gradients.reduce_scatter"), passes * 2 * all, 1);
    EXPECT_EQ(summed.nodes.count("gradients.reduce_scatter"), 0u);
    EXPECT_NEAR(summed.bytes.at("gradients.all_reduce"), passes * 2 * all, 1);
    EXPECT_EQ(
        memory_budget(model, plan, training)->peak(),
        memory_budget(model, ParallelPlan{.dp = 4, .zero = zero, .grad_accumulation = GradAccumulation::kLow}, training)
            ->peak());
  }
}

// In a pipeline FSDP2 holds whole sums anyway. There and without shared gradients the choice changes nothing.
TEST(GradientRounds, AreOfSharedGradientsAlone) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  ParallelPlan plan{.pp = 2, .dp = 2, .vpp = 2, .schedule = "interleaved"};
  for (const auto& [zero, replicas] : {std::tuple(ZeroStage::kNone, 2), std::tuple(ZeroStage::kOptimizer, 2),
                                       std::tuple(ZeroStage::kGradients, 1), std::tuple(ZeroStage::kParameters, 2)}) {
    plan.zero = zero, plan.dp = replicas;
    if (zero == ZeroStage::kParameters) plan.zero_library = ZeroLibrary::kFsdp2;
    plan.reduce_each = ReduceEach::kRound;
    const Totals with = totals_of(model, plan, training);
    const Bytes memory = memory_budget(model, plan, training)->peak();
    plan.reduce_each = ReduceEach::kMicrobatch;
    const Totals without = totals_of(model, plan, training);
    EXPECT_EQ(with, without);
    EXPECT_EQ(memory, memory_budget(model, plan, training)->peak());
  }
}

// Each loop of a schedule stays one, or becomes two.
TEST(GradientRounds, KeepLoopsShort) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const auto calls = [&](const ParallelPlan& plan, std::int64_t microbatches) {
    const auto program = plan_program(model, plan, {2 * microbatches, 1, 256, Precision::kBf16});
    std::size_t count = 0;
    for (const Actor& actor : program->actors) {
      for (const ProgramLoop& loop : actor.loops) count += loop.calls.size();
    }
    return count;
  };
  for (const ParallelPlan& plan : {ParallelPlan{.pp = 4, .dp = 2, .vpp = 2, .schedule = "interleaved"},
                                   ParallelPlan{.pp = 4, .dp = 2}, ParallelPlan{.pp = 4, .dp = 2, .schedule = "gpipe"},
                                   ParallelPlan{.pp = 4, .dp = 2, .vpp = 2, .schedule = "breadth-first"}}) {
    EXPECT_LE(calls(in_rounds(plan), 4000), 2 * calls(plan, 4000)) << plan.schedule;
    EXPECT_EQ(calls(in_rounds(plan), 4000), calls(in_rounds(plan), 400)) << plan.schedule;
  }
}

}  // namespace
}  // namespace ns_dist
