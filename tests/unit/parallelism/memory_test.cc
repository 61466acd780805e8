// Korthikanti et al. 2022 (arXiv 2205.05198), s.4, on the paper's own models: what a stage holds.
#include "ns_dist/memory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "block.h"
#include "ns_dist/parameters.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"
#include "stage_parameters.h"
#include "support/planned_graph.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

// Eq. 5 and its factor for interleaving, (1 + (p - 1) / (p v)): the first stage of 175B, p = 8, v = 3. The attention of
// one layer is there while it is computed again, 5 a s^2 b / t.
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
  // When a core is computed again, it has gradients of its scores behind and before the dropout, too, 2 bytes each; the
  // gradient of the hidden states goes around it, and what the layer kept behind it is free: 24 sbh.
  const double core = (5 + 4) * 96 * 2048.0 * 2048 / 8 + (2 - 24) * sbh / 8;
  EXPECT_NEAR(budget->stages.front().activations / B, 96 * layer * in_flight + embedding_mask + core, 1);
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
  // DeepSpeed adds up gradients in fp32 beside those of a microbatch, 2 bytes.
  plan.grad_accumulation = GradAccumulation::kFp32;
  EXPECT_NEAR(states(), 2 + 4 + 2 + 12.0 / 8, 1e-9);
}

// One replica shares with nobody: it gathers and reduces nothing, holds no buffers for that, and runs the kernels of
// ZeRO-1. PyTorch's fp32 weights are cast layer by layer all the same.
TEST(Memory, OneReplicaSharesNothing) {
  const Model model = gpt(24, 2048, 16);
  const Training training{64, 1, 2048, Precision::kBf16};
  for (const std::int64_t ranks : {1, 2}) {  // replicas
    const auto answer = [&](ZeroStage zero, ZeroLibrary library = ZeroLibrary::kDefault) {
      const ParallelPlan plan{.tp = 2, .dp = ranks, .zero = zero, .zero_library = library, .sequence_parallel = true};
      return std::pair(memory_budget(model, plan, training)->peak() / B,
                       plan_program(model, plan, training)->node_count());
    };
    const auto first = answer(ZeroStage::kOptimizer);
    EXPECT_EQ(answer(ZeroStage::kGradients) == first, ranks == 1);
    EXPECT_EQ(answer(ZeroStage::kParameters) == first, ranks == 1);
    EXPECT_NE(answer(ZeroStage::kParameters, ZeroLibrary::kFsdp), first);
  }
}

// Operands of 8-bit products, plain and transposed, a byte each: beside the weights, or instead of them.
TEST(Memory, EightBitOperandsStandTwice) {
  const Model model = llama(2, 512, 8, 8, 1024);
  const Training training{8, 1, 512, Precision::kFp8};
  const double all = model_parameters(model).total(), quantized = 2 * (4 * 512.0 * 512 + 3 * 512.0 * 1024);
  EXPECT_EQ(memory_budget(model, {}, training)->stages[0].weights / B, 2 * all + 2 * quantized);
  EXPECT_EQ(memory_budget(model, {.fp8_params = true}, training)->stages[0].weights / B, 2 * all);
  // Blackwell needs no transposes, but factors of blocks do.
  EXPECT_EQ(memory_budget(model, {.fp8_any_layout = true}, training)->stages[0].weights / B, 2 * all + quantized);
  EXPECT_NEAR(memory_budget(model, {.fp8_any_layout = true}, {8, 1, 512, Precision::kMxFp8})->stages[0].weights / B,
              2 * all + 2 * quantized * 33 / 32, 1e-3);
  // Forward passes alone have no product that reads a transpose, and no kernel that writes one.
  const ParallelPlan forward{.passes = Passes::kForward};
  EXPECT_EQ(memory_budget(model, forward, training)->stages[0].weights / B, 2 * all + quantized);
  EXPECT_NEAR(memory_budget(model, forward, {8, 1, 512, Precision::kMxFp8})->stages[0].weights / B,
              2 * all + quantized * 33 / 32, 1e-3);
  for (const auto& [passes, copies] : {std::pair(Passes::kTraining, 2), std::pair(Passes::kForward, 1)}) {
    const ParallelPlan plan{.passes = passes};
    const Block block = mlp_block(Shape(model, plan, training));
    const auto cast = std::find_if(block.steps.begin(), block.steps.end(),
                                   [](const BlockStep& step) { return step.name == "mlp.fc2"; });
    EXPECT_EQ(work_of(std::get<Operator>(cast->forward.front().what)).written / B, copies * 512 * 1024);
  }
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

// Of 8 replicas whose experts lie on 4 ranks each, 8 share the states of what all of them hold, and 2 those of an
// expert. Two of 8 experts are a rank's.
TEST(Memory, StatesOfExpertsAreSharedByTheirCopies) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  const ParallelPlan plan{.dp = 8, .ep = 4};
  const double experts = 2 * 2 * 3 * 512.0 * 1024, others = model_parameters(model).total() - 4 * experts;
  const StageMemory stage = memory_budget(model, plan, {8, 1, 512, Precision::kBf16})->stages[0];
  EXPECT_NEAR(stage.optimizer / B, 12 * (others / 8 + experts / 2), 1);
}

// Keys and values of all four ranks: 2 heads of 64, keys and values, 2 bytes, 2,048 tokens. As TransformerEngine has it
// (context_parallel.py): gathered, they are put in order, one after the other, which needs half of them twice. A
// backward pass has their gradients, those that the two parts of a rank's queries make (of all keys, and of an eighth
// more), and puts them in order. A ring holds those of all ranks and a result for each. Each layer in turn.
TEST(Memory, KeysAndValuesOfAllRanksAreThereForALayer) {
  const Model model = llama(2, 512, 8, 2, 1024);
  const Training training{4, 1, 2048, Precision::kBf16};
  const auto core = [&](ContextExchange how) {
    const ParallelPlan plan{.cp = 4, .cp_comm = how};
    const Block layer = layer_block(Shape(model, plan, training), LayerKind{});
    return *std::find_if(layer.steps.begin(), layer.steps.end(),
                         [](const BlockStep& step) { return step.name == "attention.core"; });
  };
  const double all = 2048.0 * 2 * 2 * 64 * 2;
  const double results = 2048.0 * 8 * 64 * 2, of_rank = results / 4;
  const BlockStep gathers = core(ContextExchange::kAllGather), ring = core(ContextExchange::kRing);
  EXPECT_EQ(gathers.transient_forward, 1.5 * all);
  EXPECT_EQ(ring.transient_forward, all + results);
  // Backward, of the rank's own: gradients of output and queries, these in fp32, too, and the output once more. A ring
  // has two pairs of keys and values with their gradients, and those of the part that runs.
  EXPECT_EQ(gathers.transient_backward, (2 + 1.125 + 0.5) * all + (1 + 1 + 2 + 1) * of_rank);
  EXPECT_EQ(ring.transient_backward, 5 * all / 4 + of_rank + (1 + 1 + 2 + 1) * of_rank);
}

// Exchanged for tokens, 2 heads of keys and values on 8 ranks are 8: each rank has a copy of one.
TEST(Memory, CopiesOfKeyHeadsAreKept) {
  const Model model = llama(1, 512, 8, 2, 1024);
  const auto kept = [&](ContextExchange how) {
    const ParallelPlan plan{.cp = 8, .cp_comm = how};
    const Block block = attention_block(Shape(model, plan, {1, 1, 2048, Precision::kBf16}));
    return kept_by_kind(block, Recompute::kNone, 0)[static_cast<std::size_t>(ActivationKind::kAttentionCore)]
        .after_forward;
  };
  const double tokens = 2048.0 / 8;
  EXPECT_EQ(kept(ContextExchange::kRing), tokens * (8 + 2 * 2) * 64 * 2);
  EXPECT_EQ(kept(ContextExchange::kAllToAll), tokens * (8 + 2 * 8) * 64 * 2);
}

// The 8-bit weights of blocks have one fp32 factor for 128 x 128; activations have one for 1 x 128.
TEST(Memory, BlocksOfWeightsShareAFactor) {
  const Model model = llama(2, 512, 8, 8, 1024);
  const ParallelPlan plan{};
  const auto casts = [&](Precision precision) {
    PlanCache cache;
    return memory_detail(model, plan, {1, 1, 512, precision}, cache)->at(0).cast_weights / B;
  };
  EXPECT_NEAR(casts(Precision::kFp8Block) / casts(Precision::kFp8), 1 + 4.0 / (128 * 128), 1e-12);
}

// Experts that no other rank has are not gathered, unless shards have another format than weights.
TEST(Memory, ExpertsOfOneRankAreNotGathered) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  const double experts = 3 * 512.0 * 1024;  // of one expert
  const auto gathered = [&](std::int64_t ep, ZeroLibrary library) {
    ParallelPlan plan{.dp = 8, .ep = ep, .zero = ZeroStage::kParameters, .zero_library = library};
    PlanCache cache;
    return memory_detail(model, plan, {8, 1, 512, Precision::kBf16}, cache)->at(0).gathered_weights / B / 2;
  };
  const double others = gathered(8, ZeroLibrary::kDefault);
  EXPECT_EQ(gathered(4, ZeroLibrary::kDefault), others + 2 * 2 * experts) << "two experts of two layers";
  EXPECT_EQ(gathered(8, ZeroLibrary::kFsdp2), others + 2 * experts);
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
  // No more are on the GPU than there are: one layer of one microbatch.
  EXPECT_NEAR(activations(0, 1), activations(1, 1), 1);
  EXPECT_NEAR(activations(0, 4) - activations(1, 4), (4 * 1 - 2) * layer, 1);
  // With full recomputation, a layer's input is all that it keeps.
  EXPECT_NEAR(activations(0, 1, Recompute::kFull) - activations(20, 1, Recompute::kFull), (20 - 2) * 2 * sbh, 1);
}

// Of two layers of which one is recomputed, the host keeps both: on the GPU are both, and no more than without it.
TEST(Memory, OffloadedLayersOfTwoSizesAreThoseTwo) {
  const Training training{8, 1, 2048, Precision::kFp16};
  const auto activations = [&](std::int64_t away) {
    const ParallelPlan plan{.recompute = Recompute::kFull, .recompute_layers = 1, .offload_activations = away};
    return memory_budget(gpt(2, 6144, 64), plan, training)->stages[0].activations / B;
  };
  EXPECT_NEAR(activations(1), activations(0), 1);
  EXPECT_NEAR(activations(2), activations(0), 1);
}

// A forward pass alone never holds more than one that a backward pass follows: logits of a large vocabulary count once.
TEST(Memory, AForwardPassHoldsNoMoreThanATrainingStep) {
  const Training training{8, 4, 8192, Precision::kBf16};
  Model model = llama(16, 2048, 32, 8, 8192);
  model.vocabulary = 128'256;
  const StageMemory alone = memory_budget(model, {.passes = Passes::kForward}, training)->stages[0],
                    both = memory_budget(model, {.passes = Passes::kGradients}, training)->stages[0];
  EXPECT_LT(alone.activations, both.activations);
  const double logits = 4.0 * 8192 * 128'256;
  EXPECT_LT(alone.activations / B, 2 * 4 * logits) << "in fp32, and what computes them";
}

// Keys and values of 32 layers of Llama 3 8B: 2 x 8 heads x 128 x 2 bytes a token, 131,072 bytes. Encoders have none.
TEST(Memory, AForwardPassMayKeepKeysAndValues) {
  const Training training{2, 2, 8192, Precision::kBf16};
  const auto activations = [&](const Model& model, bool cache) {
    ParallelPlan plan{.tp = 2};
    plan.passes = Passes::kForward, plan.kv_cache = cache;
    return memory_budget(model, plan, training)->stages[0].activations / B;
  };
  Model model = llama(32, 4096, 32, 8, 14336);
  EXPECT_NEAR(activations(model, true) - activations(model, false), 2 * 8192 * 131'072.0 / 2, 1);
  model.bidirectional = true;
  EXPECT_EQ(activations(model, true), activations(model, false));
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
  const double root = 2 * 32'000.0 * 4096 + 4096;  // two tables and a norm, whole in each pass
  EXPECT_NEAR(stage().weights / B, 2 * ((adapters + frozen) / 8 + root + 2 * layer), 1);
}

// DeepSpeed's ZeRO-2 and 3 move gradients to the host with the optimizer, one GPU's, too: what is left are two layers'.
// FSDP, ZeRO-1 and other frameworks keep them.
TEST(Memory, OffloadedGradientsLeaveTheGpu) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const Training training{8, 1, 4096, Precision::kBf16};
  const double all = 6'738'415'616, layer = (all - 2 * 32'000.0 * 4096 - 4096) / 32;
  for (const std::int64_t dp : {1, 8}) {
    ParallelPlan plan{.dp = dp,
                      .zero = ZeroStage::kGradients,
                      .recompute = Recompute::kFull,
                      .offload_optimizer = {1},
                      .offload_gradients = true};
    const auto gradients = [&] { return memory_budget(model, plan, training)->stages[0].gradients / B; };
    EXPECT_NEAR(gradients(), 2 * (2 * layer + 2 * 32'000.0 * 4096 + 4096), 1);
    plan.offload_optimizer = {0.5};
    const double half = gradients();
    plan.offload_optimizer = {};
    const double all_of_them = gradients();
    EXPECT_LT(half, all_of_them);
    plan.offload_gradients = false, plan.offload_optimizer = {1};
    EXPECT_EQ(gradients(), all_of_them);
    plan.offload_gradients = true, plan.offload_optimizer = {};
    plan.zero = ZeroStage::kOptimizer;
    const double kept = gradients();
    plan.offload_optimizer = {1};
    EXPECT_EQ(gradients(), kept);
  }
}

// DeepSpeed's ZeRO-1 and 2 flatten a rank's share of the gradients (2 bytes) and cast that to fp32 (4 bytes) when
// activations are gone: PyTorch reserves both, and allocates the larger. ZeRO-3 does so in groups, FSDP not at all.
TEST(Memory, AnUpdateCopiesItsGradients) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const double all = 6'738'415'616;
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kOptimizer, .grad_accumulation = GradAccumulation::kLow};
  const auto stage = [&](std::int64_t sequence) {
    return memory_budget(model, plan, {8, 1, sequence, Precision::kBf16})->stages[0];
  };
  for (const std::int64_t sequence : {64, 4096}) {
    plan.copy_gradients = false, plan.reduce_bucket = 0;
    const StageMemory without = stage(sequence);
    plan.copy_gradients = true, plan.reduce_bucket = 500'000'000;
    const StageMemory with = stage(sequence);
    const double copied = 6 * all / 8, bucket = 1e9, activations = with.activations / B;
    EXPECT_NEAR((with.total() - without.total()) / B, bucket + std::max(0.0, copied - activations), 1) << sequence;
    const double reserved = (with.reserved() - StageMemory::kReservedShare * with.total()) / B;
    EXPECT_NEAR(reserved, std::min(copied, activations), 1) << sequence;
  }
  plan.zero = ZeroStage::kParameters;
  EXPECT_EQ(stage(64).in_place_of_activations, Bytes());
  plan.zero = ZeroStage::kNone;
  EXPECT_EQ(stage(64).in_place_of_activations, Bytes());
  EXPECT_LT(stage(64).other, 1 * GB);
}

// FSDP of a model in bf16 alone (torchtune's full recipes): shards of weights, of gradients and of two moments have 2
// bytes each, and nothing is in fp32.
TEST(Memory, ShardsInLowPrecisionAlone) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const Training training{16, 1, 4096, Precision::kBf16};
  const double all = 6'738'415'616, root = 2 * 32'000.0 * 4096 + 4096, layer = (all - root) / 32;
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters, .recompute = Recompute::kFull};
  plan.weights = WeightStorage::kLow, plan.grad_accumulation = GradAccumulation::kLow;
  for (const ZeroLibrary library : {ZeroLibrary::kFsdp, ZeroLibrary::kFsdp2}) {
    plan.zero_library = library;
    const StageMemory stage = memory_budget(model, plan, training)->stages[0];
    EXPECT_NEAR(stage.weights / B, 2 * (all / 8 + root + 2 * layer), 1);
    EXPECT_NEAR(stage.gradients / B, 2 * (all / 8 + root + 2 * layer), 1);
    EXPECT_NEAR(stage.optimizer / B, 4 * all / 8, 1);
  }
  EXPECT_TRUE(check_plan(model, plan, training));
  plan.zero_library = ZeroLibrary::kDefault;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("3 of PyTorch's FSDP"));
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_FALSE(check_plan(model, plan, training));
}

// FSDP has no gradient before the first backward pass (zero_grad, set_to_none). Where a step is one microbatch, shards
// of gradients come as activations go: the peak has the larger of both. A second microbatch finds all shards there.
// Where activations are fewer, the first layer's backward pass runs beside all but its own and the table's: in hidden
// states x, its input, 8 and 3 of an MLP's width that it keeps, and 2 of these and 1 of gradients beyond what is free.
TEST(Memory, FirstGradientsTakeTheActivationsPlace) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const double all = 6'738'415'616, root = 2 * 32'000.0 * 4096 + 4096, layer = (all - root) / 32;
  ParallelPlan plan{.dp = 2, .zero = ZeroStage::kParameters};
  plan.zero_library = ZeroLibrary::kFsdp2;
  const StageMemory twice = memory_budget(model, plan, {4, 1, 4096, Precision::kBf16})->stages[0];
  const StageMemory once = memory_budget(model, plan, {2, 1, 4096, Precision::kBf16})->stages[0];
  const double whole = 2 * (root + 2 * layer), shards = 4 * all / 2;
  EXPECT_NEAR(twice.gradients / B, whole + shards, 1);
  EXPECT_EQ(once.activations, twice.activations);
  ASSERT_GT(once.activations / B, shards);
  EXPECT_NEAR(once.gradients / B, whole, 1);
  plan.recompute = Recompute::kFull;
  const StageMemory again = memory_budget(model, plan, {2, 1, 4096, Precision::kBf16})->stages[0];
  ASSERT_LT(again.activations / B, shards);
  const double x = 2 * 4096.0 * 4096, width = 2 * 4096.0 * 11008, first = layer + 32'000.0 * 4096;
  const double works = (1 + 8) * x + 3 * width + 2 * width + x + 4 * 4096.0 * 32;
  EXPECT_NEAR((again.gradients + again.activations) / B, whole + shards - 4 * first / 2 + works, 1);
}

// One microbatch in low precision alone: gradients take the place of activations, but for the first one, of the logits'
// projection, which a loss of a part of the tokens at a time makes forward, beside all that 32 layers keep: 14 hidden
// states and the log-sum-exp of 8 heads each, and two of the end and the loss's gradient. Liger has logits of 16
// tokens.
TEST(Memory, TheFirstGradientIsThereBesideAllActivations) {
  Model model = llama(32, 512, 8, 8, 1024);
  model.vocabulary = 256'000;
  ParallelPlan plan{.zero = ZeroStage::kNone};
  plan.weights = WeightStorage::kLow, plan.grad_accumulation = GradAccumulation::kLow;
  plan.loss_library = Library::kLiger, plan.vocabulary_multiple = 1;
  const StageMemory stage = memory_budget(model, plan, {1, 1, 4096, Precision::kBf16})->stages[0];
  const double hidden = 2 * 4096.0 * 512, kept = 32 * (14 * hidden + 4 * 4096.0 * 8) + 3 * hidden;
  EXPECT_EQ((stage.activations + stage.gradients) / B, kept + 2 * 16 * 256'000.0 + 2 * 256'000.0 * 512);
}

// When the first of 32 layers is computed again, the gradients of all others are there, and of the end. It keeps its
// input, x, and works on 19 x and the log-sum-exp of 8 heads (Transients.GradientsOfAGatedMlp).
TEST(Memory, TheFirstLayersWorkIsBesideAllOtherGradients) {
  Model model = llama(32, 512, 8, 8, 1024);
  model.vocabulary = 128;
  ParallelPlan plan{.zero = ZeroStage::kNone, .recompute = Recompute::kFull};
  plan.weights = WeightStorage::kLow, plan.grad_accumulation = GradAccumulation::kLow, plan.vocabulary_multiple = 1;
  const StageMemory stage = memory_budget(model, plan, {1, 1, 512, Precision::kBf16})->stages[0];
  const double layer = 4 * 512.0 * 512 + 3 * 512.0 * 1024 + 2 * 512, table = 128.0 * 512, x = 2 * 512.0 * 512;
  EXPECT_NEAR((stage.activations + stage.gradients) / B, 2 * (31 * layer + table + 512) + (1 + 19) * x + 4 * 512.0 * 8,
              1);
}

// FSDP sums the norm over the group that reduces its gradients.
TEST(Memory, FsdpHasOneGroupOfItsReplicas) {
  const auto buffers = [](ZeroLibrary library) {
    const ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters, .zero_library = library};
    return memory_budget(llama(2, 512, 8, 8, 1024), plan, {8, 1, 512, Precision::kBf16})->stages[0].communicators;
  };
  EXPECT_EQ(buffers(ZeroLibrary::kFsdp), 688 * units::MiB);
  EXPECT_EQ(buffers(ZeroLibrary::kFsdp2), 688 * units::MiB);
  EXPECT_EQ(buffers(ZeroLibrary::kDefault), 2 * 688 * units::MiB);
}

// QLoRA (arXiv 2305.14314, s. 3): 4.127 bits a weight of linear layers; tables and norms as they are. The largest
// weight is whole while its product runs. PEFT's adapters in fp32 make no copies of what is frozen.
TEST(Memory, LinearLayersFrozenIn4Bits) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const Training training{8, 1, 4096, Precision::kBf16};
  const double adapters = 33'685'504, tables = 2 * 32'000.0 * 4096, norms = (2 * 32 + 1) * 4096.0;
  const double linear = 6'738'415'616 - tables - norms, kept = linear * 4.127 / 8 + 2 * (tables + norms);
  ParallelPlan plan{.zero = ZeroStage::kNone, .recompute = Recompute::kFull, .lora_rank = 16};
  const StageMemory plain = memory_budget(model, plan, training)->stages[0];
  plan.frozen_weights = FrozenWeights::kNf4;
  const StageMemory packed = memory_budget(model, plan, training)->stages[0];
  EXPECT_NEAR(packed.weights / B, kept + 2 * adapters, 1e-5 * kept);
  EXPECT_EQ(packed.optimizer, plain.optimizer);
  EXPECT_GE(packed.activations, plain.activations);
  EXPECT_LE((packed.activations - plain.activations) / B, 2 * 2 * 4096.0 * 11008);
  plan.frozen_weights = FrozenWeights::kNf4Single;  // 4 bits and 32 for each 64
  EXPECT_NEAR(memory_budget(model, plan, training)->stages[0].weights / B,
              linear * 4.5 / 8 + 2 * (tables + norms + adapters), 1);
  plan.frozen_weights = FrozenWeights::kNf4;
  plan.grad_accumulation = GradAccumulation::kLow;
  for (const auto& [weights, each] : {std::pair{WeightStorage::kLow, 2.0}, {WeightStorage::kFp32, 4.0}}) {
    plan.weights = weights;
    const StageMemory alone = memory_budget(model, plan, training)->stages[0];
    EXPECT_NEAR(alone.weights / B, kept + each * adapters, 1e-5 * kept);
    EXPECT_NEAR(alone.optimizer / B, 2 * each * adapters, 1);
  }
  plan = {.dp = 8, .zero = ZeroStage::kParameters, .lora_rank = 16, .frozen_weights = FrozenWeights::kNf4};
  const double layer = linear / 32 * 4.127 / 8 + 2 * (2 * 4096 + adapters / 32);
  EXPECT_NEAR(memory_budget(model, plan, training)->stages[0].weights / B,
              (kept + 2 * adapters) / 8 + 2 * (tables + 4096) + 2 * layer, 1e-4 * kept);
  plan.lora_rank = 0;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("use plan/lora_rank=16"));
  plan.lora_rank = 16;
  EXPECT_THAT(to_text(check_plan(model, plan, {8, 1, 4096, Precision::kFp8}).error()),
              HasSubstr("use training/dtype=bf16"));
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

// Sets of replicas are copies of one: a GPU holds what it would hold if there were one set, of experts, too.
TEST(Memory, ASetOfReplicasHoldsWhatItWouldAlone) {
  Model model = gpt(4, 1024, 8);
  model.moe = Experts{.experts = 16, .top_k = 2, .expert_ffn = 512};
  const auto of = [&](const ParallelPlan& plan) {
    const StageMemory stage = memory_budget(model, plan, {plan.dp, 1, 512, Precision::kBf16})->stages[0];
    return std::vector<double>{stage.weights / B, stage.gradients / B, stage.optimizer / B};
  };
  for (const ZeroStage zero : {ZeroStage::kOptimizer, ZeroStage::kParameters}) {
    EXPECT_EQ(of({.dp = 64, .ep = 8, .zero = zero, .shard = 8}), of({.dp = 8, .ep = 8, .zero = zero}));
    EXPECT_EQ(of({.dp = 64, .ep = 4, .zero = zero, .shard = 16}), of({.dp = 16, .ep = 4, .zero = zero}));
    const ParallelPlan whole{.tp = 4, .dp = 2, .etp = 1, .zero = zero, .sequence_parallel = true};
    ParallelPlan all = whole;
    all.shard = 2;
    EXPECT_EQ(of(all), of(whole));
  }
}

// Of each group of ranks: 544 MiB for two, 688 MiB for more; each other rank of an all-to-all takes 3.28 GB / 7.
TEST(Memory, NcclHoldsBuffersForEachGroupOfRanks) {
  Model model = gpt(8, 1024, 16);
  const Training training{16, 1, 512, Precision::kBf16};
  const auto buffers = [&](const ParallelPlan& plan, std::size_t stage = 0) {
    const auto budget = memory_budget(model, plan, training);
    EXPECT_TRUE(budget) << to_text(budget.error());
    return budget ? budget->stages[stage].communicators : Bytes();
  };
  const Bytes pair = 544.0 * units::MiB, group = 688.0 * units::MiB, peer = 3.28 / 7 * units::GB;
  EXPECT_EQ(buffers({}), Bytes());
  EXPECT_EQ(buffers({.tp = 2}), 2 * pair);  // and the norm
  EXPECT_EQ(buffers({.tp = 4, .dp = 8}), 3 * group);
  EXPECT_EQ(buffers({.dp = 8, .zero = ZeroStage::kParameters, .shard = 2}), pair + 2 * group);
  EXPECT_EQ(buffers({.dp = 8, .zero = ZeroStage::kNone}), group);
  EXPECT_EQ(buffers({.passes = Passes::kForward, .dp = 8}), Bytes());
  // Tensor-parallel ranks, neighbors, the norm; the first and the last stage share the table of a tied embedding.
  const ParallelPlan pipeline{.tp = 4, .pp = 4};
  EXPECT_EQ(buffers(pipeline, 1), 2 * group + pair);
  EXPECT_EQ(buffers(pipeline, 0), 2 * group + 2 * pair);
  EXPECT_EQ(buffers(pipeline, 3), buffers(pipeline, 0));
  // Adapters leave the table as it is. Under DualPipe every stage sums its gradients with its mirror.
  EXPECT_EQ(buffers({.tp = 4, .pp = 4, .lora_rank = 8}, 0), 2 * group + pair);
  for (const std::size_t stage : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_EQ(buffers({.tp = 4, .pp = 4, .vpp = 2, .schedule = "dualpipe"}, stage), 2 * group + 2 * pair);
  }
  model.tied_embeddings = false;
  EXPECT_EQ(buffers(pipeline, 0), 2 * group + pair);
  // Exchanges of heads; of tokens, within a node.
  EXPECT_NEAR(buffers({.cp = 4, .cp_comm = ContextExchange::kAllToAll}) / B, (3 * group + 3 * peer) / B, 1);
  EXPECT_EQ(buffers({.tp = 4, .cp_comm = ContextExchange::kHierarchical, .cp_inner = 4}), 2 * group) << "cp 1";
  Model mamba = model;
  mamba.state_space = StateSpace{16, 64, 4, 32, 4};
  mamba.layer_pattern = "MMMM*MMM";
  std::swap(model, mamba);
  EXPECT_NEAR(buffers({.cp = 4}) / B, (3 * group + 3 * peer) / B, 1) << "a ring for attention, heads of Mamba-2";
  std::swap(model, mamba);
  model.moe = Experts{};
  model.moe->experts = 64;
  model.moe->top_k = 2;
  model.moe->expert_ffn = 512;
  EXPECT_NEAR(buffers({.dp = 16, .ep = 4}) / B, (4 * group + 3 * peer) / B, 1);
  EXPECT_NEAR(buffers({.dp = 16, .ep = 16}) / B, (3 * group + 7 * peer) / B, 1);
  EXPECT_EQ(buffers({.dp = 16, .ep = 16, .expert_dispatch = ExpertDispatch::kDeepEp}), 3 * group);
  // Experts that tensor-parallel ranks do not divide have replicas of their own, and so have sets of experts' replicas.
  const auto deepep = ExpertDispatch::kDeepEp;
  ParallelPlan divided{.tp = 8, .dp = 2, .sequence_parallel = true};
  divided.etp = 8;
  ParallelPlan whole = divided;
  whole.etp = 1;
  EXPECT_EQ(buffers(whole) - buffers(divided), group);
  const ParallelPlan sets{.dp = 16, .ep = 2, .expert_dispatch = deepep, .zero = ZeroStage::kParameters, .shard = 4};
  EXPECT_EQ(buffers(sets), 2 * group + (pair + group) + pair + group);  // of all else, experts, ep, the norm
  // Ranks with different experts sum the norm over all of them, also where each has a whole optimizer.
  EXPECT_EQ(buffers({.dp = 16, .ep = 4, .expert_dispatch = deepep, .zero = ZeroStage::kNone}), 4 * group);
  // Passes that only gather weights have those of their replicas: of experts, and of all else.
  ParallelPlan shared{.dp = 16, .ep = 4, .expert_dispatch = ExpertDispatch::kDeepEp, .zero = ZeroStage::kParameters};
  const Bytes trains = buffers(shared);
  shared.passes = Passes::kForward;
  EXPECT_EQ(trains - buffers(shared), group) << "the norm's";
  // The largest values of 8-bit products are those of all ranks of a stage (TransformerEngine's delayed scaling).
  const auto in_8_bits = [&](bool delayed) {
    const ParallelPlan plan{.dp = 8, .zero = ZeroStage::kNone, .delayed_scaling = delayed};
    return memory_budget(gpt(8, 1024, 16), plan, {16, 1, 512, Precision::kFp8})->stages[0].communicators;
  };
  EXPECT_EQ(in_8_bits(true) - in_8_bits(false), group);
  // What PyTorch counts has none of it.
  const StageMemory memory = memory_budget(model, {.dp = 16, .ep = 16}, training)->stages[0];
  EXPECT_EQ(memory.device(), memory.reserved() + StageMemory::kContext + memory.communicators);
  // A GPU must hold the context, too.
  EXPECT_EQ(memory.needed(), memory.total() + 1 * units::GiB + memory.communicators);
  EXPECT_LT(memory.needed(), memory.device());
}

// A stage with less in its tensors may have more on its GPU: the tied table's copies meet in a group of their own.
TEST(Memory, TheGpuWithTheMostMayBeAnother) {
  MemoryBudget budget;
  budget.stages.resize(2);
  budget.stages[0].weights = 10 * units::GiB, budget.stages[0].communicators = 2 * units::GiB;
  budget.stages[1].weights = 11 * units::GiB;
  budget.peak_stage = 1;
  EXPECT_EQ(budget.peak(), 11 * units::GiB);
  EXPECT_EQ(budget.needed(), 13 * units::GiB) << "with the context";
  EXPECT_TRUE(budget.fits(13 * units::GiB));
  EXPECT_FALSE(budget.fits(12.9 * units::GiB));
  EXPECT_EQ(budget.device(), budget.stages[0].device());
}

// What the program sums the gradient norm over has a communicator, and passes without an update have none.
TEST(Memory, TheGroupOfTheNormIsThatOfTheProgram) {
  const Model model = gpt(8, 1024, 16);
  const Training training{16, 1, 512, Precision::kBf16};
  for (const ZeroStage zero : {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kParameters}) {
    for (ParallelPlan plan : {ParallelPlan{}, ParallelPlan{.dp = 4}, ParallelPlan{.tp = 2}, ParallelPlan{.pp = 2},
                              ParallelPlan{.tp = 2, .dp = 2}, ParallelPlan{.pp = 2, .cp = 2}}) {
      plan.zero = zero;
      const auto buffers = [&] { return memory_budget(model, plan, training)->stages[0].communicators; };
      std::int64_t ranks = 1;
      const auto program = plan_program(model, plan, training);
      ASSERT_TRUE(program);
      for (std::size_t i = 0; i < program->works.size(); ++i) {
        const WorkItem& item = program->works[i];
        if (item.name == "optimizer.gradient_norm.all_reduce") ranks = std::get<Collective>(item.work).group.size();
      }
      const Bytes all = buffers();
      plan.passes = Passes::kGradients;
      EXPECT_EQ((all - buffers()) / units::MiB, ranks == 1   ? 0
                                                : ranks == 2 ? 544
                                                             : 688)
          << "tp " << plan.tp << " pp " << plan.pp << " dp " << plan.dp << " zero " << static_cast<int>(zero);
    }
  }
}

// Korthikanti et al., s.5: a layer that is computed again keeps its input, 2 sbh; while it is computed it holds all
// that it would keep otherwise. The loss, 4 sbh and 4 sv here, is over then. The backward pass of the attention has two
// gradients of all scores beside that, 2 bytes each, and the gradient that goes around it, less what the steps behind
// it have freed: two masks, 16 + 2 sbh of the MLP, the norm's input and that of the attention's projection.
TEST(Memory, RecomputationKeepsInputsAndOneLayer) {
  const Training training{1, 1, 2048, Precision::kFp16};
  const auto activations = [&](std::int64_t layers, Recompute recompute) {
    const ParallelPlan plan{.recompute = recompute, .flash_attention = false};
    return memory_budget(gpt(layers, 6144, 64), plan, training)->stages[0].activations / B;
  };
  const double sbh = 2048.0 * 6144, layer = sbh * (34 + 5 * 64.0 * 2048 / 6144);
  EXPECT_NEAR(activations(48, Recompute::kNone) - activations(24, Recompute::kNone), 24 * layer, 1);
  EXPECT_NEAR(activations(48, Recompute::kFull) - activations(24, Recompute::kFull), 24 * 2 * sbh, 1);
  const double attention = 2 * 2 * 64.0 * 2048 * 2048 + (2 - 24) * sbh;
  EXPECT_NEAR(activations(48, Recompute::kFull), 48 * 2 * sbh + layer + attention + sbh, 1);  // the embedding's mask
  EXPECT_NEAR(activations(48, Recompute::kNone), 48 * layer + attention + sbh, 1);
}

// GPipe and looped breadth-first run every loss before the first backward pass: as many logits as microbatches, 4 sv
// bytes each, with two inputs of 2 sbh, and of the one that runs the logits in their format, too. Of other schedules
// the last stage has one at a time; the first one of a vee has it, too. When a layer is computed again, one loss is
// over.
TEST(Memory, LogitsAreHeldFromTheForwardToTheBackwardPass) {
  using enum ActivationKind;
  const Training training{8, 1, 2048, Precision::kFp16};
  const double sbh = 2048.0 * 6144, logits = 4 * 2048.0 * 50304 + 4 * sbh;
  const auto logits_of = [&](const char* schedule, std::int64_t chunks, std::size_t stage = 3) {
    const ParallelPlan plan{.pp = 4, .vpp = chunks, .schedule = schedule};
    PlanCache cache;
    return (*memory_detail(gpt(24, 6144, 64), plan, training, cache))[stage].of(kLogits) / B / logits;
  };
  const double one = 2 * 2048.0 * 50304 / logits;
  EXPECT_DOUBLE_EQ(logits_of("gpipe", 1), 8 + one);
  EXPECT_DOUBLE_EQ(logits_of("breadth-first", 2), 8 + one);
  EXPECT_DOUBLE_EQ(logits_of("1f1b", 1), 1 + one);
  EXPECT_DOUBLE_EQ(logits_of("interleaved", 2), 1 + one);
  EXPECT_EQ(logits_of("gpipe", 1, 0), 0);
  const ParallelPlan plan{.pp = 4, .schedule = "gpipe", .recompute = Recompute::kFull, .flash_attention = false};
  const double layer = sbh * (34 + 5 * 64.0 * 2048 / 6144);
  EXPECT_GT(layer, logits);
  EXPECT_NEAR(memory_budget(gpt(24, 6144, 64), plan, training)->stages[3].activations / B,
              8 * 6 * 2 * sbh + 7 * logits + layer + 4 * 64.0 * 2048 * 2048 + (2 - 24) * sbh, 1);
}

// Korthikanti et al., s.5: selective recomputation keeps 34 sbh of a layer. 5 as^2b are there while one layer's
// attention is computed again, under every pass that is held; an MLP's come after it, and neighbors together. Backward
// passes have gradients beside that: of scores 4 as^2b; of the second product of an MLP its input's, 8 sbh, the
// dropout's, 2 sbh, and the one that goes around the branch, 2 sbh, when the mask is free.
// Weights on the host: the GPU has the layers under way, embedding and loss; and passes copy each layer's part before
// they gather it, in the format of gathers, or in fp32 where that is what the host updates.
TEST(Memory, WeightsOnTheHostAreLoadedForEachPass) {
  const Model model = llama(8, 4096, 32, 8, 14336);
  const Training training{8, 1, 2048, Precision::kBf16};  // two microbatches of each of four replicas
  const double layer = 2 * 4096.0 * 4096 + 2 * 4096.0 * 1024 + 3 * 4096.0 * 14336 + 2 * 4096;
  const double table = 32000.0 * 4096, root = 2 * table + 4096;
  for (const ZeroLibrary library : {ZeroLibrary::kDefault, ZeroLibrary::kFsdp}) {
    ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = library};
    plan.offload_optimizer = {1};
    const auto weights = [&] { return memory_budget(model, plan, training)->stages[0].weights / B; };
    const double on_gpu = weights();
    plan.offload_weights = true;
    EXPECT_NEAR(weights(), 2 * (2 * layer + root), 1);
    EXPECT_NEAR(on_gpu - weights(), 2 * (8 * layer + root) / 4, 1);
    const auto graph = planned_graph(model, plan, training);
    ASSERT_TRUE(graph) << to_text(graph.error());
    double loaded = 0;
    std::int64_t loads = 0;
    for (std::uint32_t n = 0; n < graph->node_count(); ++n) {
      const WorkItem& item = graph->work_of(NodeId{n});
      if (item.name != "weights.load") continue;
      loaded += item.host.link / B;
      ++loads;
    }
    EXPECT_EQ(loads, 2 * (8 + 8 + 2));
    EXPECT_NEAR(loaded, 2 * (2 * 8 * layer + root) / 4 * (library == ZeroLibrary::kFsdp ? 4 : 2), 10);
  }
}

// Layers that are recomputed together keep one input, and all that they have is there when the first of them begins
// its backward pass. Of 10 layers, 4, 4 and 2 go together.
TEST(Memory, LayersRecomputedTogetherKeepOneInput) {
  const Model model = gpt(10, 6144, 64);
  const Training training{4, 4, 2048, Precision::kFp16};
  const auto activations = [&](std::int64_t together) {
    const ParallelPlan plan{.recompute = Recompute::kFull, .recompute_together = together, .flash_attention = false};
    return memory_budget(model, plan, training)->stages[0].activations / B;
  };
  const double s = 2048, b = 4, h = 6144, a = 64;
  const double input = 2 * s * b * h, layer = s * b * h * (34 + 5 * a * s / h);  // Korthikanti et al. 2022, equation 1
  EXPECT_NEAR(activations(4) - activations(1), (3 - 10) * input + 3 * layer, 1);
  EXPECT_NEAR(activations(10) - activations(1), (1 - 10) * input + 9 * layer, 1);
  EXPECT_EQ(activations(12), activations(10));
  // A forward pass alone recomputes nothing.
  ParallelPlan forward{.passes = Passes::kForward, .recompute = Recompute::kFull, .recompute_together = 4};
  const Bytes together = memory_budget(model, forward, training)->peak();
  forward.recompute_together = 1;
  EXPECT_EQ(together, memory_budget(model, forward, training)->peak());
}

TEST(Memory, SelectiveRecomputationHoldsTheModuleThatRuns) {
  const Training training{32, 1, 2048, Precision::kFp16};
  const auto stage = [&](ModuleSet modules, bool flash) {
    const ParallelPlan plan{
        .pp = 4, .recompute = Recompute::kSelective, .recompute_modules = modules, .flash_attention = flash};
    PlanCache cache;
    return (*memory_detail(gpt(24, 6144, 64), plan, training, cache))[1];
  };
  constexpr ModuleSet kCore = set_of(RecomputeModule::kCoreAttention), kMlp = set_of(RecomputeModule::kMlp),
                      kNorm = set_of(RecomputeModule::kNorm);
  const double sbh = 2048.0 * 6144, scores = 64.0 * 2048 * 2048;
  const auto working = [&](ModuleSet modules, bool flash = true) {
    return stage(modules, flash).of(ActivationKind::kWorkingLayer) / B;
  };
  const double of_core = (5 + 4) * scores + (2 - 24) * sbh, of_product = (8 + 2 + 2 - 1) * sbh;
  EXPECT_EQ(working(kCore, false), of_core);
  EXPECT_EQ(working(kMlp), 16 * sbh + of_product);  // inputs of the activation and of the second product
  EXPECT_EQ(working(kNorm), of_product) << "when norms are made again, more is free";
  EXPECT_EQ(working(kMlp | kNorm), 18 * sbh + of_product);
  EXPECT_EQ(working(kMlp | kCore, false), of_core + 16 * sbh) << "which an MLP does not free then";
  const StageMemoryDetail core = stage(kCore, false);
  EXPECT_EQ(core.over_time[core.peak].most, 3 * 6 * 34 * sbh + of_core);
  EXPECT_EQ(pass_text(core.over_time[core.peak].pass, 1), "B0");
  EXPECT_EQ(core.live, 3);
}

// Metrics of a microbatch are computed when its backward pass is over: they are the peak where they take more than all
// that the passes kept.
TEST(Memory, MetricsComeWhenTheMicrobatchIsOver) {
  const Training training{1, 1, 2048, Precision::kBf16};
  const double logits = 2048.0 * 50304;
  const auto activations = [&](std::int64_t layers, std::int64_t metrics) {
    const ParallelPlan plan{.loss_library = Library::kFlash2, .loss_metrics = metrics};
    return memory_budget(gpt(layers, 768, 12), plan, training)->stages[0].activations / B;
  };
  EXPECT_EQ(activations(48, 2), activations(48, 0));
  EXPECT_GT(activations(48, 0), 10 * logits);
  // The logits, and two tensors in fp32.
  EXPECT_LT(activations(1, 0), 10 * logits);
  EXPECT_NEAR(activations(1, 2), 10 * logits, 1);
}

std::vector<StageMemoryDetail> detail_of(const Model& model, const ParallelPlan& plan, const Training& training) {
  PlanCache cache;
  auto detail = memory_detail(model, plan, training, cache);
  EXPECT_TRUE(detail) << to_text(detail.error());
  return *std::move(detail);
}

// 1F1B on p stages: stage i holds p - i microbatches (Narayanan et al. 2021, arXiv 2104.04473), first behind the
// forward pass of microbatch p - i - 1. The backward pass behind it works on the scores of one layer, when its loss is
// over. The embedding's mask is a byte for each element of the first stage.
TEST(MemoryDetail, PeakOfOneForwardOneBackward) {
  using enum ActivationKind;
  const Training training{32, 1, 2048, Precision::kFp16};
  const std::vector<StageMemoryDetail> stages =
      detail_of(gpt(24, 6144, 64), {.pp = 4, .flash_attention = false}, training);
  const double sbh = 2048.0 * 6144;
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    const StageMemoryDetail& detail = stages[static_cast<std::size_t>(stage)];
    const double live = static_cast<double>(4 - stage), first = stage == 0 ? 1 : 0;
    EXPECT_EQ(detail.live, 4 - stage);
    EXPECT_EQ(detail.weight_gradients_due, 0);
    const HeldPoint& peak = detail.over_time[detail.peak];
    EXPECT_EQ(pass_text(peak.pass, 1), "B0");
    EXPECT_EQ(peak.number, 4 - stage);
    EXPECT_EQ(detail.of(kWorkingLayer) / B, 4 * 64.0 * 2048 * 2048 + (2 - 24) * sbh);
    EXPECT_EQ(detail.passes, 64);
    EXPECT_EQ(detail.over_time.back().bytes, 0);
    EXPECT_EQ(detail.of(kMlp) / B, live * 6 * 18 * sbh);
    EXPECT_EQ(detail.of(kNorms) / B, live * 6 * 4 * sbh);
    EXPECT_EQ(detail.of(kAttentionScores) / B, live * 6 * 5 * 64 * 2048 * 2048);
    EXPECT_EQ(detail.of(kEmbedding) / B, first * live * sbh);
    EXPECT_EQ(detail.of(kLogits) / B, 0);
    EXPECT_EQ(detail.transient, Bytes());
    EXPECT_EQ(detail.of(kCheckpoints) / B, 0);
  }
}

// The first of two stages runs F0, then 7 times F and B, then the last B. Of these 7 repeats, the first and the last
// are points; the 10 passes between them are left out.
TEST(MemoryDetail, HoldsMoreWithEachForwardAndLessWithEachBackwardPass) {
  const Training training{8, 1, 2048, Precision::kFp16};
  const StageMemoryDetail stage = detail_of(gpt(2, 6144, 64), {.pp = 2}, training)[0];
  const double one = stage.over_time.front().bytes;
  std::string passes;
  std::vector<double> held;
  for (const HeldPoint& point : stage.over_time) {
    passes += fmt::format("{} {} ", point.number, pass_text(point.pass, 1));
    held.push_back(point.bytes / one);
    EXPECT_EQ(point.left_out, point.number == 13 ? 10 : 0);
  }
  EXPECT_EQ(passes, "0 F0 1 F1 2 B0 13 F7 14 B6 15 B7 ");
  EXPECT_EQ(held, (std::vector<double>{1, 2, 1, 2, 1, 0}));
}

// Narayanan et al. 2021: the first stage of p = 8 and v = 3 chunks has p v + p - 1 = 31 passes under way. The input of
// each layer is kept, and one layer is computed again.
TEST(MemoryDetail, PeakOfInterleavedChunksThatAreRecomputed) {
  using enum ActivationKind;
  const ParallelPlan plan{
      .pp = 8, .vpp = 3, .schedule = "interleaved", .recompute = Recompute::kFull, .flash_attention = false};
  const StageMemoryDetail first = detail_of(gpt(96, 6144, 64), plan, {64, 1, 2048, Precision::kFp16})[0];
  const double sbh = 2048.0 * 6144;
  EXPECT_EQ(first.live, 31);
  EXPECT_EQ(first.of(kCheckpoints) / B, 31 * 4 * 2 * sbh);
  // With gradients of all scores, when 24 sbh behind them are free (RecomputationKeepsInputsAndOneLayer).
  EXPECT_EQ(first.of(kWorkingLayer) / B, (34 + 2 - 24) * sbh + (5 + 4) * 64.0 * 2048 * 2048);
  EXPECT_EQ(first.of(kEmbedding) / B, 16 * sbh);
  EXPECT_EQ(first.of(kMlp) + first.of(kNorms) + first.of(kAttentionCore), Bytes());
  EXPECT_EQ(first.passes, 2 * 3 * 64);
}

// ZB-H1 (Qi et al. 2023): p passes are live on every stage. On the last one, all but one of them wait for the weight
// gradient alone: they hold the gradients of outputs, 18 sbh of a layer and 2 sbV of the logits. ZB-H2: 2 p - 1.
TEST(MemoryDetail, PeakOfSplitBackwardPasses) {
  using enum ActivationKind;
  const Model model = gpt(24, 6144, 64);
  const Training training{64, 1, 2048, Precision::kFp16};
  const auto h1 = detail_of(model, {.pp = 4, .schedule = "zb-h1", .flash_attention = false}, training);
  EXPECT_EQ(h1[0].live, 4);
  EXPECT_EQ(h1[0].weight_gradients_due, 0);
  EXPECT_EQ(h1[0].of(kOutputGradients), Bytes());
  EXPECT_EQ(h1[3].live, 4);
  EXPECT_EQ(h1[3].weight_gradients_due, 3);
  EXPECT_EQ(h1[3].of(kOutputGradients) / B, 3 * (6 * 18 * 2048.0 * 6144 + 2 * 2048.0 * 50304));
  EXPECT_EQ(h1[3].of(kAttentionScores) / B, 6 * 5 * 64 * 2048.0 * 2048);
  const auto h2 = detail_of(model, {.pp = 4, .schedule = "zb-h2", .flash_attention = false}, training);
  EXPECT_EQ(h2[0].live, 7);
}

// 16 stages of 6 chunks repeat rounds of 2 x 16 x 6 passes: more points than are kept. The peak stays, its order and
// the end, too.
TEST(MemoryDetail, ManyPassesKeepTheirPeak) {
  const Model model = gpt(96, 6144, 64);
  const ParallelPlan plan{.pp = 16, .vpp = 6, .schedule = "interleaved"};
  const Training training{256, 1, 2048, Precision::kFp16};
  const StageMemoryDetail stage = detail_of(model, plan, training)[0];
  EXPECT_LE(stage.over_time.size(), kMostHeldPoints);
  EXPECT_GT(stage.over_time.size(), kMostHeldPoints / 2);
  const Bytes activations = memory_budget(model, plan, training)->stages[0].activations;
  EXPECT_EQ(stage.over_time[stage.peak].most * B + stage.transient, activations);
  EXPECT_EQ(stage.live, 16 * 6 + 15);
  for (std::size_t i = 1; i < stage.over_time.size(); ++i) {
    EXPECT_LT(stage.over_time[i - 1].number, stage.over_time[i].number);
  }
  EXPECT_EQ(stage.over_time.back().number, stage.passes - 1);
  EXPECT_EQ(stage.over_time.back().bytes, 0);
}

// What is whole beside the parts, 2 bytes for each weight: embedding and loss, the layer that computes and those that
// are gathered ahead; without resharding everything.
TEST(MemoryDetail, WhatIsGatheredIsTheRootAndLayersUnderWay) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const Training training{64, 1, 4096, Precision::kBf16};
  const double layer = 4096.0 * (4 * 4096 + 3 * 11008) + 2 * 4096;
  const double all = model_parameters(model).total(), root = all - 32 * layer;
  EXPECT_EQ(root, 2.0 * static_cast<double>(model.vocabulary) * 4096 + 4096);  // two tables and a norm
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters};
  StageMemoryDetail stage = detail_of(model, plan, training)[0];
  EXPECT_NEAR(stage.gathered_weights / B, 2 * (root + 2 * layer), 8);
  EXPECT_NEAR(stage.whole_gradients / B, 2 * (root + 2 * layer), 8);
  plan.prefetch = 0;
  EXPECT_NEAR(detail_of(model, plan, training)[0].gathered_weights / B, 2 * (root + layer), 8);
  plan.prefetch = 4;
  EXPECT_NEAR(detail_of(model, plan, training)[0].gathered_weights / B, 2 * (root + 5 * layer), 8);
  plan.prefetch = 100;
  EXPECT_NEAR(detail_of(model, plan, training)[0].gathered_weights / B, 2 * all, 8);
  plan.prefetch = 1;
  plan.reshard = false;
  EXPECT_NEAR(detail_of(model, plan, training)[0].gathered_weights / B, 2 * all, 8);
  plan.reshard = true;
  plan.zero = ZeroStage::kOptimizer;
  plan.grad_accumulation = GradAccumulation::kFp32;
  stage = detail_of(model, plan, training)[0];
  EXPECT_EQ(stage.gathered_weights + stage.whole_gradients, Bytes());
  EXPECT_EQ(stage.unsummed_gradients / B, 2 * model_parameters(model).total());
}

// Casts are of the layers that are gathered: neither tables nor norms have any.
TEST(MemoryDetail, CastsAreOfLayersAlone) {
  const Model model = llama(32, 4096, 32, 32, 11008);
  const ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters};
  const StageMemoryDetail stage = detail_of(model, plan, {64, 1, 4096, Precision::kFp8})[0];
  EXPECT_NEAR(stage.cast_weights / B, 2 * 4096.0 * (4 * 4096 + 3 * 11008), 8);
}

TEST(MemoryDetail, ForwardPassesHoldOneLayer) {
  const ParallelPlan plan{.passes = Passes::kForward, .flash_attention = false};
  const StageMemoryDetail stage = detail_of(gpt(4, 6144, 64), plan, {4, 1, 2048, Precision::kFp16})[0];
  EXPECT_EQ(stage.of(ActivationKind::kWorkingLayer) / B, 32 * 2048.0 * 6144 + 2 * 64.0 * 2048 * 2048);
  EXPECT_EQ(stage.live, 0);
  EXPECT_TRUE(stage.over_time.empty());
}

// A stage that holds the first and the last position has one table; two copies of the model are counted twice.
TEST(StageParameters, FollowTheSeats) {
  const Model model = gpt(4, 512, 8);
  const ParallelPlan plan{.pp = 2, .vpp = 2};
  const Shape shape(model, plan, {4, 1, 128, Precision::kBf16});
  const double layer = parameters_of(layer_block(shape, LayerKind{})).dense, table = 50304.0 * 512, norm = 2 * 512;
  const double positions = 2048 * 512;
  const std::vector<LayerRange> four = {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, two = {{0, 2}, {2, 2}};
  PlanCache cache;
  const std::shared_ptr<const ModelParts> known = model_parts(model, plan, {4, 1, 128, Precision::kBf16}, cache);
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
