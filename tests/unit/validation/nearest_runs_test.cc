// Are the measured steps that are shown beside a forecast those most like it, good and bad ones?
#include "ns_dist/nearest_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "ns_dist/simulator.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::StartsWith;

constexpr std::size_t kAll = 1000;

Scenario scenario_of(const ScenarioSpec& spec) {
  const auto scenario = resolve(spec, Catalog::built_in());
  EXPECT_TRUE(scenario) << to_text(scenario.error());
  return *scenario;
}

std::vector<RunCheck> nearest(const ScenarioSpec& spec, std::size_t most = kAll) {
  const auto checks = nearest_runs(scenario_of(spec), Catalog::built_in(), most);
  EXPECT_TRUE(checks) << to_text(checks.error());
  return *checks;
}

std::vector<std::string> ids_of(const std::vector<RunCheck>& checks) {
  std::vector<std::string> ids;
  for (const RunCheck& check : checks) ids.push_back(check.publication + ": " + check.id);
  return ids;
}

// Asked as the publication has it, a run is the most alike of all.
TEST(NearestRuns, ARunIsNearestToItself) {
  const Catalog catalog = Catalog::built_in();
  for (const char* publication : {"korthikanti-2022", "zero-bubble-2024", "dgx-cloud-25.02", "llm-foundry-2023"}) {
    const auto runs = catalog.runs(publication);
    ASSERT_TRUE(runs) << to_text(runs.error());
    for (const std::size_t at : {std::size_t{0}, runs->runs.size() / 2, runs->runs.size() - 1}) {
      const PublishedRun& run = runs->runs[at];
      const std::vector<RunCheck> checks = nearest(spec_of(run), 1);
      ASSERT_EQ(checks.size(), 1u);
      const auto own = check_runs(std::vector{PublishedRuns{publication, "", "", {run}}}, catalog);
      ASSERT_TRUE(own) << to_text(own.error());
      // Of the same plan on another release of its software the first is taken, which has the same forecast.
      EXPECT_EQ(checks.front().forecast, own->front().forecast) << run.id;
    }
  }
}

TEST(NearestRuns, ExpertsAndVendorsAreNotMixed) {
  const auto experts = [](const std::vector<RunCheck>& checks) {
    std::set<bool> kinds;
    for (const RunCheck& check : checks) {
      const auto runs = Catalog::built_in().runs(check.publication);
      for (const PublishedRun& run : runs->runs) {
        if (run.id == check.id) kinds.insert(Catalog::built_in().model(run.model)->moe.has_value());
      }
    }
    return kinds;
  };
  const auto dense = nearest(ScenarioSpec().set("model", "llama3-8b").set("machine/gpu", "h100-sxm-80gb"));
  const auto mixed = nearest(ScenarioSpec().set("model", "mixtral-8x7b").set("machine/gpu", "h100-sxm-80gb"));
  EXPECT_GT(dense.size(), 20u);
  EXPECT_GT(mixed.size(), 5u);
  EXPECT_EQ(experts(dense), std::set<bool>{false});
  EXPECT_EQ(experts(mixed), std::set<bool>{true});
  EXPECT_TRUE(nearest(ScenarioSpec().set("model", "llama3-8b").set("machine/gpu", "mi300x")).empty());
}

// A step of one token, and a context of a million tokens.
TEST(NearestRuns, WhatIsHardlyLikeAnyIsComparedWithNone) {
  EXPECT_TRUE(nearest(ScenarioSpec()
                          .set("model", "gpt2")
                          .set("machine/gpu", "h100-sxm-80gb")
                          .set("training/layers", 1)
                          .set("training/sequence", 1)
                          .set("training/global_batch", 1))
                  .empty());
  EXPECT_TRUE(nearest(ScenarioSpec()
                          .set("model", "llama3-8b")
                          .set("machine/gpu", "h100-sxm-80gb")
                          .set("plan/tp", 8)
                          .set("plan/cp", 16)
                          .set("training/sequence", 1'048'576)
                          .set("training/global_batch", 16))
                  .empty());
  const CommandResult told = run_command("ns-dist --model gpt2 --layers 1 --seq 1 --global-batch 1");
  EXPECT_THAT(told.out, ::testing::HasSubstr("no measured step is much like it"));
}

// The GPU, the framework, the number format, the size: each is asked for and found first.
TEST(NearestRuns, EachTraitCounts) {
  const auto first = [](const ScenarioSpec& spec) { return ids_of(nearest(spec, 1)).front(); };
  ScenarioSpec large;
  large.set("model", "llama3-70b").set("machine/gpu", "h100-sxm-80gb").set("framework", "nemo");
  large.set("plan/tp", 4).set("plan/pp", 4).set("plan/cp", 2).set("plan/dp", 8).set("training/sequence", 8192);
  large.set("training/global_batch", 512).set("training/micro_batch", 1);
  EXPECT_THAT(first(large), StartsWith("dgx-cloud-24.11: llama3-70b-h100-bf16-"));
  EXPECT_THAT(first(ScenarioSpec(large).set("training/dtype", "fp8")),
              StartsWith("dgx-cloud-24.11: llama3-70b-h100-fp8-"));
  EXPECT_THAT(first(ScenarioSpec(large).set("framework", "megatron-bridge").set("training/dtype", "fp8")),
              StartsWith("megatron-bridge-2025: 25."));
  EXPECT_THAT(first(ScenarioSpec(large).set("machine/gpu", "b200-sxm")), ::testing::HasSubstr("-b200-"));
  ScenarioSpec sharded;
  sharded.set("model", "llama2-7b").set("machine/gpu", "a100-sxm-80gb").set("framework", "llm-foundry");
  EXPECT_THAT(first(ScenarioSpec(sharded).set("plan/dp", 8)), StartsWith("llm-foundry-2023: mpt-7b-a100_80gb-n8-"));
}

// Adapters are compared with adapters, whole trainings with whole trainings, on whatever GPU.
TEST(NearestRuns, AdaptersAreNotMixedWithWholeTrainings) {
  ScenarioSpec spec;
  spec.set("model", "llama3-8b").set("machine/gpu", "a100-sxm-80gb").set("framework", "torchtune").set("plan/dp", 1);
  const auto lora = [&] {
    int count = 0;
    for (const std::string& id : ids_of(nearest(spec, 2))) count += id.find("lora") != std::string::npos;
    return count;
  };
  EXPECT_EQ(lora(), 0);
  spec.set("plan/lora_rank", 8);
  EXPECT_EQ(lora(), 2);
}

// One of each experiment, so that sizes of one table do not crowd out all else; a bad forecast is not left out.
TEST(NearestRuns, OneOfEachExperimentTheBadOnesToo) {
  const auto checks = nearest(ScenarioSpec().set("model", "qwen3-30b-a3b").set("machine/gpu", "b200-sxm"));
  EXPECT_TRUE(std::ranges::any_of(checks, [](const RunCheck& check) { return std::abs(check.error()) > 0.4; }));
  const auto count = std::ranges::count_if(checks, [](const RunCheck& check) {
    return check.publication.starts_with("dgx-cloud") && check.gpu == "h100-sxm-80gb";
  });
  EXPECT_EQ(count, 2);  // Grok-1 in bf16 and in fp8
}

// Steps of one's own, in a folder of the catalog, are shown as well.
TEST(NearestRuns, OwnStepsAreShown) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "runs");
  std::ofstream(folder.path() / "runs" / "mine.json")
      << R"({"schema": "ns-dist/runs/1", "id": "mine", "name": "Mine", "sources": {"/runs": "our log"},
             "runs": [{"id": "small", "model": "opt-125m", "gpu": "mi300x", "dp": 8, "global_batch": 64,
                       "tokens_per_s_per_gpu": 50000}]})";
  const CommandResult told =
      run_command("NS_DIST_PATH=. ns-dist explain step --model opt-125m --gpu mi300x --dp 8", folder.path());
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, ::testing::HasSubstr("small of mine: measured"));
}

}  // namespace
}  // namespace ns_dist
