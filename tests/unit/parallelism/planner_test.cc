#include "ns_dist/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ns_dist/memory.h"
#include "ns_dist/parameters.h"
#include "ns_dist/pipeline_schedule.h"
#include "parallelism_models.h"
#include "support/planned_graph.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ExecutionGraph planned(const Model& model, const ParallelPlan& plan, const Training& training) {
  auto graph = planned_graph(model, plan, training);
  EXPECT_TRUE(graph) << (graph ? "" : to_text(graph.error()));
  return *std::move(graph);
}

// Where a rank lies is the order's choice; what it does is not. Strides by hand: the product of the degrees further in.
TEST(RankOrder, DecidesWhichRanksAreNeighbours) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  const Training training{32, 1, 512, Precision::kBf16};
  struct Case {
    const char* order;
    std::int64_t tp, pp, dp, expert, expert_data;  // strides
  };
  // tp 2, dp 8, pp 2, ep 4: an expert's copies are every fourth replica, or every second replica holds its own.
  for (const Case& c : {Case{"tp-cp-ep-dp-pp", 1, 16, 2, 2, 8}, Case{"tp-pp-ep-dp", 1, 2, 4, 4, 16},
                        Case{"pp-tp-ep-dp", 2, 1, 4, 4, 16}, Case{"tp-dp-ep-pp", 1, 16, 2, 4, 2},
                        Case{"ep-dp-tp-pp", 8, 16, 1, 1, 4}, Case{"tp-dp-pp", 1, 16, 2, 2, 8}}) {
    const ParallelPlan plan{.tp = 2, .pp = 2, .dp = 8, .ep = 4, .order = c.order, .sequence_parallel = true};
    const ExecutionGraph graph = planned(model, plan, training);
    EXPECT_EQ(graph.mesh().ranks(), 32) << c.order;
    std::map<std::string, std::int64_t> strides;
    for (const WorkItem& item : graph.works()) {
      const auto* collective = std::get_if<Collective>(&item.work);
      if (collective && collective->group.strides.size() == 1) {
        strides[item.name] = collective->group.strides.front().stride;
      }
    }
    EXPECT_EQ(strides.at("attention.all_gather"), c.tp) << c.order;
    EXPECT_EQ(strides.at("gradients.reduce_scatter"), c.dp) << c.order;
    EXPECT_EQ(strides.at("experts.gradients.reduce_scatter"), c.expert_data) << c.order;
    EXPECT_EQ(strides.at("moe.dispatch"), c.expert) << c.order;
    EXPECT_EQ(graph.mesh().stride("pp"), c.pp) << c.order;
  }
}

TEST(RankOrder, MissingDimensionsOfOneRankFollowAtTheEnd) {
  const auto order = [](const char* text) {
    const auto read = rank_order(ParallelPlan{.tp = 2, .dp = 2, .order = text});
    EXPECT_TRUE(read) << text;
    return read.value_or(std::vector<std::string_view>{});
  };
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(order("tp-dp"), (Names{"tp", "ep", "dp", "cp", "pp"}));
  EXPECT_EQ(order("dp-tp-pp"), (Names{"ep", "dp", "tp", "pp", "cp"}));
  EXPECT_EQ(order("dp-ep-tp"), (Names{"dp", "ep", "tp", "cp", "pp"}));
  EXPECT_EQ(order("tp-cp-ep-pp-dp"), (Names{"tp", "cp", "pp", "ep", "dp"})) << "one rank of experts lies anywhere";
  EXPECT_FALSE(rank_order(ParallelPlan{.tp = 2, .dp = 2, .ep = 2, .order = "tp-cp-ep-pp-dp"}));
  EXPECT_FALSE(rank_order(ParallelPlan{.tp = 2, .dp = 2, .order = "tp"}));
  EXPECT_FALSE(rank_order(ParallelPlan{.order = "tp--dp"}));
  EXPECT_EQ(rank_order(ParallelPlan{.order = "ep"}).value_or(Names{}).size(), 5u);
}

// Of a million parameters and more that a replica updates, three quarters go to the host: 4 bytes of a gradient down, 2
// of a weight up, and 30 in the CPU's memory (read: gradient, master weight, two moments; written: all but the
// gradient, and the weight). The GPU updates the rest, and makes the weights of the rest of their master weights.
TEST(Planner, OffloadedOptimizerMovesGradientsAndWeights) {
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.dp = 4};
  const auto updated = [](const ExecutionGraph& graph) {
    double parameters = 0;
    for (const WorkItem& item : graph.works()) {
      const auto* op = std::get_if<Operator>(&item.work);
      const auto* step = op != nullptr ? std::get_if<OptimizerStep>(&op->kind) : nullptr;
      if (step != nullptr) parameters += static_cast<double>(step->parameters);
    }
    return parameters;
  };
  const double all = updated(planned(gpt(2, 512, 8), plan, training));
  plan.offload_optimizer = {0.75};
  const ExecutionGraph graph = planned(gpt(2, 512, 8), plan, training);
  const double away = std::floor(0.75 * all);
  EXPECT_EQ(updated(graph), all - away);
  double made = 0;
  for (const WorkItem& item : graph.works()) {
    if (item.name != "optimizer.cast_weights") continue;
    made += static_cast<double>(std::get<Elementwise>(std::get<Operator>(item.work).kind).elements);
  }
  EXPECT_EQ(made, all - away);
  std::map<std::string, HostWork> host;
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
    const bool on_host = ExecutionGraph::stream_of(graph.node(NodeId{n}).lane) == Stream::kHost;
    EXPECT_EQ(graph.work_of(NodeId{n}).host.any(), on_host);
    if (on_host) host[graph.work_of(NodeId{n}).name] = graph.work_of(NodeId{n}).host;
  }
  EXPECT_EQ(host.size(), 3u);
  EXPECT_EQ(host["offload.gradients"], (HostWork{4 * away * B, {}}));
  EXPECT_EQ(host["offload.optimizer"], (HostWork{{}, 30 * away * B}));
  EXPECT_EQ(host["offload.weights"], (HostWork{2 * away * B, {}}));
  plan.offload_optimizer = {1};
  EXPECT_EQ(updated(planned(gpt(2, 512, 8), plan, training)), 0);
  // Weights that are kept in fp32 come back in fp32.
  plan.weights = WeightStorage::kFp32, plan.zero = ZeroStage::kNone;
  plan.grad_accumulation = GradAccumulation::kLow, plan.offload_optimizer = {0};
  const double whole = updated(planned(gpt(2, 512, 8), plan, training));
  plan.offload_optimizer = {1};
  const ExecutionGraph in_fp32 = planned(gpt(2, 512, 8), plan, training);
  for (const WorkItem& item : in_fp32.works()) {
    if (item.name != "offload.weights") continue;
    EXPECT_EQ(item.host, (HostWork{4 * whole * B, {}}));
  }
}

// FSDP keeps the first microbatch's gradients as the sums (foreach_reduce), each microbatch has its share of the
// others' additions; and its shards in fp32 are the weights that Adam updates: 16 bytes are read, 12 written, none is
// cast.
TEST(Planner, ShardsInFp32AreUpdatedThemselves) {
  const auto bytes = [](ZeroLibrary library, std::int64_t microbatches, std::string_view name) {
    double sum = 0;
    const ExecutionGraph graph =
        planned(gpt(4, 512, 8), {.dp = 4, .zero = ZeroStage::kParameters, .zero_library = library},
                {4 * microbatches, 1, 512, Precision::kBf16});
    for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
      const WorkItem& item = graph.work_of(NodeId{n});
      if (item.name != name) continue;
      const Work work = work_of(std::get<Operator>(item.work));
      sum += (work.read + work.written) / B;
    }
    return sum;
  };
  for (const ZeroLibrary library : {ZeroLibrary::kFsdp, ZeroLibrary::kFsdp2}) {
    EXPECT_EQ(bytes(library, 1, "gradients.accumulate"), 0);
    const double all = bytes(ZeroLibrary::kDefault, 4, "gradients.accumulate");
    EXPECT_NEAR(bytes(library, 4, "gradients.accumulate"), 0.75 * all, 1e-9 * all);
    EXPECT_EQ(bytes(library, 1, "optimizer.cast_weights"), 0);
    EXPECT_NEAR(bytes(library, 1, "optimizer.step") / bytes(ZeroLibrary::kDefault, 1, "optimizer.step"), 28.0 / 30,
                1e-9);
  }
  EXPECT_GT(bytes(ZeroLibrary::kDefault, 1, "gradients.accumulate"), 0);
  EXPECT_GT(bytes(ZeroLibrary::kDefault, 1, "optimizer.cast_weights"), 0);
}

// FSDP2 holds whole gradients over a pipeline's step, to which its products add, with an update or without. FSDP1 adds
// to shards.
TEST(Planner, WholeGradientsAreAddedUpByProducts) {
  const Training training{8, 1, 512, Precision::kBf16};
  const auto accumulating = [&](ZeroLibrary library, Passes passes) {
    const ExecutionGraph graph = planned(
        gpt(4, 512, 8), {.passes = passes, .pp = 2, .zero = ZeroStage::kParameters, .zero_library = library}, training);
    int products = 0, sums = 0;
    for (const WorkItem& item : graph.works()) {
      sums += item.name == "gradients.accumulate" ? 1 : 0;
      const auto* op = std::get_if<Operator>(&item.work);
      const auto* gemm = op != nullptr ? std::get_if<Gemm>(&op->kind) : nullptr;
      products +=
          gemm != nullptr && (gemm->epilogue == Epilogue::kAccumulate || gemm->epilogue == Epilogue::kAccumulateFp32)
              ? 1
              : 0;
    }
    return std::pair(products > 0, sums > 0);
  };
  EXPECT_EQ(accumulating(ZeroLibrary::kFsdp, Passes::kGradients), std::pair(false, true));
  EXPECT_EQ(accumulating(ZeroLibrary::kFsdp2, Passes::kGradients), std::pair(true, false));
  EXPECT_EQ(accumulating(ZeroLibrary::kFsdp2, Passes::kTraining), std::pair(true, false));
}

// With the distributed optimizer a replica updates its share of the parameters and takes the norm of their gradients.
// It clears all that it sums up itself: the whole buffer, or its share. What it clips are fp32 gradients; sums in bf16
// it casts first. Weights are made of the master weights.
TEST(Planner, AReplicaUpdatesItsShare) {
  const Training training{8, 1, 512, Precision::kBf16};
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kNone};
  const auto updated = [&] {
    std::map<std::string, std::int64_t> parameters;
    const ExecutionGraph graph = planned(llama(2, 512, 8, 8, 1024), plan, training);
    for (const WorkItem& item : graph.works()) {
      const auto* op = std::get_if<Operator>(&item.work);
      if (item.name == "optimizer.step") parameters["step"] += std::get<OptimizerStep>(op->kind).parameters;
      for (const char* kernel : {"gradient_norm", "zero_gradients", "clip", "cast_gradients", "cast_weights"}) {
        if (item.name == std::string("optimizer.") + kernel)
          parameters[kernel] += std::get<Elementwise>(op->kind).elements;
      }
    }
    return parameters;
  };
  // 2 layers of 4 h^2 + 3 h f and 2 norms, two tables of 32,000 rows, a norm.
  const std::int64_t all = 2 * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 2 * 32000 * 512 + 512;
  using Counts = std::map<std::string, std::int64_t>;
  const auto counts = [](std::int64_t share, std::int64_t cleared) {
    return Counts{{"gradient_norm", share},
                  {"clip", share},
                  {"step", share},
                  {"cast_weights", share},
                  {"zero_gradients", cleared}};
  };
  EXPECT_EQ(updated(), counts(all, all));
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_EQ(updated(), counts(all / 8, all));
  plan.zero = ZeroStage::kGradients;
  EXPECT_EQ(updated(), counts(all / 8, all / 8));
  plan.grad_accumulation = GradAccumulation::kFusedLow;
  Counts low = counts(all / 8, all / 8);
  low["cast_gradients"] = all / 8;
  EXPECT_EQ(updated(), low);
}

// PyTorch clips gradients in their own format: 16 bits where the weights have no more.
TEST(Planner, GradientsAreClippedInTheirOwnFormat) {
  ParallelPlan plan{.zero = ZeroStage::kNone};
  const auto clipped = [&] {
    const ExecutionGraph graph = planned(llama(2, 512, 8, 8, 1024), plan, {1, 1, 512, Precision::kBf16});
    for (const WorkItem& item : graph.works()) {
      if (item.name == "optimizer.clip") return std::get<Operator>(item.work).dtype;
    }
    return DType::kFp64;
  };
  for (const auto& [weights, expected] :
       {std::pair(WeightStorage::kMaster, DType::kFp32), std::pair(WeightStorage::kFp32, DType::kFp32),
        std::pair(WeightStorage::kLow, DType::kBf16)}) {
    plan.weights = weights;
    if (weights != WeightStorage::kMaster) plan.grad_accumulation = GradAccumulation::kLow;
    EXPECT_EQ(clipped(), expected);
  }
}

// 20 bytes more than Adam's 30 a parameter (28 in fp32): 4 for the norm, 8 to clip, 4 of the master weights, 4 to
// clear; sums in bf16 take 6 to cast and are cleared with 2. In fp32 there is nothing to cast.
TEST(Planner, BytesOfAnUpdate) {
  const auto moved = [](Precision precision, GradAccumulation sums) {
    const ParallelPlan plan{.grad_accumulation = sums};
    const ExecutionGraph graph = planned(llama(2, 512, 8, 8, 1024), plan, {8, 1, 512, precision});
    double bytes = 0, parameters = 0;
    for (const WorkItem& item : graph.works()) {
      const auto* op = std::get_if<Operator>(&item.work);
      if (op == nullptr || !item.name.starts_with("optimizer.")) continue;
      bytes += (work_of(*op).read + work_of(*op).written) / units::B;
      if (item.name == "optimizer.step")
        parameters += static_cast<double>(std::get<OptimizerStep>(op->kind).parameters);
    }
    return bytes / parameters;
  };
  EXPECT_NEAR(moved(Precision::kBf16, GradAccumulation::kFused), 30 + 4 + 8 + 4 + 4, 1e-9);
  EXPECT_NEAR(moved(Precision::kBf16, GradAccumulation::kFusedLow), 30 + 6 + 4 + 8 + 4 + 2, 1e-9);
  EXPECT_NEAR(moved(Precision::kFp32, GradAccumulation::kLow), 28 + 4 + 8 + 4, 1e-9);
}

// Each microbatch stores and loads what each of the chunk's first layers keeps, under every schedule and beside
// whatever else runs layer by layer. Kernels are the same as without.
TEST(Planner, OffloadedActivationsGoDownAndComeBack) {
  const Training training{8, 1, 512, Precision::kBf16};
  for (const ParallelPlan& plan :
       {ParallelPlan{}, ParallelPlan{.pp = 2, .vpp = 2, .schedule = "interleaved", .overlap_p2p = true},
        ParallelPlan{.pp = 2, .schedule = "zb-h1"}, ParallelPlan{.dp = 2, .zero = ZeroStage::kParameters},
        ParallelPlan{.dp = 2, .overlap_grad_reduce = true, .overlap_param_gather = true},
        ParallelPlan{.pp = 2, .vpp = 2, .schedule = "dualpipe"}}) {
    ParallelPlan away = plan;
    away.offload_activations = 1;
    const Totals before = totals_of(gpt(8, 512, 8), plan, training);
    const ExecutionGraph graph = planned(gpt(8, 512, 8), away, training);
    Totals after = totals_of(graph);
    // One layer of each position, each microbatch of a replica; with two directions, half of the microbatches each.
    const auto expected = static_cast<int>(8 / plan.dp * plan.pp * (plan.schedule == "interleaved" ? 2 : 1));
    EXPECT_EQ(after.nodes["offload.store"], expected) << plan.schedule;
    EXPECT_EQ(after.nodes["offload.load"], expected) << plan.schedule;
    after.nodes.erase("offload.store"), after.nodes.erase("offload.load");
    EXPECT_EQ(after.nodes, before.nodes) << plan.schedule;
    EXPECT_EQ(after.bytes, before.bytes) << plan.schedule;
    for (const WorkItem& item : graph.works()) {
      if (!item.host.any()) continue;
      // Korthikanti et al., eq. 2 with flash attention: 34 sbh and a log-sum-exp of 4 bytes a head and token.
      EXPECT_EQ(item.host.link / B, 512 * (34 * 512.0 + 4 * 8)) << item.name;
    }
  }
}

// Frozen weights have two products instead of three, adapters of rank r three of 2 r (in + out) FLOPs a token;
// attention without weights is as before. The step's FLOPs say the same. Gradients of the adapters alone are reduced.
TEST(Planner, LoraComputesNoGradientsOfFrozenWeights) {
  Model model = llama(4, 1024, 16, 16, 2816);
  model.vocabulary = 51200;
  const Training training{4, 1, 512, Precision::kBf16};
  ParallelPlan plan{.dp = 2, .zero = ZeroStage::kNone};
  const double tokens = 2 * 512, sizes = (1024 + 3072) + (1024 + 1024) + (1024 + 5632) + (2816 + 1024);
  const double full = totals_of(model, plan, training).product_flops();
  const StepFlops all = step_flops(model, plan, training);
  plan.lora_rank = 8;
  const Totals lora = totals_of(model, plan, training);
  const double adapters = 2 * 8 * tokens * sizes * 4;  // forward
  EXPECT_NEAR(lora.product_flops() / (full * 2 / 3 + 3 * adapters), 1, 1e-12);
  EXPECT_NEAR((all.model - step_flops(model, plan, training).model) / FLOP / (2 * (full / 3 - 3 * adapters)), 1, 1e-12);
  EXPECT_EQ(lora.bytes.at("gradients.all_reduce"), 4 * 8 * sizes * 4);
  for (const auto& [name, count] : lora.nodes) {
    EXPECT_TRUE(name.find("wgrad") == std::string::npos || name.find("lora") != std::string::npos) << name;
  }
  EXPECT_EQ(lora.nodes.count("embedding.backward"), 0u);
  EXPECT_EQ(lora.nodes.at("mlp.fc1.lora_a"), 2 * 4);
}

// Weights in 4 bits become 16 bits before each product that reads them: 4.127 bits read, 2 bytes written. Experts' are
// made in the same way. The products stay as they are.
TEST(Planner, FrozenWeightsIn4BitsAreMadeBeforeEachProduct) {
  Model model = llama(4, 1024, 16, 16, 2816);
  const Training training{4, 1, 512, Precision::kBf16};
  ParallelPlan plan{.lora_rank = 8};
  for (const bool experts : {false, true}) {
    if (experts) model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 512};
    plan.frozen_weights = FrozenWeights::kPlain;
    const Totals plain = totals_of(model, plan, training);
    plan.frozen_weights = FrozenWeights::kNf4;
    const ExecutionGraph graph = planned(model, plan, training);
    EXPECT_EQ(totals_of(graph).product_flops(), plain.product_flops());
    std::set<std::string> names;
    double weights = 0;  // of one layer
    for (const WorkItem& item : graph.works()) {
      if (!item.name.ends_with(".dequantize") || !names.insert(item.name).second) continue;
      const auto& made = std::get<Elementwise>(std::get<Operator>(item.work).kind);
      EXPECT_NEAR(made.inputs * 2, 4.127 / 8, 1e-4);
      EXPECT_EQ(made.outputs, 1);
      weights += static_cast<double>(made.elements);
    }
    EXPECT_EQ(weights, 1024.0 * (4 * 1024 + (experts ? 8 * 3 * 512 : 3 * 2816)));
    EXPECT_EQ(totals_of(graph).nodes.at("attention.qkv.dequantize"), 2 * 4 * 4);  // passes, layers, microbatches
  }
}

// Each rank's adapters: the factor on the side that is not split is whole on every rank. All weights run in 8 bits, the
// adapters in bf16; ZeRO-3 gathers frozen weights, too.
TEST(Planner, LoraOnSharedAndSplitWeights) {
  const Model model = llama(4, 1024, 16, 16, 2816);
  const Training training{4, 1, 512, Precision::kFp8};
  const ParallelPlan plan{.tp = 4, .sequence_parallel = true, .lora_rank = 8};
  const double sizes = (1024 + 768) + (256 + 1024) + (1024 + 1408) + (704 + 1024);
  const StageMemory split = memory_budget(model, plan, training)->stages[0];
  EXPECT_EQ(split.gradients, 4 * 8 * sizes * 4 * B);
  const ExecutionGraph graph = planned(model, plan, training);
  for (const WorkItem& item : graph.works()) {
    const auto* op = std::get_if<Operator>(&item.work);
    EXPECT_NE(item.name, "optimizer.quantize_weights");
    if (op != nullptr && item.name.ends_with(".quantize")) {  // no transposed copy, which only a weight gradient reads
      EXPECT_EQ(std::get<Elementwise>(op->kind).outputs, 0.5) << item.name;
    }
    if (op == nullptr || item.name.find("lora") == std::string::npos) continue;
    EXPECT_EQ(op->dtype, DType::kBf16) << item.name;
  }
  const ParallelPlan shared{.dp = 2, .zero = ZeroStage::kParameters, .lora_rank = 8};
  const Totals sums = totals_of(model, shared, {4, 1, 512, Precision::kBf16});
  const double all = (1024 + 3072) + 2048 + (1024 + 5632) + (2816 + 1024.0);
  const double layer = 1024.0 * (4 * 1024 + 3 * 2816) + 2 * 1024;
  // Forward and backward of two microbatches: four layers, and embedding and loss in the forward pass.
  EXPECT_EQ(sums.bytes.at("weights.all_gather"), 2 * 2 * (2 * 4 * (layer + 8 * all) + 2 * 32000.0 * 1024 + 1024));
  EXPECT_EQ(sums.bytes.at("gradients.reduce_scatter"), 2 * 4 * 4 * 8 * all);
  EXPECT_THAT(to_text(check_plan(model, {.lora_rank = 2000}, training).error()), HasSubstr("at most the hidden size"));
}

// One all-reduce a pass of a chunk's layers, over tensor- and data-parallel ranks: of the four products of each of the
// 4 layers of a stage, three fp32 values forward and two backward.
TEST(Planner, RanksAgreeOnDelayedFactors) {
  const Model model = llama(8, 512, 8, 8, 1024);
  Training training{8, 1, 512, Precision::kFp8};
  ParallelPlan plan{.tp = 2,
                    .pp = 2,
                    .dp = 2,
                    .vpp = 2,
                    .schedule = "interleaved",
                    .sequence_parallel = true,
                    .delayed_scaling = true};
  const char* const kName = "fp8.largest.all_reduce";
  const auto agreed = [&] { return totals_of(model, plan, training); };
  const int passes = 2 * 4 * 2;  // stages, microbatches, chunks
  EXPECT_EQ(agreed().nodes.at(kName), 2 * passes);
  EXPECT_EQ(agreed().bytes.at(kName), passes * 4.0 * 4 * (3 + 2) * 4);
  const ExecutionGraph graph = planned(model, plan, training);
  for (const WorkItem& item : graph.works()) {
    EXPECT_TRUE(item.name != kName || std::get<Collective>(item.work).group.size() == 4);
  }
  plan.bf16_first_layers = 1;  // of the first stage
  EXPECT_EQ(agreed().bytes.at(kName), passes / 2 * 4.0 * (4 + 3) * (3 + 2) * 4);
  plan.bf16_first_layers = 8;
  EXPECT_EQ(agreed().nodes.count(kName), 0u);
  plan.bf16_first_layers = 0;
  plan.recompute = Recompute::kFull;
  EXPECT_EQ(agreed().nodes.at(kName), 2 * passes);

  const auto none = [&] { return agreed().nodes.count(kName) == 0; };
  plan.passes = Passes::kForward;
  EXPECT_TRUE(none());
  plan.passes = Passes::kTraining;
  for (const Precision other : {Precision::kBf16, Precision::kFp8Block, Precision::kMxFp8}) {
    training.precision = other;
    EXPECT_TRUE(none());
  }
  training.precision = Precision::kFp8;
  plan.delayed_scaling = false;
  EXPECT_TRUE(none());
  plan = {.delayed_scaling = true};
  EXPECT_TRUE(none());
  // Layer by layer; beside another pass; with the weight gradient for itself.
  plan = {.dp = 2, .zero = ZeroStage::kParameters, .delayed_scaling = true};
  EXPECT_EQ(agreed().nodes.at(kName), 4 * 2);
  plan = {.pp = 2, .dp = 2, .schedule = "zb-h1", .delayed_scaling = true};
  EXPECT_EQ(agreed().nodes.at(kName), 2 * 4 * 2);
  plan = {.pp = 2, .dp = 2, .vpp = 2, .schedule = "dualpipe-v", .delayed_scaling = true};
  EXPECT_EQ(agreed().nodes.at(kName), 2 * 4 * 2 * 2);
}

// What comes behind a pass waits for its all-reduce: the message to the next stage.
TEST(Planner, AMessageWaitsForDelayedFactors) {
  const ParallelPlan plan{.pp = 2, .dp = 2, .delayed_scaling = true};
  const ExecutionGraph graph = planned(llama(4, 512, 8, 8, 1024), plan, {2, 1, 512, Precision::kFp8});
  int messages = 0;
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
    if (!std::holds_alternative<Message>(graph.work_of(NodeId{n}).work)) continue;
    ++messages;
    bool waits = false;
    for (const NodeId before : graph.dependencies(NodeId{n})) {
      waits = waits || graph.work_of(before).name == "fp8.largest.all_reduce";
    }
    EXPECT_TRUE(waits);
  }
  EXPECT_EQ(messages, 2);
}

// Ranks agree on values that the pass has computed: the all-reduce follows the last kernel of the pass, also where the
// last layer ends with that kernel.
TEST(Planner, RanksAgreeWhenThePassIsOver) {
  const Training training{16, 1, 512, Precision::kFp8};
  for (const ParallelPlan& plan :
       {ParallelPlan{.dp = 2, .delayed_scaling = true}, ParallelPlan{.tp = 2, .delayed_scaling = true},
        ParallelPlan{.pp = 2, .dp = 2, .delayed_scaling = true},
        ParallelPlan{.dp = 4, .cp = 4, .delayed_scaling = true}}) {
    const ExecutionGraph graph = planned(llama(4, 512, 8, 8, 1024), plan, training);
    std::map<std::int32_t, NodeId> last;  // kernel of each stage, in the order of launches
    int agreements = 0;
    for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
      const NodeId node{n};
      const std::int32_t stage = static_cast<std::int32_t>(ExecutionGraph::stage_of(graph.nodes()[n].lane));
      const WorkItem& item = graph.work_of(node);
      if (std::holds_alternative<Operator>(item.work)) last[stage] = node;
      if (item.name != "fp8.largest.all_reduce") continue;
      ++agreements;
      const auto before = graph.dependencies(node);
      EXPECT_NE(std::find(before.begin(), before.end(), last.at(stage)), before.end())
          << "tp " << plan.tp << " pp " << plan.pp << " cp " << plan.cp << ": behind "
          << graph.work_of(last.at(stage)).name;
    }
    EXPECT_GT(agreements, 0);
  }
}

// Of 8 layers 2 first and 1 last ones have bf16 products, wherever the stages lie; where all have, nothing is left of
// the 8-bit plan.
TEST(Planner, FirstAndLastLayersStayIn16Bits) {
  const Training training{4, 1, 512, Precision::kFp8};
  for (const ParallelPlan& plan :
       {ParallelPlan{}, ParallelPlan{.pp = 4}, ParallelPlan{.recompute = Recompute::kFull, .recompute_layers = 1}}) {
    ParallelPlan mixed = plan;
    mixed.bf16_first_layers = 2;
    mixed.bf16_last_layers = 1;
    const ExecutionGraph graph = planned(gpt(8, 512, 8), mixed, training);
    std::map<DType, std::set<std::int32_t>> layers;
    for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
      const WorkItem& item = graph.work_of(NodeId{n});
      if (item.name == "mlp.fc1")
        layers[std::get<Operator>(item.work).dtype].insert(graph.node(NodeId{n}).origin.layer);
    }
    EXPECT_EQ(layers[DType::kBf16], (std::set<std::int32_t>{0, 1, 7}));
    EXPECT_EQ(layers[DType::kFp8], (std::set<std::int32_t>{2, 3, 4, 5, 6}));

    mixed.bf16_first_layers = 8;
    Training plain = training;
    plain.precision = Precision::kBf16;
    const Totals all = totals_of(gpt(8, 512, 8), mixed, training), none = totals_of(gpt(8, 512, 8), plan, plain);
    EXPECT_EQ(all.nodes, none.nodes);
    EXPECT_EQ(all.bytes, none.bytes);
    const auto memory = [](const ParallelPlan& of, const Training& with) {
      return memory_budget(gpt(8, 512, 8), of, with)->peak();
    };
    EXPECT_EQ(memory(mixed, training), memory(plan, plain));
  }
}

// What the graph does is what the formula says, for every degree: nothing is lost or done twice by splitting.
TEST(Planner, FlopsOfTheGraphAreTheModels) {
  Model model = gpt(8, 1024, 16);
  model.vocabulary = 51200;  // divisible by 128 tp: no padding
  model.bias = false;
  for (const ParallelPlan& plan :
       {ParallelPlan{.flash_attention = false}, ParallelPlan{.tp = 4, .flash_attention = false},
        ParallelPlan{.tp = 2, .pp = 4, .sequence_parallel = true, .flash_attention = false},
        ParallelPlan{.pp = 2, .vpp = 2, .schedule = "interleaved", .flash_attention = false},
        ParallelPlan{.pp = 2, .recompute = Recompute::kFull, .flash_attention = false},
        ParallelPlan{.tp = 2, .recompute = Recompute::kSelective, .flash_attention = false},
        ParallelPlan{.pp = 2, .recompute = Recompute::kFull, .recompute_layers = 1, .flash_attention = false},
        // Each stage has two of the 2 positions: 4 of 8 layers.
        ParallelPlan{.pp = 2,
        .vpp = 2,
        .schedule = "dualpipe",
        .recompute = Recompute::kFull,
        .recompute_layers = 2,
        .flash_attention = false},
        // 1, 4 and 3 layers, of which 1, 3 and 3 are computed again.
        ParallelPlan{.pp = 3,
        .first_stage_layers = 1,
        .recompute = Recompute::kFull,
        .recompute_layers = 3,
        .flash_attention = false}}) {
    const Training training{8, 2, 512, Precision::kBf16};
    const Totals sums = totals_of(model, plan, training);
    const double ranks = static_cast<double>(plan.tp);
    EXPECT_NEAR(sums.product_flops() * ranks / (step_flops(model, plan, training).hardware / FLOP), 1, 1e-9)
        << "tp " << plan.tp << " pp " << plan.pp << " " << plan.schedule << " " << plan.recompute_layers;
  }
}

// The projection of all per-layer embeddings is a product, too, which no recomputation repeats.
TEST(Planner, FlopsHaveTheProjectionOfPerLayerEmbeddings) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.vocabulary = 51200;
  model.per_layer_embeddings = PerLayerEmbeddings{.width = 64, .vocabulary = 1024};
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const ParallelPlan plan{.recompute = recompute, .flash_attention = false};
    const Training training{8, 2, 512, Precision::kBf16};
    const double executed = totals_of(model, plan, training).product_flops();
    EXPECT_NEAR(executed / (step_flops(model, plan, training).hardware / FLOP), 1, 1e-9);
  }
}

// Experts compute the rows that they have places for, padding included, whether or not the model asks for them. The
// model's own FLOPs are those of its tokens, without the ones that a capacity below one drops.
TEST(Planner, PaddingIsOfTheHardwareAndDroppedTokensAreOfNothing) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.vocabulary = 51200;
  model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 256};
  const Training training{8, 1, 512, Precision::kBf16};
  const auto flops = [&](double capacity, Recompute recompute) {
    const ParallelPlan plan{
        .dp = 4, .ep = 4, .expert_capacity = {capacity}, .recompute = recompute, .flash_attention = false};
    const StepFlops all = step_flops(model, plan, training);
    const double executed = 4 * totals_of(model, plan, training).product_flops();
    EXPECT_NEAR(executed / (all.hardware / FLOP), 1, 1e-9) << capacity;
    return all;
  };
  const StepFlops routed = flops(0, Recompute::kNone);
  // 128 rows of each expert and rank. Three matrices of 512 x 256, forward and backward, in 4 layers.
  const double experts = 3.0 * 4 * 8 * 512 * 2 * 2 * 3 * 512 * 256;
  for (const double capacity : {0.25, 0.5, 1.0, 1.5, 2.0}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      const StepFlops all = flops(capacity, recompute);
      const double kept = std::min(1.0, capacity);
      EXPECT_NEAR((routed.model - all.model) / FLOP, (1 - kept) * experts, 1e-6 * experts) << capacity;
      EXPECT_NEAR((all.model - all.causal) / (routed.model - routed.causal), 1, 1e-9) << capacity;
      if (recompute == Recompute::kNone) {
        EXPECT_NEAR((all.hardware - all.model) / FLOP, (capacity - kept) * experts, 1e-6 * experts) << capacity;
      }
    }
  }
}

// A forward pass is a third of the products, under every schedule, and has nothing of gradients or an update. Weights
// that replicas share are gathered; those that they hold were not changed.
TEST(Planner, AForwardPassIsAThirdOfTrainingAndSumsNothing) {
  Model model = gpt(16, 512, 8);
  const Training training{32, 1, 256, Precision::kBf16};
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    if (schedule->hides_tokens) continue;  // without experts
    ParallelPlan plan{.tp = 2,
                      .pp = 4,
                      .dp = 2,
                      .vpp = schedule->least_chunks,
                      .schedule = std::string(schedule->name),
                      .flash_attention = false};
    const Totals all = totals_of(model, plan, training);
    plan.passes = Passes::kForward;
    const Totals forward = totals_of(model, plan, training);
    EXPECT_NEAR(3 * forward.product_flops() / all.product_flops(), 1, 1e-12) << schedule->name;
    const StepFlops flops = step_flops(model, plan, training);
    plan.passes = Passes::kTraining;
    EXPECT_DOUBLE_EQ(3 * (flops.model / FLOP), step_flops(model, plan, training).model / FLOP);
    EXPECT_DOUBLE_EQ(flops.hardware / FLOP, flops.model / FLOP);
    for (const auto& [name, count] : forward.nodes) {
      for (const char* part : {"grad", "optimizer", "backward", "dropout", "weights.all_gather"}) {
        EXPECT_EQ(name.find(part), std::string::npos) << schedule->name << ": " << name;
      }
    }
  }
  ParallelPlan sharded{.passes = Passes::kForward, .dp = 4, .zero = ZeroStage::kParameters};
  const Totals forward = totals_of(model, sharded, training);
  sharded.passes = Passes::kTraining;
  const Totals all = totals_of(model, sharded, training);
  EXPECT_GT(forward.nodes.at("weights.all_gather"), 0);
  EXPECT_LT(forward.nodes.at("weights.all_gather"), all.nodes.at("weights.all_gather"));
  EXPECT_EQ(forward.nodes.count("gradients.reduce_scatter"), 0u);
}

// Without an update, all is as in training up to the sum of the gradients.
TEST(Planner, GradientsAloneEndBeforeTheUpdate) {
  const Model model = gpt(8, 512, 8);
  const Training training{16, 1, 256, Precision::kBf16};
  for (const ZeroStage zero : {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients}) {
    ParallelPlan plan{.pp = 2, .dp = 2, .zero = zero};
    Totals all = totals_of(model, plan, training);
    plan.passes = Passes::kGradients;
    const Totals gradients = totals_of(model, plan, training);
    std::erase_if(all.nodes, [](const auto& entry) {
      return entry.first.starts_with("optimizer.") || entry.first == "weights.all_gather";
    });
    EXPECT_EQ(gradients.nodes, all.nodes) << static_cast<int>(zero);
  }
}

// Megatron-LM: two all-reduces a layer forward and two backward (Shoeybi et al. 2019, s.3); under sequence parallelism
// as many pairs of all-gather and reduce-scatter, plus the input gathered again twice (Korthikanti et al. 2022,
// s.4.2.2).
TEST(Planner, TensorParallelCommunication) {
  const Model model = gpt(4, 1024, 16);
  const Training training{2, 1, 1024, Precision::kBf16};
  const double states = 1024.0 * 1024 * 2;
  ParallelPlan plan{.tp = 4};
  Totals sums = totals_of(model, plan, training);
  EXPECT_EQ(sums.nodes["attention.all_reduce"], 4 * 2);
  EXPECT_EQ(sums.nodes["mlp.all_reduce"], 4 * 2);
  EXPECT_EQ(sums.nodes["attention.qkv.dgrad.all_reduce"], 4 * 2);
  EXPECT_EQ(sums.nodes["mlp.fc1.dgrad.all_reduce"], 4 * 2);
  EXPECT_DOUBLE_EQ(sums.bytes["mlp.all_reduce"], 8 * states);
  plan.sequence_parallel = true;
  sums = totals_of(model, plan, training);
  for (const char* name : {"attention.all_gather", "attention.reduce_scatter", "mlp.all_gather", "mlp.reduce_scatter",
                           "mlp.fc2.grad.all_gather", "mlp.fc1.input.all_gather", "mlp.fc1.dgrad.reduce_scatter",
                           "attention.proj.grad.all_gather", "attention.qkv.input.all_gather"}) {
    EXPECT_EQ(sums.nodes[name], 8) << name;
    EXPECT_DOUBLE_EQ(sums.bytes[name], 8 * states) << name;
  }
  EXPECT_EQ(sums.nodes.count("mlp.all_reduce"), 0u);
  // Waiting for them changes when they run, not what they carry.
  plan.blocking_tp = TensorBlocking::kOn;
  EXPECT_EQ(totals_of(model, plan, training).bytes, sums.bytes);
  plan.sequence_parallel = false;
  EXPECT_EQ(totals_of(model, plan, training).nodes["mlp.fc1.dgrad.all_reduce"], 4 * 2);
}

// Every boundary between chunks is crossed once a microbatch and direction, by the hidden states of a rank: all of
// them, or 1 / tp under sequence parallelism, or where ranks send a part each, which the receivers gather.
TEST(Planner, PipelineMessages) {
  const Model model = gpt(8, 1024, 16);
  const Training training{8, 1, 1024, Precision::kBf16};
  for (const auto& [plan, crossings] :
       {std::pair{ParallelPlan{.tp = 2, .pp = 4, .dp = 2}, 3},
        std::pair{ParallelPlan{.tp = 2, .pp = 4, .dp = 2, .vpp = 2, .schedule = "interleaved"}, 7}}) {
    const Totals sums = totals_of(model, plan, training);
    EXPECT_EQ(sums.nodes.at("pipeline.forward.send"), crossings * 4);
    EXPECT_EQ(sums.nodes.at("pipeline.backward.send"), crossings * 4);
    const double all = crossings * 4 * 1024.0 * 1024 * 2;
    EXPECT_DOUBLE_EQ(sums.bytes.at("pipeline.forward.send"), all);
    EXPECT_EQ(sums.nodes.count("pipeline.forward.all_gather"), 0u);
    ParallelPlan parts = plan;
    parts.scatter_p2p = true;
    const Totals gathered = totals_of(model, parts, training);
    EXPECT_DOUBLE_EQ(gathered.bytes.at("pipeline.forward.send"), all / 2);
    EXPECT_DOUBLE_EQ(gathered.bytes.at("pipeline.forward.all_gather"), all);
    parts.sequence_parallel = true;
    const Totals sharded = totals_of(model, parts, training);
    EXPECT_DOUBLE_EQ(sharded.bytes.at("pipeline.forward.send"), all / 2);
    EXPECT_EQ(sharded.nodes.count("pipeline.forward.all_gather"), 0u);
  }
}

TEST(Planner, MessagesOfHyperConnectionsHaveAllStreams) {
  Model model = gpt(8, 1024, 16);
  model.residual_streams = 4;
  const Totals sums = totals_of(model, ParallelPlan{.pp = 4}, {8, 1, 1024, Precision::kBf16});
  EXPECT_DOUBLE_EQ(sums.bytes.at("pipeline.forward.send"), 3 * 8 * 4 * 1024.0 * 1024 * 2);
}

// Dense weights and experts' travel in their own formats, layer by layer or all at once: products' in 8 bits, norms and
// the router in 16.
TEST(Planner, WeightsTravelInTheirOwnFormats) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  ParallelPlan plan{.dp = 4, .ep = 2, .zero = ZeroStage::kOptimizer};
  plan.fp8_params = true;
  const Training training{8, 1, 512, Precision::kFp8};
  const Totals once = totals_of(model, plan, training);
  plan.overlap_param_gather = true;
  const Totals by_layer = totals_of(model, plan, training);
  const double experts = 4 * 4 * 3 * 512.0 * 1024;
  EXPECT_DOUBLE_EQ(once.bytes.at("experts.weights.all_gather"), experts);
  EXPECT_DOUBLE_EQ(by_layer.bytes.at("experts.weights.all_gather"), experts);
  EXPECT_NEAR(once.bytes.at("weights.all_gather"), by_layer.bytes.at("weights.all_gather"), 1);
  const double tables = 2 * 32000.0 * 512, norms = (2 * 4 + 1) * 512, routers = 4 * 512 * 8.0;
  EXPECT_NEAR(once.bytes.at("weights.all_gather"), 2 * (tables + norms + routers) + 4 * 4 * 512.0 * 512, 1);
}

// Where one stage reads the table first and last, it gathers it and sums its gradients once, part by part or all at
// once.
TEST(Planner, OneTableTravelsOnce) {
  Model tied = gpt(8, 512, 8);
  Model predicting = llama(8, 512, 8, 8, 1024);
  predicting.prediction_layers = 1;
  for (const auto& [model, schedule] : {std::pair(tied, "zb-v"), std::pair(tied, "dualpipe"), std::pair(tied, "1f1b"),
                                        std::pair(predicting, "zb-v"), std::pair(predicting, "dualpipe")}) {
    ParallelPlan plan{.pp = 2, .dp = 4, .zero = ZeroStage::kOptimizer};
    plan.schedule = schedule;
    if (plan.schedule != "1f1b") plan.vpp = 2;
    Training training{16, 1, 512, Precision::kBf16};
    training.mtp = model.prediction_layers > 0;
    const Totals once = totals_of(model, plan, training);
    plan.overlap_param_gather = plan.overlap_grad_reduce = true;
    const Totals by_part = totals_of(model, plan, training);
    for (const char* name : {"weights.all_gather", "gradients.reduce_scatter"}) {
      EXPECT_NEAR(by_part.bytes.at(name) / once.bytes.at(name), 1, 1e-9) << schedule << " " << name;
    }
  }
}

// What makes queries, keys and values again comes before the gradients that read them, and the norm before the products
// whose weight gradients read its output.
TEST(Planner, WhatIsMadeAgainComesFirst) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.mla = LatentAttention{.q_rank = 128, .kv_rank = 64, .nope_head_dim = 64, .rope_head_dim = 32, .v_head_dim = 64};
  ParallelPlan plan;
  plan.recompute = Recompute::kSelective;
  plan.recompute_modules = set_of(RecomputeModule::kLatentUpProjection) | set_of(RecomputeModule::kNorm);
  const ExecutionGraph graph = planned(model, plan, {1, 1, 512, Precision::kBf16});
  std::map<std::string, std::uint32_t> last;
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) last[graph.work_of(NodeId{n}).name] = n;
  for (const char* name : {"attention.q_up", "attention.kv_up", "attention.assemble"}) {
    EXPECT_LT(last.at(name), last.at("attention.flash.backward")) << name;
  }
  EXPECT_LT(last.at("attention.norm"), last.at("attention.q_down.wgrad"));
  EXPECT_LT(last.at("attention.norm"), last.at("attention.kv_down.wgrad"));
}

// fp32 gradients scattered, bf16 weights gathered (Megatron-LM distributed optimizer); all-reduce without it; the same
// bytes whether overlapped or not.
TEST(Planner, DataParallelCommunication) {
  const Model model = llama(4, 1024, 16, 16, 4096);
  const Training training{8, 1, 1024, Precision::kBf16};
  const double parameters = 4 * (4 * 1024.0 * 1024 + 3 * 1024.0 * 4096 + 2 * 1024) + 2 * 32000.0 * 1024 + 1024;
  ParallelPlan plan{.dp = 4};
  for (const bool overlap : {false, true}) {
    plan.overlap_grad_reduce = plan.overlap_param_gather = overlap;
    const Totals sums = totals_of(model, plan, training);
    EXPECT_DOUBLE_EQ(sums.bytes.at("gradients.reduce_scatter"), 4 * parameters);
    EXPECT_DOUBLE_EQ(sums.bytes.at("weights.all_gather"), 2 * parameters);
    EXPECT_EQ(sums.nodes.at("gradients.reduce_scatter"), overlap ? 6 : 1);
  }
  plan.zero = ZeroStage::kNone;
  const Totals sums = totals_of(model, plan, training);
  EXPECT_DOUBLE_EQ(sums.bytes.at("gradients.all_reduce"), 4 * parameters);
  EXPECT_EQ(sums.nodes.count("weights.all_gather"), 0u);
}

// Megatron-Core joins layers until they have 40 million parameters, and a million for each replica, on the first stage;
// on others all of a chunk travels at once. Both ways the bytes are those of layers.
TEST(Planner, MegatronsBucketsJoinLayers) {
  Model model = llama(24, 1024, 16, 16, 2048);  // 10.5 M parameters a layer
  const double layer = 4 * 1024.0 * 1024 + 3 * 1024.0 * 2048 + 2 * 1024, table = 32000.0 * 1024;
  const Training training{64, 1, 1024, Precision::kBf16};
  ParallelPlan plan{.pp = 2, .dp = 4, .overlap_grad_reduce = true, .overlap_param_gather = true};
  const auto sizes = [&](std::string_view name, std::int64_t stage) {
    std::vector<double> found;
    const ExecutionGraph graph = planned(model, plan, training);
    for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
      const WorkItem& item = graph.work_of(NodeId{n});
      if (item.name != name || ExecutionGraph::stage_of(graph.node(NodeId{n}).lane) != stage) continue;
      found.push_back(std::get<Collective>(item.work).size / B);
    }
    return found;
  };
  using ::testing::ElementsAre;
  EXPECT_EQ(sizes("gradients.reduce_scatter", 0).size(), 13u);  // 12 layers and the table
  plan.grad_buckets = GradBuckets::kMegatron;
  // 4 layers of 10.5 M reach 40 M; the table is what is left.
  EXPECT_THAT(sizes("gradients.reduce_scatter", 0),
              ElementsAre(4 * 4 * layer, 4 * 4 * layer, 4 * 4 * layer, 4 * table));
  EXPECT_THAT(sizes("weights.all_gather", 0), ElementsAre(2 * table, 2 * 4 * layer, 2 * 4 * layer, 2 * 4 * layer));
  EXPECT_THAT(sizes("gradients.reduce_scatter", 1), ElementsAre(4 * (12 * layer + table + 1024)));
  EXPECT_THAT(sizes("weights.all_gather", 1), ElementsAre(2 * (12 * layer + table + 1024)));
  plan.dp = 64;  // 64 M: 7 layers, then 5 and the table
  EXPECT_THAT(sizes("gradients.reduce_scatter", 0), ElementsAre(4 * 7 * layer, 4 * (5 * layer + table)));
  EXPECT_THAT(sizes("weights.all_gather", 0), ElementsAre(2 * (5 * layer + table), 2 * 7 * layer));
}

// A sum over microbatches is complete after the last one.
TEST(Planner, GradientsAreReducedAfterTheLastMicrobatch) {
  const Model model = llama(4, 1024, 16, 16, 4096);
  const ExecutionGraph graph = planned(model, {.dp = 4, .overlap_grad_reduce = true}, {12, 1, 1024, Precision::kBf16});
  int reductions = 0;
  for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
    if (graph.work_of(NodeId{n}).name != "gradients.reduce_scatter") continue;
    ++reductions;
    std::int64_t latest = -1;
    for (const NodeId before : graph.dependencies(NodeId{n})) {
      latest = std::max<std::int64_t>(latest, graph.node(before).origin.microbatch);
    }
    EXPECT_EQ(latest, 2) << n;  // of 0, 1, 2
  }
  EXPECT_EQ(reductions, 6);
}

// A product that does not accumulate leaves that to a kernel that reads the gradient and reads and writes the sum.
TEST(Planner, GradientsAreSummedByTheProductsOrApart) {
  const Model model = llama(2, 1024, 16, 16, 4096);
  const Training training{8, 1, 1024, Precision::kBf16};
  ParallelPlan plan{.dp = 4};
  const auto added = [&] {
    std::map<std::string, double> bytes;
    const ExecutionGraph graph = planned(model, plan, training);
    for (std::uint32_t n = 0; n < graph.node_count(); ++n) {
      const WorkItem& item = graph.work_of(NodeId{n});
      const auto* op = std::get_if<Operator>(&item.work);
      if (op != nullptr) bytes[item.name] += (work_of(*op).read + work_of(*op).written) / B;
    }
    return bytes;
  };
  const double weights = 1024.0 * 4096;  // of mlp.fc2; two microbatches, two layers
  const auto fused = added();
  EXPECT_EQ(fused.count("mlp.fc2.wgrad.accumulate"), 0u);
  // Of an embedding's table, zeros that are filled in, and always a kernel that adds its gradient to the fp32 sums.
  const double table = 1024.0 * static_cast<double>(model.vocabulary);
  EXPECT_DOUBLE_EQ(fused.at("embedding.gradient"), 2 * table * 2);
  EXPECT_DOUBLE_EQ(fused.at("embedding.wgrad.accumulate"), 2 * table * (2 + 4 + 4));
  plan.grad_accumulation = GradAccumulation::kFp32;
  auto apart = added();
  EXPECT_DOUBLE_EQ(apart.at("mlp.fc2.wgrad.accumulate"), 4 * weights * (2 + 4 + 4 + 4 + 4));
  EXPECT_DOUBLE_EQ(fused.at("mlp.fc2.wgrad") - apart.at("mlp.fc2.wgrad"), 4 * weights * (4 + 4 - 2));
  const double reduced = totals_of(model, plan, training).bytes.at("gradients.reduce_scatter");
  plan.grad_accumulation = GradAccumulation::kLow;
  apart = added();
  EXPECT_DOUBLE_EQ(apart.at("mlp.fc2.wgrad.accumulate"), 4 * weights * (2 + 2 + 2));
  EXPECT_DOUBLE_EQ(totals_of(model, plan, training).bytes.at("gradients.reduce_scatter"), reduced / 2);
  plan.grad_accumulation = GradAccumulation::kFusedLow;
  const auto low = added();
  EXPECT_EQ(low.count("mlp.fc2.wgrad.accumulate"), 0u);
  EXPECT_DOUBLE_EQ(low.at("mlp.fc2.wgrad") - apart.at("mlp.fc2.wgrad"), 4 * weights * 2);
  EXPECT_DOUBLE_EQ(totals_of(model, plan, training).bytes.at("gradients.reduce_scatter"), reduced / 2);
}

// Each work runs as often as there are nodes of it in the graph of all stages.
TEST(Planner, RunCountsAreThoseOfTheGraph) {
  Model model = llama(8, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 4};
  for (const char* schedule : {"1f1b", "interleaved", "gpipe"}) {
    ParallelPlan plan{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true};
    plan.schedule = schedule;
    if (plan.schedule == "interleaved") plan.vpp = 2;
    const auto program = plan_program(model, plan, {16, 1, 512, Precision::kBf16});
    ASSERT_TRUE(program) << schedule << ": " << to_text(program.error());
    const Expansion expansion = expand(*program);
    std::vector<std::uint64_t> nodes(program->works.size());
    for (std::uint32_t n = 0; n < expansion.graph.node_count(); ++n) {
      ++nodes[index(expansion.origins[index(expansion.graph.node(NodeId{n}).work)].work)];
    }
    EXPECT_EQ(program->run_counts(), nodes) << schedule;
  }
}

TEST(Planner, TheGraphDoesNotGrowWithReplicas) {
  const Model model = gpt(8, 1024, 16);
  const auto nodes = [&](std::int64_t dp) {
    return planned(model, {.tp = 2, .pp = 2, .dp = dp}, {8 * dp, 1, 1024, Precision::kBf16}).node_count();
  };
  EXPECT_EQ(nodes(2), nodes(4096));
}

TEST(Planner, ExpertsAreReachedByAllToAll) {
  Model model = llama(4, 1024, 16, 8, 4096);
  model.moe = Experts{8, 2, 2048, 1, 2048, 1};
  const Training training{8, 1, 1024, Precision::kBf16};
  const Totals sums = totals_of(model, {.dp = 4, .ep = 4}, training);
  // Two microbatches, three layers with experts; 1024 tokens to two experts each.
  EXPECT_EQ(sums.nodes.at("moe.dispatch"), 6);
  EXPECT_DOUBLE_EQ(sums.bytes.at("moe.dispatch"), 6 * 1024.0 * 2 * 1024 * 2);
  EXPECT_EQ(sums.nodes.count("experts.gradients.reduce_scatter"), 0u);  // dp / ep is 1: no replica of an expert
}

// Experts that are split over fewer ranks than the other layers have replicas among these, even where there is one
// replica of the model: 8 ranks hold 2 copies of each of 4 parts of the experts.
TEST(Planner, ExpertsMayHaveReplicasInOneReplicaOfTheModel) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  ParallelPlan plan{.tp = 8, .ep = 4, .etp = 1, .sequence_parallel = true};
  const Training training{1, 1, 512, Precision::kBf16};
  const double parameters = 2 * 2 * 3 * 512 * 1024;  // of two layers: two experts each
  const Totals sharded = totals_of(model, plan, training);
  EXPECT_DOUBLE_EQ(sharded.bytes.at("experts.gradients.reduce_scatter"), 4 * parameters);
  EXPECT_DOUBLE_EQ(sharded.bytes.at("experts.weights.all_gather"), 2 * parameters);
  EXPECT_FALSE(sharded.bytes.contains("gradients.reduce_scatter"));
  plan.zero = ZeroStage::kNone;
  EXPECT_DOUBLE_EQ(totals_of(model, plan, training).bytes.at("experts.gradients.all_reduce"), 4 * parameters);
}

// Experts that work on a quarter of the hidden size: tokens travel in that width, and two projections, whole on every
// rank, bring them there and back (Megatron-Core, moe_layer.py, fc1_latent_proj).
TEST(Planner, ExpertsOnAPartOfTheHiddenSize) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 0};
  const ParallelPlan plan{.dp = 4, .ep = 4};
  const Training training{4, 1, 512, Precision::kBf16};
  const double experts = 8 * 3 * 1024;
  const double whole = model_parameters(model).total() - experts * 512;
  const Totals wide = totals_of(model, plan, training);
  model.moe->latent = 128;
  EXPECT_DOUBLE_EQ(model_parameters(model).total(), whole + experts * 128 + 2 * 512 * 128);
  const Totals narrow = totals_of(model, plan, training);
  for (const char* name : {"moe.dispatch", "moe.combine", "moe.dispatch.backward", "moe.combine.backward"}) {
    EXPECT_DOUBLE_EQ(narrow.bytes.at(name), wide.bytes.at(name) / 4) << name;
  }
  // 512 tokens, each with two experts, forward and twice backward.
  const double rows = 2 * 512, saved = 3 * 2 * rows * 3 * 1024 * (512 - 128), added = 3 * 2 * 512.0 * 2 * 512 * 128;
  EXPECT_DOUBLE_EQ(narrow.product_flops(), wide.product_flops() - saved + added);
  EXPECT_EQ(narrow.nodes.at("moe.latent_up.wgrad"), 1);
}

// Adam reads a gradient, a master weight and two moments and writes all but the gradient and a bf16 weight: 30 bytes a
// parameter, 22 with moments in bf16, 18 in 8 bits. In fp32 there is no weight beside the master weight: 2 less.
TEST(Planner, MomentsOfFewerBitsAreUpdatedSooner) {
  const Model model = llama(2, 512, 8, 8, 1024);
  for (const auto& [moments, bytes] :
       {std::pair(MomentType::kFp32, 30.0), std::pair(MomentType::kBf16, 22.0), std::pair(MomentType::k8Bit, 18.0)}) {
    const ParallelPlan plan{.optimizer_state = moments};
    for (const auto& [precision, each] : {std::pair(Precision::kBf16, bytes), std::pair(Precision::kFp32, bytes - 2)}) {
      const ExecutionGraph graph = planned(model, plan, {1, 1, 512, precision});
      double moved = 0;
      for (const WorkItem& item : graph.works()) {
        if (item.name != "optimizer.step") continue;
        const Work work = work_of(std::get<Operator>(item.work));
        moved += (work.read + work.written) / B;
      }
      EXPECT_DOUBLE_EQ(moved, each * model_parameters(model).total()) << each;
    }
  }
}

// Adam of fp32 weights under autocast has 28 bytes a parameter (gradient, weight and two moments in, all but the
// gradient out), of low precision alone 14; 16 and 8 are kept beside the activations: weight, gradient and moments. The
// first gradient of a single microbatch takes the activations' place.
TEST(Planner, WeightsOfPyTorchAlone) {
  const Model model = llama(2, 512, 8, 8, 1024);
  for (const auto& [weights, moved, kept] :
       {std::tuple(WeightStorage::kFp32, 28.0, 16 + 2.0), std::tuple(WeightStorage::kLow, 14.0, 8.0)}) {
    const ParallelPlan plan{.zero = ZeroStage::kNone, .weights = weights, .grad_accumulation = GradAccumulation::kLow};
    const Training training{2, 1, 512, Precision::kBf16};
    const ExecutionGraph graph = planned(model, plan, training);
    double bytes = 0;
    for (const WorkItem& item : graph.works()) {
      EXPECT_NE(item.name, "optimizer.cast_weights");
      EXPECT_NE(item.name, "optimizer.cast_gradients");
      EXPECT_NE(item.name, "optimizer.zero_gradients");
      if (item.name != "optimizer.step") continue;
      const Work work = work_of(std::get<Operator>(item.work));
      bytes += (work.read + work.written) / B;
    }
    const double parameters = model_parameters(model).total();
    EXPECT_DOUBLE_EQ(bytes, moved * parameters);
    // Where no optimizer drops them, gradients of earlier steps are there, and each microbatch adds to them.
    ParallelPlan growing = plan;
    growing.passes = Passes::kGradients;
    const auto additions = [&](const ParallelPlan& each) {
      double sum = 0;
      const ExecutionGraph one = planned(model, each, {1, 1, 512, Precision::kBf16});
      for (const WorkItem& item : one.works()) sum += item.name.ends_with(".wgrad.accumulate") ? 1 : 0;
      return sum;
    };
    EXPECT_EQ(additions(plan), 0);
    EXPECT_GT(additions(growing), 0);
    const StageMemory used = memory_budget(model, plan, training)->stages.front();
    EXPECT_DOUBLE_EQ((used.weights + used.gradients + used.optimizer) / B, kept * parameters);
    const StageMemory once = memory_budget(model, plan, {1, 1, 512, Precision::kBf16})->stages.front();
    EXPECT_EQ(once.gradients, max(Bytes(), used.gradients - once.activations));
    // Buckets of the gradients that replicas reduce.
    ParallelPlan replicated = plan;
    replicated.dp = 2;
    const StageMemory two = memory_budget(model, replicated, {4, 1, 512, Precision::kBf16})->stages.front();
    EXPECT_DOUBLE_EQ(two.gradients / B, 2 * (used.gradients / B));
  }
}

TEST(CheckPlan, EveryContradictionIsNamedAtOnce) {
  const Model model = gpt(96, 12288, 96);
  const auto text = [&](const ParallelPlan& plan, const Training& training) {
    const auto checked = check_plan(model, plan, training);
    return checked ? std::string("fine") : to_text(checked.error());
  };
  const Training training{1536, 1, 2048, Precision::kBf16};
  EXPECT_EQ(text({.tp = 8, .pp = 16, .dp = 8}, training), "fine");
  EXPECT_THAT(text({.tp = 7}, training), HasSubstr("plan/tp: tp 7 does not divide the 96 attention heads"));
  Model uneven = model;  // heads of layers with a window count, too
  uneven.sliding_window = 512;
  uneven.windowed_heads = AttentionHeads{64, 8, 128};
  EXPECT_THAT(to_text(check_plan(uneven, {.tp = 48, .dp = 1}, training).error()),
              HasSubstr("plan/tp: tp 48 does not divide the 64 attention heads"));
  EXPECT_TRUE(check_plan(uneven, {.tp = 16, .dp = 1}, training));
  const std::string alone = text({.zero = ZeroStage::kOptimizer, .weights = WeightStorage::kLow}, training);
  EXPECT_THAT(alone, HasSubstr("use plan/zero=0, or plan/weights=master"));
  EXPECT_THAT(alone, HasSubstr("use plan/grad_accumulation=low, or plan/weights=master"));
  // No remedy leads to the next refusal.
  const std::string shared =
      text({.dp = 2, .zero = ZeroStage::kNone, .shard = 3, .weights = WeightStorage::kLow}, training);
  EXPECT_THAT(shared, HasSubstr("; leave plan/shard out"));
  EXPECT_THAT(shared, Not(HasSubstr("plan/zero=1")));
  EXPECT_THAT(text({.tp = 4, .etp = 3}, training), AllOf(HasSubstr("use plan/etp=0"), Not(HasSubstr("plan/etp=2"))));
  const std::string odd = text({.pp = 2, .dp = 4, .vpp = 2, .schedule = "dualpipe"}, {12, 1, 2048, Precision::kBf16});
  EXPECT_THAT(odd, HasSubstr("use training/global_batch=16"));
  EXPECT_THAT(text({.cp = 2}, {1536, 1, 33, Precision::kBf16}), HasSubstr("use training/sequence=34"));
  EXPECT_THAT(text({.pp = 2, .vpp = 2, .schedule = "combined-1f1b"}, training), Not(HasSubstr("plan/ep")));
  EXPECT_THAT(text({.tp = 7}, training), HasSubstr("use plan/tp=6 or plan/tp=8"));
  EXPECT_THAT(text({.recompute = Recompute::kFull, .recompute_layers = 1, .recompute_together = 2}, training),
              HasSubstr("use plan/recompute=full:1, or plan/recompute=full:uniform:2"));
  EXPECT_EQ(text({.pp = 16, .vpp = 4, .schedule = "interleaved"}, training), "fine");  // 64 chunks of one or two layers
  EXPECT_THAT(text({.pp = 16, .vpp = 7, .schedule = "interleaved"}, training), HasSubstr("layers"));
  EXPECT_THAT(text({.pp = 100}, training), HasSubstr("more than the 96 layers"));
  EXPECT_THAT(text({.dp = 7}, training), HasSubstr("use training/global_batch=1533 or training/global_batch=1540"));
  EXPECT_THAT(text({.tp = 0}, training), HasSubstr("0 is out of range"));
  EXPECT_THAT(text({.pp = -3}, training), HasSubstr("-3 is out of range"));
  EXPECT_THAT(text({.dp = 4'000'000'000}, training), HasSubstr("out of range"));
  EXPECT_THAT(text({.ep = 2}, training), HasSubstr("has no experts"));
  EXPECT_THAT(text({.tp = 8, .etp = 1}, training), HasSubstr("has no experts"));
  EXPECT_EQ(text({.etp = 1}, training), "fine");  // as many as tensor-parallel ranks: the default
  // What sequence parallelism divides is a context-parallel rank's part of the sequence.
  const Training short_context{1536, 1, 24, Precision::kBf16};
  EXPECT_EQ(text({.tp = 8, .sequence_parallel = true}, short_context), "fine");
  EXPECT_THAT(text({.tp = 8, .cp = 2, .sequence_parallel = true}, short_context),
              AllOf(HasSubstr("tp 8 does not divide the 12 tokens"), HasSubstr("use plan/tp=6")));
  EXPECT_THAT(text({.schedule = "zigzag"}, training), HasSubstr("unknown schedule"));
  EXPECT_THAT(text({}, {1536, 1, 0, Precision::kBf16}), HasSubstr("training/sequence: 0 is out of range"));
  Model deep = model;
  deep.layers = 1'000'000'000;
  const auto refused = check_plan(deep, {}, training);
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("model, layers: 1000000000 is out of range"));
  EXPECT_THAT(text({.loss_metrics = 1001}, training), HasSubstr("plan/loss_metrics: 1001 cross-entropies"));
  const Training long_context{1536, 1, 8192, Precision::kBf16};
  EXPECT_EQ(text({.cp = 1024}, long_context), "fine");
  EXPECT_THAT(text({.cp = 2048}, long_context), HasSubstr("a ring of 2048 ranks"));
  EXPECT_EQ(text({.cp = 2048, .cp_comm = ContextExchange::kAllGather}, long_context), "fine");
  EXPECT_EQ(text({.cp = 2048, .cp_comm = ContextExchange::kHierarchical, .cp_inner = 4}, long_context), "fine");
  const std::string both = text({.tp = 7, .dp = 7}, training);
  EXPECT_THAT(both, HasSubstr("plan/tp: "));
  EXPECT_THAT(both, HasSubstr("training/global_batch: "));
}

// Key heads of the delta rule are divided over tensor-parallel ranks, and theirs over those of a context.
TEST(CheckPlan, HeadsOfTheDeltaRuleAreDivided) {
  const Training training{64, 1, 1024, Precision::kBf16};
  Model model = llama(4, 512, 16, 16, 1536);
  model.delta_net = DeltaNet{4, 8, 64, 64};
  model.full_attention_layers.every = 2;
  const auto text = [&](const ParallelPlan& plan) {
    const auto checked = check_plan(model, plan, training);
    return checked ? std::string("fine") : to_text(checked.error());
  };
  EXPECT_EQ(text({.tp = 2, .cp = 2}), "fine");
  EXPECT_THAT(text({.tp = 8}), AllOf(HasSubstr("the 4 key heads of the delta rule"), HasSubstr("use plan/tp=4")));
  EXPECT_THAT(text({.tp = 2, .cp = 4}),
              AllOf(HasSubstr("cp 4 does not divide the 2 key heads"), HasSubstr("plan/cp=2")));
  model.full_attention_layers.every = 1;
  EXPECT_EQ(text({.tp = 8, .cp = 4}), "fine");
}

// The degrees that a refusal names suit everything that tensor parallelism divides, so they are not refused in turn.
TEST(CheckPlan, RefusedDegreesOfTensorParallelismNameThoseThatSuit) {
  const Training training{64, 1, 1024, Precision::kBf16};
  const auto text = [&](const Model& model, const ParallelPlan& plan, const Training& asked) {
    const auto checked = check_plan(model, plan, asked);
    return checked ? std::string("fine") : to_text(checked.error());
  };
  const Model qwen = llama(4, 3584, 28, 4, 18816);  // 7 and 14 do not suit the key-value heads
  EXPECT_THAT(text(qwen, {.tp = 8}, training), AllOf(HasSubstr("28 attention heads"), HasSubstr("use plan/tp=4")));
  EXPECT_THAT(text(qwen, {.tp = 7}, training), AllOf(HasSubstr("4 key-value heads"), HasSubstr("use plan/tp=4")));
  const Model gpt2 = gpt(12, 768, 12);
  EXPECT_THAT(text(gpt2, {.tp = 8}, training), HasSubstr("use plan/tp=6 or plan/tp=12"));
  EXPECT_THAT(text(gpt2, {.tp = 8, .sequence_parallel = true}, training), HasSubstr("use plan/tp=4"));
  EXPECT_THAT(text(gpt2, {.tp = 12, .sequence_parallel = true}, training),
              AllOf(HasSubstr("1024 tokens of a sequence"), HasSubstr("use plan/tp=4, or plan/sequence_parallel=off")));
  EXPECT_THAT(text(gpt2, {.tp = 5, .sequence_parallel = true}, training), Not(HasSubstr("sequence_parallel=off")));
  Model experts = llama(4, 512, 16, 16, 1536);
  experts.moe = Experts{8, 2, 100, 0, 0, 4};
  EXPECT_THAT(text(experts, {.tp = 3}, training), HasSubstr("use plan/tp=2 or plan/tp=4"));
  EXPECT_THAT(text(experts, {.tp = 5, .etp = 1}, training), HasSubstr("use plan/tp=4 or plan/tp=8"));
  const Training odd{64, 1, 1022, Precision::kBf16};
  EXPECT_THAT(text(experts, {.tp = 4, .sequence_parallel = true}, odd), HasSubstr("or plan/sequence_parallel=off"));
  EXPECT_THAT(text(experts, {.tp = 4, .etp = 1, .sequence_parallel = true}, odd),
              Not(HasSubstr("sequence_parallel=off")));
  for (const std::int64_t tp : {2, 4}) EXPECT_EQ(text(experts, {.tp = tp}, training), "fine");
}

// Where tensor parallelism divides the experts, too, one degree is at fault.
TEST(CheckPlan, ExpertsDividedAsAllElseAreNoFaultOfTheirOwn) {
  const Training training{64, 1, 1024, Precision::kBf16};
  Model experts = llama(4, 512, 16, 4, 1536);
  experts.moe = Experts{8, 2, 1536, 0, 0, 0};
  const auto text = [&](const ParallelPlan& plan) { return to_text(check_plan(experts, plan, training).error()); };
  const std::string seven = text({.tp = 7, .sequence_parallel = true});
  EXPECT_THAT(seven, AllOf(HasSubstr("plan/tp: tp 7 does not divide the width 1536 of the experts"),
                           HasSubstr("use plan/tp=4 or plan/tp=8"), Not(HasSubstr("plan/etp"))));
  EXPECT_THAT(text({.tp = 7, .etp = 7}), HasSubstr("plan/etp: etp 7 does not divide the experts' width 1536"));
  // What suits the width and tp 8: 4 and 8.
  EXPECT_THAT(text({.tp = 8, .etp = 6, .sequence_parallel = true}), HasSubstr("use plan/etp=4 or plan/etp=8"));
  // Whole experts go with any tp.
  experts.moe->expert_ffn = 1000;
  EXPECT_THAT(text({.tp = 16, .sequence_parallel = true}), HasSubstr("use plan/tp=8, or plan/etp=1"));
  EXPECT_TRUE(check_plan(experts, {.tp = 16, .etp = 1, .sequence_parallel = true}, training));
}

// 12 divides neither the 8 experts nor the 72 ranks' 8; 16 would suit 256 experts alone.
TEST(CheckPlan, RefusedDegreesOfExpertParallelismSuitExpertsAndRanks) {
  Model experts = llama(4, 512, 16, 16, 1536);
  experts.moe = Experts{256, 2, 1536, 0, 0, 0};
  const auto refused = check_plan(experts, {.dp = 72, .ep = 12}, {72, 1, 1024, Precision::kBf16});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().hint, "use plan/ep=8");
  EXPECT_TRUE(check_plan(experts, {.dp = 72, .ep = 8}, {72, 1, 1024, Precision::kBf16}));
}

// The proposal for too many stages or chunks can be planned.
TEST(CheckPlan, StagesAreProposedThatTheScheduleCanFill) {
  struct Case {
    std::int64_t layers, pp, vpp;
    const char *schedule, *hint;
  };
  for (const Case& c :
       {Case{32, 64, 2, "zb-v", "use plan/pp=16"}, Case{2, 4, 2, "dualpipe-v", "use plan/pp=1"},
        Case{11, 14, 2, "dualpipe", "use plan/pp=10"}, Case{32, 64, 4, "interleaved", "use plan/pp=8"},
        Case{32, 4, 64, "interleaved", "use plan/vpp=8"}, Case{32, 20, 40, "interleaved", "use plan/vpp=1"},
        Case{32, 40, 64, "interleaved", "use plan/pp=32 and plan/vpp=1"},
        Case{1, 1, 2, "zb-v", "use plan/schedule=1f1b"},
        Case{1, 4, 2, "zb-v", "use plan/schedule=1f1b and plan/pp=1"}}) {
    ParallelPlan plan{.pp = c.pp, .vpp = c.vpp};
    plan.schedule = c.schedule;
    const Training training{64, 1, 1024, Precision::kBf16};
    const auto refused = check_plan(gpt(c.layers, 512, 8), plan, training);
    ASSERT_FALSE(refused) << c.hint;
    EXPECT_EQ(refused.error().hint, c.hint);
    EXPECT_TRUE(refused.error().also.empty()) << c.hint;
  }
}

TEST(CheckPlan, AnEmbeddingThatCountsFillsAStage) {
  ParallelPlan plan{.pp = 6};
  const Training training{64, 1, 1024, Precision::kBf16};
  EXPECT_FALSE(check_plan(gpt(4, 512, 8), plan, training));
  EXPECT_FALSE(check_all_but_schedule(gpt(4, 512, 8), plan, training));
  plan.account_embedding = plan.account_loss = true;
  EXPECT_TRUE(check_plan(gpt(4, 512, 8), plan, training));
  EXPECT_TRUE(check_all_but_schedule(gpt(4, 512, 8), plan, training));
}

// 3 + 29 x 2 layers in 32 parts: the model chunks follow from the layout, and are no fault.
TEST(CheckPlan, ALayoutOfOtherLayersIsTheOnlyFault) {
  ParallelPlan plan{.vpp = 32};
  plan.schedule = "interleaved";
  plan.pipeline_layout = {"Et*3|(tt|)*29m|L"};
  const auto refused = check_plan(gpt(12, 512, 8), plan, {64, 1, 1024, Precision::kBf16});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "plan/pipeline_layout");
  EXPECT_EQ(refused.error().message, "a layout of 61 layers, and gpt has 12");
  EXPECT_TRUE(refused.error().also.empty());
}

int field_count() {
  int count = 0;
  ParallelPlan plan;
  visit_fields([&](const Field&, auto&) { ++count; }, plan);
  return count;
}

// A plan that differs from `plan` in its field number `field` alone.
ParallelPlan with_other_field(ParallelPlan plan, int field) {
  int at = 0;
  visit_fields(
      [&]<class T>(const Field& what, T& value) {
        if (at++ != field) return;
        if constexpr (std::is_same_v<T, bool>) {
          value = !value;
        } else if constexpr (std::is_same_v<T, std::string>) {
          value = what.key() == "order" ? "dp-tp-pp" : "zb-h1";
        } else if constexpr (std::is_same_v<T, Recomputation>) {
          value = {value.recompute == Recompute::kFull ? Recompute::kSelective : Recompute::kFull,
                   set_of(RecomputeModule::kMlp), 1};
        } else if constexpr (std::is_same_v<T, PipelineLayout>) {
          value = {"Ett|ttL"};
        } else if constexpr (std::is_same_v<T, Fraction>) {
          value = {value.value == 0 ? 0.5 : value.value / 2};
        } else if constexpr (std::is_same_v<T, Imbalance>) {
          value = {value.value + 0.5};
        } else if constexpr (std::is_same_v<T, CapacityFactor>) {
          value = {value.value + 1.5};
        } else if constexpr (std::is_enum_v<T>) {
          value = static_cast<T>(value == T{} ? 1 : 0);
        } else {
          value = value == 0 ? 3 : 2 * value;
        }
      },
      plan);
  return plan;
}

// Whatever the memory has seen before, the program is the one that is made without it.
TEST(PlanCache, ChangesNoProgramWhicheverFieldDiffers) {
  Model model = llama(16, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 4};
  const Training training{64, 1, 512, Precision::kBf16};
  PlanCache cache;
  int feasible = 0;
  for (const std::int64_t ep : {1, 2}) {
    const ParallelPlan base{.tp = 2, .pp = 2, .dp = 4, .ep = ep, .sequence_parallel = true};
    for (int field = 0; field < field_count(); ++field) {
      for (const ParallelPlan& plan : {with_other_field(base, field), base}) {
        const auto remembered = plan_program(model, plan, training, cache);
        const auto fresh = plan_program(model, plan, training);
        ASSERT_EQ(remembered.has_value(), fresh.has_value());
        if (!fresh) continue;
        ++feasible;
        EXPECT_TRUE(remembered->works == fresh->works) << field;
        EXPECT_EQ(remembered->fragments, fresh->fragments) << field;
        EXPECT_EQ(totals_of(expand(*remembered).graph).nodes, totals_of(expand(*fresh).graph).nodes) << field;
        const auto budget = memory_budget(model, plan, training, cache);
        EXPECT_EQ(budget->peak(), memory_budget(model, plan, training)->peak()) << field;
      }
    }
  }
  EXPECT_GT(feasible, 100);
}

// Queries of a layer with a window see w keys of s: 2 (s - w) s FLOPs less for each of the 2 h channels of scores and
// values, forward and twice backward.
TEST(Kinds, WindowsOfSomeLayersLieBetweenNoneAndAll) {
  Model model = llama(12, 512, 8, 2, 1024);
  const Training training{16, 1, 1024, Precision::kBf16};
  const double full = step_flops(model, {}, training).model / units::FLOP;
  model.sliding_window = 256;
  model.full_attention_layers.every = 6;
  const double less = 3.0 * 16 * 2 * 1024 * (1024 - 256) * 2 * 512;
  EXPECT_DOUBLE_EQ(step_flops(model, {}, training).model / units::FLOP, full - 10 * less);
  model.full_attention_layers = {};
  EXPECT_DOUBLE_EQ(step_flops(model, {}, training).model / units::FLOP, full - 12 * less);
}

// A stage has the kernels of its own layers: with experts in every other layer, two of four.
TEST(Kinds, StagesHoldTheLayersOfTheirPlaces) {
  Model model = llama(8, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 1024, 0, 0, 1};
  model.moe->layers = {.every = 2, .listed = {}};
  const ParallelPlan plan{.pp = 2};
  const auto graph = planned_graph(model, plan, {2, 1, 128, Precision::kBf16});
  ASSERT_TRUE(graph) << to_text(graph.error());
  std::map<std::pair<std::string, int>, int> count;
  for (const GraphNode& node : graph->nodes()) {
    const WorkItem& item = graph->works()[index(node.work)];
    if (item.name == "moe.router" || item.name == "mlp.fc1") {
      ++count[{item.name, node.origin.layer}];
    }
  }
  for (int layer = 0; layer < 8; ++layer) {
    EXPECT_EQ((count[{"moe.router", layer}]), layer % 2 == 1 ? 2 : 0) << layer;
    EXPECT_EQ((count[{"mlp.fc1", layer}]), layer % 2 == 1 ? 0 : 2) << layer;
  }
}

// A layer for multi-token prediction: a layer of the model's last kind, a projection of 2h x h, and the loss again.
TEST(Prediction, AddsItsLayerProjectionAndLoss) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.vocabulary = 1024;
  model.prediction_layers = 2;
  Training training{8, 1, 128, Precision::kBf16};
  const auto flops = [&] { return step_flops(model, {}, training).model / units::FLOP; };
  const double without = flops();
  training.mtp = true;
  const double layer = 128 * (2 * (4.0 * 512 * 512 + 3.0 * 512 * 1024) + 4.0 * 128 * 512);
  EXPECT_DOUBLE_EQ(flops() - without, 3 * 8 * 2 * (layer + 2.0 * 128 * 1024 * 512 + 2.0 * 128 * 512 * 1024));

  // On the last stage: its parameters, and a copy of the embedding, whose gradients are summed with the first's.
  const double layers = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512;
  const double added = 2 * (layers + 2 * 512 * 512 + 3 * 512), table = 1024 * 512;
  EXPECT_DOUBLE_EQ(model_parameters(model).prediction, added);
  const ParallelPlan plan{.pp = 2};
  const auto with_memory = memory_budget(model, plan, training);
  training.mtp = false;
  const auto plain_memory = memory_budget(model, plan, training);
  ASSERT_TRUE(with_memory && plain_memory);
  EXPECT_EQ(with_memory->stages[0].weights, plain_memory->stages[0].weights);
  EXPECT_DOUBLE_EQ((with_memory->stages[1].weights - plain_memory->stages[1].weights) / units::B, 2 * (added + table));
  EXPECT_GT(with_memory->stages[1].activations, plain_memory->stages[1].activations);
  EXPECT_EQ(with_memory->stages[0].activations, plain_memory->stages[0].activations);

  training.mtp = true;
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  std::map<std::string, int> count;
  for (const GraphNode& node : graph->nodes()) ++count[graph->works()[index(node.work)].name];
  EXPECT_EQ(count["mtp.proj"], 8 * 2);
  EXPECT_EQ(count["loss.cross_entropy"], 8 * 3);
  EXPECT_EQ(count["embedding.gradients.all_reduce"], 2) << "a node on each of the two stages";

  // Of a table that replicas share, each sums its part.
  const auto bytes = [&](ZeroStage zero) {
    const Totals all = totals_of(model, {.pp = 2, .dp = 4, .zero = zero}, training);
    return all.bytes.at("embedding.gradients.all_reduce");
  };
  EXPECT_DOUBLE_EQ(bytes(ZeroStage::kOptimizer), 2 * 4 * table);
  for (const ZeroStage zero : {ZeroStage::kGradients, ZeroStage::kParameters}) {
    EXPECT_DOUBLE_EQ(bytes(zero), 2 * 4 * table / 4);
  }

  model.prediction_layers = 0;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("no layers for multi-token prediction"));
}

// A layout may put it on a stage of its own, with the copy of the table, and leave a stage with the loss alone.
TEST(Prediction, AStageOfItsOwnHoldsItAndItsTable) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.vocabulary = 1024;
  model.prediction_layers = 1;
  Training training{8, 1, 128, Precision::kBf16, true};
  ParallelPlan plan{.pp = 4, .pipeline_layout = {"Ett|tt|m|L"}};
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  std::map<std::pair<std::string, std::int64_t>, int> count;
  for (const GraphNode& node : graph->nodes())
    ++count[{graph->works()[index(node.work)].name, ExecutionGraph::stage_of(node.lane)}];
  EXPECT_EQ((count[{"attention.qkv", 0}]), 2 * 8);
  EXPECT_EQ((count[{"attention.qkv", 1}]), 2 * 8);
  EXPECT_EQ((count[{"mtp.proj", 2}]), 8);
  EXPECT_EQ((count[{"attention.qkv", 3}]), 0);
  EXPECT_EQ((count[{"loss.cross_entropy", 3}]), 2 * 8);
  for (const int stage : {0, 2}) EXPECT_EQ((count[{"embedding.gradients.all_reduce", stage}]), 1) << stage;
  EXPECT_EQ((count[{"embedding.gradients.all_reduce", 3}]), 0);
  // Behind it travel the model's hidden states and those for the next tokens.
  const Totals sums = totals_of(model, plan, training);
  for (const char* sent : {"pipeline.forward.send", "pipeline.backward.send"}) {
    EXPECT_DOUBLE_EQ(sums.bytes.at(sent), 8 * (1 + 1 + 2) * 128.0 * 512 * 2) << sent;
  }

  const auto memory = memory_budget(model, plan, training);
  ASSERT_TRUE(memory) << to_text(memory.error());
  const double layer = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512, table = 1024 * 512;
  EXPECT_DOUBLE_EQ(memory->stages[2].weights / units::B, 2 * (layer + 2 * 512 * 512 + 2 * 512 + table));
  EXPECT_DOUBLE_EQ(memory->stages[3].weights / units::B, 2 * (2 * 512 + table)) << "both losses' norms, the logits";

  training.mtp = false;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("training/mtp=on"));
  training.mtp = true;
  plan.pipeline_layout = {"Ett|tt||L"};
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("write 1 m"));
}

}  // namespace
}  // namespace ns_dist
