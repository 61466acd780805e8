// Does a collection of published runs become the questions that its rows ask?
#include "ns_dist/run_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ns_dist/kernel_calibration.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "published_runs.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

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
  given["parallel"]["cp_comm"] = "a2a";
  given["flash_attention"] = true;
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({row(), given}, mistakes);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_TRUE(mistakes.empty());
  const auto plain = [&](std::string_view field) { return text_of(runs[0].spec, field); };
  const auto set = [&](std::string_view field) { return text_of(runs[1].spec, field); };
  EXPECT_EQ(plain("plan/zero"), "1");
  EXPECT_EQ(plain("plan/vpp"), "not set");
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
  EXPECT_EQ(plain("plan/cp_comm"), "not set");
  EXPECT_EQ(set("plan/cp_comm"), "a2a");
  EXPECT_EQ(runs[0].publication, "A paper");
  EXPECT_EQ(runs[0].model.norm, NormalizationKind::kLayerNorm);
}

// A recipe's dispatcher, and experts that are spread over tensor-parallel ranks: 8 parts, 4 replicas of 2 ranks.
TEST(RunCollection, ExpertsAreReachedAsTheRowSays) {
  json even = row();
  even["model"]["n_experts"] = 8;
  even["model"]["topk"] = 2;
  even["model"]["moe_ffn_hidden"] = 1024;
  even["parallel"]["ep"] = 4;
  json wide = even, recipe = even;
  wide["parallel"]["ep"] = 8;
  recipe["notes"] = "Recipe X: cuda_graph=None, dispatcher=hybridep.";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({even, wide, recipe}, mistakes);
  ASSERT_EQ(runs.size(), 3u);
  const auto set = [&](std::size_t i) {
    return std::pair(text_of(runs[i].spec, "plan/etp"), text_of(runs[i].spec, "plan/expert_dispatch"));
  };
  EXPECT_EQ(set(0), std::pair(std::string("not set"), std::string("not set")));
  EXPECT_EQ(set(1), std::pair(std::string("1"), std::string("not set")));
  EXPECT_EQ(set(2), std::pair(std::string("1"), std::string("deepep")));
}

// As NeMo's recipe of Grok-1 says it; rows without experts have no capacity.
TEST(RunCollection, ExpertsAreAsLargeAsTheNotesSay) {
  json experts = row();
  experts["notes"] = "MoE alltoall dispatcher, pad-to-capacity CF=1.25 (yaml).";
  const json dense = experts;
  experts["model"]["n_experts"] = 8;
  experts["model"]["topk"] = 2;
  json drops = experts;
  drops["notes"] = "MoE (token-drop variant). Recipe X: cuda_graph=None/None, dispatcher=deepep.";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({experts, dense, drops}, mistakes);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(text_of(runs[0].spec, "plan/expert_capacity"), "1.25");
  EXPECT_EQ(text_of(runs[1].spec, "plan/expert_capacity"), "not set");
  EXPECT_EQ(text_of(runs[2].spec, "plan/expert_capacity"), "1");
  EXPECT_EQ(text_of(runs[2].spec, "plan/expert_dispatch"), "not set");
}

// As Megatron-Bridge's recipes name them.
TEST(RunCollection, GraphsAreThoseOfTheRecipe) {
  const std::vector<std::pair<std::string, std::string>> recipes = {
      {"None/None", "not set"},
      {"none/mlp", "not set"},
      {"local/full_iteration", "on"},
      {"transformer_engine/['moe_router', 'moe_preprocess']", "moe_router,moe_preprocess"},
      {"transformer_engine/['attn', 'moe']", "attn,moe"},
      {"transformer_engine/None", "attn,mlp"}};
  std::vector<json> rows;
  for (const auto& recipe : recipes) {
    rows.push_back(row());
    rows.back()["notes"] = "Recipe X: cuda_graph=" + recipe.first + ", dispatcher=None.";
  }
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read(rows, mistakes);
  ASSERT_EQ(runs.size(), recipes.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(text_of(runs[i].spec, "host/cuda_graphs"), recipes[i].second) << recipes[i].first;
  }
}

TEST(RunCollection, WordsOfTheNotesHoldUnlessAKeySaysOtherwise) {
  json words = row();
  words["notes"] = "Megatron-Core, no TP overlap, no grad-reduce overlap.";
  json key = words;
  key["parallel"]["blocking_tp"] = false;
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({words, key}, mistakes);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(text_of(runs[0].spec, "plan/blocking_tp"), "reductions");
  EXPECT_EQ(text_of(runs[0].spec, "plan/overlap_grad_reduce"), "off");
  EXPECT_EQ(text_of(runs[1].spec, "plan/blocking_tp"), "off");
}

TEST(RunCollection, OverlapThatARowNamesIsOn) {
  json given = row();
  given["notes"] = "Micro-batch not printed; DP overlap, TP overlap and PP overlap on.";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read(json::array({given}), mistakes);
  ASSERT_EQ(runs.size(), 1u);
  for (const char* field :
       {"plan/overlap_grad_reduce", "plan/overlap_param_gather", "plan/overlap_tp", "plan/overlap_p2p"}) {
    EXPECT_EQ(text_of(runs[0].spec, field), "on") << field;
  }
}

// Eight sequences a replica on four stages of two layers: one pass of all has the longest bubble, and the interleaved
// schedule wants as many passes as stages. The plans that the forecast cannot tell from the fastest are as likely as
// each other.
TEST(RunCollection, WhatARowDoesNotTellIsTheMiddleOfTheFastest) {
  json untold = row();
  untold["model"]["layers"] = 8;
  untold["micro_batch"] = nullptr;
  untold["parallel"] = {{"tp", 1}, {"pp", 4}, {"dp", 2}, {"vpp", "unstated"}};
  untold["norm"]["schedule"] = "interleaved";
  untold["norm"]["recompute"] = "unknown";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read(json::array({untold}), mistakes);
  ASSERT_EQ(runs.size(), 1u) << (mistakes.empty() ? "" : to_text(mistakes[0]));
  EXPECT_EQ(text_of(runs[0].spec, "plan/recompute"), "not set");
  const auto predicted = [&](std::int64_t micro, std::int64_t chunks) {
    CollectedRun run = runs[0];
    run.spec.set("training/micro_batch", micro).set("plan/vpp", chunks);
    const Scenario scenario = *scenario_of(run, Catalog::built_in());
    return predict(scenario, *Session::make(scenario));
  };
  const auto chosen = predicted(std::stoll(text_of(runs[0].spec, "training/micro_batch")),
                                std::stoll(text_of(runs[0].spec, "plan/vpp")));
  ASSERT_TRUE(chosen);
  std::vector<Prediction> all;
  for (const std::int64_t micro : {1, 2, 4, 8}) {
    for (const std::int64_t chunks : {1, 2}) {
      if (auto each = predicted(micro, chunks)) all.push_back(*std::move(each));
    }
  }
  std::ranges::sort(all, {}, &Prediction::step);
  const Scenario scenario = *scenario_of(runs[0], Catalog::built_in());
  const auto as_fast = std::ranges::count_if(
      all, [&](const Prediction& each) { return step_difference(scenario, all.front(), each).low <= Seconds(); });
  ASSERT_GT(as_fast, 2);
  ASSERT_LT(as_fast, std::ssize(all)) << "one pass of all";
  const auto faster = std::ranges::count_if(all, [&](const Prediction& each) { return each.step < chosen->step; });
  EXPECT_EQ(faster, (as_fast - 1) / 2);
}

TEST(RunCollection, RowsThatAreNotRecommendedAreReadWhereTheyAreWanted) {
  json other = row();
  other["recommended"] = false;
  other["config_key"] = "b";
  const ScratchFolder folder;
  const auto file = written(folder, {row(), other, other});
  for (const auto& [rows, count] :
       {std::pair(RunRows::kRecommended, 1u), std::pair(RunRows::kOther, 2u), std::pair(RunRows::kAll, 3u)}) {
    RunSuiteOptions options;
    options.rows = rows;
    EXPECT_EQ(check_run_collection(file, Catalog::built_in(), options)->rows, count);
  }
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
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| 0.060 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| 0.050 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| A paper | 2 |"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| all | 3 |"));
  EXPECT_THAT(
      to_markdown(*suite),
      HasSubstr("### Each publication one vote\n\n| publications | mean % | bias % |\n|---:|---:|---:|\n| 2 | "));
  // ZeRO 3 and ZeRO 1 of the same work; measured at 0.05 s and 0.06 s.
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| A paper | 1 |"));
  // None of them is too large for its GPU.
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| A paper | 2 | 0 | "));
  other["micro_batch"] = 512;
  other["global_batch"] = 8 * 512;
  const auto large = check_run_collection(written(folder, json::array({other})), Catalog::standard());
  ASSERT_TRUE(large) << to_text(large.error());
  EXPECT_THAT(to_markdown(*large), HasSubstr("| Another paper | 1 | 1 |"));
}

// What another tool forecasts of a run stands beside ours.
TEST(RunCollection, OtherToolsAreJudgedOnTheSameRuns) {
  json first = row(), second = row();
  second["config_key"] = "b";
  first["peer_prediction"] = {{"tool", "Another tool"}, {"iteration_time_s", 0.06}, {"memory_gib", 8}};
  first["measured"]["memory_gib_per_gpu"] = 10;
  const ScratchFolder folder;
  const auto suite = check_run_collection(written(folder, {first, second}), Catalog::standard());
  ASSERT_TRUE(suite) << to_text(suite.error());
  const std::string text = to_markdown(*suite);
  // 0.06 s of 0.05 s, 8 GiB of 10 GiB.
  EXPECT_THAT(text, HasSubstr("| Another tool | 1 | 20.0 | 20.0 | +20.0 | "));
  EXPECT_THAT(text, HasSubstr(" | 20.0 | "));
  const auto without = check_run_collection(written(folder, json::array({second})), Catalog::standard());
  ASSERT_TRUE(without);
  EXPECT_THAT(to_markdown(*without), Not(HasSubstr("Other tools")));
}

// Rows whose publication is not asked for are left out, and the corrections of a machine change its forecasts.
TEST(RunCollection, PublicationsAreChosenAndForecastWithCorrectionsOfTheirMachine) {
  json other = row();
  other["config_key"] = "b";
  other["source"]["title"] = "Another work";
  const ScratchFolder folder;
  const std::filesystem::path file = written(folder, {row(), other});
  RunSuiteOptions options;
  options.titles = {"Another"};
  const auto one = check_run_collection(file, Catalog::standard(), options);
  ASSERT_TRUE(one) << to_text(one.error());
  EXPECT_THAT(to_markdown(*one), HasSubstr("| Another work | 1 |"));
  EXPECT_THAT(to_markdown(*one), Not(HasSubstr("| A paper |")));

  // All products take 1.5 times as long: e^0.405. The covariance of one place with itself is 0.0625.
  KernelCalibration slow{"a100-sxm-80gb", Mode::kSustained, {FamilyCalibration{}}};
  slow.families[0].family = "gemm";
  for (int i = -5; i <= 5; ++i) slow.families[0].points.push_back({double(i), 1, 0.405 / 0.0625});
  const std::filesystem::path calibration = folder.path() / "slow.json";
  std::ofstream(calibration) << to_json(slow);
  const auto forecast = [](const SuiteReport& suite) {
    const json report = json::parse(to_json(std::span(&suite, 1)));
    const json& run = report["suites"][0]["tables"][0]["rows"][0];
    EXPECT_EQ(run["run"], "small-1");
    return run["forecast_s"].get<double>();
  };
  options.with.set("kernels/calibration", calibration.string());
  const auto slower = check_run_collection(file, Catalog::standard(), options);
  ASSERT_TRUE(slower) << to_text(slower.error());
  EXPECT_GT(forecast(*slower), 1.05 * forecast(*one));
}

// Two plans of one model are a pair; a model with other heads is another one, whose pairs stand in columns of their
// own.
TEST(RunCollection, PairsOfPlansAreOfOneModel) {
  json repeated = row(), heads = row();
  repeated["norm"]["recompute"] = "full";
  repeated["config_key"] = "b";
  repeated["norm"]["step_time_s"] = 10;
  heads["model"]["heads"] = heads["model"]["kv_heads"] = 8;
  heads["model"]["head_dim"] = 128;
  heads["config_key"] = "c";
  heads["norm"]["step_time_s"] = 1;
  const ScratchFolder folder;
  const auto ranked = [&] {
    const auto suite = check_run_collection(written(folder, {row(), repeated, heads}), Catalog::standard());
    return suite ? to_markdown(*suite) : to_text(suite.error());
  };
  // Recomputation is forecast to be slower, but not by ten seconds.
  EXPECT_THAT(ranked(), HasSubstr("| all | 1 | 1 | 100 | 0 | 3 | "));
  std::vector<Error> mistakes;
  const CollectedRun own = read(json::array({row()}), mistakes).front(),
                     other = read(json::array({repeated}), mistakes).front();
  const auto step = [](const CollectedRun& run) {
    const Scenario scenario = *scenario_of(run, Catalog::standard());
    return *step_time(scenario, *Session::make(scenario)) / units::s;
  };
  repeated["norm"]["step_time_s"] = 0.05 + step(other) - step(own);
  ASSERT_GT(step(other) / step(own), 1.1);
  EXPECT_THAT(ranked(), HasSubstr("| all | 1 | 1 | 100 | 100 | 3 | "));
  // A plan of another framework differs in more than the plan.
  repeated["notes"] = "run with DeepSpeed";
  EXPECT_THAT(ranked(), HasSubstr("| all | 0 | 0 | 0 | 0 | 1 | "));
}

// Rows do not tell dropout: it is that of the catalog's models of the same family, else that of GPT or Llama.
TEST(RunCollection, DropoutIsThatOfTheFamily) {
  json mpt = row(), gpt = row();
  mpt["model"]["name"] = "MPT 13b";
  for (json* each : {&mpt, &gpt}) {
    (*each)["model"]["gated_mlp"] = false;
    (*each)["model"]["kv_heads"] = (*each)["model"]["heads"];
  }
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({mpt, gpt}, mistakes);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_FALSE(runs[0].model.dropout);
  EXPECT_TRUE(runs[0].model.bias);
  EXPECT_TRUE(runs[1].model.dropout);
}

// A row without a step may tell the FLOP that each GPU does: the step at which the model's FLOP take that long, with
// half of the attention's where the row counts a causal mask. What counts recomputation, too, is no measurement of a
// step.
TEST(RunCollection, ARateStandsForTheStep) {
  json full = row(), causal = row(), hardware = row();
  for (json* each : {&full, &causal, &hardware}) (*each)["norm"].erase("step_time_s");
  full["measured"] = {{"tflops_per_gpu", 100}, {"tflops_kind", "model (attention counting convention not stated)"}};
  causal["measured"] = {{"tflops_per_gpu", 100}, {"tflops_kind", "model (causal attention)"}};
  hardware["measured"] = {{"tflops_per_gpu", 100}, {"tflops_kind", "model+recompute as printed"}};
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({full, causal, hardware}, mistakes);
  ASSERT_EQ(runs.size(), 2u);
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_THAT(to_text(mistakes[0]), HasSubstr("step_time_s"));
  // 16 sequences of 1,024: 6 FLOP for each of 12 x 4 x 1,024^2 weights of layers and 51,200 x 1,024 of logits, and 12 x
  // 4 layers x 1,024 x 1,024 for scores and their use, of which a causal mask leaves half.
  const double tokens = 16 * 1024, weights = 12.0 * 4 * 1024 * 1024 + 51200.0 * 1024, scores = 12.0 * 4 * 1024 * 1024;
  EXPECT_NEAR(runs[0].measured / units::s, tokens * (6 * weights + scores) / 8 / 100e12, 1e-6);
  EXPECT_NEAR(runs[1].measured / units::s, tokens * (6 * weights + scores / 2) / 8 / 100e12, 1e-5);
}

TEST(RunCollection, ShardsInANodeSchedulesAndNotesAreRead) {
  json shards = row(), dualpipe = row(), uneven = row();
  uneven["model"]["layers"] = 7;
  uneven["parallel"] = {{"tp", 1}, {"pp", 4}, {"dp", 2}, {"vpp", 1}};
  uneven["notes"] = "with MTP";
  shards["parallel"]["zero_stage"] = "HSDP (shard in node, replicate across)";
  shards["notes"] = "torch.compile; CPU-offloaded AdamW";
  dualpipe["norm"]["schedule"] = "dualpipe";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({shards, dualpipe, uneven}, mistakes);
  ASSERT_EQ(runs.size(), 3u) << (mistakes.empty() ? "" : to_text(mistakes[0]));
  EXPECT_EQ(text_of(runs[0].spec, "plan/zero"), "3");
  EXPECT_EQ(text_of(runs[0].spec, "plan/shard"), "8");
  EXPECT_EQ(text_of(runs[0].spec, "plan/norm_library"), "compiled");
  EXPECT_EQ(text_of(runs[0].spec, "plan/offload_optimizer"), "1");
  EXPECT_EQ(text_of(runs[1].spec, "plan/vpp"), "not set") << "DualPipe has chunks of its own";
  EXPECT_EQ(text_of(runs[2].spec, "plan/last_stage_layers"), "1") << "7 = 3 x 2 + 1";
  EXPECT_EQ(text_of(runs[2].spec, "training/mtp"), "on");
  EXPECT_EQ(runs[2].model.prediction_layers, 1);
}

// Gradients that a row adds up in fp32 are added by kernels of their own where the framework does not fuse them.
TEST(RunCollection, GradientsAreAddedUpInFp32WhereARowTellsIt) {
  json deepspeed = row(), megatron = row(), low = row(), bridge = row();
  deepspeed["source"]["title"] = "A Megatron-DeepSpeed paper";
  low["source"]["title"] = deepspeed["source"]["title"];
  megatron["source"]["title"] = "A Megatron-LM README";
  bridge["source"]["title"] = "A Megatron-Bridge table";
  for (json* each : {&deepspeed, &megatron, &bridge}) (*each)["precision"] = "bf16 (params) + fp32 grad accumulation";
  low["precision"] = "bf16";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({deepspeed, megatron, low, bridge}, mistakes);
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(text_of(runs[0].spec, "framework"), "megatron-deepspeed");
  EXPECT_EQ(text_of(runs[0].spec, "plan/grad_accumulation"), "fp32");
  EXPECT_EQ(text_of(runs[1].spec, "plan/grad_accumulation"), "not set");
  EXPECT_EQ(text_of(runs[2].spec, "plan/grad_accumulation"), "not set");
  EXPECT_EQ(text_of(runs[3].spec, "plan/grad_accumulation"), "fused");
}

// Modules that a recipe names are those of the plan; a row with a module that is not known has what its norm says.
TEST(RunCollection, RecomputedModulesAreThoseOfTheRow) {
  json named = row(), unknown = row(), none = row();
  named["recompute"] = "modules:layernorm,moe_act";
  unknown["recompute"] = "modules:layernorm,sieve";
  none["recompute"] = "modules:";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({named, unknown, none}, mistakes);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(text_of(runs[0].spec, "plan/recompute"), "selective:layernorm,moe_act");
  EXPECT_EQ(text_of(runs[1].spec, "plan/recompute"), "selective");
  EXPECT_EQ(text_of(runs[2].spec, "plan/recompute"), "selective");
}

// What a model, a cluster and a plan say beyond the plain row: each field is set, or left to the framework.
TEST(RunCollection, ExpertsLatentAttentionAndLinksAreRead) {
  json moe = row();
  moe["model"].update(
      {{"attention", "MLA"}, {"kv_lora_rank", 512}, {"qk_rope_head_dim", 32}, {"q_lora_rank", nullptr}});
  moe["model"].update({{"n_experts", 8}, {"topk", 2}, {"moe_ffn_hidden", 512}, {"shared_experts", 1}});
  moe["intra_node_link"] = "NVLink3 600 GB/s bidir (4 NVLinks per pair) + NVSwitch";
  moe["gpus_per_node"] = 4;
  moe["norm"]["inter_gbs_per_gpu"] = 25.0;
  moe["measured"] = {{"memory_gb_per_gpu", 12.5}, {"memory_kind", "nvidia-smi"}};
  json uneven = row();  // 4 layers with embedding and loss: six positions of two stages with three chunks
  uneven["parallel"].update({{"pp", 2}, {"vpp", 3}, {"dp", 2}});
  uneven["norm"]["schedule"] = "interleaved";
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read({moe, uneven}, mistakes);
  ASSERT_TRUE(mistakes.empty()) << to_text(mistakes[0]);
  ASSERT_EQ(runs.size(), 2u);
  ASSERT_TRUE(runs[0].model.mla && runs[0].model.moe);
  EXPECT_EQ(runs[0].model.mla->kv_rank, 512);
  EXPECT_EQ(runs[0].model.mla->v_head_dim, 64);
  EXPECT_EQ(runs[0].model.moe->experts, 8);
  EXPECT_EQ(runs[0].model.moe->shared_expert_ffn, 512);
  EXPECT_EQ(text_of(runs[0].spec, "machine/intra_bandwidth"), "100 GB/s");  // 4 links of 25 GB/s in one direction
  EXPECT_EQ(text_of(runs[0].spec, "machine/inter_bandwidth"), "25 GB/s");
  EXPECT_EQ(runs[0].memory, 12.5 * units::GB);
  EXPECT_EQ(runs[0].memory_kind, "nvidia-smi");
  EXPECT_EQ(text_of(runs[1].spec, "plan/account_embedding"), "on");
  EXPECT_EQ(text_of(runs[1].spec, "plan/schedule"), "interleaved");
  EXPECT_EQ(text_of(runs[1].spec, "machine/intra_bandwidth"), "not set");
  EXPECT_FALSE(runs[1].memory > Bytes());
}

// No degree is divided by that a row does not give; where no row can be forecast, no table is shown.
TEST(RunCollection, RowsWithoutDegreesAreNamed) {
  const ScratchFolder folder;
  json rows = json::array();
  for (const char* degree : {"tp", "pp", "dp"}) {
    rows.push_back(row());
    rows.back()["parallel"].erase(degree);
    rows.push_back(row());
    rows.back()["parallel"][degree] = 0;
  }
  const auto suite = check_run_collection(written(folder, rows), Catalog::built_in(), {}, nullptr);
  ASSERT_TRUE(suite);
  EXPECT_EQ(suite->mistakes.size(), 6u);
  EXPECT_EQ(to_markdown(*suite), "No run could be forecast.\n");
}

TEST(RunCollection, ASweepIsReadRowByRow) {
  const json sweep = json::parse(R"json({"source": "A sweep", "gpu": "A100-SXM4 (80GB not stated)", "gpus_per_node": 8,
    "common": {"framework": "Megatron-LM", "precision": "fp16 mixed", "schedule": "1f1b", "recompute": "full",
               "gated_mlp": false, "vocab": 51200, "flash_attention": false},
    "rows": [{"layers": 4, "hidden": 1024, "heads": 16, "seq": 1024, "n_gpus": 4, "mbs": 2, "gbs": 16, "tp": 2,
              "pp": 2, "dp": 1, "iteration_time_s": 0.25},
             {"layers": 4, "hidden": 1024, "heads": 0, "seq": 1024, "n_gpus": 4, "mbs": 2, "gbs": 16, "tp": 2,
              "pp": 2, "dp": 1, "iteration_time_s": 0.25}, 7]})json");
  std::vector<Error> mistakes;
  const std::vector<CollectedRun> runs = read(sweep, mistakes);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(mistakes.size(), 2u);  // no heads; not an object
  EXPECT_EQ(runs[0].publication, "A sweep");
  EXPECT_EQ(runs[0].model.head_dim, 64);
  EXPECT_EQ(runs[0].model.ffn, 4096);
  EXPECT_EQ(text_of(runs[0].spec, "machine/gpu"), "a100-sxm");
  EXPECT_EQ(text_of(runs[0].spec, "training/dtype"), "fp16");
  EXPECT_EQ(text_of(runs[0].spec, "plan/recompute"), "full");
  EXPECT_EQ(text_of(runs[0].spec, "framework"), "megatron-core");
  EXPECT_DOUBLE_EQ(runs[0].measured / units::s, 0.25);
}

TEST(RunCollection, OtherFilesAreRefused) {
  const ScratchFolder folder;
  std::vector<Error> mistakes;
  const auto runs = read_run_collection(written(folder, {{"rows", 3}}), Catalog::built_in(), mistakes);
  ASSERT_FALSE(runs);
  EXPECT_THAT(to_text(runs.error()), HasSubstr("an array of published runs, or a sweep with its rows"));
}

// Sixteen microbatches of one sequence on eight-fold tensor parallelism are bound by launches; one microbatch of all
// sixteen is not. The search is asked once a work, about the plan that was measured to be fastest.
TEST(CheckPlans, TheFastestPublishedPlanStandsBesideTheBestFound) {
  json slow = row(), fast = row(), other = row(), unknown = row();
  slow["parallel"].update({{"tp", 8}, {"dp", 1}});
  slow["norm"]["step_time_s"] = 0.5;
  fast["id"] = "small-2";
  fast["parallel"].update({{"tp", 8}, {"dp", 1}, {"sp", false}});
  fast["micro_batch"] = 16;
  fast["norm"]["recompute"] = "none";
  other["source"]["title"] = "Another paper";
  other["id"] = "small-3";
  other["parallel"].update({{"tp", 8}, {"dp", 1}});
  unknown["norm"]["gpu"] = "abacus";
  const ScratchFolder folder;
  const auto path = written(folder, {slow, fast, other, unknown});
  const auto suite = check_plans(path, Catalog::standard(), {}, 1, {});
  ASSERT_TRUE(suite) << to_text(suite.error());
  EXPECT_EQ(suite->rows, 3u);  // works
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| small-2 | 8 |"));
  EXPECT_THAT(to_markdown(*suite), Not(HasSubstr("| small-1 | 8 |")));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| all | 2 | 1 | 2 | 0 |\n"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| A paper | 1 | 1 | 1 | 0 |\n"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("| Another paper | 1 | 0 | 1 | 0 |\n"));
  EXPECT_THAT(to_markdown(*suite), HasSubstr("### Not forecast\n\n| rows | why |\n|---:|---|\n| 1 | "));

  const std::string only[] = {"Another"};
  double done = 0;
  const auto one = check_plans(path, Catalog::standard(), only, 1, [&](double share) { done = share; });
  ASSERT_TRUE(one) << to_text(one.error());
  EXPECT_EQ(one->rows, 1u);
  EXPECT_THAT(to_markdown(*one), Not(HasSubstr("small-2")));
  EXPECT_EQ(done, 1);

  const CommandResult told =
      run_command("ns-dist validate --suite plans --data . --publication Another", folder.path());
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("| Another paper | 1 | 0 | 1 | 0 |\n"));
  EXPECT_EQ(told.err, "ns-dist: suite plans takes up to a minute for each published plan, which a search looks for\n");
}

TEST(ValidateRuns, EveryCollectionOfAFolderIsAsked) {
  const ScratchFolder folder;
  written(folder, json::array({row()}));
  std::filesystem::rename(folder.path() / "runs.json", folder.path() / "first.json");
  json broken = row();
  broken.erase("micro_batch");
  written(folder, {row(), broken});
  const CommandResult told = run_command("ns-dist validate --suite runs --data .", folder.path());
  EXPECT_EQ(told.code, 1);  // a row has a mistake; the others are answered
  EXPECT_THAT(told.out, HasSubstr("# first.json\n"));
  EXPECT_THAT(told.out, HasSubstr("\n# runs.json\n"));
  EXPECT_THAT(told.err, HasSubstr("key \"micro_batch\" is missing"));
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
  // One that no GPU can do is refused, and changes nothing of the others.
  const PublishedRuns with_another{"paper", "Paper", "", {run("short", 1), run("impossible", 0.01), run("long", 3)}};
  const auto others = check_runs({&with_another, 1}, Catalog::standard());
  ASSERT_TRUE(others) << to_text(others.error());
  EXPECT_THAT(others->at(1).unsupported, HasSubstr("at the GPUs' peak"));
  for (const std::size_t i : {0U, 2U}) EXPECT_NEAR(others->at(i).baseline / units::s, 1.5, 1e-12);
}

// A rate stands for the step in which all GPUs do the batch's tokens.
TEST(CheckRuns, ARateIsAStep) {
  PublishedRun run{"a", "", "gpt3-1.3b", "dgx-h100", {{"plan/dp", "8"}, {"training/global_batch", "64"}}, {}};
  run.tokens_per_s_per_gpu = 2048;
  const PublishedRuns runs{"paper", "Paper", "", {run}};
  const auto checks = check_runs({&runs, 1}, Catalog::standard());
  ASSERT_TRUE(checks) << to_text(checks.error());
  EXPECT_NEAR(checks->front().measured / units::s, 64.0 / 8, 1e-12);  // sequences of 2,048 tokens
}

// A run that cannot be forecast is a mistake of its file, so that the command does not end as if all were well.
TEST(CheckRuns, ARunWithoutAForecastIsAMistake) {
  const auto run = [](const char* batch) {
    return PublishedRun{batch,       "", "gpt3-1.3b", "dgx-h100", {{"plan/dp", "8"}, {"training/global_batch", batch}},
                        1 * units::s};
  };
  const PublishedRuns runs{"paper", "Paper", "", {run("64"), run("65")}};
  const auto checks = check_runs({&runs, 1}, Catalog::standard());
  ASSERT_TRUE(checks) << to_text(checks.error());
  const SuiteReport report = report_of(*checks);
  EXPECT_EQ(report.rows, 2u);
  ASSERT_EQ(report.mistakes.size(), 1u);
  EXPECT_EQ(report.mistakes[0].where, "paper: 65");
  EXPECT_THAT(report.mistakes[0].message, HasSubstr("use training/global_batch=64"));
}

// Who wrote the file knows its keys, not the fields of a scenario.
TEST(CheckRuns, MistakesNameTheRunInItsFile) {
  const auto mistake_of = [](const char* model, std::vector<Assignment> set) {
    const PublishedRun run{"a", "", model, "dgx-h100", std::move(set), 1 * units::s, "paper.json#/runs/3"};
    const PublishedRuns runs{"paper", "Paper", "", {run}};
    const auto checks = check_runs({&runs, 1}, Catalog::standard());
    return checks ? "none" : to_text(checks.error());
  };
  EXPECT_THAT(mistake_of("gpt3-1.4b", {}), HasSubstr("paper.json#/runs/3/model: unknown model \"gpt3-1.4b\""));
  EXPECT_THAT(mistake_of("gpt3-1.3b", {{"plan/tp", "x"}}), HasSubstr("paper.json#/runs/3/tp: "));
  // A file that the run names has a place of its own.
  const ScratchFolder folder;
  const std::string path = (folder.path() / "model.json").string();
  std::ofstream(path) << "{}";
  EXPECT_THAT(mistake_of(path.c_str(), {}), ::testing::StartsWith(path + "#"));
}

}  // namespace
}  // namespace ns_dist
