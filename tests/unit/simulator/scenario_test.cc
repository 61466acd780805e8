#include "ns_dist/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "machine.h"
#include "ns_dist/simulator.h"
#include "plan_defaults.h"
#include "scenario_fields.h"
#include "support/run_command.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const ScenarioSpec& spec) {
  const auto scenario = resolve(spec, Catalog::standard());
  return scenario ? "accepted" : to_text(scenario.error());
}

TEST(Resolve, HasTheDefaultsOfTheInterface) {
  const Scenario scenario = resolved({});
  EXPECT_EQ(scenario.model.id, "gpt3-175b");
  EXPECT_EQ(scenario.cluster.gpu.id, "h100-sxm-80gb");
  EXPECT_EQ(scenario.training.micro_batch, 1);
  EXPECT_EQ(scenario.training.global_batch, 1536);
  EXPECT_EQ(scenario.training.sequence, 2048);
  EXPECT_EQ(scenario.training.precision, Precision::kBf16);
  EXPECT_EQ(scenario.plan.zero, ZeroStage::kOptimizer);
  EXPECT_EQ(scenario.plan.recompute, Recompute::kNone);
  EXPECT_EQ(scenario.plan.schedule, "1f1b");
  EXPECT_FALSE(scenario.plan.sequence_parallel);
  EXPECT_TRUE(scenario.plan.flash_attention);
  EXPECT_FALSE(scenario.plan.overlap_p2p);
}

// A file of Hugging Face states the longest sequence that a model can read, which most do not train with.
TEST(Resolve, WarnsOfALongSequenceUnlessTheLengthIsGiven) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "llama", "hidden_size": 64,
      "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
      "max_position_embeddings": 131072})";
  ScenarioSpec spec;
  spec.set("model", folder.path().string());
  const Scenario longest = resolved(spec);
  EXPECT_THAT(warnings_of(longest.model), ElementsAre(HasSubstr("sequences have 131072 tokens")));
  spec.set("training/sequence", 4096);
  EXPECT_TRUE(warnings_of(resolved(spec).model).empty());
  EXPECT_TRUE(warnings_of(resolved(ScenarioSpec().set("training/sequence", 4096), &longest).model).empty());
}

TEST(Resolve, DefaultsFollowTheDegrees) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 4).set("plan/vpp", 2);
  const Scenario scenario = resolved(spec);
  EXPECT_TRUE(scenario.plan.sequence_parallel);
  EXPECT_EQ(scenario.plan.schedule, "interleaved");
  EXPECT_TRUE(scenario.plan.overlap_p2p);
  spec.set("plan/sequence_parallel", false);
  spec.set("plan/schedule", "gpipe");
  EXPECT_FALSE(resolved(spec).plan.sequence_parallel);
  EXPECT_EQ(resolved(spec).plan.schedule, "gpipe");
}

// As many as it has positions for each stage; DualPipe's two chunks are of two directions.
TEST(Resolve, ALayoutSaysHowManyChunksThereAre) {
  ScenarioSpec spec;
  spec.set("plan/pp", 16).set("plan/pipeline_layout", "E(t*3|)*31tttL");
  const Scenario scenario = resolved(spec);
  EXPECT_EQ(scenario.plan.vpp, 2);
  EXPECT_EQ(scenario.plan.schedule, "interleaved");
  spec.set("plan/schedule", "zb-v");
  EXPECT_EQ(resolved(spec).plan.vpp, 2);
  spec.set("plan/schedule", "dualpipe").set("plan/pipeline_layout", "E(t*6|)*15t*6L");
  EXPECT_EQ(resolved(spec).plan.vpp, 2);
  spec.set("plan/schedule", "1f1b");
  EXPECT_EQ(resolved(spec).plan.vpp, 1);
  spec.set("plan/vpp", 3).set("plan/schedule", "interleaved");
  EXPECT_EQ(resolved(spec).plan.vpp, 3) << "what is given holds";

  ScenarioSpec two_ways, other;
  two_ways.set("plan/pp", 16).set("plan/schedule", "dualpipe");
  const Scenario before = resolved(two_ways);
  other.set("plan/pipeline_layout", "E(t*6|)*15t*6L");
  EXPECT_EQ(resolved(other, &before).plan.schedule, "dualpipe") << "a layout of the same chunks changes nothing else";
  other.set("plan/pipeline_layout", "E(t*3|)*31tttL");
  EXPECT_EQ(resolved(other, &before).plan.schedule, "interleaved");
}

// A layout has letters that mean something to a shell.
TEST(Flags, AreWordsOfAShell) {
  const std::vector<Assignment> set = {{"plan/tp", "8"}, {"plan/pipeline_layout", "Et|(tt|)*2tL"}};
  EXPECT_EQ(to_flags(set, Scenario{}), "--tp 8 --pipeline-layout 'Et|(tt|)*2tL'");
}

// Neighbors that exchange heads lie in a node of 8; what the user sets stays.
TEST(Resolve, HierarchyFollowsNodeAndHeads) {
  ScenarioSpec spec;
  spec.set("plan/cp", 16).set("plan/cp_comm", "a2a+p2p");
  const Scenario usual = resolved(spec);
  EXPECT_EQ(usual.plan.cp_inner, 8);
  const auto changed = [](const Scenario& base, const char* field, const char* value) {
    ScenarioSpec change;
    change.set(field, value);
    return resolved(change, &base).plan.cp_inner;
  };
  EXPECT_EQ(changed(usual, "plan/cp", "4"), 4);
  EXPECT_EQ(changed(usual, "plan/tp", "4"), 2);
  EXPECT_EQ(changed(usual, "machine/gpus_per_node", "4"), 4);
  EXPECT_EQ(changed(usual, "plan/cp_comm", "p2p"), 0);
  spec.set("plan/cp_inner", 2);
  const Scenario own = resolved(spec);
  EXPECT_EQ(own.plan.cp_inner, 2);
  EXPECT_EQ(changed(own, "plan/cp", "4"), 2);
  EXPECT_EQ(changed(own, "plan/cp_comm", "p2p"), 0);
  EXPECT_EQ(resolved({}).plan.cp_inner, 0);
}

// DeepSpeed has no sequence parallelism, also where a report is asked for other degrees; Megatron-Core's follows from
// tp.
TEST(Resolve, WhatAFrameworkSetsHoldsWhenDegreesChange) {
  ScenarioSpec spec, change;
  spec.set("machine/nodes", 1);
  change.set("plan/tp", 2);
  const auto changed = [&](const char* framework) {
    spec.set("framework", framework);
    const Scenario base = resolved(spec);
    return resolved(change, &base).plan.sequence_parallel;
  };
  EXPECT_FALSE(changed("deepspeed"));
  EXPECT_TRUE(changed("megatron-core"));
}

// Blackwell of data centers reads 8 bits in either layout; Hopper, Ada and Blackwell with GDDR do not.
TEST(Resolve, LayoutsFollowTheGpu) {
  const auto on = [](const char* gpu) {
    ScenarioSpec spec;
    spec.set("machine/gpu", gpu);
    return resolved(spec);
  };
  EXPECT_FALSE(on("h100-sxm-80gb").plan.fp8_any_layout);
  EXPECT_FALSE(on("l40s").plan.fp8_any_layout);
  EXPECT_FALSE(on("rtx-pro-6000").plan.fp8_any_layout);
  EXPECT_TRUE(on("b200-sxm").plan.fp8_any_layout);
  EXPECT_TRUE(on("gb300").plan.fp8_any_layout);
  EXPECT_TRUE(on("vr200").plan.fp8_any_layout);
  const auto changed = [](const Scenario& base, const char* gpu) {
    ScenarioSpec change;
    change.set("machine/gpu", gpu);
    return resolved(change, &base).plan.fp8_any_layout;
  };
  EXPECT_FALSE(changed(on("gb300"), "h100-sxm-80gb"));
  ScenarioSpec own;
  own.set("plan/fp8_any_layout", true);
  EXPECT_TRUE(changed(resolved(own), "h200-sxm"));
}

TEST(Resolve, ShortNamesMeanTheCommonVariant) {
  ScenarioSpec spec;
  spec.set("machine/gpu", "h100");
  EXPECT_EQ(resolved(spec).cluster.gpu.id, "h100-sxm-80gb");
}

TEST(Resolve, NodesFollowFromTheRanks) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const Scenario scenario = resolved(spec);
  EXPECT_EQ(scenario.cluster.gpus_per_node(), 8);
  EXPECT_EQ(scenario.cluster.gpu_count(), 1024);
}

TEST(Resolve, ReplicasFillTheNodes) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 4).set("machine/nodes", 16);
  EXPECT_EQ(resolved(spec).plan.dp, 4);
  spec.set("machine/gpus_per_node", 4);
  EXPECT_EQ(resolved(spec).plan.dp, 2);
}

// Whoever takes weights in low precision alone has their gradients so, whatever the framework sets.
TEST(Resolve, GradientsFollowTheWeights) {
  ScenarioSpec spec;
  spec.set("framework", "torchtitan").set("plan/dp", 8).set("plan/weights", "low");
  EXPECT_EQ(resolved(spec).plan.grad_accumulation, GradAccumulation::kLow);
  spec.set("plan/grad_accumulation", "fp32");
  EXPECT_EQ(resolved(spec).plan.grad_accumulation, GradAccumulation::kFp32);  // which is refused later
}

// Eight RTX 4090 share one port. A smaller node has it, too; where a node has more than one, they become fewer with its
// GPUs. A rate of a GPU is what it says, however many ports there are.
TEST(Resolve, ASmallerNodeKeepsAPort) {
  const auto ports = [](const char* gpu, std::int64_t gpus) {
    ScenarioSpec spec;
    spec.set("machine/gpu", gpu).set("machine/nodes", 2).set("machine/gpus_per_node", gpus);
    return resolved(spec).cluster.levels[1].nics_per_gpu * static_cast<double>(gpus);
  };
  for (const std::int64_t gpus : {1, 2, 4, 8}) EXPECT_EQ(ports("rtx-4090", gpus), 1);
  EXPECT_EQ(ports("rtx-4090", 16), 2);
  EXPECT_EQ(ports("l40s", 4), 2);
  EXPECT_EQ(ports("l40s", 1), 1);
  EXPECT_EQ(ports("h100", 4), 4);
  ScenarioSpec spec;
  spec.set("machine/gpu", "a100").set("machine/nodes", 2).set("machine/nics_per_node", 1);
  EXPECT_EQ(resolved(spec).cluster.levels[1].nics_per_gpu, 0.125);
  spec.set("machine/inter_bandwidth", "10 Gbit/s");
  EXPECT_DOUBLE_EQ(resolved(spec).cluster.levels[1].bandwidth_per_gpu() / (Gbit / s), 10);
  spec.set("machine/nics_per_node", 100'000);
  EXPECT_THAT(to_text(resolve(spec, Catalog::standard()).error()), HasSubstr("at most 1000 for each GPU"));
}

TEST(Resolve, RefusesRanksThatDoNotFillTheNodes) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 7).set("machine/nodes", 128);
  EXPECT_THAT(refusal(spec),
              AllOf(HasSubstr("tp 8 x cp 1 x pp 16 x dp 7 = 896 ranks"), HasSubstr("128 nodes x 8 GPUs = 1024 GPUs"),
                    HasSubstr("plan/dp=8"), HasSubstr("machine/nodes=112")));
  spec = {};
  spec.set("plan/tp", 8).set("plan/pp", 12).set("machine/nodes", 128);
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("= 96 does not divide"), HasSubstr("machine/nodes=96")));
}

// GPUs in all are nodes, of which each has as many: 8 of 8, 4 of 8 on one node, 64 of 72 in each rack.
TEST(Resolve, GpusInAllAreTheNodesThatTheyFill) {
  const auto machine = [](const char* gpu, std::int64_t gpus) {
    ScenarioSpec spec;
    spec.set("machine/gpu", gpu).set("machine/gpus", gpus);
    const Scenario scenario = resolved(spec);
    EXPECT_EQ(scenario.plan.dp, gpus);
    return std::pair(scenario.cluster.gpu_count(), scenario.cluster.gpus_per_node());
  };
  EXPECT_EQ(machine("h100", 1024), std::pair(std::int64_t{1024}, std::int64_t{8}));
  EXPECT_EQ(machine("h100", 4), std::pair(std::int64_t{4}, std::int64_t{4}));
  EXPECT_EQ(machine("gb200", 512), std::pair(std::int64_t{512}, std::int64_t{64}));
  EXPECT_EQ(machine("gb200", 144), std::pair(std::int64_t{144}, std::int64_t{72}));
  // As with the degrees alone: three groups of 24 experts' ranks in each rack, the last rack not full; one group of 48.
  for (const auto& [ep, gpus, racks, used] : {std::tuple(24, 384, 6, 72), std::tuple(48, 768, 16, 48)}) {
    ScenarioSpec by_gpus, by_ranks;
    for (ScenarioSpec* each : {&by_gpus, &by_ranks}) {
      each->set("model", "kimi-k2").set("machine/gpu", "gb300").set("plan/ep", ep).set("plan/pp", 8);
    }
    const Cluster cluster = resolved(by_gpus.set("machine/gpus", gpus)).cluster;
    EXPECT_EQ(cluster, resolved(by_ranks.set("plan/dp", gpus / 8)).cluster);
    EXPECT_EQ(std::pair(cluster.gpu_count(), cluster.gpus_per_node()),
              std::pair(std::int64_t{racks} * used, std::int64_t{used}))
        << ep;
  }
  ScenarioSpec spec;
  spec.set("machine/gpus", 12);
  EXPECT_THAT(refusal(spec), HasSubstr("machine/gpus: 12 GPUs do not fill nodes of 8"));
  EXPECT_THAT(refusal(ScenarioSpec(spec).set("machine/nodes", 2)), HasSubstr("the number of GPUs is given twice"));
  spec.set("machine/gpus_per_node", 4);
  EXPECT_EQ(resolved(spec).cluster.gpu_count(), 12);
  spec.set("machine/gpus", 10);
  EXPECT_THAT(refusal(spec), HasSubstr("expected a multiple of 4"));
  // What a refusal proposes is a number of GPUs, too.
  spec = {};
  spec.set("plan/tp", 8).set("plan/pp", 12).set("machine/gpus", 1024);
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("= 96 does not divide"), HasSubstr("machine/gpus=768")));
}

// What a refusal proposes is a machine, or a dp, that the batch of 1,536 sequences suits.
TEST(Resolve, RefusedSizesNameThoseThatSuit) {
  ScenarioSpec racks;
  racks.set("machine/gpu", "gb200").set("plan/tp", 4).set("plan/pp", 4);
  const auto hint = [&](std::int64_t dp, std::int64_t nodes) {
    ScenarioSpec spec = racks;
    if (dp > 0) spec.set("plan/dp", dp);
    const auto refused = resolve(spec.set("machine/nodes", nodes), Catalog::standard());
    EXPECT_FALSE(refused);
    return refused.error().hint;
  };
  EXPECT_EQ(hint(8, 16), "write machine/nodes=2, or machine/gpus_per_node=8");  // 1,152 / 16 = 72 replicas do not
  EXPECT_EQ(hint(2, 1), "write machine/gpus_per_node=32");
  EXPECT_EQ(hint(0, 1), "write machine/gpus_per_node=64, or degrees whose product divides 72");
  EXPECT_EQ(hint(1, 3), "leave machine/nodes out, or write degrees whose product is 216");
  // 24 replicas of 32 GPUs share 1,536 sequences and leave 29 of 125 nodes idle; 31 replicas leave one.
  racks.set("machine/gpu", "h100").set("plan/tp", 8);
  EXPECT_EQ(hint(0, 125),
            "write machine/nodes=124 with another training/global_batch, or machine/nodes=96, or degrees whose product "
            "divides 1000");
  racks.set("machine/gpu", "gb200").set("plan/tp", 4);
  EXPECT_EQ(resolved(ScenarioSpec(racks).set("plan/dp", 8).set("machine/nodes", 2)).cluster.gpu_count(), 128);
  racks.set("plan/dp", 2).set("machine/nodes", 1).set("machine/gpus_per_node", 32);
  EXPECT_EQ(resolved(racks).cluster.gpu_count(), 32);
}

TEST(Resolve, FabricsAndBandwidthsOverrideTheMachine) {
  ScenarioSpec spec;
  spec.set("machine/nodes", 2);
  spec.set("machine/intra_bandwidth", 100 * GB / s);
  spec.set("machine/inter_bandwidth", 12.5 * GB / s);
  const Cluster cluster = resolved(spec).cluster;
  ASSERT_EQ(cluster.levels.size(), 2u);
  EXPECT_EQ(cluster.levels[0].bandwidth_per_gpu(), 100 * GB / s);
  EXPECT_EQ(cluster.levels[1].bandwidth_per_gpu(), 12.5 * GB / s);
}

// Groups of 64 ranks lie within racks of 72 when 64 GPUs of each are used. Groups of 8 fill them, unless as many racks
// can have as many ranks each.
// 48 nodes: 24 under each of two leaves, and not 32 and 16. What the idle nodes leave of a leaf's uplinks the others
// have.
TEST(Resolve, GroupsOfNodesAreEquallyFull) {
  const auto machine = [](std::string_view field, std::int64_t size) {
    ScenarioSpec spec;
    spec.set("machine/cluster", "h100-leaf-spine").set("plan/tp", 8).set("training/global_batch", 5760);
    return resolved(spec.set(field, size)).cluster;
  };
  const Cluster cluster = machine("machine/nodes", 48);
  EXPECT_EQ(cluster.levels[1].size, 24);
  EXPECT_EQ(cluster.levels[2].size, 2);
  EXPECT_DOUBLE_EQ(cluster.used_level(2).oversubscription, 2.0 * 24 / 32);
  EXPECT_EQ(machine("machine/gpus", 384), cluster);
  EXPECT_EQ(machine("plan/dp", 48), cluster);
  // 16 nodes have the uplinks of 32.
  EXPECT_DOUBLE_EQ(machine("machine/nodes", 16).used_level(2).oversubscription, 1);
  // 127 is prime: full groups, one of them with an idle node, for a plan; no machine of 127 nodes.
  EXPECT_EQ(machine("plan/dp", 45).levels[2].size, 2);
  ScenarioSpec spec;
  EXPECT_THAT(refusal(spec.set("machine/cluster", "h100-leaf-spine").set("machine/nodes", 127)),
              HasSubstr("write 96 or 128 nodes"));
}

TEST(Resolve, GroupsDoNotLieInTwoNodes) {
  ScenarioSpec spec;
  spec.set("machine/gpu", "gb200").set("model", "deepseek-v3").set("plan/dp", 256).set("plan/ep", 64);
  const Scenario wide = resolved(spec);
  EXPECT_EQ(wide.cluster.gpus_per_node(), 64);
  EXPECT_EQ(wide.cluster.levels.front().spare, 8);
  EXPECT_EQ(wide.cluster.gpu_count(), 256);
  spec.set("plan/ep", 8);
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 64);
  spec.set("plan/dp", 232).set("training/global_batch", 232);
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 72);
  // 15 racks of 72 would have one of 16 ranks: 16 racks have 64 each.
  spec.set("plan/dp", 1024).set("training/global_batch", 1024);
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 64);
  EXPECT_EQ(resolved(spec).cluster.gpu_count(), 1024);
  // So they have where racks are counted.
  spec.set("machine/nodes", 16);
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 64);
  EXPECT_THAT(to_text(resolve(ScenarioSpec(spec).set("machine/nodes", 15), Catalog::standard()).error()),
              HasSubstr("1024 ranks, but 15 nodes x 72 GPUs"));
  // Another plan finds the whole rack again.
  EXPECT_EQ(resolved(ScenarioSpec().set("plan/ep", 8).set("plan/dp", 144), &wide).cluster.gpus_per_node(), 72);
}

// Other links leave a report's plan as it is, also where it does not fill its node.
TEST(Resolve, OtherLinksOfAReportLeaveItsPlan) {
  const Scenario base = resolved(ScenarioSpec().set("model", "llama3-8b").set("machine/gpu", "h100").set("plan/dp", 4));
  ASSERT_LT(base.plan.dp, base.cluster.gpu_count());
  for (const auto& [field, value] : {std::pair("machine/inter_bandwidth", "10 GB/s"),
                                     {"machine/intra_bandwidth", "100 GB/s"},
                                     {"machine/inter", "roce-400g"},
                                     {"machine/intra", "nvlink4-h800"}}) {
    const Scenario changed = resolved(ScenarioSpec().set(field, value), &base);
    EXPECT_EQ(changed.plan, base.plan) << field;
    EXPECT_NE(changed.cluster, base.cluster) << field;
    EXPECT_EQ(changed.cluster.gpu_count(), base.cluster.gpu_count()) << field;
  }
}

// What a report's plan has stays where a flag says the same, or something that goes with it.
// A report's files are those of the entries in use: what another model or GPU replaces is no longer there.
TEST(Resolve, ReplacedEntriesAreNoInputs) {
  const auto scenario_of = [](const ScenarioSpec& spec, const Scenario* base = nullptr) {
    return *resolve(spec, Catalog::built_in(), base);
  };
  ScenarioSpec spec, other, both;
  spec.set("plan/tp", 8);
  other.set("machine/gpu", "a100").set("model", "gpt3-13b");
  both.set("plan/tp", 8).set("machine/gpu", "a100").set("model", "gpt3-13b");
  const Scenario base = scenario_of(spec);
  EXPECT_EQ(scenario_of(other, &base).files, scenario_of(both).files);
  EXPECT_EQ(scenario_of({}, &base).files, base.files);
}

TEST(Resolve, ASchedulesChunksStay) {
  const auto plan_of = [](const char* schedule) {
    return resolved(
        ScenarioSpec().set("model", "llama3-8b").set("plan/pp", 4).set("plan/vpp", 4).set("plan/schedule", schedule));
  };
  const Scenario interleaved = plan_of("interleaved"), breadth = plan_of("breadth-first");
  const auto changed = [](const Scenario& base, const char* field, const char* value) {
    return resolved(ScenarioSpec().set(field, std::string_view(value)), &base).plan;
  };
  EXPECT_EQ(changed(interleaved, "plan/schedule", "interleaved"), interleaved.plan);
  EXPECT_EQ(changed(breadth, "plan/schedule", "breadth-first"), breadth.plan);
  EXPECT_EQ(changed(breadth, "plan/vpp", "4"), breadth.plan);
  EXPECT_EQ(changed(breadth, "plan/vpp", "2").schedule, "breadth-first");
  EXPECT_EQ(changed(interleaved, "plan/schedule", "breadth-first").vpp, 4);
  EXPECT_EQ(changed(interleaved, "plan/schedule", "1f1b").vpp, 1);
  EXPECT_EQ(changed(interleaved, "plan/vpp", "1").schedule, "1f1b");
  EXPECT_TRUE(changed(interleaved, "plan/vpp", "2").overlap_p2p);
  EXPECT_FALSE(changed(interleaved, "plan/schedule", "1f1b").overlap_p2p);
  // Messages that overlap although the schedule does not ask for it were chosen.
  const Scenario chosen =
      resolved(ScenarioSpec().set("model", "llama3-8b").set("plan/pp", 4).set("plan/overlap_p2p", "on"));
  EXPECT_TRUE(changed(chosen, "plan/schedule", "zb-h1").overlap_p2p);
}

// Faster links than the machine's switches do not help.
TEST(Resolve, AMachineKeepsItsSwitches) {
  const Scenario faster = resolved(ScenarioSpec().set("machine/cluster", "hgx-h800").set("machine/gpu", "h100"));
  EXPECT_EQ(faster.cluster.levels.front().fabric.bandwidth, 200 * GB / s);
  const Scenario slower = resolved(ScenarioSpec().set("machine/cluster", "dgx-h100").set("machine/gpu", "h800"));
  EXPECT_EQ(slower.cluster.levels.front().fabric.bandwidth, 200 * GB / s);
  const Scenario other = resolved(ScenarioSpec().set("machine/cluster", "h100-pcie-server").set("machine/gpu", "h100"));
  EXPECT_EQ(other.cluster.levels.front().fabric.bandwidth, 64 * GB / s);
}

// A server whose GPUs are bridged in pairs is one node of 4 pairs: nodes end where the network begins.
TEST(Resolve, NodesOfSeveralLevelsAreWhole) {
  const auto sizes = [](const Cluster& cluster) {
    std::vector<std::int64_t> all;
    for (const FabricLevel& level : cluster.levels) all.push_back(level.size);
    return all;
  };
  ScenarioSpec spec;
  spec.set("machine/cluster", "h100-pcie-bridged").set("machine/nodes", 4);
  Scenario scenario = resolved(spec);
  EXPECT_EQ(scenario.cluster.gpus_per_node(), 8);
  EXPECT_EQ(scenario.plan.dp, 32);
  EXPECT_THAT(sizes(scenario.cluster), ElementsAre(2, 4, 4));
  // Fabrics between nodes leave the node alone, bandwidth inside it is that of all its links.
  spec.set("machine/inter", "ib-ndr").set("machine/intra_bandwidth", 10 * GB / s);
  scenario = resolved(spec);
  EXPECT_EQ(scenario.cluster.levels[1].fabric.kind, FabricKind::kPcie);
  EXPECT_EQ(scenario.cluster.levels[1].fabric.bandwidth, 10 * GB / s);
  EXPECT_EQ(scenario.cluster.levels[2].fabric.id, "ib-ndr");
  // One fabric inside the node instead of two.
  scenario = resolved(ScenarioSpec(spec).set("machine/intra", "pcie5-x16"));
  EXPECT_THAT(sizes(scenario.cluster), ElementsAre(8, 4));
  // Smaller nodes: pairs, or one GPU of a pair.
  EXPECT_THAT(sizes(resolved(ScenarioSpec(spec).set("machine/gpus_per_node", 4)).cluster), ElementsAre(2, 2, 4));
  EXPECT_THAT(sizes(resolved(ScenarioSpec(spec).set("machine/gpus_per_node", 1)).cluster), ElementsAre(1, 1, 4));
  const auto odd = resolve(ScenarioSpec(spec).set("machine/gpus_per_node", 3), Catalog::built_in());
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().where, "machine/gpus_per_node");
  // Whole pairs are left idle where tensor parallelism would lie in two nodes otherwise.
  spec = ScenarioSpec().set("machine/cluster", "h100-pcie-bridged").set("plan/tp", 6).set("plan/dp", 2);
  spec.set("model", "gpt2");
  scenario = resolved(spec);
  EXPECT_THAT(sizes(scenario.cluster), ElementsAre(2, 3, 2));
  EXPECT_EQ(scenario.cluster.spare_per_node(), 2);
}

// Pairs of GPUs on one PCIe without a size: as many pairs as the plan needs.
TEST(Resolve, ANodeWithoutASizeHasRoomForThePlan) {
  const ScratchFolder folder;
  const std::string path = (folder.path() / "pairs.json").string();
  std::ofstream(path) << R"({"schema": "ns-dist/cluster/1", "id": "pairs", "name": "Pairs", "gpu": "a100-sxm-80gb",
    "levels": [{"fabric": "nvlink3-nvswitch", "size": 2}, {"fabric": "pcie4-x16"}], "sources": {"/levels": "a test"}})";
  ScenarioSpec spec;
  spec.set("machine/cluster", path).set("plan/dp", 7).set("training/global_batch", 14);
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 8);
  EXPECT_EQ(resolved(ScenarioSpec(spec).set("machine/inter", "ib-hdr")).cluster.gpus_per_node(), 8);
  // How many GPUs so many nodes have is not known.
  spec = ScenarioSpec().set("machine/cluster", path).set("machine/nodes", 1);
  const auto unknown = resolve(spec, Catalog::built_in());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().where, "machine/nodes");
  EXPECT_EQ(unknown.error().hint, "write machine/gpus_per_node too");
  EXPECT_EQ(resolved(spec.set("machine/gpus_per_node", 6)).plan.dp, 6);
}

// Racks of switches are nodes, whatever joins them; PCIe never leaves a node.
TEST(Clusters, NodesEndWhereTheNetworkBegins) {
  Cluster cluster;
  EXPECT_EQ(cluster.gpus_per_node(), 1);
  const auto level = [](FabricKind kind, std::int64_t size) {
    FabricLevel made;
    made.fabric.kind = kind;
    made.size = size;
    return made;
  };
  cluster.levels = {level(FabricKind::kNvswitch, 8)};
  EXPECT_EQ(cluster.gpus_per_node(), 8);
  cluster.levels.push_back(level(FabricKind::kNvswitch, 4));
  EXPECT_EQ(cluster.gpus_per_node(), 8);
  cluster.levels.push_back(level(FabricKind::kRoce, 4));
  EXPECT_EQ(cluster.gpus_per_node(), 32);
  cluster.levels = {level(FabricKind::kNvlink, 2), level(FabricKind::kPcie, 4)};
  EXPECT_EQ(cluster.gpus_per_node(), 8);
  cluster.levels = {level(FabricKind::kEthernet, 16)};
  EXPECT_EQ(cluster.gpus_per_node(), 16);
}

TEST(Resolve, EachModelBringsItsOwnSequence) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b");
  EXPECT_EQ(resolved(spec).training.sequence, 8192);
  spec.set("training/sequence", 4096);
  EXPECT_EQ(resolved(spec).training.sequence, 4096);
}

// A shortened model has the kinds of its first layers: DeepSeek-V3's first three have no experts, and Nemotron-H's
// pattern begins as before. Nobody published its parameters. A report keeps the number.
TEST(Resolve, AModelCanHaveItsFirstLayersAlone) {
  const auto resolved = [](const std::string& model, std::int64_t layers) {
    ScenarioSpec spec;
    spec.set("model", model);
    spec.set("training/layers", layers);
    return resolve(spec, Catalog::built_in());
  };
  const Scenario dense = *resolved("deepseek-v3", 3), mixed = *resolved("deepseek-v3", 4);
  EXPECT_EQ(dense.model.layers, 3);
  EXPECT_FALSE(dense.model.moe);
  EXPECT_TRUE(mixed.model.moe);
  EXPECT_EQ(mixed.model.name, "DeepSeek-V3 671B, 4 layers");
  EXPECT_EQ(mixed.model.published_parameters, 0);
  EXPECT_EQ(resolved("deepseek-v3", 61)->model.name, "DeepSeek-V3 671B");
  const auto refused = resolved("llama3-8b", 33);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "training/layers");
  EXPECT_EQ(refused.error().expected, "from 1 to 32, or 0 for all");
  // A report has the shortened model; another number of layers is that of the whole model of the catalog.
  const auto again = [&](const ScenarioSpec& spec) { return resolve(spec, Catalog::built_in(), &mixed); };
  EXPECT_EQ(again({})->model, mixed.model);
  EXPECT_EQ(again(ScenarioSpec().set("training/layers", 8))->model.name, "DeepSeek-V3 671B, 8 layers");
  EXPECT_EQ(again(ScenarioSpec().set("training/layers", 0))->model.layers, 61);
  Scenario own = mixed;
  own.model.id = "of-a-file";
  EXPECT_TRUE(resolve(ScenarioSpec(), Catalog::built_in(), &own));
  EXPECT_FALSE(resolve(ScenarioSpec().set("training/layers", 8), Catalog::built_in(), &own));
  // One with all of its layers is shortened as it is, whatever its name.
  Scenario whole = *resolved("llama3-8b", 0);
  whole.model.ffn = 1024;
  EXPECT_EQ(resolve(ScenarioSpec().set("training/layers", 8), Catalog::built_in(), &whole)->model.ffn, 1024);
}

TEST(Resolve, UnknownNamesNameTheNearest) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-175");
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("unknown model"), HasSubstr("gpt3-175b"), HasSubstr("model: ")));
  spec = {};
  spec.set("machine/gpu", "h1000");
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("unknown GPU"), HasSubstr("did you mean"), HasSubstr("machine/gpu: ")));
  spec = {};
  spec.set("machine/cluster", "dgx-h10");
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("unknown cluster"), HasSubstr("machine/cluster: ")));
  spec = {};
  spec.set("machine/inter", "ib-ndrr");
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("unknown fabric"), HasSubstr("ib-ndr"), HasSubstr("machine/inter: ")));
}

// What a framework does not have is neither advised nor a remedy, and a plan that has it is told so.
TEST(Resolve, AFrameworkHasOnlyWhatItHas) {
  ScenarioSpec spec;
  spec.set("framework", "fsdp").set("model", "llama3-8b").set("plan/dp", 16).set("training/micro_batch", 4);
  const auto report = simulate(resolved(spec));
  ASSERT_TRUE(report) << to_text(report.error());
  const auto forbidden = [](const std::vector<Assignment>& set) {
    return std::any_of(set.begin(), set.end(), [](const Assignment& each) {
      return each.field == "plan/tp" || each.field == "plan/pp" || each.field == "plan/cp";
    });
  };
  for (const Improvement& improvement : report->improvements) EXPECT_FALSE(forbidden(improvement.set));
  const auto said = [](const Report& of) {
    return std::count_if(of.warnings.begin(), of.warnings.end(),
                         [](const Warning& warning) { return warning.code == "not_in_framework"; });
  };
  EXPECT_EQ(said(*report), 0);
  const auto again = read_scenario(to_json(*report), "report.json");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(again->framework_only, resolved(spec).framework_only);
  const auto second = read_scenario(to_json(*report), "report.json", 2);
  ASSERT_FALSE(second);
  EXPECT_THAT(to_text(second.error()), HasSubstr("report.json: a report of one plan, and number 2 is asked for"));
  const auto split = simulate(resolved(spec.set("plan/pp", 2)));
  ASSERT_TRUE(split) << to_text(split.error());
  EXPECT_EQ(said(*split), 1);
}

// Advice can be added to the plan's own flags: it names the schedule where it has another one, and no plan of it is
// tighter than the GPU's memory.
TEST(Resolve, AdviceCanBeAddedToAPlan) {
  ScenarioSpec dense, experts;
  dense.set("model", "llama3-70b").set("machine/gpu", "h200").set("plan/tp", 4).set("plan/pp", 4);
  dense.set("plan/dp", 8).set("training/global_batch", 512).set("plan/schedule", "zb-h1");
  // A framework that sets what follows from other fields: its own schedule's messages.
  ScenarioSpec chunks;
  chunks.set("model", "bloom-7b1").set("machine/gpu", "h800").set("plan/pp", 2).set("plan/dp", 8);
  chunks.set("training/global_batch", 16).set("framework", "torchtitan").set("training/dtype", "fp8");
  // Whoever sets the overlap of messages, or sequence parallelism, does not leave it to the schedule or to tp.
  ScenarioSpec named;
  named.set("model", "llama3-70b").set("plan/tp", 8).set("plan/pp", 8).set("plan/dp", 2);
  named.set("training/global_batch", 128).set("plan/overlap_p2p", false);
  // DeepEP needs experts that are not divided.
  experts.set("model", "deepseek-v2-lite").set("plan/tp", 2).set("plan/dp", 16).set("plan/ep", 16);
  experts.set("training/global_batch", 256);
  // Where gathers of weights are most of the step: larger microbatches, which need recomputation; experts apart; fewer
  // replicas that share weights. DeepSpeed has tensor parallelism without that of sequences.
  ScenarioSpec gathered, apart, few, zero;
  for (ScenarioSpec* each : {&gathered, &apart}) {
    each->set("model", "gpt-oss-20b").set("machine/gpu", "a100-pcie-80gb").set("framework", "torchtitan");
    each->set("plan/dp", 16).set("training/global_batch", 128).set("training/sequence", 8192);
  }
  apart.set("plan/recompute", "full");
  few.set("model", "llama3.2-1b").set("machine/gpu", "l40s").set("framework", "fsdp").set("plan/dp", 8);
  few.set("training/micro_batch", 2).set("training/global_batch", 64).set("training/sequence", 4096);
  zero.set("model", "llama3-8b").set("framework", "deepspeed").set("plan/dp", 8).set("plan/recompute", "full");
  zero.set("machine/gpu", "rtx-pro-6000").set("training/global_batch", 8).set("training/sequence", 4096);
  for (const auto& [spec, field] :
       {std::pair(dense, "plan/vpp"), std::pair(experts, "plan/expert_dispatch"), std::pair(chunks, "plan/vpp"),
        std::pair(named, "plan/overlap_p2p"), std::pair(gathered, "training/micro_batch"), std::pair(apart, "plan/ep"),
        std::pair(few, "plan/shard"), std::pair(zero, "plan/tp")}) {
    const auto report = simulate(resolved(spec));
    ASSERT_TRUE(report) << to_text(report.error());
    int changes = 0;
    for (const Improvement& improvement : report->improvements) {
      if (improvement.at_most) continue;
      ScenarioSpec changed = spec;
      for (const Assignment& each : improvement.set) {
        changed.set(each.field, std::string_view(each.text));
        changes += each.field == field;
      }
      const auto again = simulate(resolved(changed));
      ASSERT_TRUE(again) << improvement.change;
      EXPECT_NEAR((report->step - again->step) / improvement.saves, 1, 1e-6) << improvement.change;
      ASSERT_TRUE(improvement.interval) << improvement.change;
      EXPECT_LT(improvement.interval->low, improvement.saves) << improvement.change;
      EXPECT_GT(improvement.interval->high, improvement.saves) << improvement.change;
      EXPECT_LE(again->memory.device(), again->scenario.cluster.gpu.memory) << improvement.change;
    }
    EXPECT_GE(changes, 1) << field;
  }
}

// A plan that does not fit is told changes that fit. Several at once go on from its remedy, which alone takes longer:
// half of the optimizer on the host, and products that overlap with communication.
TEST(Resolve, AdviceOnAPlanThatDoesNotFitFits) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b")
      .set("machine/gpu", "h100")
      .set("machine/nodes", 2)
      .set("plan/tp", 8)
      .set("plan/pp", 2);
  spec.set("training/global_batch", 256);
  const auto report = simulate(resolved(spec));
  ASSERT_TRUE(report) << to_text(report.error());
  ASSERT_FALSE(report->fits);
  ASSERT_TRUE(report->remedy);
  EXPECT_GT(report->remedy->step, report->step);
  int changes = 0;
  for (const Improvement& improvement : report->improvements) {
    if (improvement.set.empty()) continue;
    ++changes;
    ScenarioSpec changed = spec;
    for (const Assignment& each : improvement.set) changed.set(each.field, std::string_view(each.text));
    const auto again = simulate(resolved(changed));
    ASSERT_TRUE(again) << improvement.change;
    EXPECT_TRUE(again->fits) << improvement.change;
    EXPECT_LE(again->memory.device(), again->scenario.cluster.gpu.memory) << improvement.change;
    EXPECT_NEAR((report->step - again->step) / improvement.saves, 1, 1e-6) << improvement.change;
  }
  EXPECT_GE(changes, 1);
}

// What a change of a report saves, typed beside the flags of `spec`: whether that is what it says.
void expect_to_save(const ScenarioSpec& spec, const Report& report, const Improvement& improvement) {
  ScenarioSpec changed = spec;
  for (const Assignment& each : improvement.set) changed.set(each.field, std::string_view(each.text));
  const auto again = simulate(resolved(changed));
  ASSERT_TRUE(again) << improvement.change;
  EXPECT_NEAR((report.step - again->step) / improvement.saves, 1, 1e-6) << improvement.change;
}

bool sets(const std::vector<Assignment>& all, const Assignment& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// Products whose exchanges run beside them need sequence parallelism, which this plan has not.
TEST(Resolve, IsSequenceParallelismAdvisedWhereItIsOff) {
  ScenarioSpec spec;
  spec.set("model", "llama2-7b").set("machine/gpu", "rtx-4090").set("machine/nodes", 1).set("plan/tp", 2);
  spec.set("plan/pp", 4).set("plan/vpp", 4).set("plan/sequence_parallel", false);
  spec.set("plan/recompute", "selective:layernorm,mlp").set("training/global_batch", 32);
  const Report report = *simulate(resolved(spec));
  const auto found = std::ranges::find_if(report.improvements, [](const Improvement& each) {
    return sets(each.set, {"plan/sequence_parallel", "on"});
  });
  ASSERT_NE(found, report.improvements.end());
  EXPECT_GT(found->saves, 0.05 * report.step);
  EXPECT_THAT(found->change, HasSubstr("you set plan/sequence_parallel=off"));
  expect_to_save(spec, report, *found);
}

// A stage has two layers, and the logits multiply by more weights than two layers have: most of the step is a bubble.
// The layers divided otherwise take away half of it; fewer stages, which that division does not suit, nearly all.
TEST(Resolve, DoesAdviceLeaveAPipelineThatIsTooDeep) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 2).set("plan/pp", 16);
  spec.set("training/global_batch", 64);
  const Report report = *simulate(resolved(spec));
  ASSERT_GT(report.breakdown.bubble, 0.5 * report.step);
  ASSERT_FALSE(report.improvements.empty());
  const Improvement& best = report.improvements.front();
  EXPECT_GT(best.saves, 0.9 * report.breakdown.bubble) << to_flags(best.set, report.scenario);
  expect_to_save(spec, report, best);
}

// A part of each rack stays idle. Whoever wrote how many GPUs there are need not write it again.
TEST(Resolve, DoesAdviceRepeatTheSizeOfTheMachine) {
  ScenarioSpec spec;
  spec.set("model", "qwen3-30b-a3b").set("machine/gpu", "gb200").set("machine/gpus", 32).set("plan/tp", 2);
  spec.set("plan/cp", 2).set("plan/dp", 8).set("training/global_batch", 64).set("training/sequence", 8192);
  const Report report = *simulate(resolved(spec));
  int changes = 0;
  for (const Improvement& each : report.improvements) {
    if (each.set.empty()) continue;
    ++changes;
    EXPECT_FALSE(sets(each.set, {"machine/gpus", "32"})) << each.change;
    expect_to_save(spec, report, each);
  }
  EXPECT_GE(changes, 1);
}

// Breadth-first overlaps its messages; one stage has none.
TEST(Resolve, DoesAdviceOverlapMessagesThatNobodySends) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "a100").set("machine/gpus", 144).set("plan/pp", 4);
  spec.set("plan/cp", 2).set("plan/dp", 18).set("training/global_batch", 288).set("training/sequence", 4096);
  spec.set("framework", "deepspeed").set("plan/schedule", "breadth-first");
  const Report report = *simulate(resolved(spec));
  int of_one_stage = 0;
  for (const Improvement& each : report.improvements) {
    if (!sets(each.set, {"plan/pp", "1"})) continue;
    ++of_one_stage;
    EXPECT_FALSE(sets(each.set, {"plan/overlap_p2p", "on"})) << each.change;
    expect_to_save(spec, report, each);
  }
  EXPECT_GE(of_one_stage, 1);
}

// Interleaving overlaps messages; a later change to one stage leaves no messages and one schedule. Replicas that fill
// the nodes are told even so.
TEST(Resolve, SeveralChangesHaveNoFlagWithoutEffect) {
  int flags = 0;
  for (const auto& [model, tp, pp, vpp] : {std::tuple("llama3-8b", 2, 4, 2), std::tuple("qwen3-30b-a3b", 1, 2, 4)}) {
    ScenarioSpec spec;
    spec.set("model", model).set("machine/gpu", "h100").set("machine/nodes", 1).set("training/global_batch", 128);
    spec.set("plan/tp", tp).set("plan/pp", pp).set("plan/vpp", vpp);
    const auto report = simulate(resolved(spec));
    ASSERT_TRUE(report) << to_text(report.error());
    const auto several = std::find_if(report->improvements.begin(), report->improvements.end(),
                                      [](const Improvement& each) { return each.change == "several changes at once"; });
    ASSERT_NE(several, report->improvements.end()) << model;
    const auto outcome = [&](std::size_t without) -> std::optional<std::pair<Bytes, Seconds>> {
      ScenarioSpec changed = spec;
      for (std::size_t i = 0; i < several->set.size(); ++i) {
        if (i != without) changed.set(several->set[i].field, std::string_view(several->set[i].text));
      }
      const auto scenario = resolve(changed, Catalog::standard());
      const auto again = scenario ? simulate(*scenario) : Result<Report>(fail(scenario.error()));
      if (!again) return std::nullopt;
      return std::pair(again->memory.peak(), again->step);
    };
    const auto all = outcome(several->set.size());
    for (std::size_t i = 0; i < several->set.size(); ++i) {
      if (several->set[i].field == "plan/dp") continue;
      ++flags;
      EXPECT_NE(outcome(i), all) << model << ": " << several->set[i].field << " of "
                                 << to_flags(several->set, report->scenario);
    }
  }
  EXPECT_GE(flags, 4);
}

// The plan of `spec`, which does not fit, and that with what its remedy says, which `spec` then has.
std::pair<Result<Report>, Result<Report>> remedied(ScenarioSpec& spec) {
  auto report = simulate(resolved(spec));
  EXPECT_TRUE(report) << to_text(report.error());
  EXPECT_FALSE(report->fits);
  EXPECT_TRUE(report->remedy);
  for (const Assignment& each : report->remedy.value().set) spec.set(each.field, std::string_view(each.text));
  auto again = simulate(resolved(spec));
  EXPECT_TRUE(again) << to_text(again.error());
  return {std::move(report), std::move(again)};
}

// What a remedy says is enough to build the plan that fits.
void expect_that_the_remedy_fits(ScenarioSpec spec) {
  const auto [report, again] = remedied(spec);
  EXPECT_TRUE(again->fits);
  EXPECT_EQ(again->memory.peak(), report->remedy->peak);
}

// Two GPUs of a server are too small: others of the same server come before others of more servers. A process alone has
// the whole memory bandwidth of its host.
TEST(Resolve, PartOfANodeKeepsItsPlace) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/gpus", 1).set("plan/zero", "3");
  spec.set("plan/offload_optimizer", "1").set("training/global_batch", 8).set("training/sequence", 2048);
  spec.set("plan/recompute", "full").set("framework", "deepspeed");
  const Scenario one = resolved(spec), all = resolved(ScenarioSpec(spec).set("machine/gpus", 8));
  EXPECT_EQ(one.cluster.gpus_per_node(), 1);
  EXPECT_EQ(one.cluster.spare_per_node(), 7);
  const auto host = [](const Scenario& scenario) {
    const auto session = Session::make(scenario);
    const auto prediction = predict(scenario, *session);
    Seconds sum;
    for (const PathEntry& entry : prediction->critical_path) {
      if (entry.name == "offload.optimizer") sum += entry.seconds;
    }
    return sum;
  };
  EXPECT_NEAR(host(one) / host(all), 1, 0.01) << "an eighth of the states, with an eighth of the bandwidth";
  const Report report = *simulate(one);
  EXPECT_TRUE(std::none_of(report.warnings.begin(), report.warnings.end(),
                           [](const Warning& warning) { return warning.code == "spare_gpus"; }));

  ScenarioSpec large;
  large.set("model", "qwen3-32b").set("machine/gpu", "h100").set("machine/gpus", 2).set("training/global_batch", 16);
  const auto [before, after] = remedied(large);
  EXPECT_TRUE(after->fits);
  EXPECT_EQ(after->memory.peak(), before->remedy->peak);
  const std::vector<Assignment>& set = before->remedy->set;
  EXPECT_TRUE(std::any_of(set.begin(), set.end(), [](const Assignment& each) { return each.field == "machine/gpus"; }));
  EXPECT_TRUE(std::none_of(set.begin(), set.end(),
                           [](const Assignment& each) { return each.field == "machine/gpus_per_node"; }));
  EXPECT_LE(after->scenario.cluster.gpus_per_node(), 8);
  EXPECT_EQ(after->scenario.cluster.gpu_count(), after->ranks);
}

// 3.35 GB/s where 3.35 TB/s are meant; no GPU of the catalog is suspected.
TEST(Resolve, NumbersInAnotherUnitAreSuspected) {
  const auto suspected = [](std::string_view gpu) {
    ScenarioSpec spec;
    spec.set("model", "gpt2").set("machine/gpu", gpu).set("training/global_batch", 1);
    spec.set("training/dtype", "fp32");
    std::string all;
    const Report report = *simulate(resolved(spec));
    for (const Warning& warning : report.warnings) {
      if (warning.code == "implausible_gpu") all += warning.message;
    }
    return all;
  };
  for (const CatalogEntry& entry : Catalog::built_in().list(CatalogKind::kGpu)) EXPECT_EQ(suspected(entry.id), "");
  const ScratchFolder folder;
  const std::string path = (folder.path() / "mine.json").string();
  std::ofstream(path) << R"({"like": "h100", "id": "mine", "name": "Mine", "sources": "a test",
      "memory": {"bandwidth": "3.35 GB/s"}, "board_power": "700 kW"})";
  EXPECT_THAT(suspected(path), ::testing::AllOf(HasSubstr("a memory bandwidth of 3.35 GB/s, but other GPUs have"),
                                                HasSubstr("a board power of 700 kW, but")));
}

// What the warning says of collectives over PCIe lies in the interval: they are all long, or all short.
TEST(Resolve, CollectivesOfOneRouteErrTogether) {
  for (const char* gpu : {"rtx-4090", "l40s", "rtx-pro-6000", "t4"}) {
    ScenarioSpec spec;
    spec.set("model", "llama2-7b").set("machine/gpu", gpu).set("plan/dp", 8).set("plan/zero", "3");
    spec.set("training/global_batch", 64).set("plan/recompute", "full").set("training/dtype", "fp16");
    const auto report = simulate(resolved(spec));
    ASSERT_TRUE(report) << to_text(report.error());
    double longer = 0, shorter = 0;
    for (const Warning& warning : report->warnings) {
      if (warning.code != "unmeasured_collectives" && warning.code != "uncertain_collectives") continue;
      const auto number = [&](std::string_view after) {
        const std::size_t end = warning.message.find(after);
        if (end == std::string::npos) return 0.0;
        return std::stod(warning.message.substr(warning.message.rfind("up to ", end) + 6)) / 100;
      };
      longer = number(" % longer"), shorter = number(" % shorter");
    }
    EXPECT_GT(longer, 0.1) << gpu;
    EXPECT_LE(longer, report->step_high / report->step - 1 + 0.006) << gpu;
    EXPECT_LE(shorter, 1 - report->step_low / report->step + 0.006) << gpu;
  }
}

// Layers that were divided by hand for four stages may be divided again for more: the same remedy as of an even
// division, and whoever adds it to the plan has that plan.
TEST(Resolve, ARemedyDividesLayersAgain) {
  std::optional<Seconds> even;
  for (const Assignment& division : {Assignment{"plan/first_stage_layers", "0"},
                                     {"plan/pipeline_layout", "Et*24|t*24|t*24|t*24L"},
                                     {"plan/first_stage_layers", "24"},
                                     {"plan/last_stage_layers", "24"}}) {
    ScenarioSpec spec;
    spec.set("model", "gpt3-175b").set("machine/gpu", "h100").set("training/global_batch", 64);
    spec.set("plan/tp", 8).set("plan/pp", 4).set("plan/dp", 1).set(division.field, std::string_view(division.text));
    const auto [report, again] = remedied(spec);
    EXPECT_TRUE(again->fits) << division.text;
    EXPECT_EQ(again->scenario.plan.pp, 8) << division.text;
    EXPECT_EQ(again->memory.peak(), report->remedy->peak) << division.text;
    if (!even) even = report->remedy->step;
    EXPECT_EQ(report->remedy->step, *even) << division.text;
  }
}

// DeepSpeed has no sequence parallelism, and experts that are not divided need it: a remedy says so.
TEST(Resolve, ARemedySaysWhatTheFrameworkSetsOtherwise) {
  ScenarioSpec spec;
  spec.set("model", "qwen3-235b-a22b").set("machine/gpu", "gb200").set("framework", "deepspeed").set("plan/dp", 4);
  spec.set("plan/etp", 1).set("plan/zero", "0").set("training/global_batch", 4).set("training/sequence", 1024);
  expect_that_the_remedy_fits(std::move(spec));
}

// Norms of all tokens on each rank are what is too much: divided, they fit, and take less time than to compute again.
TEST(Resolve, DoesARemedyDivideSequencesBeforeItRecomputes) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-175b").set("machine/gpu", "a100").set("machine/nodes", 8).set("plan/tp", 8).set("plan/pp", 8);
  spec.set("plan/sequence_parallel", false).set("training/global_batch", 64);
  const auto [report, again] = remedied(spec);
  EXPECT_EQ(report->remedy->set, (std::vector<Assignment>{{"plan/sequence_parallel", "on"}}));
  EXPECT_TRUE(again->fits);
  EXPECT_LT(report->remedy->step, report->step);
}

// DeepSpeed's tensor parallelism does not divide sequences: that is no reason to do without it.
TEST(Resolve, ARemedyUnderDeepSpeedDividesProducts) {
  ScenarioSpec spec;
  spec.set("model", "qwen3-32b").set("machine/gpu", "rtx-4090").set("framework", "deepspeed").set("plan/dp", 8);
  spec.set("plan/recompute", "full").set("plan/offload_optimizer", 1.0);
  spec.set("training/global_batch", 64).set("training/sequence", 4096);
  const auto [report, again] = remedied(spec);
  EXPECT_TRUE(again->fits);
  EXPECT_GT(again->scenario.plan.tp, 1);
  EXPECT_FALSE(again->scenario.plan.sequence_parallel);
  EXPECT_THAT(again->warnings, ::testing::Each(::testing::Field(&Warning::code, ::testing::Ne("not_in_framework"))));
}

// Whoever sets sequence parallelism does not leave it to tp: a remedy says what it needs.
TEST(Resolve, ARemedySaysWhatWasNamedOtherwise) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("plan/dp", 8).set("training/global_batch", 64);
  spec.set("plan/sequence_parallel", false);
  expect_that_the_remedy_fits(std::move(spec));
}

// DeepSeek-V3 was trained so on 2,048 H800 of 80 GB (arXiv 2412.19437, s.3.1 and 3.2), with one layer beside the loss.
TEST(Resolve, DeepSeeksOwnPlanFits) {
  ScenarioSpec spec;
  spec.set("model", "deepseek-v3").set("machine/gpu", "h800").set("machine/nodes", 256).set("framework", "hai-llm");
  spec.set("plan/pp", 16).set("plan/ep", 64).set("plan/schedule", "dualpipe").set("plan/last_stage_layers", 1);
  spec.set("training/dtype", "fp8-block").set("training/mtp", true).set("training/global_batch", 15360);
  const Scenario scenario = resolved(spec);
  const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training);
  ASSERT_TRUE(memory) << to_text(memory.error());
  EXPECT_EQ(scenario.plan.dp, 128);
  EXPECT_LE(memory->device(), scenario.cluster.gpu.memory);
}

// More GPUs may lie otherwise in their nodes: 128 ranks in two racks of 64, not of 72.
TEST(Resolve, ARemedyOnRacksFillsThem) {
  ScenarioSpec spec;
  spec.set("model", "deepseek-v3").set("machine/gpu", "gb200").set("plan/pp", 8).set("plan/dp", 8).set("plan/ep", 8);
  spec.set("training/global_batch", 256);
  expect_that_the_remedy_fits(std::move(spec));
}

// The GPUs that a report's plan leaves idle are no part of nodes whose size is given anew.
TEST(Resolve, NodesOfAReportCanBeGivenAnotherSize) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "gb200").set("plan/tp", 8).set("plan/dp", 16);
  const Scenario base = resolved(spec);
  EXPECT_EQ(base.cluster.spare_per_node(), 8);
  ScenarioSpec more;
  more.set("plan/dp", 8).set("machine/gpus_per_node", 64);
  const auto changed = resolve(more, Catalog::built_in(), &base);
  ASSERT_TRUE(changed) << to_text(changed.error());
  EXPECT_EQ(changed->cluster.gpus_per_node(), 64);
  EXPECT_EQ(changed->cluster.spare_per_node(), 0);
}

// Another plan may leave other GPUs of a node idle: advice is about the machine that there is, and says so.
TEST(Resolve, AdviceKeepsTheMachine) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-13b").set("machine/gpu", "gb200").set("plan/tp", 8).set("plan/dp", 16);
  const Scenario scenario = resolved(spec);
  EXPECT_EQ(scenario.cluster.gpus_per_node(), 64);
  ParallelPlan plan = scenario.plan;
  EXPECT_TRUE(to_keep_machine(scenario, plan).empty());
  Scenario wide = scenario;
  wide.cluster.levels[0].size = 32, wide.cluster.levels[0].spare = 40, wide.cluster.levels[1].size = 4;
  const std::vector<Assignment> set = to_keep_machine(wide, plan);
  EXPECT_EQ(set, (std::vector<Assignment>{{"machine/nodes", "4"}, {"machine/gpus_per_node", "32"}}));
  for (const Assignment& each : set) spec.set(each.field, std::string_view(each.text));
  EXPECT_EQ(resolved(spec).cluster.gpus_per_node(), 32);
  wide.cluster.levels[1].size = 5;  // GPUs that no plan fills
  EXPECT_TRUE(to_keep_machine(wide, plan).empty());
}

// GPipe keeps every microbatch until the last forward pass: 1F1B fits without computing anything again.
TEST(Resolve, ARemedyLeavesAScheduleThatKeepsTooMuch) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h100").set("training/global_batch", 256);
  spec.set("plan/tp", 8).set("plan/pp", 4).set("plan/dp", 2).set("plan/schedule", "gpipe");
  const auto [report, again] = remedied(spec);
  EXPECT_EQ(again->scenario.plan.schedule, "1f1b");
  EXPECT_EQ(again->scenario.plan.recompute, Recompute::kNone);
  EXPECT_TRUE(again->fits);
  EXPECT_NEAR(again->step / report->remedy->step, 1, 1e-9);
  EXPECT_LT(again->step, 1.1 * report->step) << "full recomputation takes a third more";
}

// FSDP has weights and optimizer on the host together; who has both there may keep some on the GPUs.
TEST(Resolve, WeightsGoToTheHostWithTheOptimizer) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h100").set("machine/gpus", 8).set("framework", "fsdp");
  spec.set("training/global_batch", 8).set("training/sequence", 4096).set("plan/dp", 8);
  const auto [report, again] = remedied(spec);
  EXPECT_TRUE(again->fits);
  EXPECT_TRUE(again->scenario.plan.offload_weights);
  ScenarioSpec less;
  less.set("model", "qwen3-8b").set("machine/gpu", "h100").set("machine/gpus", 8).set("framework", "deepspeed");
  less.set("plan/zero", "3").set("plan/offload_optimizer", "1").set("plan/offload_weights", true);
  less.set("training/global_batch", 64).set("training/sequence", 4096).set("plan/recompute", "full");
  const auto advised = simulate(resolved(less));
  ASSERT_TRUE(advised) << to_text(advised.error());
  EXPECT_TRUE(std::any_of(advised->improvements.begin(), advised->improvements.end(), [](const Improvement& each) {
    return each.change.starts_with("keep more in the GPUs' memory");
  }));
}

// Fewer microbatches than a schedule runs are what a framework does not have, each by its own rule.
TEST(Resolve, FrameworksAskForMicrobatches) {
  const auto told = [](const char* framework, const char* schedule, std::int64_t microbatches) {
    ScenarioSpec spec;
    spec.set("model", "llama3-70b").set("machine/gpu", "h200").set("framework", framework).set("plan/pp", 8);
    spec.set("plan/schedule", schedule).set("training/global_batch", microbatches).set("plan/recompute", "full");
    if (std::string_view(schedule) == "interleaved") spec.set("plan/vpp", 2);
    const auto report = simulate(resolved(spec));
    EXPECT_TRUE(report) << to_text(report.error());
    std::string found;
    for (const Warning& each : report->warnings) {
      if (each.code == "not_in_framework" && each.message.find("microbatches") != std::string::npos)
        found += each.message;
    }
    return found;
  };
  EXPECT_EQ(told("megatron-core", "interleaved", 7),
            "megatron-core has no plan/schedule=interleaved with fewer microbatches than stages");
  EXPECT_EQ(told("megatron-core", "interleaved", 8), "");
  EXPECT_EQ(told("torchtitan", "interleaved", 7), "");
  EXPECT_EQ(told("torchtitan", "dualpipe-v", 15),
            "torchtitan has no plan/schedule=dualpipe-v with fewer microbatches than twice the stages");
  EXPECT_EQ(told("torchtitan", "dualpipe-v", 16), "");
  EXPECT_NE(told("hai-llm", "dualpipe", 6), "");
}

// A sequence that a report's user named stays when another model is asked for.
TEST(Resolve, AnotherModelKeepsANamedSequence) {
  ScenarioSpec spec, other;
  spec.set("model", "llama3-8b").set("training/sequence", 2048);
  other.set("model", "qwen2.5-7b");
  const Scenario named = resolved(spec);
  const Scenario usual = resolved(ScenarioSpec().set("model", "llama3-8b"));
  EXPECT_EQ(resolve(other, Catalog::standard(), &named)->training.sequence, 2048);
  EXPECT_EQ(resolve(other, Catalog::standard(), &usual)->training.sequence, resolved(other).training.sequence);
}

// Gradients that replicas share are enough for Llama 3 8B on eight H100: weights stay whole, and the step is shorter.
TEST(Resolve, ARemedySharesNoMoreThanItMust) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("plan/dp", 8).set("training/global_batch", 64);
  const auto report = simulate(resolved(spec));
  ASSERT_TRUE(report) << to_text(report.error());
  ASSERT_FALSE(report->fits);
  ASSERT_TRUE(report->remedy);
  EXPECT_EQ(report->remedy->set, (std::vector<Assignment>{{"plan/zero", "2"}}));
}

// Two million tokens fit on 64 H100 when eight nodes divide them, and only then.
TEST(Resolve, ARemedyDividesAContextAcrossNodes) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 8).set("training/global_batch", 8);
  spec.set("plan/tp", 8).set("plan/dp", 8).set("training/sequence", 2 * 1024 * 1024);
  const auto [report, again] = remedied(spec);
  EXPECT_FALSE(report->fits);
  EXPECT_TRUE(again->fits);
  EXPECT_EQ(again->scenario.plan.cp, 8);
  EXPECT_EQ(again->ranks, 64);
}

// What room is made for need not be computed again: ranks share more, or divide the context among more of them.
TEST(Resolve, AdviceMakesRoomForActivations) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h200").set("machine/nodes", 8).set("training/global_batch", 4);
  spec.set("plan/tp", 8).set("plan/cp", 8).set("training/sequence", 1024 * 1024).set("plan/recompute", "full");
  const auto shares = simulate(resolved(spec));
  ASSERT_TRUE(shares) << to_text(shares.error());
  EXPECT_GT(shares->improvements.front().saves, 0.15 * shares->step)
      << to_flags(shares->improvements.front().set, shares->scenario);
  EXPECT_THAT(to_flags(shares->improvements.front().set, shares->scenario), HasSubstr("--zero"));
  ScenarioSpec node;
  node.set("model", "llama3-8b").set("machine/gpu", "mi300x").set("plan/dp", 8).set("training/global_batch", 8);
  node.set("training/sequence", 128 * 1024).set("plan/recompute", "full");
  const auto divides = simulate(resolved(node));
  ASSERT_TRUE(divides) << to_text(divides.error());
  EXPECT_GT(divides->improvements.front().saves, 0.15 * divides->step);
  EXPECT_THAT(to_flags(divides->improvements.front().set, divides->scenario), HasSubstr("--cp 8"));
}

// A padded vocabulary needs 6.5 MB more: a plan that is tight stays about as tight.
TEST(Resolve, DoesATightPlanHaveAdviceThatNeedsALittleMore) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-13b").set("framework", "deepspeed").set("machine/gpu", "a100").set("machine/nodes", 2);
  spec.set("plan/dp", 16).set("training/micro_batch", 4).set("training/global_batch", 64);
  const auto report = simulate(resolved(spec));
  ASSERT_TRUE(report) << to_text(report.error());
  ASSERT_GT(report->memory.device(), report->scenario.cluster.gpu.memory);
  EXPECT_THAT(to_flags(report->improvements.front().set, report->scenario), HasSubstr("--vocabulary-multiple 64"));
}

// Attention's backward pass, which nobody measured on AMD, and the keys that travel beside it take about as long: which
// of them is on the critical path changes from length to length, and what the interval knows of the other does not.
TEST(Resolve, TheIntervalHoldsKernelsThatAreHidden) {
  for (const std::int64_t tokens : {57344, 59392, 61440, 63488, 67584}) {
    ScenarioSpec spec;
    spec.set("model", "llama3-8b").set("machine/gpu", "mi325x").set("plan/cp", 16).set("plan/dp", 2);
    spec.set("training/global_batch", 4).set("training/sequence", tokens);
    const auto report = simulate(resolved(spec));
    ASSERT_TRUE(report) << to_text(report.error());
    EXPECT_GT(report->step_high, 1.7 * report->step) << tokens;
  }
}

// A million tokens' activations are 1.3 TiB for each GPU: what leaves it has to lie somewhere.
TEST(Resolve, HostsHoldWhatIsOffloaded) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h200").set("machine/nodes", 8).set("training/global_batch", 4);
  spec.set("plan/cp", 16).set("plan/dp", 4).set("plan/zero", "3").set("training/sequence", 1024 * 1024);
  const auto on_gpus = simulate(resolved(spec));
  spec.set("plan/offload_activations", 80);
  const auto on_hosts = simulate(resolved(spec));
  ASSERT_TRUE(on_gpus && on_hosts);
  EXPECT_EQ(on_gpus->host_memory, Bytes());
  EXPECT_NEAR((on_hosts->memory.peak() + on_hosts->host_memory) / on_gpus->memory.peak(), 1, 1e-12);
  const auto warned = [](const Report& report, std::string_view code) {
    return std::any_of(report.warnings.begin(), report.warnings.end(),
                       [&](const Warning& each) { return each.code == code; });
  };
  EXPECT_TRUE(warned(*on_hosts, "host_memory"));
  EXPECT_FALSE(warned(*on_hosts, "offload_saves_nothing"));
  spec.set("plan/offload_activations", 8);
  EXPECT_FALSE(warned(*simulate(resolved(spec)), "host_memory"));
  // What two layers keep is in the buffers of what leaves and what comes back.
  spec.set("plan/offload_activations", 2);
  EXPECT_TRUE(warned(*simulate(resolved(spec)), "offload_saves_nothing"));
}

// 126 layers on 16 stages: four chunks a stage are proposed, of one or two layers each, for a bubble a third as long.
TEST(Resolve, ChunksOfUnevenLayersAreAdvised) {
  ScenarioSpec spec;
  spec.set("model", "llama3.1-405b").set("machine/gpu", "h100").set("machine/nodes", 2048);
  spec.set("plan/tp", 8).set("plan/pp", 16).set("training/global_batch", 2048).set("plan/recompute", "full");
  const auto report = simulate(resolved(spec));
  ASSERT_TRUE(report) << to_text(report.error());
  EXPECT_TRUE(std::any_of(report->improvements.begin(), report->improvements.end(), [&](const Improvement& each) {
    return each.change == "interleave 4 model chunks a stage" && each.saves > 0.3 * report->step;
  }));
}

// Two ranks of tensor parallelism halve the experts' products and exchange each token twice: whole experts are faster.
TEST(Resolve, ARemedySpreadsWholeExperts) {
  ScenarioSpec spec;
  spec.set("model", "mixtral-8x7b").set("machine/gpu", "h100").set("training/global_batch", 64);
  spec.set("plan/tp", 2).set("plan/dp", 16).set("plan/ep", 8);
  const auto [report, again] = remedied(spec);
  EXPECT_TRUE(again->fits);
  EXPECT_EQ(again->scenario.plan.etp, 1);
  EXPECT_NEAR(again->step / report->remedy->step, 1, 1e-9);
  spec.set("plan/etp", 2).set("plan/ep", 4);
  const auto divided = simulate(resolved(spec));
  ASSERT_TRUE(divided) << to_text(divided.error());
  EXPECT_GT(divided->step, again->step);
}

// Who shares weights under ZeRO has the kernels of the model's code still, and launches as many.
TEST(Scenario, DoModelsOfTransformersKeepTheirKernelsUnderZero) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("plan/dp", 8).set("training/global_batch", 64);
  const auto with = [&](const char* framework) { return resolved(spec.set("framework", framework)); };
  const Scenario alone = with("transformers-sdpa");
  for (const char* framework : {"transformers-fsdp", "transformers-deepspeed"}) {
    const Scenario shared = with(framework);
    EXPECT_EQ(shared.plan.zero, ZeroStage::kParameters) << framework;
    EXPECT_EQ(shared.plan.weights, WeightStorage::kMaster) << framework;
    EXPECT_EQ(shared.plan.written_out, alone.plan.written_out) << framework;
    EXPECT_EQ(shared.plan.fused_kernels, alone.plan.fused_kernels) << framework;
    EXPECT_EQ(shared.host.launch_cost, alone.host.launch_cost) << framework;
    EXPECT_EQ(shared.compared_with, "") << framework;
  }
  EXPECT_TRUE(reduces_each_round(with("transformers-fsdp").plan));
  EXPECT_FALSE(reduces_each_round(with("fsdp").plan));
}

// Stored scores take most of the memory: fused attention and some recomputation, not recomputation of everything.
TEST(Resolve, ARemedyFusesAttention) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("plan/dp", 8).set("training/global_batch", 64);
  spec.set("framework", std::string_view("transformers")).set("plan/lora_rank", 16).set("training/sequence", 4096);
  const auto [report, again] = remedied(spec);
  EXPECT_TRUE(again->fits);
  EXPECT_TRUE(again->scenario.plan.flash_attention);
  EXPECT_LT(again->step, report->step);
}

// Logits that are never stored; frozen weights in 4 bits. Where a framework has neither, other plans.
TEST(Resolve, ARemedyStoresNoLogitsOrFrozenWeights) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "rtx-4090").set("machine/gpus_per_node", 1).set("plan/dp", 1);
  spec.set("framework", "transformers-sdpa").set("plan/recompute", "full").set("plan/lora_rank", 16);
  spec.set("training/global_batch", 4).set("training/micro_batch", 1).set("training/sequence", 8192);
  auto [logits, without] = remedied(spec);
  EXPECT_TRUE(without->fits);
  EXPECT_EQ(without->scenario.plan.loss_library, Library::kLiger);
  EXPECT_EQ(without->scenario.plan.frozen_weights, FrozenWeights::kPlain);
  spec.set("model", "qwen3-14b");
  auto [weights, packed] = remedied(spec);
  EXPECT_TRUE(packed->fits);
  EXPECT_EQ(packed->scenario.plan.frozen_weights, FrozenWeights::kNf4);
  spec.set("framework", "megatron-core").set("plan/frozen_weights", "plain").set("plan/loss_library", "default");
  const auto megatron = simulate(resolved(spec));
  ASSERT_TRUE(megatron && !megatron->fits);
  for (const Assignment& each : megatron->remedy ? megatron->remedy->set : std::vector<Assignment>()) {
    EXPECT_TRUE(each.field != "plan/frozen_weights" && each.field != "plan/loss_library") << each.field;
  }
}

// A remedy can be added to the plan's own flags, too. Experts are spread over more ranks. The optimizer goes to the
// host only where no plan with it fits the GPUs that there are or is a tenth faster, no more of it than must (Llama 3
// 70B on 16 GPUs: 46.4 s with full recomputation, 37.2 s with half of the optimizer on the host). More nodes, which it
// counts, are asked for only where that does not fit either, where the host is much slower (gpt-oss: 21.7 s on 8 GPUs,
// 1.7 s on 16), or where the plan leaves GPUs idle.
TEST(Resolve, ARemedyCanBeAddedToAPlan) {
  struct Case {
    const char *model, *gpu;
    std::int64_t dp, gpus;
    const char *changes, *leaves;
    std::int64_t sequence = 0;  // 0: the model's own
  };
  for (const Case& c : {Case{"qwen3-30b-a3b", "a100", 8, 8, "plan/ep", "plan/offload_optimizer"},
                        Case{"llama3-70b", "h100", 32, 32, "plan/pp", "plan/offload_optimizer"},
                        Case{"llama3-8b", "h100", 8, 8, "plan/cp", "plan/offload_optimizer", 20480},
                        Case{"gpt-oss-120b", "b200", 8, 16, "machine/nodes", "plan/offload_optimizer"},
                        Case{"llama3-70b", "h100", 8, 8, "plan/offload_optimizer", "machine/nodes"},
                        Case{"llama3-70b", "h100", 1, 16, "machine/nodes", "plan/offload_optimizer"},
                        Case{"deepseek-v3", "h100", 8, 256, "machine/nodes", "plan/offload_optimizer"}}) {
    ScenarioSpec spec;
    spec.set("model", c.model).set("machine/gpu", c.gpu).set("plan/dp", c.dp).set("training/global_batch", 64);
    if (c.sequence > 0) spec.set("training/sequence", c.sequence);
    const auto report = simulate(resolved(spec));
    ASSERT_TRUE(report) << to_text(report.error());
    ASSERT_FALSE(report->fits) << c.model;
    ASSERT_TRUE(report->remedy) << c.model;
    EXPECT_EQ(report->remedy->ranks, c.gpus) << c.model;
    const auto sets = [&](std::string_view field) {
      return std::any_of(report->remedy->set.begin(), report->remedy->set.end(),
                         [&](const Assignment& each) { return each.field == field; });
    };
    EXPECT_TRUE(sets(c.changes)) << c.model << c.dp;
    EXPECT_FALSE(sets(c.leaves)) << c.model << c.dp;
    for (const Assignment& each : report->remedy->set) spec.set(each.field, std::string_view(each.text));
    const auto again = simulate(resolved(spec));
    ASSERT_TRUE(again) << to_text(again.error());
    EXPECT_EQ(again->ranks, c.gpus);
    EXPECT_EQ(again->memory.peak(), report->remedy->peak);
    EXPECT_EQ(again->memory.device(), report->remedy->device);
    EXPECT_NEAR(again->step / report->remedy->step, 1, 1e-9);
  }
}

TEST(Resolve, ARemedyMovesNoMoreOfTheOptimizerThanItMust) {
  ScenarioSpec spec;
  spec.set("model", "llama3-70b").set("machine/gpu", "h100").set("plan/tp", 8).set("plan/pp", 2).set("plan/dp", 1);
  spec.set("training/global_batch", 64);
  const auto remedy = simulate(resolved(spec))->remedy;
  ASSERT_TRUE(remedy);
  for (const Assignment& each : remedy->set) spec.set(each.field, std::string_view(each.text));
  const Scenario proposed = resolved(spec);
  EXPECT_GT(proposed.plan.offload_optimizer.value, 0);
  EXPECT_LT(proposed.plan.offload_optimizer.value, 1);
  spec.set("plan/offload_optimizer", 1.0);
  EXPECT_GT(simulate(resolved(spec))->step, remedy->step);
  spec.set("plan/offload_optimizer", 0.0).set("plan/recompute", "full");
  EXPECT_GT(simulate(resolved(spec))->step, 1.1 * remedy->step);
}

// A mistake in a framework's file names the file, the place and the field as the file has it.
TEST(Resolve, AFrameworkThatSetsWhatItCannotIsRefused) {
  const ScratchFolder folder;
  const std::string path = (folder.path() / "mine.json").string();
  const auto refused = [&](const std::string& set) {
    std::ofstream(path) << R"({"schema": "ns-dist/framework/1", "id": "mine", "name": "M", "named_as": [], "set": [)"
                        << set << "]}";
    ScenarioSpec spec;
    spec.set("framework", path).set("plan/tp", 1);
    const auto scenario = resolve(spec, Catalog::standard());
    return scenario ? std::string("none") : to_text(scenario.error());
  };
  const std::string zero = R"({"field": "plan/zero", "value": "3", "source": "s"})";
  EXPECT_EQ(refused(zero), "none");
  EXPECT_THAT(refused(zero + R"(, {"field": "plan/zeroo", "value": "3", "source": "s"})"),
              HasSubstr("mine.json#/set/1: plan/zeroo: there is no such field"));
  EXPECT_THAT(refused(R"({"field": "machine/gpu", "value": "h100", "source": "s"})"),
              HasSubstr("mine.json#/set/0: machine/gpu: cannot be set here"));
  EXPECT_THAT(refused(zero + ", " + zero), HasSubstr("mine.json#/set/1"));
}

// What else is like a framework with measured steps has none of its own.
TEST(Resolve, AFrameworkTellsWhichStepsItWasComparedWith) {
  const auto compared_with = [](const char* framework) {
    ScenarioSpec spec;
    return resolved(spec.set("framework", framework)).compared_with;
  };
  EXPECT_THAT(resolved({}).compared_with, HasSubstr("SimuMax"));
  EXPECT_THAT(compared_with("nemo"), HasSubstr("DGX Cloud"));
  EXPECT_EQ(compared_with("torchtitan"), "");
  EXPECT_EQ(compared_with("transformers-liger"), "");
  const Scenario base = resolved({});
  ScenarioSpec other;
  const auto changed = resolve(other.set("framework", "jax"), Catalog::standard(), &base);
  ASSERT_TRUE(changed) << to_text(changed.error());
  EXPECT_EQ(changed->compared_with, "");
}

// Who sets the launch cost knows the own host; a framework that sets it does not.
TEST(Resolve, AnOwnLaunchCostNarrowsTheRangeOfHosts) {
  const auto spread = [](ScenarioSpec spec) { return resolved(spec).host.launch_spread.value; };
  EXPECT_EQ(spread({}), 1.5);
  EXPECT_EQ(spread(ScenarioSpec().set("host/launch_cost", "40 us")), 1.1);
  EXPECT_EQ(spread(ScenarioSpec().set("host/launch_cost", "40 us").set("host/launch_spread", "1.3")), 1.3);
  EXPECT_FALSE(resolve(ScenarioSpec().set("host/launch_spread", "0.9"), Catalog::standard()).has_value());
}

TEST(Resolve, GraphsRecordAStepOrModulesOfLayers) {
  const auto text = [](std::string_view graphs) -> std::string {
    const auto scenario = resolve(ScenarioSpec().set("host/cuda_graphs", graphs), Catalog::standard());
    return scenario ? field_text(scenario->host.cuda_graphs) : to_text(scenario.error());
  };
  for (const char* same : {"off", "on", "attn,mlp", "attn,moe_router,moe_preprocess", "moe"}) {
    EXPECT_EQ(text(same), same);
  }
  EXPECT_EQ(text("moe_router,attn"), "attn,moe_router");
  EXPECT_THAT(text("attention"), AllOf(HasSubstr("off, on, or MODULE"), HasSubstr("attn, mamba, mlp, moe_router")));
  EXPECT_THAT(text("attn,moe_preprocess"), HasSubstr("write host/cuda_graphs=moe_router,attn,moe_preprocess"));
  EXPECT_THAT(text("attn,"), HasSubstr("is not one of its values"));
}

// TransformerEngine has no ring of sliding windows.
TEST(Resolve, KeysOfSlidingWindowsAreGathered) {
  const auto exchange = [](const char* model, const char* given = "") {
    ScenarioSpec spec;
    spec.set("model", model).set("plan/cp", 4);
    if (*given != '\0') spec.set("plan/cp_comm", given);
    return resolved(spec).plan.cp_comm;
  };
  EXPECT_EQ(exchange("gemma3-12b"), ContextExchange::kAllGather);
  EXPECT_EQ(exchange("gemma3-12b", "p2p"), ContextExchange::kRing);
  EXPECT_EQ(exchange("llama3-8b"), ContextExchange::kRing);
  const Scenario base = resolved(ScenarioSpec().set("model", "llama3-8b").set("plan/cp", 4));
  EXPECT_EQ(resolved(ScenarioSpec().set("model", "gemma3-12b"), &base).plan.cp_comm, ContextExchange::kAllGather);
}

// Another framework leaves nothing of the one before it, and keeps what the user set.
TEST(Resolve, AFrameworkReplacesTheOneOfTheBase) {
  ScenarioSpec spec;
  spec.set("framework", "jax").set("plan/tp", 2);
  Scenario base = resolved(spec);
  ASSERT_TRUE(base.host.cuda_graphs.step);
  ScenarioSpec change;
  change.set("framework", "megatron-deepspeed").set("plan/tp", 2);
  const Scenario changed = resolved(change, &base), fresh = resolved(change);
  EXPECT_EQ(changed.framework, "megatron-deepspeed");
  EXPECT_EQ(changed.host, fresh.host);
  EXPECT_EQ(changed.plan, fresh.plan);

  base.host.launch_cost = 35 * units::us;
  EXPECT_EQ(resolved(change, &base).host.launch_cost, 35 * units::us);
}

TEST(Resolve, AChangedPlanOpensTheMachineOfAReportAgain) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 4).set("plan/dp", 2);
  const Scenario base = resolved(spec);
  EXPECT_EQ(base.cluster.gpu_count(), 64);
  EXPECT_EQ(resolved({}, &base), base);
  ScenarioSpec change;
  change.set("plan/dp", 4);
  const Scenario changed = resolved(change, &base);
  EXPECT_EQ(changed.plan.tp, 8);
  EXPECT_EQ(changed.cluster.gpu_count(), 128);
}

TEST(RankCount, RefusesWhatIsNoMachine) {
  ParallelPlan plan;
  plan.tp = plan.pp = plan.dp = plan.cp = 1'000'000'000;
  EXPECT_FALSE(rank_count(plan));
  plan = {};
  plan.pp = -4;
  EXPECT_FALSE(rank_count(plan));
  plan.pp = 4;
  EXPECT_EQ(*rank_count(plan), 4);
}

TEST(ReadScenario, TellsEveryMistakeAndItsPlace) {
  std::string json = write_scenario(small_scenario());
  const auto replace = [&json](const std::string& from, const std::string& to) {
    const std::size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
  };
  replace("\"layers\": 8", "\"layers\": -8");
  replace("\"pp\": 1", "\"pp\": \"one\"");
  replace("\"micro_batch\"", "\"micro_batches\"");
  replace("\"memory\": \"" + to_text(80 * GiB), "\"memory\": \"80");
  const auto scenario = read_scenario(json, "report.json");
  ASSERT_FALSE(scenario);
  const std::string text = to_text(scenario.error());
  EXPECT_THAT(text, HasSubstr("report.json#/model/layers"));
  EXPECT_THAT(text, HasSubstr("report.json#/plan/pp"));
  EXPECT_THAT(text, HasSubstr("report.json#/training: key \"micro_batch\" is missing"));
  EXPECT_THAT(text, HasSubstr("did you mean \"micro_batch\"?"));
  EXPECT_THAT(text, HasSubstr("report.json#/cluster/gpu/memory"));
}

// Reports of earlier versions have a switch there.
TEST(ReadScenario, GraphsMayBeASwitch) {
  Scenario scenario = small_scenario();
  const auto again = [](const std::string& json) { return read_scenario(json, "report.json")->host.cuda_graphs; };
  scenario.host.cuda_graphs = {.modules = set_of(LayerModule::kAttention)};
  std::string json = write_scenario(scenario);
  EXPECT_EQ(again(json), scenario.host.cuda_graphs);
  const std::string text = "\"cuda_graphs\": \"attn\"";
  const std::size_t at = json.find(text);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(again(std::string(json).replace(at, text.size(), "\"cuda_graphs\": true")), CudaGraphs{.step = true});
  EXPECT_EQ(again(json.replace(at, text.size(), "\"cuda_graphs\": false")), CudaGraphs());
}

// As a model's own file is.
TEST(ReadScenario, TheModelIsCheckedAsAWhole) {
  Scenario edited = small_scenario();
  edited.model.kv_heads = 3 * edited.model.heads;
  edited.model.moe = Experts{.experts = 4, .top_k = 8, .expert_ffn = 64};
  edited.model.moe->shared_experts = 1;
  const auto scenario = read_scenario(write_scenario(edited), "report.json");
  ASSERT_FALSE(scenario);
  const std::string text = to_text(scenario.error());
  const std::string heads = std::to_string(edited.model.heads), keys = std::to_string(edited.model.kv_heads);
  EXPECT_THAT(text, HasSubstr("report.json#/model/kv_heads: " + keys + " does not divide " + heads + " heads"));
  EXPECT_THAT(text, HasSubstr("report.json#/model/moe/top_k: 8 of 4 experts cannot be chosen"));
  EXPECT_THAT(text, HasSubstr("report.json#/model/moe/shared_expert_ffn: 1 shared experts have no width; expected"));
}

// A list of layers may be in any order, as in a model's own file, and has whole numbers; there are as many layers for
// predictions as a file may have.
TEST(ReadScenario, ListsOfLayersAreThoseOfAModelsFile) {
  Scenario edited = small_scenario();
  edited.model.full_attention_layers.listed = {3, 1, 2};
  const auto scenario = read_scenario(write_scenario(edited), "report.json");
  ASSERT_TRUE(scenario);
  EXPECT_EQ(scenario->model.full_attention_layers.listed, (std::vector<std::int64_t>{1, 2, 3}));
  std::string text = write_scenario(edited);
  text.replace(text.find("3,", text.find("\"listed\"")), 2, "3.9,");
  EXPECT_THAT(to_text(read_scenario(text, "report.json").error()), HasSubstr("3.9 is not a whole number"));
  edited.model.full_attention_layers = {};
  edited.model.prediction_layers = 1'000'000;
  EXPECT_THAT(to_text(read_scenario(write_scenario(edited), "report.json").error()),
              HasSubstr("report.json#/model/prediction_layers: 1000000"));
}

TEST(WriteScenario, SpellsKindsAsTheCatalogDoes) {
  Scenario scenario = small_scenario();
  for (int kind = 0; kind <= static_cast<int>(FabricKind::kOmniPath); ++kind) {
    FabricKind& fabric = scenario.cluster.levels[0].fabric.kind;
    fabric = static_cast<FabricKind>(kind);
    EXPECT_THAT(write_scenario(scenario), HasSubstr("\"kind\": \"" + std::string(name_of(fabric)) + "\""));
  }
}

TEST(ReadScenario, RefusesWhatIsNoReport) {
  EXPECT_FALSE(read_scenario("", "r"));
  EXPECT_FALSE(read_scenario("{\"inputs\": ", "r"));
  EXPECT_FALSE(read_scenario("[]", "r"));
  EXPECT_FALSE(read_scenario("{\"inputs\": 3}", "r"));
  EXPECT_FALSE(read_scenario("{\"inputs\": {\"plan\": []}}", "r"));
  EXPECT_FALSE(read_scenario(std::string(100'000, '['), "r"));
  const std::string good = write_scenario(small_scenario());
  for (std::size_t length = 0; length + 2 < good.size(); length += 97) {
    EXPECT_FALSE(read_scenario(good.substr(0, length), "r")) << length;
  }
}

// Defaults, too: a later version may have others.
TEST(Reports, HaveEveryField) {
  const Scenario scenario = small_scenario();
  const auto inputs = nlohmann::json::parse(write_scenario(scenario));
  const auto expect_all_of = [&](const char* section, const auto& table) {
    visit_fields(
        [&](const Field& field, const auto&) { EXPECT_TRUE(inputs.at(section).contains(field.key())) << field.name; },
        table);
  };
  expect_all_of("plan", scenario.plan);
  expect_all_of("training", scenario.training);
  expect_all_of("host", scenario.host);
}

// torchtitan counts the embedding and the loss as layers of their stages; who names a stage's layers means layers.
TEST(Scenario, NamedLayersOfAStageGoBeforeWhatAFrameworkCounts) {
  const auto plan = [](std::initializer_list<Assignment> set) {
    ScenarioSpec spec;
    spec.set("framework", "torchtitan").set("model", "llama3-70b").set("plan/pp", 4);
    spec.assignments.insert(spec.assignments.end(), set);
    return resolve(spec, Catalog::built_in())->plan;
  };
  EXPECT_TRUE(plan({}).account_embedding && plan({}).account_loss);
  const ParallelPlan first = plan({{"plan/first_stage_layers", "18"}});
  EXPECT_FALSE(first.account_embedding);
  EXPECT_TRUE(first.account_loss);
  EXPECT_FALSE(plan({{"plan/last_stage_layers", "18"}}).account_loss);
  const ParallelPlan layout = plan({{"plan/pipeline_layout", "Et*20|t*20|t*20|t*20L"}});
  EXPECT_FALSE(layout.account_embedding || layout.account_loss);
  EXPECT_TRUE(plan({{"plan/first_stage_layers", "18"}, {"plan/account_embedding", "on"}}).account_embedding);
  // Advice changes a plan by the same rule.
  const Assignment last{"plan/last_stage_layers", "18"};
  EXPECT_FALSE(with_fields(plan({}), {&last, 1}).account_loss);
}

}  // namespace
}  // namespace ns_dist
