// Layers that are frozen without adapters (plan/frozen_layers): they run forward alone, and keep, sum and update
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ns_dist/layer_division.h"
#include "ns_dist/memory.h"
#include "ns_dist/parameters.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"
#include "support/planned_graph.h"

namespace ns_dist {
namespace {

using namespace units;
using testing::HasSubstr;

// Of all stages: how often each work runs, and the bytes of its collectives and messages.
constexpr double kLayerSize = 1024.0 * (4 * 1024 + 3 * 2816) + 2 * 1024, kTableElements = 32000.0 * 1024,
                 kNormElements = 1024;
Model small_llama() { return llama(8, 1024, 16, 16, 2816); }

// Each microbatch passes all layers forward and the trained ones backward, recomputed or not, under every schedule.
// Nothing of the embedding runs backward. Stages that hold frozen layers alone get no gradient of their output: no
// message goes further back than to the first trained layer.
TEST(FrozenLayers, RunForwardAlone) {
  const Model model = small_llama();
  const Training training{16, 1, 256, Precision::kBf16};
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    if (schedule->hides_tokens) continue;  // without experts
    for (const std::int64_t frozen : {1, 3, 4, 6, 8}) {
      ParallelPlan plan{.pp = 4, .vpp = schedule->least_chunks, .schedule = std::string(schedule->name)};
      plan.recompute = frozen == 3 ? Recompute::kFull : Recompute::kNone;
      const Totals all = totals_of(model, plan, training);
      plan.frozen_layers = frozen;
      const Totals runs = totals_of(model, plan, training);
      const std::string which = plan.schedule + " " + std::to_string(frozen);
      const std::int64_t again = frozen == 3 ? 8 - frozen : 0;
      EXPECT_EQ(runs.of("attention.qkv"), 16 * (8 + again)) << which;
      EXPECT_EQ(runs.of("attention.qkv.dgrad"), 16 * (8 - frozen)) << which;
      EXPECT_EQ(runs.of("mlp.fc1.wgrad"), 16 * (8 - frozen)) << which;
      EXPECT_EQ(runs.of("embedding.backward"), 0) << which;
      EXPECT_EQ(runs.of("loss.logits.wgrad"), 16) << which;
      EXPECT_EQ(runs.of("pipeline.forward.send"), all.of("pipeline.forward.send")) << which;
      const auto ranges = divide_layers(model, plan);
      ASSERT_TRUE(ranges);
      const auto positions = static_cast<std::int64_t>(ranges->size());
      const std::int64_t with_gradients =
          std::count_if(ranges->begin(), ranges->end() - 1,
                        [&](const LayerRange& range) { return range.first + range.count > frozen; });
      if (all.of("pipeline.backward.send") == 16 * (positions - 1)) {  // no neighbors are one stage
        EXPECT_EQ(runs.of("pipeline.backward.send"), 16 * with_gradients) << which;
      } else {
        EXPECT_LE(runs.of("pipeline.backward.send"), 16 * with_gradients) << which;
      }
    }
  }
}

// Products of frozen layers run once, those of others three times, and the step's FLOPs say the same. With a tied table
// the logits have no weight gradient either.
TEST(FrozenLayers, FlopsAreThoseThatRun) {
  Model model = small_llama();
  model.vocabulary = 51200;
  const Training training{8, 2, 512, Precision::kBf16};
  const double tokens = 8 * 512, layer = 2 * (kLayerSize - 2 * kNormElements) + 2 * 2 * 512 * 1024,
               logits = 2 * 1024.0 * 51200;
  for (const bool tied : {false, true}) {
    model.tied_embeddings = tied;
    for (ParallelPlan plan : {ParallelPlan{}, ParallelPlan{.tp = 4}, ParallelPlan{.pp = 4},
                              ParallelPlan{.tp = 2, .recompute = Recompute::kFull},
                              ParallelPlan{.pp = 2, .recompute = Recompute::kFull, .recompute_layers = 1},
                              ParallelPlan{.recompute = Recompute::kSelective}}) {
      plan.flash_attention = false;
      const StepFlops whole = step_flops(model, plan, training);
      for (const std::int64_t frozen : {1, 4, 7, 8}) {
        plan.frozen_layers = frozen;
        const StepFlops flops = step_flops(model, plan, training);
        EXPECT_NEAR(
            totals_of(model, plan, training).product_flops() * static_cast<double>(plan.tp) / (flops.hardware / FLOP),
            1, 1e-9)
            << "tp " << plan.tp << " pp " << plan.pp << " frozen " << frozen << " tied " << tied;
        const double less = tokens * (2 * layer * static_cast<double>(frozen) + (tied ? logits : 0));
        EXPECT_NEAR((whole.model - flops.model) / FLOP / less, 1, 1e-9);
        EXPECT_LT(flops.causal, flops.model);
      }
      plan.frozen_layers = 8;
      plan.passes = Passes::kForward;
      EXPECT_EQ(step_flops(model, plan, training).model, 1.0 / 3 * whole.model);
    }
  }
}

// Two bytes of each weight; of those that are trained a gradient of 4 bytes and 12 bytes of optimizer states.
// Activations are those of the trained layers and of the loss.
TEST(FrozenLayers, KeepTheirWeightsAlone) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  const double all = 8 * kLayerSize + 2 * kTableElements + kNormElements;
  ASSERT_EQ(model_parameters(model).total(), all);
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kNone};
  const auto stage = [&] { return memory_budget(model, plan, training)->stages[0]; };
  const Bytes kept = stage().activations;
  std::vector<Bytes> activations;
  for (std::int64_t frozen = 1; frozen <= 8; ++frozen) {
    plan.frozen_layers = frozen;
    const double trained = all - kTableElements - static_cast<double>(frozen) * kLayerSize;
    EXPECT_EQ(frozen_parameters(model, frozen), all - trained);
    plan.zero = ZeroStage::kNone;
    EXPECT_EQ(stage().weights, 2 * all * B);
    EXPECT_EQ(stage().gradients, 4 * trained * B);
    EXPECT_EQ(stage().optimizer, 12 * trained * B);
    activations.push_back(stage().activations);
    plan.zero = ZeroStage::kOptimizer;
    EXPECT_EQ(stage().weights, 2 * all * B);
    EXPECT_EQ(stage().optimizer, 12 * trained / 4 * B);
    plan.zero = ZeroStage::kParameters;
    EXPECT_NEAR(stage().weights / B, 2 * (all / 4 + 2 * kTableElements + kNormElements + 2 * kLayerSize), 1);
    EXPECT_NEAR(stage().gradients / B,
                4 * trained / 4 + 2 * (kTableElements + kNormElements +
                                       static_cast<double>(std::min<std::int64_t>(2, 8 - frozen)) * kLayerSize),
                1);
  }
  for (std::size_t i = 1; i + 1 < activations.size(); ++i) {
    EXPECT_NEAR((activations[i - 1] - activations[i]) / (activations[0] - activations[1]), 1, 1e-9) << i;
  }
  EXPECT_NEAR((kept - activations[0]) / (activations[0] - activations[1]), 1, 1e-9);
  // Full recomputation keeps an input of each trained layer.
  plan = {.recompute = Recompute::kFull, .frozen_layers = 5};
  PlanCache cache;
  const auto checkpoints = [&] {
    return memory_detail(model, plan, training, cache)->front().of(ActivationKind::kCheckpoints) / B;
  };
  EXPECT_EQ(checkpoints(), 3 * 2 * 512 * 1024);
  plan.recompute_layers = 2;  // of the trained ones
  EXPECT_EQ(checkpoints(), 2 * 2 * 512 * 1024);
  plan.recompute_layers = 0;
  plan.recompute_together = 2;
  EXPECT_EQ(checkpoints(), 2 * 2 * 512 * 1024);
}

// A stage that holds frozen layers alone has one of them at work at a time, as in forward passes alone.
TEST(FrozenLayers, OneIsAtWorkAtATime) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.pp = 4, .frozen_layers = 4};
  const MemoryBudget budget = *memory_budget(model, plan, training);
  PlanCache cache;
  const StageMemoryDetail detail = memory_detail(model, plan, training, cache)->at(1);
  EXPECT_EQ(detail.of(ActivationKind::kWorkingLayer), budget.stages[1].activations);
  plan.frozen_layers = 0;
  plan.passes = Passes::kForward;
  EXPECT_EQ(budget.stages[1].activations, memory_budget(model, plan, training)->stages[1].activations);
  EXPECT_EQ(budget.stages[1].gradients + budget.stages[1].optimizer, Bytes());
}

// Of what is frozen, ZeRO-3 gathers the weights forward alone, and reduces nothing. ZeRO-1 gathers what was updated.
TEST(FrozenLayers, AreGatheredForwardAlone) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};  // two microbatches of each of four replicas
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .frozen_layers = 3};
  for (const ZeroLibrary library : {ZeroLibrary::kDefault, ZeroLibrary::kFsdp, ZeroLibrary::kFsdp2}) {
    plan.zero_library = library;
    Totals runs = totals_of(model, plan, training);
    EXPECT_EQ(runs.bytes["weights.all_gather"], 2 * 2 * ((8 + 5) * kLayerSize + 2 * kTableElements + kNormElements));
    EXPECT_EQ(runs.bytes["gradients.reduce_scatter"], 2 * 4 * (5 * kLayerSize + kTableElements + kNormElements));
  }
  plan.zero_library = ZeroLibrary::kDefault;
  for (const bool overlap : {false, true}) {
    plan.zero = ZeroStage::kOptimizer;
    plan.overlap_grad_reduce = plan.overlap_param_gather = overlap;
    Totals runs = totals_of(model, plan, training);
    EXPECT_EQ(runs.bytes["weights.all_gather"], 2 * (5 * kLayerSize + kTableElements + kNormElements));
    EXPECT_EQ(runs.bytes["gradients.reduce_scatter"], 4 * (5 * kLayerSize + kTableElements + kNormElements));
    plan.zero = ZeroStage::kNone;
    EXPECT_EQ(totals_of(model, plan, training).bytes["gradients.all_reduce"],
              4 * (5 * kLayerSize + kTableElements + kNormElements));
  }
  // FSDP2 drops all weights of a pipeline behind a step, and gathers all of them before the next one.
  plan = {.pp = 2, .dp = 2, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp2, .frozen_layers = 6};
  for (const bool overlap : {false, true}) {
    plan.overlap_param_gather = overlap;
    EXPECT_EQ(totals_of(model, plan, training).bytes["weights.all_gather"],
              2 * (8 * kLayerSize + 2 * kTableElements + kNormElements));
  }
}

// On the host FSDP has trained weights in fp32 and frozen ones in the storage format. Both are loaded before they are
// gathered: of two microbatches, each a quarter of the layers forward and of the trained ones backward.
TEST(FrozenLayers, AreLoadedInTheStorageFormat) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp, .frozen_layers = 3};
  plan.offload_optimizer = {1};
  plan.offload_weights = true;
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  double loaded = 0;
  for (std::uint32_t n = 0; n < graph->node_count(); ++n) {
    const WorkItem& item = graph->work_of(NodeId{n});
    if (item.name == "weights.load") loaded += item.host.link / B;
  }
  const double trained = 2 * 5 * kLayerSize + kTableElements + kNormElements, frozen = 3 * kLayerSize + kTableElements;
  EXPECT_NEAR(loaded, 2 * (4 * trained + 2 * frozen) / 4, 10);
}

// The table of a tied projection is the embedding's: frozen for both. Stages that hold copies of it sum nothing.
TEST(FrozenLayers, ATiedTableIsFrozenForTheLogitsToo) {
  Model model = small_llama();
  model.tied_embeddings = true;
  const Training training{8, 1, 512, Precision::kBf16};
  for (const std::int64_t pp : {1, 4}) {
    ParallelPlan plan{.pp = pp, .zero = ZeroStage::kNone};
    EXPECT_EQ(totals_of(model, plan, training).of("embedding.gradients.all_reduce"), pp > 1 ? 2 : 0);
    plan.frozen_layers = 2;
    const Totals runs = totals_of(model, plan, training);
    EXPECT_EQ(runs.of("loss.logits"), 8);
    EXPECT_EQ(runs.of("loss.logits.dgrad"), 8);
    EXPECT_EQ(runs.of("loss.logits.wgrad"), 0);
    EXPECT_EQ(runs.of("embedding.gradients.all_reduce"), 0);
    double weights = 0, gradients = 0, optimizer = 0;
    const MemoryBudget budget = *memory_budget(model, plan, training);
    for (const StageMemory& stage : budget.stages) {
      weights += stage.weights / B, gradients += stage.gradients / B, optimizer += stage.optimizer / B;
    }
    EXPECT_EQ(weights, 2 * (8 * kLayerSize + kNormElements + (pp > 1 ? 2 : 1) * kTableElements));
    EXPECT_EQ(gradients, 4 * (6 * kLayerSize + kNormElements));
    EXPECT_EQ(optimizer, 12 * (6 * kLayerSize + kNormElements));
  }
}

// Prediction layers are trained, and read the frozen table.
TEST(FrozenLayers, PredictionLayersAreTrained) {
  Model model = small_llama();
  model.prediction_layers = 1;
  Training training{8, 1, 512, Precision::kBf16};
  training.mtp = true;
  for (const std::int64_t pp : {1, 4}) {
    const ParallelPlan plan{.pp = pp, .zero = ZeroStage::kNone, .frozen_layers = 8};
    const Totals runs = totals_of(model, plan, training);
    EXPECT_EQ(runs.of("mtp.proj.wgrad"), 8);
    EXPECT_EQ(runs.of("attention.qkv.wgrad"), 8);
    EXPECT_EQ(runs.of("embedding.backward"), 0);
    EXPECT_EQ(runs.of("embedding.gradients.all_reduce"), 0);
    double optimizer = 0;
    const MemoryBudget budget = *memory_budget(model, plan, training);
    for (const StageMemory& stage : budget.stages) optimizer += stage.optimizer / B;
    EXPECT_EQ(optimizer, 12 * (kTableElements + kNormElements + model_parameters(model).prediction));
  }
}

// Muon updates the matrices of the trained layers.
TEST(FrozenLayers, MuonUpdatesTheOthers) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.dp = 2, .zero = ZeroStage::kOptimizer, .optimizer = OptimizerKind::kMuon};
  plan.frozen_layers = 6;
  const double matrices = kLayerSize - 2 * kNormElements,
               others = 2 * 2 * kNormElements + kTableElements + kNormElements;
  EXPECT_EQ(matrix_parameters(model, {.frozen_layers = 6}), 2 * matrices);
  // Each rank has one layer's matrices.
  EXPECT_EQ(memory_budget(model, plan, training)->stages[0].optimizer / B, 8 * matrices + 12 * others / 2);
  plan.frozen_layers = 8;
  EXPECT_EQ(memory_budget(model, plan, training)->stages[0].optimizer / B, 12 * (kTableElements + kNormElements) / 2);
  // Under FSDP2 parts travel two trained layers at a time.
  plan.frozen_layers = 4, plan.zero = ZeroStage::kParameters, plan.zero_library = ZeroLibrary::kFsdp2;
  EXPECT_EQ(totals_of(model, plan, training).of("optimizer.muon.momentum.all_to_all"), 4 / 2);
}

// In 8 bits, a frozen layer has the operands of its forward products alone; trained ones have a transposed copy, too.
// Autocast's copies of frozen weights go when the product has read them; the weights stay in fp32, as they were loaded.
TEST(FrozenLayers, HaveNoOperandsOfABackwardPass) {
  const Model model = small_llama();
  Training training{8, 1, 512, Precision::kFp8};
  ParallelPlan plan{.zero = ZeroStage::kNone};
  const auto weights = [&] { return memory_budget(model, plan, training)->stages[0].weights / B; };
  const double all = 8 * kLayerSize + 2 * kTableElements + kNormElements, products = kLayerSize - 2 * kNormElements;
  EXPECT_EQ(weights(), 2 * all + 2 * 8 * products);
  plan.frozen_layers = 3;
  EXPECT_EQ(weights(), 2 * all + (2 * 5 + 3) * products);
  training.precision = Precision::kBf16;
  plan.weights = WeightStorage::kFp32;
  plan.grad_accumulation = GradAccumulation::kLow;
  EXPECT_EQ(weights(), 4 * all + 2 * (5 * kLayerSize + kTableElements + kNormElements));
  plan.frozen_layers = 0;
  EXPECT_EQ(weights(), (4 + 2) * all);
}

// Frozen layers drop out what others do, unlike forward passes alone.
TEST(FrozenLayers, DropOutAsOthersDo) {
  const Model model = gpt(4, 512, 8);
  const Training training{4, 1, 256, Precision::kBf16};
  const Totals all = totals_of(model, {}, training), frozen = totals_of(model, {.frozen_layers = 4}, training);
  for (const char* name : {"embedding.dropout", "attention.dropout_add", "mlp.dropout_add"}) {
    EXPECT_GT(all.of(name), 0) << name;
    EXPECT_EQ(frozen.of(name), all.of(name)) << name;
  }
}

// Ranks agree on the largest values of all products forward, and of those of trained layers backward. Of two stages of
// 4 layers with 4 products each, the second has 2 trained ones.
TEST(FrozenLayers, RanksAgreeOnFactorsOfWhatRuns) {
  const Model model = small_llama();
  const Training training{4, 1, 256, Precision::kFp8};
  Totals runs = totals_of(model, {.tp = 2, .pp = 2, .frozen_layers = 6, .delayed_scaling = true}, training);
  EXPECT_EQ(runs.bytes["fp8.largest.all_reduce"], 4 * 4 * (2 * 4 * 4 * 3 + 2 * 4 * 2));
}

// Forward passes alone freeze nothing.
TEST(FrozenLayers, ChangeNothingOfForwardPasses) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.passes = Passes::kForward, .pp = 2, .dp = 2};
  const Totals runs = totals_of(model, plan, training);
  const MemoryBudget budget = *memory_budget(model, plan, training);
  plan.frozen_layers = 5;
  EXPECT_EQ(totals_of(model, plan, training).nodes, runs.nodes);
  EXPECT_EQ(memory_budget(model, plan, training)->peak(), budget.peak());
}

TEST(FrozenLayers, AreLayersOfTheModel) {
  const Model model = small_llama();
  const Training training{8, 1, 512, Precision::kBf16};
  ASSERT_TRUE(check_plan(model, {.frozen_layers = 8}, training));
  const Error more = check_plan(model, {.frozen_layers = 9}, training).error();
  EXPECT_EQ(more.where, "plan/frozen_layers");
  EXPECT_THAT(to_text(more), HasSubstr("at most 8"));
  const Error both = check_plan(model, {.lora_rank = 8, .frozen_layers = 2}, training).error();
  EXPECT_EQ(both.where, "plan/frozen_layers");
  EXPECT_THAT(to_text(both), HasSubstr("leave out plan/frozen_layers, or plan/lora_rank"));
}

}  // namespace
}  // namespace ns_dist
