// Korthikanti et al. 2022 (arXiv 2205.05198), s.4, on the paper's own models.
#include "ns_dist/memory.h"

#include <gtest/gtest.h>

#include "ns_dist/parameters.h"
#include "parallelism_models.h"

namespace ns_dist {
namespace {

using namespace units;

struct Korthikanti : ::testing::Test {
  Model model = gpt(48, 6144, 64);
  ParallelPlan plan;
  Training training{4, 4, 2048, DType::kFp16};
  double s = 2048, b = 4, h = 6144, a = 64, t = 8;

  Korthikanti() { plan.flash_attention = false; }
  double bytes() const { return layer_activations(model, plan, training, 0) / B; }
};

TEST_F(Korthikanti, Equation1NoParallelism) { EXPECT_DOUBLE_EQ(bytes(), s * b * h * (34 + 5 * a * s / h)); }

TEST_F(Korthikanti, Equation2TensorParallel) {
  plan.tp = 8;
  EXPECT_DOUBLE_EQ(bytes(), s * b * h * (10 + 24 / t + 5 * a * s / (h * t)));
}

TEST_F(Korthikanti, Equation4SequenceParallel) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(bytes(), s * b * h / t * (34 + 5 * a * s / h));
}

TEST_F(Korthikanti, Equation6SelectiveRecomputation) {
  plan.tp = 8;
  plan.sequence_parallel = true;
  plan.recompute = Recompute::kSelective;
  EXPECT_DOUBLE_EQ(bytes(), 34 * s * b * h / t);
}

TEST_F(Korthikanti, Table2FullRecomputation) {
  plan.tp = 8;
  plan.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(bytes(), 2 * s * b * h);
}

// Eq. 5 and its factor for interleaving, (1 + (p - 1) / (p v)): the first stage of 175B, p = 8, v = 3.
TEST_F(Korthikanti, FirstStageHoldsAsManyLayersAsTheModel) {
  model = gpt(96, 12288, 96);
  model.dropout = true;
  plan = {.tp = 8,
          .pp = 8,
          .vpp = 3,
          .schedule = "interleaved",
          .recompute = Recompute::kSelective,
          .sequence_parallel = true,
          .flash_attention = false};
  training = {64, 1, 2048, DType::kFp16};
  const auto budget = memory_budget(model, plan, training);
  ASSERT_TRUE(budget) << to_text(budget.error());
  const double sbh = 2048.0 * 12288, layer = 34 * sbh / 8, in_flight = 1 + 7.0 / (8 * 3);
  const double embedding_mask = sbh / 8 * 8 * in_flight;
  EXPECT_NEAR(budget->stages.front().activations / B, 96 * layer * in_flight + embedding_mask, 1);
  EXPECT_EQ(budget->peak_stage, 0);
}

// Megatron-LM: 18 bytes a parameter in mixed precision, 6 + 12 / dp with the distributed optimizer.
TEST(Memory, StatesOfAParameter) {
  const Model model = gpt(24, 2048, 16);
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kNone};
  Training training{64, 1, 2048, DType::kBf16};
  const double padded = model_parameters(model).total() + (50304 - 50257) * 2048.0;
  const auto states = [&] {
    const StageMemory memory = memory_budget(model, plan, training)->stages[0];
    return (memory.weights + memory.gradients + memory.optimizer) / B / padded;
  };
  EXPECT_NEAR(states(), 18, 1e-9);
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_NEAR(states(), 6 + 12.0 / 8, 1e-9);
}

TEST(SplitLayers, UnevenStagesGiveTheFirstOnesMore) {
  const auto stages = split_layers(gpt(126, 16384, 128), {.pp = 8});
  ASSERT_TRUE(stages);
  std::vector<std::int64_t> counts;
  for (const auto& stage : *stages) counts.push_back(stage.at(0).count);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{16, 16, 16, 16, 16, 16, 15, 15}));
}

TEST(SplitLayers, ChunksAreDealtRoundRobin) {
  const auto stages = split_layers(gpt(8, 64, 4), {.pp = 2, .vpp = 2});
  ASSERT_TRUE(stages);
  EXPECT_EQ((*stages)[1], (std::vector<LayerRange>{{2, 2}, {6, 2}}));
}

}  // namespace
}  // namespace ns_dist
