#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ns_dist/catalog.h"
#include "ns_dist/network_model.h"
#include "ns_dist/planner.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"
#include "ns_dist/sinks.h"
#include "ns_dist/training_clock.h"
#include "step_times.h"
#include "support/run_command.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const FakeNetwork kFreeNetwork([](const Collective&) { return Seconds(); });

// 1 ms a kernel of the layers; what only the first or last stage does is free, so that all passes are equal.
FakeCompute equal_layers(const Model& model) {
  return FakeCompute([vocabulary = model.vocabulary](const Operator& op) {
    if (const auto* gemm = std::get_if<Gemm>(&op.kind)) {
      return gemm->n >= vocabulary / 4 || gemm->k >= vocabulary / 4 || gemm->m >= vocabulary / 4 ? Seconds() : 1 * ms;
    }
    return std::holds_alternative<Attention>(op.kind) ? 1 * ms : Seconds();
  });
}

Report simulated(const Scenario& scenario, const ComputeCost& compute, const NetworkCost& network) {
  auto answer = simulate(scenario, Session(compute, network));
  if (!answer) {
    ADD_FAILURE() << to_text(answer.error());
    return {};
  }
  return *std::move(answer);
}

// (m + p - 1) (f + b) for the planner's own graph: a layer is 4 gemms and attention forward, twice that backward.
TEST(Simulate, OneFOneBTakesWhatTheClosedFormSays) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const double m = 16, p = 4, layers = 8 / p, forward = 5, backward = 9;
  EXPECT_NEAR(report.step / (layers * (m + p - 1) * (forward + backward) * ms), 1, 1e-9);
  EXPECT_NEAR(report.breakdown.bubble / report.step, (p - 1) / (m + p - 1), 1e-9);
}

// Forward passes alone: each stage waits for those before it once, (m + p - 1) f.
TEST(Simulate, ForwardPassesFillThePipelineOnce) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  const Report training = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  scenario.plan.passes = Passes::kForward;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const double m = 16, p = 4, layers = 8 / p, forward = 5;
  EXPECT_NEAR(report.step / (layers * (m + p - 1) * forward * ms), 1, 1e-9);
  EXPECT_NEAR(report.breakdown.bubble / report.step, (p - 1) / (m + p - 1), 1e-9);
  EXPECT_NEAR(3 * report.mfu * (report.step / s) / (training.mfu * (training.step / s)), 1, 1e-12);
  const auto again = read_scenario(to_json(report), "report.json");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(again->plan, scenario.plan);
}

// Mapping hides but for 0.8 ms a GB; where tensors fill 0.8 of memory each one costs 1.6 ms. Layers of 4 products
// and attention write (7 + 3 x 1) x 1,024 x 1,024 activations, and so on: the mean is what the program says.
TEST(Simulate, MemoryThatWasGivenBackIsMappedAnew) {
  Scenario scenario = small_scenario();
  const Seconds plain = simulated(scenario, equal_layers(scenario.model), kFreeNetwork).step;
  scenario.host.empty_cache = true;
  const Report roomy = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const Bytes kept = roomy.memory.stages[0].activations;
  EXPECT_NEAR((roomy.step - plain) / (kept / GB * 0.8 * ms), 1, 1e-6);
  scenario.cluster.gpu.memory = (roomy.memory.peak() - roomy.memory.stages[0].other) / 0.81;
  const Report tight = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  EXPECT_GT((tight.step - plain) / ms, 1.6 * 8 * 5);   // eight layers keep at least five tensors each
  EXPECT_LT((tight.step - plain) / ms, 1.6 * 8 * 20);  // and at most twenty
}

// Where launches take a thousand times as long as kernels, the step is as uncertain as the host.
TEST(Simulate, AStepOfLaunchesIsAsUncertainAsTheHost) {
  Scenario scenario = small_scenario();
  const Session session = *Session::make(scenario);
  scenario.host = {.launch_cost = 50 * ms};
  const Report bound = *simulate(scenario, session);
  EXPECT_NEAR(bound.interval.forecasts_below, 1 - 1 / 1.5, 0.01);
  EXPECT_NEAR(bound.interval.forecasts_above, 0.5, 0.01);
  scenario.host.launch_cost *= 2;
  EXPECT_NEAR(simulate(scenario, session)->step / bound.step, 2, 0.01);
  scenario.host.cuda_graphs.step = true;
  EXPECT_LT(simulate(scenario, session)->step / bound.step, 0.1);
}

// One session for scenarios whose models are the same: whatever the model, the plan, the batch and the format; not for
// another machine, network, calibration or constant, nor for other ranks of ASTRA-Sim's formulas.
TEST(Session, ServesScenariosOfTheSameModels) {
  ScenarioSpec spec;
  spec.set("model", "gpt2").set("machine/gpu", "h100-sxm-80gb").set("plan/tp", 4);
  const Scenario scenario = *resolve(spec, Catalog::built_in());
  const Session session = *Session::make(scenario);
  const auto serves = [&](const std::function<void(Scenario&)>& change) {
    Scenario other = scenario;
    change(other);
    return session.serves(other);
  };
  EXPECT_TRUE(serves([](Scenario& of) { of.plan.tp = 8, of.training.precision = Precision::kFp32; }));
  EXPECT_TRUE(serves([](Scenario& of) { of.model.layers = 2, of.training.global_batch = 64; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.cluster.levels.front().size /= 2; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.cluster.levels.back().size *= 4; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.cluster.gpu.sm_count -= 1; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.constants.exponent = 0; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.kernel_calibration = KernelCalibration{}; }));
  EXPECT_FALSE(serves([](Scenario& of) { of.network.model = NetworkModelKind::kAstra; }));
  Scenario astra = scenario;
  astra.network.model = NetworkModelKind::kAstra;
  const Session formulas = *Session::make(astra);
  EXPECT_TRUE(formulas.serves(astra));
  astra.plan.tp = 8;
  EXPECT_FALSE(formulas.serves(astra)) << "they know all ranks";
  EXPECT_TRUE(Session(session.compute(), session.network(Precision::kBf16)).serves(astra)) << "the caller's own models";
  Scenario shared = scenario;  // GPUs that the plan leaves idle under a leaf leave it to the others
  shared.cluster.levels.back().oversubscription = 2;
  const Session leaves = *Session::make(shared);
  EXPECT_TRUE(leaves.serves(shared));
  shared.plan.tp = 8;
  EXPECT_FALSE(leaves.serves(shared));
}

// What embedding and loss add are their kernels. The sum of the table's gradients, which a step of one short sequence
// waits for most, is none of them.
TEST(Additions, OfEmbeddingAndLossAreKernels) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-1.3b").set("plan/pp", 2).set("training/global_batch", 1).set("training/sequence", 128);
  spec.set("host/cuda_graphs", "on");
  const Scenario scenario = *resolve(spec, Catalog::built_in());
  const Session session = *Session::make(scenario);
  const Prediction prediction = *predict(scenario, session);
  Seconds sum;
  const Report all = report(scenario, prediction, {});
  for (const Hotspot& entry : all.critical_path) {
    if (entry.name == "embedding.gradients.all_reduce") sum += entry.seconds;
  }
  ASSERT_GT(sum, 0.5 * ms);
  for (const Addition& each : additions(scenario, prediction, session)) {
    if (each.name != "embedding and loss") continue;
    EXPECT_GT(each.seconds, Seconds());
    EXPECT_LT(each.seconds, sum);
  }
}

// A collective of 8 KiB is latency, which grows as the clock falls: on H100 with the load of its products, on A100 not.
TEST(Simulate, CollectivesRunAtTheClockOfProducts) {
  for (const auto& [gpu, longer] : {std::pair("h100-sxm-80gb", true), std::pair("a100-sxm-80gb", false)}) {
    ScenarioSpec spec;
    spec.set("model", "gpt2").set("machine/gpu", gpu).set("plan/tp", 4);
    const Scenario scenario = *resolve(spec, Catalog::standard());
    const Collective small{CollectiveKind::kAllReduce, 8192 * B, RankGroup{0, {{4, 1}}}};
    const auto alone = make_network_model(scenario.cluster, network_options(scenario.network));
    const double ratio = Session::make(scenario)->network(scenario.training.precision).forecast(small)->latency /
                         (*alone)->forecast(small)->latency;
    const Session session = *Session::make(scenario);
    EXPECT_EQ(session.network(Precision::kFp32).forecast(small)->latency, (*alone)->forecast(small)->latency);
    if (longer) {
      EXPECT_GT(ratio, 1.05);
      EXPECT_LT(ratio, training_slowdown(scenario.cluster.gpu) + 0.01);
    } else {
      EXPECT_DOUBLE_EQ(ratio, 1);
    }
  }
}

// A library that launches a grouped product expert by expert: two products in a layer's forward pass and twice as many
// in its backward pass, each with seven experts after the first, in eight layers and sixteen microbatches.
TEST(Simulate, AGroupedProductIsLaunchedExpertByExpert) {
  Scenario scenario = small_scenario();
  scenario.model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 512};
  const Session session = *Session::make(scenario);
  scenario.host = {.launch_cost = 50 * ms, .expert_launch_cost = 10 * ms};
  scenario.plan.expert_products = ExpertProducts::kKernel;
  const Seconds one_kernel = simulate(scenario, session)->step;
  scenario.plan.expert_products = ExpertProducts::kLoop;
  const Seconds more = simulate(scenario, session)->step - one_kernel;
  EXPECT_NEAR(more / ms, (2 + 4) * 7 * 10 * 8 * 16, 1);
}

// Launches run ahead of kernels that take longer than they do; where each is awaited, all of them cost.
TEST(Simulate, ShortLaunchesHideBehindKernels) {
  Scenario scenario = small_scenario();
  const Session session = *Session::make(scenario);
  const Seconds kernels = simulate(scenario, session)->step;
  scenario.host = {.launch_cost = 100 * ns};
  EXPECT_EQ(simulate(scenario, session)->step, kernels);
  scenario.host.blocking_launches = true;
  const Seconds awaited = simulate(scenario, session)->step - kernels;
  EXPECT_GT(awaited, Seconds());
  scenario.host.launch_cost = 200 * ns;
  EXPECT_NEAR((simulate(scenario, session)->step - kernels) / awaited, 2, 1e-3);
  EXPECT_DOUBLE_EQ(scenario.host.launch() / ns, 200 * (1 + (9.6 - 3.8) / 20));
}

// A host of 40 GB/s behind PCIe of 32 GB/s, half and 0.8 of which is reached: n parameters take n (4 / 25.6 + 30 / 20 +
// 2 / 25.6) ns, which the GPU's own part of the update hides where it takes longer.
TEST(Simulate, TheStepWaitsForTheHostsOptimizer) {
  Scenario scenario = small_scenario();
  scenario.host.memory_bandwidth = 40 * GB / s;
  const auto step = [&](double fraction, Seconds update) {
    scenario.plan.offload_optimizer = {fraction};
    const FakeCompute compute(
        [update](const Operator& op) { return std::holds_alternative<OptimizerStep>(op.kind) ? update : Seconds(); });
    return simulated(scenario, compute, kFreeNetwork);
  };
  const double n = memory_budget(scenario.model, scenario.plan, scenario.training)->stages[0].optimizer / (12 * B);
  const Report report = step(1, Seconds());
  EXPECT_NEAR(report.step / ns, n * (6 / 25.6 + 1.5), 1e-6 * n);
  EXPECT_NEAR(report.breakdown.optimizer / report.step, 1, 1e-6);
  EXPECT_GT(report.interval.forecasts_above, 3);  // PyTorch's Adam on a CPU takes six times as long
  EXPECT_NEAR(step(0.25, 1 * ns).step / report.step, 0.25, 1e-4);
  EXPECT_NEAR(step(0.25, report.step).step / report.step, 1, 1e-6);

  scenario.cluster.gpu.host = HostSide{"nvlink-c2c", 450 * GB / s, 500 * GB / s};
  EXPECT_NEAR(step(1, Seconds()).step / ns, n * (6 / 360.0 + 1.5), 1e-6 * n);  // what the user says comes first
  scenario.host.memory_bandwidth = {};
  EXPECT_NEAR(step(1, Seconds()).step / ns, n * (6 / 360.0 + 30 / 250.0), 1e-6 * n);

  scenario.cluster.gpu.host.reset();
  scenario.cluster.gpu.pcie_bandwidth = {};
  const auto refused = simulate(scenario, *Session::make(scenario));
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("the link from \"test-gpu\" to its host is unknown"));
}

// Half of the layers store beside the next layer (5 ms) and load beside the one whose backward pass is before theirs (9
// ms): what does not fit is exposed, in each microbatch.
TEST(Simulate, ActivationsOnASlowLinkAreExposed) {
  Scenario scenario = small_scenario();
  const FakeCompute compute = equal_layers(scenario.model);
  const Seconds plain = simulated(scenario, compute, kFreeNetwork).step;
  scenario.plan.offload_activations = 4;
  const StepProgram program = *plan_program(scenario.model, scenario.plan, scenario.training);
  std::size_t store = 0;
  while (store < program.works.size() && program.works[store].name != "offload.store") ++store;
  ASSERT_LT(store, program.works.size());
  for (const auto& [copy, exposed] : {std::pair(4.0, 0.0), std::pair(7.0, 4 * 2.0), std::pair(12.0, 4 * (7.0 + 3.0))}) {
    scenario.cluster.gpu.pcie_bandwidth = program.works[store].host.link / (0.8 * copy * ms);
    const Report report = simulated(scenario, compute, kFreeNetwork);
    EXPECT_NEAR((report.step - plain) / ms, 16 * exposed, 1e-5) << copy;
    EXPECT_NEAR(report.breakdown.other / ms, 16 * exposed, 1e-5) << copy;
  }
}

// 8 ranks, N of which exchange heads: rings of R = 8 / N. An exchange takes 2 ms and is exposed, twice forward and
// twice backward. A message takes x ms beside an attention of 1 ms, R - 1 times forward and R times backward.
TEST(Simulate, HierarchicalContextExposesWhatAttentionDoesNotHide) {
  Scenario scenario = small_scenario();
  scenario.network.contention = scenario.network.compute_slowdown = false;
  const FakeCompute compute(
      [](const Operator& op) { return std::holds_alternative<Attention>(op.kind) ? 1 * ms : Seconds(); });
  scenario.plan.cp = 8;
  scenario.plan.cp_comm = ContextExchange::kHierarchical;
  const double layers = 8 * 16;  // of all microbatches
  for (const double message : {0.5, 1.5, 3.0}) {
    const FakeNetwork network([message](const Collective& call) {
      return call.kind == CollectiveKind::kAllToAll   ? 2 * ms
             : call.kind == CollectiveKind::kSendRecv ? message * ms
                                                      : Seconds();
    });
    std::vector<Seconds> steps;
    for (const std::int64_t inner : {1, 2, 4, 8}) {
      scenario.plan.cp_inner = inner;
      const Report report = simulated(scenario, compute, network);
      const double ring = 8.0 / static_cast<double>(inner), sent = ring > 1 ? 2 * ring - 1 : 0;
      const double exposed = (inner > 1 ? 4 * 2.0 : 0) + sent * std::max(0.0, message - 1);
      EXPECT_NEAR(report.breakdown.cp_exposed / ms, layers * exposed, 1e-5) << inner << ", " << message;
      EXPECT_NEAR(report.step / ms, layers * (2 * ring + exposed), 1e-5) << inner << ", " << message;
      steps.push_back(report.step);
    }
    scenario.plan.cp_inner = 0;
    for (const auto& [how, same] :
         {std::pair(ContextExchange::kRing, steps.front()), std::pair(ContextExchange::kAllToAll, steps.back())}) {
      Scenario alone = scenario;
      alone.plan.cp_comm = how;
      EXPECT_EQ(simulated(alone, compute, network).step, same) << message;
    }
  }
}

// A prediction layer on the last stage: a layer, and a product of its own with its two gradients. The others wait for
// that stage: (p - 1) passes of theirs, m of the last.
TEST(Simulate, PredictionLayersDelayTheLastStage) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  scenario.model.prediction_layers = 1;
  const Report plain = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  scenario.training.mtp = true;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const double m = 16, p = 4, layers = 8 / p, layer = 5 + 9, product = 1 + 2;
  EXPECT_NEAR(report.step / (((p - 1) * layers * layer + m * ((layers + 1) * layer + product)) * ms), 1, 1e-9);
  EXPECT_GT(report.mfu * (report.step / s), plain.mfu * (plain.step / s));
  const auto told = [](const Report& from) {
    return std::any_of(from.warnings.begin(), from.warnings.end(),
                       [](const Warning& warning) { return warning.code == "without_mtp"; });
  };
  EXPECT_TRUE(told(plain));
  EXPECT_FALSE(told(report));
}

// What a model's reader noted reaches the report, and the report that repeats it.
TEST(Simulate, TellsWhatOfTheModelWasReadOtherwise) {
  Scenario scenario = small_scenario();
  scenario.model.warnings = {"model_type \"x\" is not known: read as llama, by its keys"};
  scenario.model.sliding_window = 256;
  scenario.model.full_attention_layers.listed = {0, 3};
  scenario.model.moe = Experts{.experts = 8, .top_k = 2, .expert_ffn = 512};
  scenario.model.moe->layers.every = 2;
  scenario.model.qk_norm = QueryKeyNorm::kHead;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_FALSE(report.warnings.empty());
  EXPECT_EQ(report.warnings.front().code, "model_read_otherwise");
  EXPECT_EQ(report.warnings.front().message, scenario.model.warnings.front());
  const auto again = read_scenario(to_json(report), "report.json");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(again->model, scenario.model);
}

TEST(Simulate, InterleavingDividesTheBubble) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  scenario.plan.vpp = 2;
  scenario.plan.schedule = "interleaved";
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const double m = 16, p = 4, v = 2;
  EXPECT_NEAR(report.breakdown.bubble / report.step, ((p - 1) / v) / (m + (p - 1) / v), 1e-9);
}

TEST(Simulate, ReportsRatesByTheirDefinitions) {
  Scenario scenario = small_scenario();
  scenario.plan.dp = 2;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  const double seconds = report.step / s;
  const StepFlops flops = step_flops(scenario.model, scenario.plan, scenario.training);
  EXPECT_EQ(report.ranks, 2);
  EXPECT_EQ(report.microbatches, 8);
  EXPECT_NEAR(report.tokens_per_second, 16 * 1024 / seconds, 1e-6);
  EXPECT_NEAR(report.model_flops_per_second, flops.model / FLOP / 2 / seconds, 1);
  EXPECT_NEAR(report.mfu, report.model_flops_per_second / 312e12, 1e-12);
  EXPECT_NEAR(report.hfu / report.mfu, flops.hardware / flops.model, 1e-12);
  // 1023 of 2048 scores: 2 products, each 2 FLOPs a multiply-add, forward and twice backward.
  const Model& model = scenario.model;
  const double tokens = 1024.0 * static_cast<double>(scenario.training.global_batch);
  const double scores = 3.0 * 4.0 * tokens * 1024.0 * static_cast<double>(model.heads * model.head_dim * model.layers);
  EXPECT_NEAR(report.mfu - report.mfu_causal, scores * 1023 / 2048 / (2 * seconds * 312e12), 1e-12);
}

// MFU counts the model's operations once: forward and twice that backward. HFU counts those that run, so that with
// recomputation of all layers it is a third higher, less what embedding and loss do once.
TEST(Simulate, RecomputationIsNoUtilization) {
  Scenario scenario = small_scenario();
  const Report plain = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  scenario.plan.recompute = Recompute::kFull;
  const Report again = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  EXPECT_GT(again.step, plain.step);
  EXPECT_NEAR(again.mfu * (again.step / s), plain.mfu * (plain.step / s), 1e-12);
  EXPECT_DOUBLE_EQ(plain.hfu, plain.mfu);
  EXPECT_GT(again.hfu / again.mfu, 1.1);
  EXPECT_LT(again.hfu / again.mfu, 4.0 / 3);
}

// A kernel takes 1 ms whatever its size, so microbatches twice as large take half the time. Nothing else can be changed
// on one GPU, and nothing is above its floor.
TEST(Simulate, FindsTheChangeThatHelps) {
  const Report report = simulated(small_scenario(), equal_layers(small_scenario().model), kFreeNetwork);
  ASSERT_EQ(report.improvements.size(), 1u);
  EXPECT_EQ(report.improvements[0].set, (std::vector<Assignment>{{"training/micro_batch", "2"}}));
  EXPECT_NEAR(report.improvements[0].saves / report.step, 0.5, 1e-9);
  EXPECT_FALSE(report.improvements[0].at_most);
}

// Whether some advice sets a field to this.
bool advises(const Report& report, const Assignment& what) {
  return std::any_of(report.improvements.begin(), report.improvements.end(), [&](const Improvement& each) {
    return std::find(each.set.begin(), each.set.end(), what) != each.set.end();
  });
}

// Of a vocabulary of 501 x 64, tensor-parallel ranks have 8,016 columns each, which is no multiple of 64.
TEST(Simulate, AdvisesToPadWhatARankHasOfTheVocabulary) {
  Scenario scenario = small_scenario();
  scenario.model.vocabulary = 501 * 64;
  scenario.plan.tp = 4, scenario.plan.vocabulary_multiple = 1;
  const FakeCompute compute([](const Operator& op) {
    const auto* gemm = std::get_if<Gemm>(&op.kind);
    return gemm != nullptr && (gemm->m % 64 != 0 || gemm->n % 64 != 0 || gemm->k % 64 != 0) ? 1 * s : 1 * ms;
  });
  EXPECT_TRUE(advises(simulated(scenario, compute, kFreeNetwork), {"plan/vocabulary_multiple", "64"}));
}

// Whole replicas are in no groups.
TEST(Simulate, AdviceToShareNothingLeavesTheGroupsOut) {
  Scenario scenario = small_scenario();
  scenario.plan.zero = ZeroStage::kParameters, scenario.plan.dp = 16, scenario.plan.shard = 4;
  const FakeNetwork network(
      [](const Collective& call) { return call.kind == CollectiveKind::kAllReduce ? Seconds() : 100 * ms; });
  const Report report = simulated(scenario, equal_layers(scenario.model), network);
  EXPECT_TRUE(advises(report, {"plan/zero", "0"}));
  EXPECT_TRUE(advises(report, {"plan/shard", "0"}));
}

// DeepEP sends a token to one rank of an expert, so that tensor parallelism divides none.
TEST(Simulate, AdvisesDeepEpWithWholeExperts) {
  Scenario scenario = small_scenario();
  scenario.model.moe = Experts{16, 4, 1024, 0, 0, 0};
  scenario.plan.tp = scenario.plan.dp = scenario.plan.ep = 2, scenario.plan.sequence_parallel = true;
  const FakeNetwork network([](const Collective& call) {
    return call.kind == CollectiveKind::kAllToAll && call.routing.experts == 0 ? 1 * s : 1 * us;
  });
  const Report report = simulated(scenario, equal_layers(scenario.model), network);
  EXPECT_TRUE(advises(report, {"plan/expert_dispatch", "deepep"}));
  EXPECT_TRUE(advises(report, {"plan/etp", "1"}));
}

// Whoever has a plan that does not fit is not told of changes that do not fit either.
TEST(Simulate, AdvisesOnlyWhatFits) {
  Scenario scenario = small_scenario();
  scenario.plan.cp = 2;
  const FakeNetwork network([](const Collective& collective) { return collective.size / (10 * units::GB / units::s); });
  const auto changes = [&] {
    const Report report = simulated(scenario, equal_layers(scenario.model), network);
    return std::count_if(report.improvements.begin(), report.improvements.end(),
                         [](const Improvement& each) { return !each.set.empty(); });
  };
  EXPECT_GT(changes(), 0);
  scenario.cluster.gpu.memory = 0.1 * simulated(scenario, equal_layers(scenario.model), network).memory.peak();
  EXPECT_EQ(changes(), 0);
}

// A context that cannot be divided among half or twice as many ranks: advice does not divide the GPUs otherwise.
void in_thirds(Scenario& scenario) {
  scenario.plan.cp = 3;
  scenario.training.sequence = scenario.model.position_table = 3 * 1024;
}

// Context-parallel ranks hold the same weights: gradients are reduced and weights gathered among them, which may run
// beside kernels. Where every pass reduces and gathers, there is no such choice.
TEST(Simulate, AdvisesOverlapWhereverRanksHoldTheSameWeights) {
  Scenario scenario = small_scenario();
  const FakeNetwork network([](const Collective& collective) {
    const bool of_weights =
        collective.kind == CollectiveKind::kReduceScatter || collective.kind == CollectiveKind::kAllGather;
    return of_weights ? collective.size / (10 * units::GB / units::s) : Seconds();
  });
  const auto advised = [&] {
    std::vector<std::string> fields;
    for (const Improvement& each : simulated(scenario, equal_layers(scenario.model), network).improvements) {
      for (const Assignment& change : each.set) fields.push_back(change.field);
    }
    return fields;
  };
  using ::testing::AllOf;
  using ::testing::Contains;
  using ::testing::Not;
  in_thirds(scenario);
  EXPECT_THAT(advised(), AllOf(Contains("plan/overlap_grad_reduce"), Contains("plan/overlap_param_gather")));
  scenario.plan.zero = ZeroStage::kParameters;
  EXPECT_THAT(advised(), AllOf(Not(Contains("plan/overlap_grad_reduce")), Not(Contains("plan/overlap_param_gather"))));
}

// Advice against a switch of the user says so, and names the flag that holds: --overlap beside it changes nothing.
// Weights that stay gathered (SHARD_GRAD_OP) are gathered once for each microbatch, and take memory.
TEST(Simulate, AdvisesToKeepGatheredWeightsWhereTheyFit) {
  const auto advises = [](const char* model) {
    ScenarioSpec spec;
    spec.set("model", model).set("machine/gpu", "h100").set("framework", "torchtitan").set("plan/dp", 32);
    spec.set("training/global_batch", 64).set("plan/recompute", "none");
    const Report report = *simulate(resolved(spec));
    const Improvement* found = nullptr;
    for (const Improvement& each : report.improvements) {
      if (each.change == "keep gathered weights until the backward pass") found = &each;
    }
    if (found == nullptr) return false;
    spec.set("plan/reshard", false);
    const Report kept = *simulate(resolved(spec));
    EXPECT_NEAR((report.step - kept.step) / found->saves, 1, 1e-6);
    EXPECT_TRUE(kept.fits);
    return true;
  };
  EXPECT_TRUE(advises("llama3-8b"));
  EXPECT_FALSE(advises("llama3-70b"));
}

TEST(Simulate, AdviceSaysWhatOfItTheUserSetOtherwise) {
  Scenario scenario = small_scenario();
  in_thirds(scenario);
  const FakeNetwork network([](const Collective& collective) { return collective.size / (10 * units::GB / units::s); });
  const auto advised = [&](std::set<std::string, std::less<>> named) {
    scenario.named.names = std::move(named);
    std::string all;
    for (const Improvement& each : simulated(scenario, equal_layers(scenario.model), network).improvements) {
      if (!each.set.empty()) all += each.change + ": " + to_flags(each.set, scenario) + "\n";
    }
    return all;
  };
  EXPECT_THAT(advised({"plan/tp"}),
              AllOf(HasSubstr("--overlap grad-reduce,param-gather\n"), ::testing::Not(HasSubstr("you set"))));
  EXPECT_THAT(
      advised({"plan/overlap_grad_reduce"}),
      AllOf(HasSubstr(" (you set plan/overlap_grad_reduce=off): "),
            HasSubstr("--overlap-grad-reduce on --overlap-param-gather on"), ::testing::Not(HasSubstr("--overlap g"))));
  EXPECT_THAT(advised({std::string("plan/overlap"), "plan/overlap_grad_reduce", "plan/overlap_param_gather"}),
              AllOf(HasSubstr(" (you set plan/overlap=none): "),
                    HasSubstr("--overlap-grad-reduce on --overlap-param-gather on")));
  scenario.plan.overlap_tp = true;
  EXPECT_THAT(advised({std::string("plan/overlap"), "plan/overlap_grad_reduce", "plan/overlap_param_gather"}),
              HasSubstr(" (you set plan/overlap without grad-reduce,param-gather): "));
}

// DeepSeek-V3 predicts a second token: behind its last layer are one more layer and twice the logits. Of 61 layers the
// last of 16 stages has 3; with one, no other waits for it.
TEST(Simulate, AdvisesFewerLayersBesideALongLoss) {
  Scenario scenario = *resolve(ScenarioSpec()
                                   .set("model", "deepseek-v3")
                                   .set("machine/gpu", "b300")
                                   .set("plan/pp", 16)
                                   .set("plan/dp", 16)
                                   .set("plan/ep", 8)
                                   .set("training/mtp", "on")
                                   .set("training/global_batch", 512)
                                   .set("training/sequence", 4096),
                               Catalog::standard());
  const Session session = Session::make(scenario).value();
  const auto prediction = predict(scenario, session);
  ASSERT_TRUE(prediction) << to_text(prediction.error());
  bool advised = false;
  for (const Improvement& each : advise(scenario, *prediction, session)) {
    if (each.set != std::vector<Assignment>{{"plan/last_stage_layers", "1"}}) continue;
    advised = true;
    EXPECT_GT(each.saves / prediction->step, 0.15);
  }
  EXPECT_TRUE(advised);
}

TEST(Simulate, LimitsTellWhatACauseCosts) {
  Scenario scenario = small_scenario();
  scenario.plan.tp = 2;
  scenario.plan.sequence_parallel = true;
  scenario.training = {.global_batch = 1, .micro_batch = 1, .sequence = 1024, .precision = Precision::kBf16};
  scenario.network.contention = scenario.network.compute_slowdown = false;
  const FakeNetwork network([](const Collective&) { return 2 * ms; });
  const Report report = simulated(scenario, equal_layers(scenario.model), network);
  const auto limit = std::find_if(report.improvements.begin(), report.improvements.end(),
                                  [](const Improvement& i) { return i.change == "free tensor-parallel links"; });
  ASSERT_NE(limit, report.improvements.end());
  EXPECT_TRUE(limit->at_most);
  EXPECT_FALSE(limit->interval);
  EXPECT_NEAR(limit->saves / report.breakdown.tp_exposed, 1, 1e-9);
}

// Each kind of communication that a step waits for has its limit.
TEST(Simulate, LimitsTellOfContextParallelism) {
  Scenario scenario = small_scenario();
  scenario.plan.cp = 2;
  scenario.plan.cp_comm = ContextExchange::kAllToAll;
  scenario.training = {.global_batch = 1, .micro_batch = 1, .sequence = 1024, .precision = Precision::kBf16};
  const FakeNetwork network(
      [](const Collective& asked) { return asked.kind == CollectiveKind::kAllToAll ? 20 * ms : Seconds(); });
  const Report report = simulated(scenario, equal_layers(scenario.model), network);
  ASSERT_GT(report.breakdown.cp_exposed, 0.3 * report.step);
  EXPECT_TRUE(std::any_of(report.improvements.begin(), report.improvements.end(), [](const Improvement& each) {
    return each.at_most && each.change == "free context-parallel links";
  }));
}

// A step by the clock without sharing is at most that with sharing, and the unfolded step is the folded one.
TEST(StepTime, IsThatOfThePrediction) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  scenario.plan.tp = 2;
  scenario.training.global_batch = 400;
  const auto session = Session::make(scenario);
  ASSERT_TRUE(session);
  const auto prediction = predict(scenario, *session);
  ASSERT_TRUE(prediction);
  EXPECT_EQ(*step_time(scenario, *session), prediction->step);
  EXPECT_GT(prediction->folding.copies, 100);
  Scenario unfolded = scenario;
  unfolded.settings.unfolded = true;
  EXPECT_EQ(*step_time(unfolded, *session), prediction->step);
  Scenario alone = scenario;
  alone.network.contention = alone.network.compute_slowdown = false;
  EXPECT_LE(*step_time(alone, *session), prediction->step);
}

// However efficient, kernels need their operations at the peak of the data sheet.
TEST(StepTime, OfEfficientKernelsIsNotBelowTheirFloor) {
  Scenario scenario = small_scenario();
  const auto session = Session::make(scenario);
  ASSERT_TRUE(session);
  const Seconds least = step_flops(scenario.model, scenario.plan, scenario.training).model / (312 * TFLOP / s);
  const Seconds step = *step_time(scenario, *session, 1e9);
  EXPECT_GE(step, least);
  EXPECT_LT(step, 2 * least);
}

// Stages whose ranks lie unlike in the nodes have their own forecasts; collectives that only two stages run do not
// concern the others.
TEST(StepTime, OfStagesThatDoNotFillNodes) {
  Scenario scenario = small_scenario();
  scenario.plan = {.tp = 2, .pp = 4, .dp = 2, .sequence_parallel = true};
  const auto session = Session::make(scenario);
  const auto prediction = predict(scenario, *session);
  ASSERT_TRUE(prediction) << to_text(prediction.error());
  EXPECT_EQ(prediction->costs.rows.size(), 2u);
  const auto unfolded = unfold(scenario, *session), every_wait = unfold(scenario, *session, true);
  EXPECT_EQ(unfolded->timeline.step, prediction->step);
  EXPECT_EQ(every_wait->timeline.step, prediction->step);
  EXPECT_GE(every_wait->graph.node_count(), unfolded->graph.node_count());
}

// A session remembers parts of plans; a plan's step does not depend on what was asked before, or by whom.
TEST(Simulate, ASessionThatRemembersGivesTheSameSteps) {
  std::vector<Scenario> scenarios;
  for (const std::int64_t pp : {1, 2, 4}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      for (const bool shares : {false, true}) {
        Scenario scenario = small_scenario();
        scenario.plan.pp = pp;
        scenario.plan.recompute = recompute;
        scenario.network.contention = scenario.network.compute_slowdown = shares;
        scenarios.push_back(std::move(scenario));
      }
    }
  }
  std::vector<Seconds> steps;
  for (const Scenario& scenario : scenarios) steps.push_back(*step_time(scenario, *Session::make(scenario)));
  const auto session = Session::make(scenarios.front());
  std::vector<std::thread> threads;
  std::atomic<int> different = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < scenarios.size(); ++i) {
          if (*step_time(scenarios[i], *session) != steps[i]) ++different;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

// All stages wait for the slow one: it is never idle in the steady state, and the ramps are no longer than its own.
TEST(Simulate, ASlowRankDelaysItsPipeline) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  const FakeCompute compute = equal_layers(scenario.model);
  const Session session(compute, kFreeNetwork);
  const double even = *step_time(scenario, session) / ms;
  scenario.stragglers.slow_stage = 1;
  scenario.stragglers.slow_factor = 1.5;
  const double pass = even / (16 + 3);
  const double slow = *step_time(scenario, session) / ms;
  EXPECT_GT(slow, 16 * 1.5 * pass);
  EXPECT_LE(slow, even + 16 * 0.5 * pass);
  EXPECT_EQ(unfold(scenario, session)->timeline.step, *step_time(scenario, session));
  Scenario speeds = scenario;
  speeds.stragglers = {};
  speeds.stragglers.stage_speed = {1, 1 / 1.5, 1, 1};
  EXPECT_NEAR(*step_time(speeds, session) / *step_time(scenario, session), 1, 1e-9);
  speeds.stragglers.stage_speed = {1, 2};
  EXPECT_THAT(to_text(step_time(speeds, session).error()), HasSubstr("2 speeds for 4 pipeline stages"));
  for (const double none : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    speeds.stragglers.stage_speed = {1, none, 1, 1};
    EXPECT_THAT(to_text(step_time(speeds, session).error()), HasSubstr("no number above 0"));
  }
  Scenario host = scenario;
  host.host.launch_cost = -5 * us;
  EXPECT_THAT(to_text(step_time(host, session).error()), HasSubstr("host/launch_cost"));
}

TEST(Simulate, RefusesWhatTheClusterCannotHold) {
  Scenario scenario = small_scenario();
  scenario.plan.dp = 16;
  scenario.cluster.levels.back().size = 1;
  const FakeCompute compute = equal_layers(scenario.model);
  const auto simulation = simulate(scenario, Session(compute, kFreeNetwork));
  ASSERT_FALSE(simulation);
  EXPECT_EQ(simulation.error().code, ErrorCode::kInfeasible);
  EXPECT_THAT(to_text(simulation.error()),
              AllOf(HasSubstr("16 ranks"), HasSubstr("8 GPUs"), HasSubstr("machine/nodes=2")));
}

TEST(Simulate, RefusesWhatCannotBeSimulated) {
  const Scenario good = small_scenario();
  const auto refusal = [&](auto change) {
    Scenario scenario = good;
    change(scenario);
    const FakeCompute compute = equal_layers(scenario.model);
    const auto simulation = simulate(scenario, Session(compute, kFreeNetwork));
    return simulation ? std::string("accepted") : to_text(simulation.error());
  };
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.tp = 0; }), HasSubstr("plan/tp"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.vpp = -1; }), HasSubstr("plan/vpp"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.dp = s.plan.tp = 1'000'000'000; }), HasSubstr("at most 10000000 ranks"));
  EXPECT_THAT(refusal([](Scenario& s) { s.training.sequence = 0; }), HasSubstr("training/sequence"));
  EXPECT_THAT(refusal([](Scenario& s) { s.training.micro_batch = 0; }), HasSubstr("training/micro_batch"));
  EXPECT_THAT(refusal([](Scenario& s) { s.training.global_batch = 0; }), HasSubstr("training/global_batch"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.ep = 0; }), HasSubstr("plan/ep"));
  EXPECT_THAT(refusal([](Scenario& s) { s.model.layers = 0; }), HasSubstr("model, layers"));
  EXPECT_THAT(refusal([](Scenario& s) { s.training.global_batch = 1'000'000'000; }),
              HasSubstr("training/global_batch"));
  EXPECT_THAT(refusal([](Scenario& s) { s.training.sequence = 1'000'000'000; }), HasSubstr("training/sequence"));
  EXPECT_THAT(refusal([](Scenario& s) { s.plan.schedule = "2f2b"; }), HasSubstr("2f2b"));
}

TEST(Simulate, NamesThePlanThatWouldFit) {
  Scenario scenario = small_scenario();
  scenario.model.ffn = 65536;
  scenario.plan.dp = 8;
  scenario.training.micro_batch = 2;
  scenario.cluster.gpu.memory = 0.9 * memory_budget(scenario.model, scenario.plan, scenario.training)->needed();
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_FALSE(report.fits);
  ASSERT_TRUE(report.remedy);
  EXPECT_LE(report.remedy->peak, scenario.cluster.gpu.memory);
  EXPECT_FALSE(report.remedy->set.empty());
}

// Weights and gradients of 1.1 billion parameters, 6.2 GiB, leave no room beside the framework's GiB: replicas give
// half of their ranks to divide them, or more.
TEST(Simulate, ARemedyGivesUpReplicasForDegrees) {
  Scenario scenario = small_scenario();
  scenario.model.ffn = 65536;
  scenario.cluster.gpu.memory = 6.8 * GiB;
  scenario.plan.dp = 8;
  scenario.framework_only = {{"plan/zero", {"0", "1"}}};
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_TRUE(report.remedy);
  std::int64_t replicas = 8, divided = 1;
  for (const Assignment& each : report.remedy->set) {
    if (each.field == "plan/dp") replicas = std::stoll(each.text);
    if (each.field == "plan/tp" || each.field == "plan/pp") divided *= std::stoll(each.text);
  }
  EXPECT_GE(divided, 2);
  EXPECT_EQ(replicas * divided, 8);
}

// Experts of 235 billion parameters on four GPUs: more replicas divide them, rather than tensor parallelism each
// expert. A plan that fits with nothing to spare is proposed, since others take twice as long.
TEST(Simulate, ARemedySpreadsExpertsOverMoreReplicas) {
  ScenarioSpec spec;
  spec.set("model", "qwen3-235b-a22b").set("machine/gpu", "b300").set("plan/dp", 4).set("plan/ep", 4);
  spec.set("training/micro_batch", 2).set("training/global_batch", 64).set("training/dtype", "mxfp8");
  const auto report = simulate(*resolve(spec.set("plan/recompute", "selective:moe"), Catalog::built_in()));
  ASSERT_TRUE(report && report->remedy);
  const auto set = [&](std::string_view field) {
    const auto found = std::ranges::find(report->remedy->set, field, &Assignment::field);
    return found == report->remedy->set.end() ? std::string() : found->text;
  };
  EXPECT_EQ(set("plan/dp"), "16");
  EXPECT_EQ(set("plan/ep"), "8");
  EXPECT_EQ(set("plan/tp"), "");
  EXPECT_LT(report->remedy->step / report->step, 0.5);
}

// Where replicas share the weights and the framework divides nothing else, more replicas are the way.
TEST(Simulate, ARemedyOfShardedWeightsIsMoreReplicas) {
  Scenario scenario = small_scenario();
  scenario.framework_only = {{"plan/tp", {"1"}}, {"plan/pp", {"1"}}};
  scenario.plan.zero = ZeroStage::kParameters;
  const auto least = [&](std::int64_t replicas) {
    ParallelPlan plan = scenario.plan;
    plan.dp = replicas, plan.recompute = Recompute::kFull;
    return memory_budget(scenario.model, plan, scenario.training)->needed();
  };
  scenario.cluster.gpu.memory = 0.5 * (least(2) + least(16));
  scenario.plan.dp = 2;
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_TRUE(report.remedy);
  std::int64_t replicas = 0;
  for (const Assignment& each : report.remedy->set) {
    EXPECT_NE(each.field, "plan/tp");
    EXPECT_NE(each.field, "plan/pp");
    if (each.field == "plan/dp") replicas = std::stoll(each.text);
  }
  EXPECT_GE(replicas, 4);
}

// FSDP shares the weights of a pipeline, too, which others gather in each of its passes.
TEST(Simulate, ARemedyOfFsdpInAPipelineSharesWeights) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h100").set("training/global_batch", 64);
  spec.set("framework", "torchtitan").set("plan/zero", "0").set("plan/pp", 4).set("plan/dp", 16);
  const Scenario scenario = *resolve(spec, Catalog::built_in());
  const Report report = *simulate(scenario);
  ASSERT_FALSE(report.fits);
  ASSERT_TRUE(report.remedy);
  EXPECT_THAT(report.remedy->set, ::testing::Contains(Assignment{"plan/zero", "3"}));
}

// Replicas in groups that share the weights: larger groups, before anything else is given up.
TEST(Simulate, ARemedyOfGroupsOfReplicasIsLargerGroups) {
  Scenario scenario = small_scenario();
  scenario.framework_only = {{"plan/tp", {"1"}}, {"plan/pp", {"1"}}, {"plan/recompute", {"none"}}};
  scenario.plan.zero = ZeroStage::kParameters;
  scenario.plan.dp = 16, scenario.plan.shard = 2;
  const auto device = [&](std::int64_t shard) {
    ParallelPlan plan = scenario.plan;
    plan.shard = shard;
    return memory_budget(scenario.model, plan, scenario.training)->device();
  };
  scenario.cluster.gpu.memory = 0.5 * (device(2) + device(4));
  scenario.cluster.gpu.memory = min(scenario.cluster.gpu.memory,
                                    0.999 * memory_budget(scenario.model, scenario.plan, scenario.training)->needed());
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_TRUE(report.remedy);
  EXPECT_EQ(report.remedy->ranks, 16);
  EXPECT_TRUE(std::any_of(report.remedy->set.begin(), report.remedy->set.end(),
                          [](const Assignment& each) { return each.field == "plan/shard"; }));
  // All of them are no group.
  scenario.cluster.gpu.memory = 0.5 * (device(8) + device(0));
  const Report all = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_TRUE(all.remedy);
  EXPECT_EQ(std::count(all.remedy->set.begin(), all.remedy->set.end(), Assignment{"plan/shard", "0"}), 1);
}

// Of more replicas than matrices, padded buffers are many times as large as what is in them.
TEST(Simulate, ARemedyOfPaddedBuffersIsWholeOnes) {
  Scenario scenario = small_scenario();
  scenario.framework_only = {{"plan/tp", {"1"}}, {"plan/pp", {"1"}}, {"plan/recompute", {"none"}}};
  scenario.plan.dp = 128, scenario.plan.optimizer = OptimizerKind::kMuon;
  scenario.training.global_batch = 128;
  const auto needed = [&](MuonBuffers buffers) {
    ParallelPlan plan = scenario.plan;
    plan.muon_buffers = buffers;
    return memory_budget(scenario.model, plan, scenario.training)->device();
  };
  scenario.cluster.gpu.memory = 0.5 * (needed(MuonBuffers::kPadded) + needed(MuonBuffers::kWhole));
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  ASSERT_TRUE(report.remedy);
  const Assignment whole = {"plan/muon_buffers", "whole"};
  EXPECT_EQ(std::count(report.remedy->set.begin(), report.remedy->set.end(), whole), 1);
}

TEST(Simulate, WarnsOfWhatDeservesIt) {
  Scenario scenario = small_scenario();
  scenario.model.layers = 6;
  scenario.plan.pp = 4;
  scenario.plan.tp = 4;
  scenario.cluster.levels = {{scenario.cluster.levels[0].fabric, 2, 1, 1},
                             {scenario.cluster.levels[1].fabric, 10, 1, 1}};
  scenario.training = {.global_batch = 2, .micro_batch = 1, .sequence = 2048, .precision = Precision::kBf16};
  const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
  std::vector<std::string> codes;
  for (const Warning& warning : report.warnings) codes.push_back(warning.code);
  EXPECT_THAT(codes, ::testing::ElementsAre("links_of_another_gpu", "pipeline_not_filled", "tp_across_nodes",
                                            "idle_gpus", "uneven_stages", "beyond_positions"))
      << "the GPU has no links of its own";
}

// The messages of the warnings with this code.
std::vector<std::string> messages_of(const Scenario& scenario, std::string_view code,
                                     const FakeNetwork& network = kFreeNetwork) {
  std::vector<std::string> found;
  for (const Warning& warning : simulated(scenario, equal_layers(scenario.model), network).warnings) {
    if (warning.code == code) found.push_back(warning.message);
  }
  return found;
}

// Learned positions have a table, rotary ones what their file says of them, ALiBi neither.
TEST(Simulate, WarnsOfSequencesBeyondThePositions) {
  Scenario scenario = small_scenario();
  scenario.model.most_positions = scenario.model.position_table = scenario.training.sequence - 1;
  scenario.model.position = PositionKind::kRotary;
  EXPECT_THAT(messages_of(scenario, "beyond_positions"),
              ::testing::ElementsAre(HasSubstr("that the model's rotary positions are made for")));
  scenario.model.position = PositionKind::kAlibi;
  EXPECT_THAT(messages_of(scenario, "beyond_positions"), ::testing::IsEmpty());
  scenario.model.position = PositionKind::kRotary;
  scenario.model.most_positions = scenario.training.sequence;
  EXPECT_THAT(messages_of(scenario, "beyond_positions"), ::testing::IsEmpty());
}

TEST(Simulate, ALastNodeThatIsNotFullIsTold) {
  Scenario scenario = small_scenario();
  scenario.cluster.levels = {{scenario.cluster.levels[0].fabric, 8, 1, 1},
                             {scenario.cluster.levels[1].fabric, 2, 1, 1}};
  scenario.training = {.global_batch = 45, .micro_batch = 1, .sequence = 2048, .precision = Precision::kBf16};
  scenario.plan.dp = 9;
  EXPECT_THAT(messages_of(scenario, "idle_gpus"),
              ::testing::ElementsAre("7 of 16 GPUs stay idle: the plan has 9 ranks; the last node has 1 of 8, for "
                                     "whose links collectives across nodes may wait"));
  scenario.plan.dp = 5;
  EXPECT_THAT(messages_of(scenario, "idle_gpus"),
              ::testing::ElementsAre("11 of 16 GPUs stay idle: the plan has 5 ranks"));
  scenario.plan.dp = 15;
  EXPECT_THAT(messages_of(scenario, "idle_gpus"),
              ::testing::ElementsAre("1 of 16 GPUs stays idle: the plan has 15 ranks; the last node has 7 of 8, for "
                                     "whose links collectives across nodes may wait"));
}

// A loss of four layers' time and 28 layers on eight positions: the last one has the loss alone, which no other
// division of advice can. It saves what advice says, and no further layout is proposed.
TEST(Simulate, AdviceDividesLayersByTheirTime) {
  Scenario scenario = small_scenario();
  scenario.model.layers = 28;
  scenario.model.vocabulary = 200'000;
  scenario.plan = {.pp = 4, .vpp = 2, .schedule = "interleaved"};
  scenario.training = {.global_batch = 16, .micro_batch = 1, .sequence = 2048, .precision = Precision::kBf16};
  const FakeCompute compute([](const Operator& op) {
    const auto* gemm = std::get_if<Gemm>(&op.kind);
    if (gemm == nullptr) return Seconds();
    return std::max({gemm->m, gemm->n, gemm->k}) >= 200'000 ? 16 * ms : 1 * ms;
  });
  const Session session(compute, kFreeNetwork);
  const auto layouts = [&](const Prediction& prediction) {
    std::vector<Improvement> found = advise(scenario, prediction, session, 20);
    std::erase_if(found, [](const Improvement& each) {
      return each.set.size() != 1 || each.set[0].field != "plan/pipeline_layout";
    });
    return found;
  };
  const auto before = predict(scenario, session);
  ASSERT_TRUE(before) << to_text(before.error());
  const std::vector<Improvement> proposed = layouts(*before);
  ASSERT_EQ(proposed.size(), 1);
  EXPECT_EQ(proposed[0].set[0].text, "Et*4|(t*4|)*6L");
  scenario.plan.pipeline_layout = {proposed[0].set[0].text};
  const auto after = predict(scenario, session);
  ASSERT_TRUE(after) << to_text(after.error());
  EXPECT_NEAR((before->step - after->step) / units::s, proposed[0].saves / units::s, 1e-9);
  EXPECT_THAT(layouts(*after), ::testing::IsEmpty());
}

// By the layers that stages hold: a division without remainder may be uneven, and one with a remainder even, where the
// embedding and the loss take the places of layers. What a stage holds at most is the fullest one's.
TEST(Simulate, WarnsOfStagesThatHoldMoreThanOthers) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  using ::testing::Not;
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  const auto uneven = [&](std::int64_t layers) {
    scenario.model.layers = layers;
    return messages_of(scenario, "uneven_stages");
  };
  EXPECT_THAT(uneven(8), IsEmpty());
  EXPECT_THAT(uneven(10), ElementsAre("10 layers over 4 stages: some hold one layer more, the others wait for them"));
  scenario.plan.account_embedding = scenario.plan.account_loss = true;  // 2, 3, 3, 2
  EXPECT_THAT(uneven(10), IsEmpty());
  EXPECT_THAT(uneven(8), ElementsAre(HasSubstr("some hold one layer more")));
  scenario.plan.account_embedding = scenario.plan.account_loss = false;
  scenario.plan.first_stage_layers = scenario.plan.last_stage_layers = 1;  // 1, 7, 7, 1
  EXPECT_THAT(uneven(16), IsEmpty());                                      // that was asked for
  EXPECT_THAT(uneven(17), ElementsAre(HasSubstr("17 layers over 4 stages: some hold up to 7 layers more")));
  scenario.framework = "megatron-core";
  scenario.framework_only = {{"plan/pipeline_layout", {}, {"even"}, {{"plan/stages", {"uneven"}}}}};
  EXPECT_THAT(uneven(17), ElementsAre(Not(HasSubstr("asks for it"))));  // a layout stands for no other flags
  scenario.plan.first_stage_layers = scenario.plan.last_stage_layers = 0;
  EXPECT_THAT(uneven(17),
              ElementsAre(HasSubstr("megatron-core asks for it as plan/pipeline_layout='Et*5|t*4|t*4|t*4L'")));
  EXPECT_THAT(messages_of(scenario, "not_in_framework"), IsEmpty());
  scenario.plan.pipeline_layout = {"Et*5|t*4|t*4|t*4L"};
  EXPECT_THAT(messages_of(scenario, "uneven_stages"), IsEmpty());
  scenario.plan.pipeline_layout = {};
  scenario.plan.first_stage_layers = scenario.plan.last_stage_layers = 1;
  scenario.model.layers = 16;
  scenario.plan.recompute = Recompute::kFull;
  scenario.plan.recompute_layers = 7;
  EXPECT_THAT(messages_of(scenario, "without_effect"), IsEmpty());
  scenario.plan.recompute_layers = 8;
  EXPECT_THAT(messages_of(scenario, "without_effect"), ElementsAre(HasSubstr("above 7 in plan/recompute")));
}

// Megatron-Core runs groups of as many microbatches as stages, and refuses a last group that is smaller: 12 over 8
// stages leave 4, and 15 over 6 leave 3 (7 at a time would leave 1).
TEST(Simulate, SaysWhichGroupsOfMicrobatchesMegatronAsksFor) {
  using ::testing::ElementsAre;
  const auto told = [](std::int64_t stages, std::int64_t microbatches) {
    Scenario scenario = small_scenario();
    scenario.model.layers = 48;
    scenario.plan.pp = stages;
    scenario.plan.vpp = 2;
    scenario.plan.schedule = "interleaved";
    scenario.training.global_batch = microbatches * scenario.plan.dp * scenario.training.micro_batch;
    return messages_of(scenario, "microbatch_group");
  };
  EXPECT_THAT(told(8, 12),
              ElementsAre("12 microbatches in groups of 8, as many as stages, leave a group of 4: forecast in "
                          "groups of 12 (Megatron-Core: --microbatch-group-size-per-vp-stage 12)"));
  EXPECT_THAT(told(6, 15), ElementsAre(HasSubstr("--microbatch-group-size-per-vp-stage 8")));
  EXPECT_THAT(told(8, 16), IsEmpty());
  EXPECT_THAT(told(8, 8), IsEmpty());
  EXPECT_THAT(told(8, 4), IsEmpty());  // not_in_framework tells of it
}

// Passes of equal stages: of 2 + 4 - 1 rounds 3 are idle on each stage.
TEST(Simulate, SaysWhatFillsAPipeline) {
  using ::testing::ElementsAre;
  Scenario scenario = small_scenario();
  scenario.plan.pp = 4;
  scenario.training.global_batch = 2;
  EXPECT_THAT(
      messages_of(scenario, "pipeline_not_filled"),
      ElementsAre("2 microbatches do not fill 4 pipeline stages, and the bubble takes 60 % of the step: a larger "
                  "training/global_batch or plan/pp=2 makes it smaller"));
  scenario.training.micro_batch = 2;
  EXPECT_THAT(
      messages_of(scenario, "pipeline_not_filled"),
      ElementsAre(::testing::HasSubstr("1 microbatch does not fill 4 pipeline stages, and the bubble takes 75 %")));
  scenario.training.global_batch = 8;
  EXPECT_THAT(messages_of(scenario, "pipeline_not_filled"), ::testing::IsEmpty());
}

// Weight gradients hide the exchange of input gradients where one backward pass computes both.
TEST(Simulate, SaysWhatASplitBackwardPassCosts) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 2;
  scenario.plan.tp = 4;
  const FakeNetwork slow([](const Collective&) { return 5 * units::ms; });
  EXPECT_THAT(messages_of(scenario, "split_backward", slow), ::testing::IsEmpty());
  scenario.plan.schedule = "zb-h1";
  EXPECT_THAT(messages_of(scenario, "split_backward", slow),
              ::testing::ElementsAre(::testing::HasSubstr("plan/schedule=zb-h1 computes weight gradients later, where "
                                                          "they hide no tensor-parallel communication: ")));
  EXPECT_THAT(messages_of(scenario, "split_backward"), ::testing::IsEmpty());
}

TEST(Simulate, SaysWhyAUtilizationIsHigh) {
  Scenario scenario = small_scenario();
  FlopsPerSecond& rate = scenario.cluster.gpu.tensor[DType::kBf16];
  const auto simulated_mfu = [&] { return simulated(scenario, equal_layers(scenario.model), kFreeNetwork).mfu; };
  rate = simulated_mfu() / 0.8 * rate;  // of a GPU that is at 80 % of its peak
  EXPECT_THAT(messages_of(scenario, "high_mfu"),
              ::testing::ElementsAre(::testing::HasSubstr("an MFU of 80 % is more than published steps reach")));
  scenario.training.sequence = 65536;
  scenario.model.position_table = 0;
  rate = simulated_mfu() / 0.8 * rate;
  EXPECT_THAT(messages_of(scenario, "high_mfu"),
              ::testing::ElementsAre(
                  ::testing::HasSubstr("an MFU of 80 % counts attention in full, as Megatron-LM did until 2025")));
}

// Launches that the kernels just hide on the usual host show where it is slow; CUDA graphs know no host.
TEST(Simulate, WarnsWhereASlowHostMakesTheIntervalWide) {
  const auto warned = [](bool graphs) {
    Scenario scenario = small_scenario();
    scenario.host.launch_cost = 1 * units::ms;
    scenario.host.cuda_graphs.step = graphs;
    const Report report = simulated(scenario, equal_layers(scenario.model), kFreeNetwork);
    return std::any_of(report.warnings.begin(), report.warnings.end(),
                       [](const Warning& each) { return each.code == "slow_host"; });
  };
  EXPECT_TRUE(warned(false));
  EXPECT_FALSE(warned(true));
}

// Two GPUs without NVLink may exchange tensors through their host; over NVLink the same exchange was measured.
TEST(Simulate, WarnsWhereNobodyMeasuredTheCollectives) {
  const auto warned = [](const char* gpu) {
    ScenarioSpec spec;
    spec.set("model", "gpt3-1.3b").set("machine/gpu", gpu).set("plan/tp", 2);
    const Scenario scenario = *resolve(spec, Catalog::standard());
    const auto report = simulate(scenario, *Session::make(scenario));
    return std::any_of(report->warnings.begin(), report->warnings.end(),
                       [](const Warning& each) { return each.code == "unmeasured_collectives"; });
  };
  EXPECT_TRUE(warned("rtx-pro-6000"));
  EXPECT_FALSE(warned("h100"));
}

// ZeRO-2 that reduces once a round takes as long as ZeRO-1 that reduces beside its last passes, where a chunk has one
// round a step, and not much longer with more of them: passes behind a round hide its reductions. Reductions in each
// pass delay what other stages wait for. Beside its shares, a stage has the whole gradients of one chunk of four.
TEST(Simulate, GradientsReducedOnceARound) {
  for (const int rounds : {1, 4}) {
    ScenarioSpec spec;
    spec.set("model", "llama3-70b").set("machine/gpu", "h100").set("machine/nodes", 32).set("plan/tp", 8);
    spec.set("plan/pp", 4).set("plan/dp", 8).set("plan/vpp", 4).set("training/global_batch", 32 * rounds);
    spec.set("plan/average_in_collective", true);  // as ZeRO-2, without a kernel that divides
    const auto report_of = [&](int zero, const char* each, const char* framework = "megatron-core") {
      ScenarioSpec own = spec;
      own.set("framework", framework)
          .set("plan/zero", zero)
          .set("plan/reduce_each", each)
          .set("plan/overlap_grad_reduce", zero == 1);
      return *simulate(resolved(own));
    };
    const Report whole = report_of(1, "microbatch"), round = report_of(2, "round"), each = report_of(2, "microbatch");
    EXPECT_NEAR(round.step / whole.step, 1, 0.002) << rounds;
    EXPECT_GT(each.step, 1.1 * whole.step) << rounds;
    EXPECT_LT(round.memory.peak(), whole.memory.peak());
    EXPECT_LT(each.memory.peak(), round.memory.peak());
    // Megatron-Core's ZeRO-2 has no rounds.
    for (const char* framework : {"megatron-core", "meta-llama3"}) {
      const Report own = report_of(2, "microbatch", framework);
      EXPECT_EQ(std::any_of(own.improvements.begin(), own.improvements.end(),
                            [](const Improvement& advice) {
                              return advice.change == "reduce gradients once a round of backward passes";
                            }),
                framework == std::string_view("meta-llama3"))
          << rounds;
    }
  }
}

// DeepSpeed's ZeRO-2 computes nothing while a layer's gradients are summed, unless they overlap: then as much of them
// is hidden as of reduce-scatters, which take less.
TEST(Simulate, DoBackwardPassesStopForDeepSpeedsReductions) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 1).set("framework", "deepspeed");
  spec.set("plan/dp", 8).set("plan/zero", 2).set("training/global_batch", 32).set("training/sequence", 4096);
  const Report stops = *simulate(resolved(spec));
  EXPECT_EQ(stops.scenario.plan.gradient_exchange, GradientExchange::kAllReduce);
  spec.set("plan/overlap_grad_reduce", true);
  const Report overlaps = *simulate(resolved(spec));
  spec.set("plan/gradient_exchange", "reduce-scatter");
  const Report scatters = *simulate(resolved(spec));
  EXPECT_GT(stops.step, 1.1 * overlaps.step);
  EXPECT_NEAR(overlaps.step / scatters.step, 1.02, 0.03);
  EXPECT_EQ(stops.memory.peak(), scatters.memory.peak());
}

// Gradients that the backward pass just hides: they are not on the critical path, but a network that is slower within
// its interval would expose them. Over slower links neither end of the interval comes sooner.
TEST(Simulate, TheIntervalHoldsCollectivesThatAreHidden) {
  Scenario scenario = small_scenario();
  scenario.plan.dp = 4;
  scenario.plan.zero = ZeroStage::kGradients;
  scenario.plan.overlap_grad_reduce = true;
  scenario.training.global_batch *= 4;
  class Network final : public NetworkCost {
   public:
    explicit Network(Seconds time) : time_(time) {}
    Result<Forecast> forecast(const Collective&) const override {
      Forecast forecast;
      forecast.latency = time_, forecast.low = 0.5 * time_, forecast.high = 2 * time_;
      return forecast;
    }
    Result<Explanation> explain(const Collective&) const override { return Explanation(); }

   private:
    Seconds time_;
  };
  Report before;
  bool hidden = false;
  for (const double time : {1e-3, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0}) {
    const Report report = simulated(scenario, equal_layers(scenario.model), Network(time * ms));
    EXPECT_GE(report.step, (1 - 1e-9) * before.step) << time;
    EXPECT_GE(report.step_low, (1 - 1e-9) * before.step_low) << time;
    EXPECT_GE(report.step_high, (1 - 1e-9) * before.step_high) << time;
    EXPECT_TRUE(std::none_of(report.critical_path.begin(), report.critical_path.end(),
                             [](const Hotspot& each) { return each.name == kHiddenWork; }));
    const double exposed = report.breakdown.dp_exposed / report.step;
    hidden |= exposed > 0.01 && report.interval.forecasts_above > 2 * exposed;
    before = report;
  }
  EXPECT_TRUE(hidden) << "else nothing is tested";
}

// Launches that the kernels hide on the usual host, and not on one that takes 1.5 times as long: the step does not wait
// for the host, its interval reaches to the step of that one.
TEST(Simulate, TheIntervalHoldsHostsThatOthersHave) {
  Scenario scenario = small_scenario();
  scenario.host.cuda_graphs.step = false;
  const auto waits_of = [&scenario](double spread) {
    scenario.host.launch_spread = {spread};
    const Session session = *Session::make(scenario);
    const auto prediction = predict(scenario, session);
    PathEntry waits;
    for (const PathEntry& entry : prediction->critical_path) {
      if (entry.name == "host.launches") waits = entry;
    }
    return waits;
  };
  const auto step_with = [](Scenario same, double times) {
    same.host = same.host.with_launches(times);
    return *step_time(same, *Session::make(same)) / units::us;
  };
  // The longest launches that are hidden.
  double hidden = 1, shown = 1e6;  // us
  while (shown > 1.001 * hidden) {
    const double middle = std::sqrt(hidden * shown);
    scenario.host.launch_cost = middle * units::us;
    (step_with(scenario, 1) > (1 + 1e-9) * step_with(scenario, 1e-6) ? shown : hidden) = middle;
  }
  scenario.host.launch_cost = hidden * units::us;
  const double longer = step_with(scenario, 1.5) - step_with(scenario, 1);
  ASSERT_GT(longer, 0);
  EXPECT_EQ(waits_of(1).count, 0);
  EXPECT_EQ(waits_of(1.5).seconds, Seconds());
  EXPECT_NEAR((waits_of(1.5).forecast.high - waits_of(1.5).forecast.latency) / units::us, longer, 1e-6 * longer);
  EXPECT_EQ(waits_of(1.5).forecast.low, Seconds());

  scenario.host.launch_cost = 2 * shown * units::us;
  const PathEntry waits = waits_of(1.5);
  const auto count = static_cast<double>(waits.count);
  const double step = step_with(scenario, 1), near = 1e-6 * step;
  EXPECT_NEAR(count * ((waits.forecast.high - waits.forecast.latency) / units::us), step_with(scenario, 1.5) - step,
              near);
  EXPECT_NEAR(count * ((waits.forecast.latency - waits.forecast.low) / units::us), step - step_with(scenario, 1 / 1.5),
              near);
}

// TransformerEngine neither runs mxfp8 on Hopper nor fills up operands whose rows are no whole blocks.
TEST(Simulate, WarnsOfFormatsThatDoNotRun) {
  const auto messages = [](const char* gpu, const char* dtype, std::int64_t sequence) {
    ScenarioSpec spec;
    spec.set("model", "gpt3-1.3b").set("machine/gpu", gpu).set("training/dtype", dtype);
    spec.set("training/sequence", sequence).set("training/global_batch", 1);
    const auto report = simulate(*resolve(spec, Catalog::built_in()));
    std::string all;
    for (const Warning& warning : report->warnings) {
      if (warning.code == "unsupported_format") all += warning.message + "\n";
    }
    return all;
  };
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  EXPECT_THAT(messages("h100", "mxfp8", 2048), HasSubstr("training/dtype=mxfp8 does not run on NVIDIA H100"));
  EXPECT_THAT(messages("rtx-pro-6000", "mxfp8", 2048), HasSubstr("and refuses 12.0"));
  EXPECT_THAT(messages("mi355x", "nvfp4", 2048), HasSubstr("it is forecast at the rate of fp4"));
  EXPECT_THAT(messages("b200", "mxfp8", 2048), IsEmpty());
  EXPECT_THAT(messages("b200", "mxfp8", 1992), HasSubstr("1992 rows (tokens of a rank)"));  // 62 blocks and 8 rows
  EXPECT_THAT(messages("b200", "nvfp4", 1992), HasSubstr("no multiple of 16"));
  EXPECT_THAT(messages("b200", "fp8-block", 1992), IsEmpty());
  EXPECT_THAT(messages("b200", "fp8-block", 1990), HasSubstr("no multiple of 8 or columns none of 16"));
  EXPECT_THAT(messages("b200", "fp8", 1990), HasSubstr("no multiple of 8"));
  EXPECT_THAT(messages("b200", "bf16", 1990), IsEmpty());
}

// A graph of the whole step cannot be recorded where the host reads how many tokens experts get. Padded experts have
// known sizes, and so have those of a compiler that records graphs by itself.
TEST(Simulate, GraphsOfExpertsNeedKnownSizes) {
  const auto warned = [](const char* framework, double capacity, const char* graphs) {
    ScenarioSpec spec;
    spec.set("model", "qwen3-30b-a3b").set("framework", framework).set("plan/dp", 8).set("plan/ep", 8);
    spec.set("training/global_batch", 8).set("training/sequence", 1024);
    spec.set("plan/expert_capacity", std::string_view(std::to_string(capacity))).set("host/cuda_graphs", graphs);
    const auto report = simulate(*resolve(spec, Catalog::built_in()));
    return std::any_of(report->warnings.begin(), report->warnings.end(),
                       [](const Warning& each) { return each.code == "partial_graphs"; });
  };
  EXPECT_TRUE(warned("megatron-core", 0, "on"));
  EXPECT_TRUE(warned("megatron-core", 0, "attn,moe"));
  EXPECT_FALSE(warned("megatron-core", 0, "off"));
  EXPECT_FALSE(warned("megatron-core", 0, "attn,moe_router,moe_preprocess"));
  EXPECT_FALSE(warned("megatron-core", 1, "on"));
  EXPECT_FALSE(warned("megatron-core", 1, "attn,moe"));
  EXPECT_FALSE(warned("jax", 0, "on"));
  const std::string own = ::testing::TempDir() + "ns-dist-own-jax.json";
  std::string text = read_text(NS_DIST_SOURCE_DIR "/configs/frameworks/jax.json");
  text.replace(text.find("\"jax\""), 5, "\"own-jax\"");
  std::ofstream(own) << text;
  EXPECT_FALSE(warned(own.c_str(), 0, "on")) << "whatever it is called";
  std::filesystem::remove(own);
}

// The messages of these warnings, joined.
std::string told_of(std::string_view code, const ScenarioSpec& spec) {
  std::string texts;
  const auto report = simulate(*resolve(spec, Catalog::built_in()));
  EXPECT_TRUE(report) << to_text(report.error());
  for (const Warning& each : report->warnings) {
    if (each.code == code) texts += each.message;
  }
  return texts;
}

// Qwen3 30B-A3B with a rank for each eighth of its experts, and what `set` changes.
ScenarioSpec of_experts(std::int64_t batch, std::initializer_list<Assignment> set) {
  ScenarioSpec spec;
  spec.set("model", "qwen3-30b-a3b").set("plan/dp", 8).set("plan/ep", 8).set("training/global_batch", batch);
  spec.set("training/sequence", 1024);
  for (const Assignment& each : set) spec.set(each.field, std::string_view(each.text));
  return spec;
}

// Full recomputation and graphs of parts, which megatron-core has each, it has not together; what others have is
// theirs.
TEST(Simulate, WarnsOfWhatAFrameworkDoesNotHaveTogether) {
  const auto warned = [](const char* framework, const char* recompute, const char* graphs) {
    ScenarioSpec spec;
    spec.set("model", "gpt2").set("framework", framework).set("training/global_batch", 8);
    spec.set("plan/recompute", recompute).set("host/cuda_graphs", graphs);
    return told_of("not_in_framework", spec);
  };
  EXPECT_EQ(warned("megatron-core", "full", "attn"),
            "megatron-core has no host/cuda_graphs=attn with plan/recompute=full");
  EXPECT_EQ(warned("megatron-core", "full", "on"), "");
  EXPECT_EQ(warned("megatron-core", "selective", "attn"), "");
  EXPECT_EQ(warned("torchtitan", "none", "attn"), "torchtitan has no host/cuda_graphs=attn");
  EXPECT_EQ(warned("torchtitan", "none", "on"), "");
}

// One chunk's gradients are all that a stage has: under ZeRO-2 most of what is shared is whole then, under FSDP weights
// are still shared, and there is no pipeline to divide further.
TEST(Simulate, IsOneRoundOfAStageTold) {
  const auto told = [](const char* framework) {
    ScenarioSpec spec;
    spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 1).set("framework", framework);
    return told_of("without_effect", spec.set("plan/dp", 8).set("training/global_batch", 64));
  };
  EXPECT_THAT(told("meta-llama3"), HasSubstr("plan/vpp=2 or more makes shorter rounds"));
  EXPECT_EQ(told("transformers-fsdp"), "");
}

// A group that a node does not hold, and one that it would hold if fewer of its GPUs were used.
TEST(Simulate, WarnsOfExpertsAcrossNodes) {
  const auto warned = [](std::int64_t ep, std::int64_t nodes, std::int64_t each) {
    ScenarioSpec spec;
    spec.set("model", "kimi-k2").set("machine/gpu", "gb300").set("plan/ep", ep).set("training/layers", 2);
    spec.set("machine/nodes", nodes).set("machine/gpus_per_node", each).set("training/global_batch", nodes * each);
    return told_of("ep_across_nodes", spec);
  };
  EXPECT_EQ(warned(24, 3, 72), "");
  EXPECT_EQ(warned(24, 3, 64),
            "expert parallelism crosses nodes: plan/ep=24 does not divide nodes of 64 GPUs; machine/gpus_per_node=48 "
            "would hold whole groups");
  EXPECT_EQ(warned(96, 3, 64), "expert parallelism crosses nodes: plan/ep=96 does not fit into nodes of 64 GPUs");
}

// Adapters under a framework that nobody named: others train them. Whoever names one knows.
TEST(Simulate, WarnsOfAdaptersUnderTheDefaultFramework) {
  ScenarioSpec spec;
  spec.set("model", "gpt2").set("training/global_batch", 8);
  EXPECT_EQ(told_of("framework_assumed", spec), "");
  spec.set("plan/lora_rank", 8);
  EXPECT_THAT(told_of("framework_assumed", spec), HasSubstr("framework=transformers-sdpa"));
  EXPECT_EQ(told_of("framework_assumed", spec.set("framework", "megatron-core")), "");
}

// Pairs of settings that Megatron-Core refuses, and their neighbors that it has.
TEST(Simulate, WarnsOfPairsThatMegatronRefuses) {
  const auto warned = [](std::initializer_list<Assignment> set) {
    return told_of("not_in_framework", of_experts(64, set));
  };
  const Assignment stages = {"plan/pp", "2"}, gathers = {"plan/overlap_param_gather", "on"},
                   fp8 = {"training/dtype", "fp8"}, norms = {"plan/recompute", "selective:layernorm"},
                   combined = {"plan/schedule", "combined-1f1b"};
  EXPECT_EQ(warned({gathers}),
            "megatron-core has no plan/overlap_grad_reduce=off with plan/overlap_param_gather=on and plan/zero=1");
  EXPECT_EQ(warned({gathers, {"plan/overlap_grad_reduce", "on"}}), "");
  EXPECT_EQ(warned({stages, {"plan/overlap_p2p", "on"}}),
            "megatron-core has no plan/overlap_p2p=on with plan/schedule=1f1b and plan/pp=2");
  EXPECT_EQ(warned({stages, {"plan/vpp", "2"}, {"plan/overlap_p2p", "on"}}), "");
  EXPECT_EQ(warned({fp8, norms}),
            "megatron-core has no plan/recompute=selective:layernorm with training/dtype=fp8 and "
            "plan/delayed_scaling=on");
  EXPECT_EQ(warned({fp8, norms, {"plan/delayed_scaling", "off"}}), "");
  EXPECT_EQ(warned({combined, {"plan/expert_dispatch", "all-gather"}}),
            "megatron-core has no plan/expert_dispatch=all-gather with plan/schedule=combined-1f1b");
  EXPECT_EQ(warned({combined, {"plan/overlap_ep", "on"}}),
            "megatron-core has no plan/overlap_ep=on with plan/schedule=combined-1f1b");
  EXPECT_EQ(warned({combined, {"framework", "megatron-bridge"}}), "");  // whose default it is
  EXPECT_EQ(warned({{"plan/zero", "0"}, {"plan/optimizer_state", "bf16"}}),
            "megatron-core has no plan/optimizer_state=bf16 with plan/zero=0");
  const Assignment whole = {"plan/ep", "1"}, tensor = {"plan/tp", "2"}, split = {"plan/sequence_parallel", "off"};
  EXPECT_EQ(warned({whole, tensor, split}),
            "megatron-core has no plan/sequence_parallel=off with plan/tp=2 and 128 experts");
  EXPECT_EQ(warned({whole, tensor, split, {"model", "llama3-8b"}}), "");
  const Assignment heads = {"plan/cp_comm", "a2a"}, dense = {"model", "llama3-8b"};  // 8 key-value heads
  EXPECT_EQ(warned({whole, dense, heads, {"plan/cp", "8"}}), "");
  EXPECT_EQ(warned({whole, dense, heads, {"plan/cp", "16"}}),
            "megatron-core has no plan/cp_comm=a2a with plan/cp=16 and fewer heads of keys than tp x cp, or not a "
            "multiple of it");
}

// Settings that a user names and that change nothing, as of modules that the model does not have.
TEST(Simulate, TellsOfSettingsWithoutEffect) {
  const auto told = [](std::initializer_list<Assignment> set) {
    return messages_of(*resolve(of_experts(8, set), Catalog::built_in()), "without_effect");
  };
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  EXPECT_THAT(told({{"plan/recompute", "selective:shared_experts"}}), ElementsAre(HasSubstr("no shared experts")));
  EXPECT_THAT(told({{"plan/recompute", "selective:mlp"}}), ElementsAre(HasSubstr("all layers have experts")));
  EXPECT_THAT(told({{"plan/overlap_ep", "on"}}), ElementsAre(HasSubstr("no shared experts")));
  EXPECT_THAT(told({{"plan/reshard", "off"}}), ElementsAre(HasSubstr("plan/reshard=off changes nothing")));
  EXPECT_THAT(told({{"plan/reshard", "off"}, {"plan/zero", "3"}}), IsEmpty());
  const Assignment shares = {"model", "deepseek-v2-lite"};
  EXPECT_THAT(told({shares, {"plan/recompute", "selective:shared_experts,mlp"}}), IsEmpty());
  EXPECT_THAT(told({shares, {"plan/overlap_ep", "on"}}), IsEmpty());
}

// A framework may set and limit fields of any table.
TEST(Simulate, FrameworksReachAllTables) {
  const ScratchFolder folder;
  const std::string file = (folder.path() / "own.json").string();
  std::ofstream(file) << R"({"schema": "ns-dist/framework/1", "id": "own", "name": "Own",
    "set": [{"field": "facility/pue", "value": "1.2", "source": "a test"}],
    "only": [{"field": "facility/pue", "values": ["1.2"], "source": "a test"},
             {"field": "network/contention", "values": ["on"], "source": "a test"}]})";
  ScenarioSpec spec;
  spec.set("model", "gpt2").set("framework", std::string_view(file)).set("training/global_batch", 8);
  const Scenario own = *resolve(spec, Catalog::built_in());
  EXPECT_EQ(field_text(own.facility.pue), "1.2");
  EXPECT_THAT(messages_of(own, "not_in_framework"), ::testing::IsEmpty());
}

// combined-1f1b needs two chunks on several stages, and recomputes no whole layers; experts need sequence parallelism:
// neither search nor advice ask for it otherwise.
TEST(Simulate, SearchesAskForNoCombinationThatAFrameworkRefuses) {
  SearchRequest request;
  request.fixed.set("model", "qwen3-30b-a3b").set("training/global_batch", 64).set("training/sequence", 1024);
  request.fixed.set("plan/ep", 8).set("plan/cp", 1).set("plan/etp", 1).set("training/micro_batch", 1);
  request.gpus = 16;
  const SearchSpace space = *SearchSpace::make(request, Catalog::built_in());
  int combined = 0, refused = 0;
  space.for_each([&](const Scenario& each) {
    refused += each.plan.tp > 1 && !each.plan.sequence_parallel ? 1 : 0;
    if (each.plan.schedule != "combined-1f1b") return true;
    ++combined;
    refused += (each.plan.pp > 1 && each.plan.vpp == 1) || each.plan.recompute == Recompute::kFull ? 1 : 0;
    return true;
  });
  EXPECT_GT(combined, 10);
  EXPECT_EQ(refused, 0);
}

// Heads are exchanged over as many ranks as there are key-value heads of a tensor-parallel rank, or fewer.
TEST(Simulate, SearchesAskForNoCopiesOfKeyHeads) {
  SearchRequest request;
  request.fixed.set("model", "qwen3-30b-a3b").set("training/global_batch", 64).set("training/sequence", 65536);
  request.fixed.set("plan/cp_comm", "a2a").set("plan/ep", 1).set("plan/pp", 1).set("training/micro_batch", 1);
  request.gpus = 32;
  const SearchSpace space = *SearchSpace::make(request, Catalog::built_in());
  std::set<std::pair<std::int64_t, std::int64_t>> seen;  // tp and cp of 4 key-value heads
  space.for_each([&](const Scenario& each) {
    seen.emplace(each.plan.tp, each.plan.cp);
    return true;
  });
  for (const auto& [tp, cp] : seen) EXPECT_TRUE(cp == 1 || 4 % (tp * cp) == 0) << tp << " " << cp;
  for (const auto& pair : {std::pair(1, 4), std::pair(2, 2), std::pair(4, 1), std::pair(8, 1)}) {
    EXPECT_TRUE(seen.contains(pair)) << pair.first << " " << pair.second;
  }
}

// Advice proposes a graph of the step for padded experts; where sizes are read, of what comes before.
TEST(Simulate, AdvisesTheWidestGraphsOfExperts) {
  const auto advised = [](double capacity) {
    ScenarioSpec spec;
    spec.set("model", "qwen3-30b-a3b").set("plan/dp", 8).set("plan/ep", 8).set("training/global_batch", 8);
    spec.set("training/sequence", 512).set("host/launch_cost", "200 us");
    spec.set("plan/expert_capacity", std::string_view(std::to_string(capacity)));
    const auto report = simulate(*resolve(spec, Catalog::built_in()));
    for (const Improvement& each : report->improvements) {
      for (const Assignment& set : each.set) {
        if (set.field == "host/cuda_graphs") return set.text;
      }
    }
    return std::string("nothing");
  };
  EXPECT_EQ(advised(0), "attn,moe_router,moe_preprocess");
  EXPECT_EQ(advised(1), "on");
}

TEST(Simulate, WarnsOfWhatTheGpuCannotAndOfWhatChangesNothing) {
  const auto messages = [](const Scenario& scenario) {
    std::vector<std::string> found;
    for (const Warning& warning : simulated(scenario, equal_layers(scenario.model), kFreeNetwork).warnings) {
      if (warning.code.starts_with("un") || warning.code == "without_effect" || warning.code == "not_in_framework") {
        found.push_back(warning.code + ": " + warning.message);
      }
    }
    return found;
  };
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  Scenario usual = small_scenario();
  usual.model.layers = 4;
  EXPECT_THAT(messages(usual), ::testing::IsEmpty());

  Scenario unknown = usual;
  unknown.cluster.gpu.architecture = "hoper";
  EXPECT_THAT(messages(unknown), ElementsAre(::testing::AllOf(HasSubstr("unknown_architecture: nothing is known of"),
                                                              HasSubstr("or is it \"hopper\"?"))));
  unknown.cluster.gpu.architecture = "rubin";
  EXPECT_THAT(messages(unknown), ElementsAre(::testing::Not(HasSubstr("or is it"))));

  Scenario library = usual;
  library.cluster.gpu.architecture = "ampere", library.plan.attention_library = Library::kFlash3;
  EXPECT_THAT(messages(library), ElementsAre(HasSubstr("unsupported_library: FlashAttention-3")));
  library.cluster.gpu.architecture = "hopper";
  EXPECT_THAT(messages(library), ::testing::IsEmpty());
  library.cluster.gpu.vendor = "amd", library.plan.attention_library = Library::kCudnn;
  EXPECT_THAT(messages(library), ElementsAre(HasSubstr("unsupported_library: cuDNN")));

  Scenario old = usual;
  old.cluster.gpu.architecture = "volta";
  EXPECT_THAT(messages(old), ElementsAre(HasSubstr("FlashAttention-2 need Ampere or later")));
  old.plan.flash_attention = false;
  EXPECT_THAT(messages(old), ::testing::IsEmpty());

  Scenario within = usual;
  within.named.names = {"machine/inter_bandwidth"};
  EXPECT_THAT(messages(within), ElementsAre(HasSubstr("machine/inter_bandwidth changes nothing")));
  within.cluster.levels[1].nics_per_gpu = 0.5;
  for (const Warning& each : simulated(within, equal_layers(within.model), kFreeNetwork).warnings)
    EXPECT_NE(each.code, "shared_ports") << "of a plan within a node";

  Scenario heads = usual;
  heads.model.head_dim = 108;
  EXPECT_THAT(messages(heads), ::testing::IsEmpty());
  heads.plan.flash_attention = false;
  EXPECT_THAT(messages(heads), ElementsAre(HasSubstr("unaligned_heads: heads of 108 elements")));
  heads.model.head_dim = 112;
  EXPECT_THAT(messages(heads), ::testing::IsEmpty());
  heads.model.v_head_dim = 100;
  EXPECT_THAT(messages(heads), ElementsAre(HasSubstr("unaligned_heads: heads of 100 elements")));

  usual.named.names = {"plan/overlap_tp", "plan/expert_dispatch", "plan/expert_imbalance", "plan/expert_capacity"};
  Scenario parts = usual;
  parts.plan.tp = 2, parts.plan.overlap_tp = true;
  EXPECT_THAT(messages(parts), ElementsAre(HasSubstr("overlap_tp=on changes nothing: only exchanges of sequence")));
  parts.plan.sequence_parallel = true;
  EXPECT_THAT(messages(parts), ::testing::IsEmpty());

  Scenario nothing = usual;
  nothing.plan.expert_dispatch = ExpertDispatch::kDeepEp;
  nothing.plan.offload_activations = 5;
  nothing.plan.recompute = Recompute::kSelective;
  nothing.plan.recompute_modules = set_of(RecomputeModule::kMoe) | set_of(RecomputeModule::kCoreAttention);
  nothing.plan.expert_imbalance = {2};
  EXPECT_THAT(messages(nothing), ElementsAre(HasSubstr("deepep changes nothing: the model has no experts"),
                                             HasSubstr("expert_imbalance=2 changes nothing: the model has no"),
                                             HasSubstr("offload_activations above 4 changes nothing"),
                                             HasSubstr("moe in plan/recompute"), HasSubstr("core_attn")));
  // With delayed scaling, the core's output is kept beside its cast: recomputation frees it.
  nothing.plan = usual.plan;
  nothing.plan.recompute = Recompute::kSelective;
  nothing.training.precision = Precision::kFp8;
  EXPECT_THAT(messages(nothing), ::testing::Contains(HasSubstr("core_attn")));
  nothing.plan.delayed_scaling = true;
  EXPECT_THAT(messages(nothing), ::testing::Not(::testing::Contains(HasSubstr("core_attn"))));
  nothing.training = usual.training;
  nothing.plan = usual.plan;
  nothing.plan.expert_capacity = {1};
  EXPECT_THAT(messages(nothing), ElementsAre(HasSubstr("expert_capacity=1 changes nothing: the model has no")));
  nothing.plan = usual.plan;
  nothing.plan.pp = 2, nothing.plan.schedule = "interleaved";
  EXPECT_THAT(messages(nothing), ElementsAre(HasSubstr("plan/schedule=interleaved with plan/vpp=1")));
  Scenario pairs = nothing;
  pairs.plan.schedule = "combined-1f1b", pairs.plan.dp = pairs.plan.ep = 2;
  pairs.model.moe = Experts{8, 2, pairs.model.ffn, 0, 0, 0};
  pairs.training.global_batch = 2 * 2 * pairs.training.micro_batch;
  EXPECT_THAT(messages(pairs), ::testing::IsEmpty());
  pairs.training.global_batch /= 2;
  pairs.plan.pp = 1;
  EXPECT_THAT(messages(pairs), ElementsAre(HasSubstr("combined-1f1b changes nothing: with one microbatch no passes")));
  nothing.plan.schedule = "1f1b";
  nothing.plan.offload_activations = 2;
  EXPECT_THAT(messages(nothing), ::testing::IsEmpty());
  nothing.plan.offload_activations = 0, nothing.plan.recompute = Recompute::kFull, nothing.plan.recompute_layers = 3;
  EXPECT_THAT(messages(nothing), ElementsAre(HasSubstr("above 2 in plan/recompute changes nothing")));

  Scenario frozen = usual;
  frozen.named.names = {"plan/frozen_layers", "plan/recompute"};
  frozen.plan.frozen_layers = 2, frozen.plan.offload_activations = 2;
  EXPECT_THAT(messages(frozen), ::testing::IsEmpty());
  frozen.plan.offload_activations = 3;
  EXPECT_THAT(messages(frozen), ElementsAre(HasSubstr("above 2 changes nothing: a stage holds at most 2 trained")));
  frozen.plan.frozen_layers = 4, frozen.plan.offload_activations = 0, frozen.plan.recompute = Recompute::kFull;
  EXPECT_THAT(messages(frozen), ElementsAre(HasSubstr("plan/recompute=full changes nothing: plan/frozen_layers is")));
  frozen.plan.offload_activations = 1, frozen.plan.recompute = Recompute::kNone;
  const Report offloads = simulated(frozen, equal_layers(frozen.model), kFreeNetwork);
  EXPECT_EQ(std::count_if(offloads.warnings.begin(), offloads.warnings.end(),
                          [](const Warning& each) { return each.message.find("offload") != std::string::npos; }),
            1)
      << "what keeps nothing is told of once";
  frozen.plan.offload_activations = 0, frozen.plan.recompute = Recompute::kFull;
  frozen.model.prediction_layers = 1, frozen.training.mtp = true;
  EXPECT_THAT(messages(frozen), ::testing::IsEmpty()) << "layers that predict further tokens are trained";
  frozen.model.prediction_layers = 0, frozen.training.mtp = false;
  frozen.plan.recompute = Recompute::kNone, frozen.plan.passes = Passes::kForward;
  EXPECT_THAT(messages(frozen), ElementsAre(HasSubstr("plan/frozen_layers=4 changes nothing: no backward pass")));
}

// What stands for the defaults: of the GPU's generation, of the plan's kernels, of other degrees.
TEST(Report, TellsWhatDefaultsStandFor) {
  Scenario scenario = small_scenario();
  scenario.plan.tp = 2, scenario.plan.flash_attention = true;
  const auto resolved = [&] {
    return nlohmann::json::parse(to_json(simulated(scenario, equal_layers(scenario.model), kFreeNetwork)))["resolved"];
  };
  scenario.cluster.gpu.architecture = "hopper";
  EXPECT_EQ(resolved()["attention_library"], "cudnn");
  EXPECT_EQ(resolved()["etp"], 2);
  EXPECT_EQ(resolved()["vocabulary_multiple"], 128);
  scenario.cluster.gpu.architecture = "ada";
  EXPECT_EQ(resolved()["attention_library"], "flash-2");
  scenario.plan.attention_library = Library::kFlash3, scenario.plan.norm_library = Library::kEager;
  EXPECT_EQ(resolved()["attention_library"], "flash-3");
  EXPECT_EQ(resolved()["norm_library"], "eager");
  scenario.plan.flash_attention = false, scenario.plan.fused_kernels = false;
  EXPECT_TRUE(resolved()["attention_library"].is_null());
  EXPECT_EQ(resolved()["loss_library"], "eager");
}

TEST(Report, HasEveryFieldThatTheInterfacePromises) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 2;
  const auto json = nlohmann::json::parse(to_json(simulated(scenario, equal_layers(scenario.model), kFreeNetwork)));
  for (const char* key : {"schema", "version", "provenance", "inputs", "resolved", "step_time_s", "step_time_low_s",
                          "step_time_high_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
                          "hfu", "memory", "breakdown_s", "critical_path", "warnings"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"capacity_bytes", "peak_bytes", "fits", "per_stage"}) {
    EXPECT_TRUE(json["memory"].contains(key)) << key;
  }
  ASSERT_EQ(json["memory"]["per_stage"].size(), 2u);
  for (const char* key : {"weights", "gradients", "optimizer", "activations"}) {
    EXPECT_TRUE(json["memory"]["per_stage"][0].contains(key)) << key;
  }
  double sum = 0;
  for (const char* key : {"compute", "recompute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed", "dp_exposed",
                          "bubble", "optimizer", "other"}) {
    ASSERT_TRUE(json["breakdown_s"].contains(key)) << key;
    sum += json["breakdown_s"][key].get<double>();
  }
  EXPECT_NEAR(sum / json["step_time_s"].get<double>(), 1, 1e-9);
  ASSERT_FALSE(json["critical_path"].empty());
  for (const char* key : {"name", "kind", "count", "seconds"})
    EXPECT_TRUE(json["critical_path"][0].contains(key)) << key;
}

std::string file_text(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  std::string text;
  for (int c = 0; file != nullptr && (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  if (file != nullptr) std::fclose(file);
  return text;
}

TEST(Sinks, WriteEveryNode) {
  Scenario scenario = small_scenario();
  scenario.plan.pp = 2;
  const FakeCompute compute = equal_layers(scenario.model);
  const Session session(compute, kFreeNetwork);
  const auto step = unfold(scenario, session);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->timeline.step, *step_time(scenario, session));
  const std::string path = ::testing::TempDir() + "ns_dist_timeline";
  for (const TraceSinkKind& kind : trace_sinks()) {
    auto sink = kind.make(path);
    ASSERT_TRUE(sink) << kind.name;
    ASSERT_TRUE(write_timeline(*step, **sink)) << kind.name;
    const std::string text = file_text(path);
    if (kind.name == "csv") {
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), step->graph.node_count() + 1);
      continue;
    }
    const auto json = nlohmann::json::parse(text);
    std::size_t nodes = 0;
    std::set<std::int64_t> starts, ends;
    double last = 0;
    for (const auto& event : json["traceEvents"]) {
      nodes += event["ph"] == "X";
      if (event["ph"] == "s") starts.insert(event["id"].get<std::int64_t>());
      if (event["ph"] == "f") ends.insert(event["id"].get<std::int64_t>());
      if (event["ph"] == "X") last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
    }
    EXPECT_EQ(nodes, step->graph.node_count());
    EXPECT_EQ(starts.size(), 2u * 16);  // a message each way for each microbatch
    EXPECT_EQ(ends, starts);
    EXPECT_NEAR(last, step->timeline.step / us, 0.01);
  }
  std::remove(path.c_str());
}

TEST(Sinks, RefusePathsThatCannotBeWritten) {
  for (const TraceSinkKind& kind : trace_sinks()) {
    const auto sink = kind.make("/no/such/folder/file");
    ASSERT_FALSE(sink) << kind.name;
    EXPECT_THAT(to_text(sink.error()), HasSubstr("/no/such/folder/file"));
  }
}

}  // namespace
}  // namespace ns_dist
