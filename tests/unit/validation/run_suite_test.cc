// Does a collection of published runs become the questions that its rows ask?
#include "ns_dist/run_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "published_runs.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json row() {
  return json::parse(R"({"id": "small-1", "config_key": "a", "source": {"title": "A paper"}, "recommended": true,
    "model": {"name": "GPT small", "layers": 4, "hidden": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64,
              "ffn_hidden": 4096, "gated_mlp": false, "vocab": 51200, "tied_embeddings": true, "seq": 1024},
    "n_gpus": 8, "gpus_per_node": 8, "micro_batch": 1, "global_batch": 16, "flash_attention": "unknown",
    "parallel": {"tp": 2, "pp": 1, "dp": 4, "sp": true, "cp": 1, "ep": 1, "vpp": null, "zero_stage": null,
                 "distributed_optimizer": true, "fsdp": false},
    "norm": {"gpu": "a100-sxm-80gb", "dtype": "bf16", "schedule": "none", "recompute": "selective",
             "inter_gbs_per_gpu": null, "step_time_s": 0.05}, "notes": "another key"})");
}

std::filesystem::path written(const ScratchFolder& folder, const json& rows) {
  std::filesystem::path path = folder.path() / "runs.json";
  std::ofstream(path) << rows.dump();
  return path;
}

std::vector<CollectedRun> read(const json& rows, std::vector<Error>& mistakes) {
  const ScratchFolder folder;
  auto runs = read_run_collection(written(folder, rows), Catalog::built_in(), mistakes);
  EXPECT_TRUE(runs);
  return runs ? *std::move(runs) : std::vector<CollectedRun>();
}

std::string text_of(const ScenarioSpec& spec, std::string_view field) {
  std::string text = "not set";
  for (const Assignment& assignment : spec.assignments) {
    if (assignment.field == field) text = assignment.text;
  }
  return text;
}

TEST(RunCollection, OptionsComeFromFieldsOfTheRow) {
  json given = row();
  given["parallel"]["overlap_grad_reduce"] = true;
  given["parallel"]["overlap_p2p"] = false;
  given["parallel"]["blocking_tp"] = true;
  given["parallel"]["grad_accumulation"] = "low";
  given["flash_attention"] = true;
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({row(), given}, mistakes);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_TRUE(mistakes.empty());
  const auto plain = [&](std::string_view field) { return text_of(runs[0].spec, field); };
  const auto set = [&](std::string_view field) { return text_of(runs[1].spec, field); };
  EXPECT_EQ(plain("plan/zero"), "1");
  EXPECT_EQ(plain("plan/vpp"), "1");
  EXPECT_EQ(plain("plan/recompute"), "selective");
  EXPECT_EQ(plain("plan/sequence_parallel"), "on");
  EXPECT_EQ(plain("plan/flash_attention"), "not set");  // "unknown": the framework's default
  for (const char* field :
       {"plan/overlap_grad_reduce", "plan/overlap_p2p", "plan/blocking_tp", "plan/grad_accumulation"}) {
    EXPECT_EQ(plain(field), "not set") << field;
  }
  EXPECT_EQ(set("plan/flash_attention"), "on");
  EXPECT_EQ(set("plan/overlap_grad_reduce"), "on");
  EXPECT_EQ(set("plan/overlap_p2p"), "off");
  EXPECT_EQ(set("plan/blocking_tp"), "on");
  EXPECT_EQ(set("plan/grad_accumulation"), "low");
  EXPECT_EQ(runs[0].publication, "A paper");
  EXPECT_EQ(runs[0].model.norm, NormKind::kLayerNorm);
}

TEST(RunCollection, RowsWithMistakesAreNamedAndOthersGoOn) {
  json broken = row(), other = row();
  broken["norm"]["step_time_s"] = "fast";
  broken["model"].erase("layers");
  other["recommended"] = false;
  std::vector<Error> mistakes;
  EXPECT_EQ(read({broken, row(), other}, mistakes).size(), 1u);
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_THAT(to_text(mistakes[0]), HasSubstr("runs.json#/0/norm/step_time_s"));
  EXPECT_THAT(to_text(mistakes[0]), HasSubstr("key \"layers\" is missing"));
  EXPECT_FALSE(read_run_collection("no/such.json", Catalog::built_in(), mistakes));
}

TEST(RunCollection, OneVoteAConfiguration) {
  json slower = row(), sharded = row(), other = row();
  slower["norm"]["step_time_s"] = 0.07;  // the same configuration: measured 0.06 together
  sharded["parallel"]["fsdp"] = true;
  sharded["config_key"] = "c";
  other["config_key"] = "b";
  other["source"]["title"] = "Another paper";
  const ScratchFolder folder;
  const auto suite = check_run_collection(written(folder, {row(), slower, sharded, other}), Catalog::standard());
  ASSERT_TRUE(suite) << to_text(suite.error());
  EXPECT_EQ(suite->rows, 4u);
  EXPECT_THAT(suite->markdown, HasSubstr("| 0.060 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("| 0.050 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("| A paper | 2 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("| all | 3 |"));
  EXPECT_THAT(suite->markdown, HasSubstr("each publication one vote: "));
  // ZeRO 3 and ZeRO 1 of the same work; measured at 0.05 s and 0.06 s.
  EXPECT_THAT(suite->markdown, HasSubstr("| A paper | 1 |"));
}

// Two runs of one GPU, one three times as long as the other: they reach x and x / 3 of the peak, 2 x / 3 in the mean,
// at which the step takes 1.5 times as long as the shorter.
TEST(CheckRuns, TheBaselineIsTheMeanUtilization) {
  const auto run = [](const char* id, double seconds) {
    return PublishedRun{
        id, "", "gpt3-1.3b", "dgx-h100", {{"plan/dp", "8"}, {"training/global_batch", "64"}}, seconds * units::s};
  };
  const PublishedRuns runs{"paper", "Paper", "", {run("short", 1), run("long", 3)}};
  const auto checks = check_runs({&runs, 1}, Catalog::standard());
  ASSERT_TRUE(checks) << to_text(checks.error());
  ASSERT_EQ(checks->size(), 2u);
  for (const RunCheck& check : *checks) EXPECT_NEAR(check.baseline / units::s, 1.5, 1e-12);
}

}  // namespace
}  // namespace ns_dist
