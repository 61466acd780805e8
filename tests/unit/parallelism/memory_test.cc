// Korthikanti et al. 2022 (arXiv 2205.05198), s.4, on the paper's own models: what a stage holds.
#include "ns_dist/memory.h"

#include <gtest/gtest.h>

#include "block.h"
#include "ns_dist/parameters.h"
#include "parallelism_models.h"
#include "stage_parameters.h"

namespace ns_dist {
namespace {

using namespace units;

// Eq. 5 and its factor for interleaving, (1 + (p - 1) / (p v)): the first stage of 175B, p = 8, v = 3.
TEST(Memory, FirstStageHoldsAsManyLayersAsTheModel) {
  const Model model = gpt(96, 12288, 96);
  const ParallelPlan plan{.tp = 8,
                          .pp = 8,
                          .vpp = 3,
                          .schedule = "interleaved",
                          .recompute = Recompute::kSelective,
                          .sequence_parallel = true,
                          .flash_attention = false};
  const Training training{64, 1, 2048, Precision::kFp16};
  const auto budget = memory_budget(model, plan, training);
  ASSERT_TRUE(budget) << to_text(budget.error());
  const double sbh = 2048.0 * 12288, layer = 34 * sbh / 8, in_flight = 1 + 7.0 / (8 * 3);
  // Of 31 passes in flight, 16 are of the first chunk: two rounds of 8 microbatches.
  const double embedding_mask = 16 * sbh / 8;
  EXPECT_NEAR(budget->stages.front().activations / B, 96 * layer * in_flight + embedding_mask, 1);
  EXPECT_EQ(budget->peak_stage, 0);
}

// Megatron-LM: 18 bytes a parameter in mixed precision, 6 + 12 / dp with the distributed optimizer.
TEST(Memory, StatesOfAParameter) {
  const Model model = gpt(24, 2048, 16);
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kNone};
  Training training{64, 1, 2048, Precision::kBf16};
  const double padded = model_parameters(model).total() + (50304 - 50257) * 2048.0;
  const auto states = [&] {
    const StageMemory memory = memory_budget(model, plan, training)->stages[0];
    return (memory.weights + memory.gradients + memory.optimizer) / B / padded;
  };
  EXPECT_NEAR(states(), 18, 1e-9);
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_NEAR(states(), 6 + 12.0 / 8, 1e-9);
}

// The host's part of the optimizer's 12 bytes leaves the GPU, and nothing else.
TEST(Memory, OffloadedOptimizerLeavesTheGpu) {
  const Training training{64, 1, 2048, Precision::kBf16};
  ParallelPlan plan{.dp = 8};
  const StageMemory all = memory_budget(gpt(24, 2048, 16), plan, training)->stages[0];
  plan.offload_optimizer = {0.75};
  StageMemory part = memory_budget(gpt(24, 2048, 16), plan, training)->stages[0];
  EXPECT_DOUBLE_EQ(part.optimizer / all.optimizer, 0.25);
  EXPECT_EQ(part.total() - part.optimizer, all.total() - all.optimizer);
  plan.offload_optimizer = {1};
  EXPECT_EQ(memory_budget(gpt(24, 2048, 16), plan, training)->stages[0].optimizer, Bytes());
}

// Of layers whose activations wait on the host, two at a time are on the GPU: the one that computes and the one on its
// way. The others keep theirs in every microbatch under way (as many as stages, on the first stage).
TEST(Memory, OffloadedActivationsLeaveTheGpu) {
  const Training training{8, 1, 2048, Precision::kFp16};
  const auto activations = [&](std::int64_t away, std::int64_t pp, Recompute recompute = Recompute::kNone) {
    const ParallelPlan plan{.pp = pp, .recompute = recompute, .offload_activations = away, .flash_attention = false};
    return memory_budget(gpt(24, 6144, 64), plan, training)->stages[0].activations / B;
  };
  const double sbh = 2048.0 * 6144, layer = sbh * (34 + 5 * 64.0 * 2048 / 6144);
  EXPECT_NEAR(activations(0, 1) - activations(20, 1), (20 - 2) * layer, 1);
  EXPECT_NEAR(activations(0, 1) - activations(100, 1), (24 - 2) * layer, 1);
  EXPECT_NEAR(activations(0, 4) - activations(5, 4), (4 * 5 - 2) * layer, 1);
  // With full recomputation, a layer's input is all that it keeps.
  EXPECT_NEAR(activations(0, 1, Recompute::kFull) - activations(20, 1, Recompute::kFull), (20 - 2) * 2 * sbh, 1);
}

// Llama 2 7B with adapters of rank 16 on QKV, projection, gate and up, and down, by hand: 16 x 32 x (16,384 + 8,192 +
// 26,112 + 15,104) = 33,685,504. These alone have gradients (4 bytes) and optimizer states (12); the 6,738,415,616
// weights of the model have their 2 bytes.
TEST(Memory, LoraTrainsItsAdaptersAlone) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const Training training{64, 1, 4096, Precision::kBf16};
  const double adapters = 33'685'504, frozen = 6'738'415'616;
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kNone, .lora_rank = 16};
  const auto stage = [&] { return memory_budget(model, plan, training)->stages[0]; };
  EXPECT_EQ(stage().weights, 2 * (adapters + frozen) * B);
  EXPECT_EQ(stage().gradients, 4 * adapters * B);
  EXPECT_EQ(stage().optimizer, 12 * adapters * B);
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_EQ(stage().optimizer, 12 * adapters / 8 * B);
  EXPECT_EQ(stage().weights, 2 * (adapters + frozen) * B);
  plan.zero = ZeroStage::kParameters;
  const double layer = 4096.0 * (4 * 4096 + 3 * 11008) + 2 * 4096 + adapters / 32;
  EXPECT_NEAR(stage().weights / B, 2 * ((adapters + frozen) / 8 + 2 * layer), 1);
}

// 2 bytes a parameter, and what one layer holds (34 sbh + 5 as^2b, less the masks and the output of dropouts: a
// byte of each of two masks of sbh, of one of as^2b and 2 bytes of its output), however many layers there are.
TEST(Memory, AForwardPassHoldsWeightsAndOneLayer) {
  const Training training{4, 1, 2048, Precision::kFp16};
  ParallelPlan plan{.passes = Passes::kForward, .flash_attention = false};
  for (const std::int64_t layers : {4, 48}) {
    const Model model = gpt(layers, 6144, 64);
    const StageMemory memory = memory_budget(model, plan, training)->stages[0];
    const double padded = model_parameters(model).total() + (50304 - 50257) * 6144.0;
    EXPECT_NEAR(memory.weights / B, 2 * padded, 1);
    EXPECT_EQ((memory.gradients + memory.optimizer) / B, 0);
    const double sbh = 2048.0 * 6144, scores = 64.0 * 2048 * 2048;
    EXPECT_NEAR(memory.activations / B, 32 * sbh + 2 * scores, 1);
  }
  plan.passes = Passes::kGradients;
  EXPECT_EQ(memory_budget(gpt(4, 6144, 64), plan, training)->stages[0].optimizer / B, 0);
}

// Korthikanti et al., s.5: a layer that is computed again keeps its input, 2 sbh; while it is computed it holds all
// that it would keep otherwise.
TEST(Memory, RecomputationKeepsInputsAndOneLayer) {
  const Training training{1, 1, 2048, Precision::kFp16};
  const auto activations = [&](std::int64_t layers, Recompute recompute) {
    const ParallelPlan plan{.recompute = recompute, .flash_attention = false};
    return memory_budget(gpt(layers, 6144, 64), plan, training)->stages[0].activations / B;
  };
  const double sbh = 2048.0 * 6144, layer = sbh * (34 + 5 * 64.0 * 2048 / 6144);
  EXPECT_NEAR(activations(48, Recompute::kNone) - activations(24, Recompute::kNone), 24 * layer, 1);
  EXPECT_NEAR(activations(48, Recompute::kFull) - activations(24, Recompute::kFull), 24 * 2 * sbh, 1);
  EXPECT_NEAR(activations(48, Recompute::kNone) - activations(48, Recompute::kFull), 47 * layer - 48 * 2 * sbh, 1);
}

// A stage that holds the first and the last position has one table; two copies of the model are counted twice.
TEST(StageParameters, FollowTheSeats) {
  const Model model = gpt(4, 512, 8);
  const ParallelPlan plan{.pp = 2, .vpp = 2};
  const Shape shape(model, plan, {4, 1, 128, Precision::kBf16});
  const double layer = parameters_of(layer_block(shape, LayerKind{})).dense, table = 50304.0 * 512, norm = 2 * 512;
  const double positions = 2048 * 512;
  const std::vector<LayerRange> four = {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, two = {{0, 2}, {2, 2}};
  PlanMemory memory;
  const std::shared_ptr<const ModelParts> known = model_parts(model, plan, {4, 1, 128, Precision::kBf16}, memory);
  const ModelParts& parts = *known;
  const auto loop = stage_parameters(shape, {{{0, 0}, {1, 0}, {0, 1}, {1, 1}}}, four, parts);
  EXPECT_EQ(loop[0], (RankParameters{2 * layer + table + positions, 0}));
  EXPECT_EQ(loop[1], (RankParameters{2 * layer + table + norm, 0}));
  const auto vee = stage_parameters(shape, {{{0, 0}, {1, 0}, {1, 1}, {0, 1}}}, four, parts);
  EXPECT_EQ(vee[0], (RankParameters{2 * layer + table + positions + norm, 0}));
  EXPECT_EQ(vee[1], (RankParameters{2 * layer, 0}));
  const auto mirrored = stage_parameters(shape, {{{0, 0}, {1, 0}}, {{1, 1}, {0, 1}}}, two, parts);
  EXPECT_EQ(mirrored[0], (RankParameters{4 * layer + table + positions + norm, 0}));
  EXPECT_EQ(mirrored[1], mirrored[0]);
}

}  // namespace
}  // namespace ns_dist
