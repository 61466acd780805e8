// What the interface promises of the binary's answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/answered.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::ptrdiff_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Answers, SimulateIsTheDefaultCommand) {
  const std::string job = "--tp 8 --pp 16 --dp 8";
  EXPECT_EQ(answered(job).out, answered("simulate " + job).out);
}

TEST(Answers, TheSummaryFitsFortyLines) {
  for (const char* job :
       {"--tp 8 --pp 16 --dp 8", "--tp 8 --pp 4 --dp 2 --recompute full --vpp 3 --flash-attention off",
        "--model llama2-70b --gpu a100 --tp 16 --pp 3 --nodes 6", "",
        // Many parts of the step, no memory and many warnings.
        "--model deepseek-v3 --gpu h800 --nodes 256 --ep 64 --pp 16",
        "--tp 8 --pp 16 --dp 8 --what-if 'inter-bandwidth x2, memory-bandwidth x1.5'",
        "--model deepseek-v3 --gpu h800 --tp 2 --cp 2 --pp 16 --dp 32 --etp 1 --ep 64 --recompute selective "
        "--schedule dualpipe --global-batch 1536"}) {
    const CommandResult result = answered(job);
    EXPECT_LE(lines_of(result.out), 40) << job;
    EXPECT_THAT(result.out, Not(HasSubstr("\033"))) << "colors in a pipe";
    for (const char* word : {"step time", "90 % interval", "tokens/s", "MFU", "memory", "Where the time goes"}) {
      EXPECT_THAT(result.out, HasSubstr(word)) << job;
    }
  }
}

// More than the GPU holds in nvidia-smi: the line of the memory says so, as the lines of a search do.
TEST(Answers, APlanThatFillsTheMemoryMayRunOut) {
  const std::string job = "--model llama3-70b --gpu mi300x --tp 8 --global-batch 8 --dtype mxfp8";
  const json memory = json::parse(answered(job + " --json").out)["memory"];
  ASSERT_TRUE(memory["fits"]);
  ASSERT_GT(memory["device_bytes"], memory["capacity_bytes"]);
  EXPECT_THAT(answered(job).out, HasSubstr(": fits, tight: may run out (reserved"));
  EXPECT_THAT(answered("--tp 8 --pp 16 --dp 8").out, HasSubstr(": fits (reserved"));
}

// The links of a GPU's own file are those that its collectives use.
TEST(Answers, AGpuWithSlowerLinksTakesLonger) {
  const ScratchFolder folder;
  std::string text = read_text(std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs/gpus/h100-sxm-80gb.json");
  const std::size_t at = text.find("450 GB/s");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(folder.path() / "slow.json") << text.replace(at, 8, "225 GB/s");
  const auto step = [&](const std::string& flags) -> double {
    return json::parse(answered("--tp 8 --global-batch 8 --json " + flags, folder.path()).out)["step_time_s"];
  };
  const double slow = step("--gpu slow.json");
  EXPECT_GT(slow, step("--gpu h100"));
  EXPECT_NEAR(slow / step("--gpu h100 --intra-bandwidth '225 GB/s'"), 1, 0.02);
  EXPECT_LT(step("--gpu slow.json --intra-bandwidth '900 GB/s'"), slow);
}

// A collective on another GPU's machine has the links of that machine, and says so as simulate does.
TEST(Answers, CollectivesWarnOfTheLinksOfAnotherGpu) {
  constexpr const char* kWarning =
      "ns-dist: warning: b200-sxm has the links of dgx-h100, which is a machine of h100-sxm-80gb: --cluster hgx-b200 "
      "has its own\n";
  const ScratchFolder folder;
  std::ofstream(folder.path() / "rows.csv") << "collective,ranks,gpus_per_node,bytes\nall_reduce,8,8,67108864\n";
  std::ofstream(folder.path() / "named.csv")
      << "gpu,cluster,collective,ranks,gpus_per_node,bytes\nb200,dgx-h100,all_reduce,8,8,67108864\n"
         "b200,dgx-h100,all_reduce,4,4,67108864\nh100,dgx-h100,all_reduce,8,8,67108864\n";
  const auto asked = [&](const std::string& question) { return run_command("ns-dist " + question, folder.path()); };
  const auto forecast = [&](const std::string& flags) {
    const std::string text = asked("collectives --input rows.csv " + flags).out;
    return text.substr(text.rfind("67108864,"));
  };
  EXPECT_EQ(asked("explain all_reduce 64MiB --cluster dgx-h100 --gpu b200").err, kWarning);
  EXPECT_THAT(asked("explain all_reduce 64MiB --cluster dgx-h100 --gpu b200").out, HasSubstr("b200-sxm"));
  EXPECT_EQ(asked("explain all_reduce 64MiB --cluster dgx-h100 --gpu h100").err, "");
  EXPECT_EQ(asked("explain all_reduce 64MiB --cluster dgx-h100").out,
            asked("explain all_reduce 64MiB --cluster dgx-h100 --gpu h100").out);
  EXPECT_EQ(asked("collectives --input rows.csv --cluster dgx-h100 --gpu b200").err, kWarning);
  EXPECT_EQ(asked("collectives --input named.csv").err, kWarning) << "once for each machine";
  EXPECT_NE(forecast("--cluster dgx-h100 --gpu b200"), forecast("--gpu b200"));
  EXPECT_EQ(forecast("--cluster dgx-h100 --gpu h100"), forecast("--cluster dgx-h100"));
  EXPECT_EQ(asked("collectives --input rows.csv --cluster dgx-h10 --gpu h100").code, 1);
}

// What is added to kernels is shown where it counts.
TEST(Answers, ExplainsAStep) {
  const CommandResult result = answered("explain step --tp 8 --pp 16 --dp 8");
  for (const char* word : {"clock under load", "slowest GPU", "of 1,024", "host launches", "105 us each",
                           "interval, rest", "dense models", "mlp.fc1.wgrad"}) {
    EXPECT_THAT(result.out, HasSubstr(word));
  }
  EXPECT_THAT(answered("--tp 8 --pp 16 --dp 8").out, HasSubstr("of it unequal stages"));
  // Whatever is extrapolated is marked, and the warning counts the same.
  double share = 0;
  const json report = json::parse(answered("--tp 8 --pp 16 --dp 8 --json").out);
  for (const json& entry : report["critical_path"]) {
    const std::string name = entry["name"];
    if (!entry["extrapolated"]) continue;
    share += entry["seconds"].get<double>();
    EXPECT_THAT(result.out, ContainsRegex("  " + name + " [^\n]*, extrapolated\n"));
  }
  EXPECT_GT(share, 0);
  const std::string experts = "--model mixtral-8x7b --gpu h100 --dp 8 --ep 8 --seq 4096 --recompute full";
  EXPECT_THAT(answered("explain step " + experts + " --expert-imbalance 2").out,
              AllOf(HasSubstr("busiest experts"), HasSubstr("2 times the mean's tokens")));
  EXPECT_THAT(answered("explain step " + experts).out, Not(HasSubstr("busiest experts")));
  EXPECT_THAT(answered(experts + " --expert-imbalance 1.5").out,
              HasSubstr("busiest rank of experts 1.5 times the mean"));
}

TEST(Answers, HelpFitsAScreenAndHasThreeLinesToCopy) {
  const CommandResult help = answered("--help");
  EXPECT_LE(lines_of(help.out), 40);
  int copied = 0;
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    if (line.rfind("  ns-dist ", 0) != 0) continue;
    answered(line.substr(10));
    ++copied;
  }
  EXPECT_EQ(copied, 3);
  for (const char* command : {"simulate", "export", "explain", "list", "version"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    EXPECT_THAT(answered(std::string(command) + " --help").out,
                AllOf(HasSubstr("--help"), HasSubstr("\nUsage: ns-dist " + std::string(command) + " [FLAGS]")));
  }
}

TEST(Answers, JsonIsOneObjectWithEveryPromisedField) {
  const json report = json::parse(answered("--tp 8 --pp 16 --json").out);
  for (const char* key : {"schema", "version", "provenance", "inputs", "step_time_s", "step_time_low_s",
                          "step_time_high_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
                          "hfu", "memory", "breakdown_s", "critical_path", "warnings"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  double sum = 0;
  for (const auto& [name, seconds] : report["breakdown_s"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum / report["step_time_s"].get<double>(), 1, 1e-9);
  EXPECT_EQ(report["breakdown_s"].size(), 10u);
  EXPECT_GE(report["provenance"]["inputs"].size(), 3u);
}

// What people read of these commands, a program reads too, and nothing else is on standard output.
TEST(Answers, CommandsBesideSimulateHaveJsonToo) {
  const json version = json::parse(answered("version --json").out);
  EXPECT_THAT(answered("version").out, HasSubstr(version["version"].get<std::string>()));

  const json suites = json::parse(answered("validate --runs korthikanti-2022 --json").out)["suites"];
  ASSERT_EQ(suites.size(), 1u);
  EXPECT_EQ(suites[0]["rows"], 9);
  const json& runs = suites[0]["tables"][0]["rows"];
  ASSERT_EQ(runs.size(), 9u);
  double mean = 0;
  for (const json& run : runs) {
    EXPECT_NEAR(run["error"].get<double>(), run["forecast_s"].get<double>() / run["measured_s"].get<double>() - 1,
                1e-9);
    mean += std::abs(run["error"].get<double>()) / 9;
  }
  EXPECT_NEAR(suites[0]["tables"][1]["rows"][0]["mean"].get<double>(), mean, 1e-9);

  const ScratchFolder folder;
  const json traces = json::parse(
      answered("export --model gpt3-125m --dp 2 --global-batch 2 --json --output " + (folder.path() / "t").string())
          .out);
  EXPECT_EQ(traces["ranks"], 2);
  EXPECT_EQ(traces, json::parse(read_text(folder.path() / "t/manifest.json")));

  const auto next = folder.path() / "next.csv";
  const json advice = json::parse(answered("calibrate --gpu h100 --json --next " + next.string()).out);
  EXPECT_EQ(advice["gpu"], "h100-sxm-80gb");
  const std::string csv = read_text(next);
  EXPECT_EQ(advice["next"].size() + 1, static_cast<std::size_t>(std::count(csv.begin(), csv.end(), '\n')));
}

TEST(Answers, JsonNamesFlagsInTextsForPeople) {
  const json report = json::parse(run_command("ns-dist --tp 8 --pp 16 --dp 8 --schedule gpipe --json").out);
  std::vector<std::string> messages;
  for (const json& warning : report["warnings"]) messages.push_back(warning["message"]);
  EXPECT_THAT(messages, ::testing::Contains("megatron-core has no --schedule gpipe"));
}

TEST(Answers, ThePageOfKeysHasThemAll) {
  const std::string page = read_text(std::filesystem::path(NS_DIST_SOURCE_DIR) / "docs/output.md");
  const json report = json::parse(answered("--tp 8 --pp 16 --sensitivity --what-if 'flops x2' --json").out);
  const json found =
      json::parse(answered("search --model gpt2 --gpus 8 --global-batch 8 --tokens 1B --sensitivity --json").out);
  ASSERT_FALSE(found["plans"].empty());
  for (const json& object :
       {report, report["memory"], report["memory"]["per_stage"][0], report["energy"], found, found["plans"][0]}) {
    for (const auto& [key, value] : object.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  }
}

// Zero is not the default of a launch.
TEST(Answers, AReportKeepsALaunchThatCostsNothing) {
  const ScratchFolder folder;
  const std::string first =
      answered("--model gpt2 --tp 2 --dp 4 --global-batch 8 --launch-cost '0 us' --json", folder.path()).out;
  std::ofstream(folder.path() / "r.json") << first;
  const json again = json::parse(answered("--from r.json --json", folder.path()).out);
  EXPECT_EQ(again["step_time_s"], json::parse(first)["step_time_s"]);
}

TEST(Answers, AReportIsItsOwnRecipe) {
  const ScratchFolder folder;
  const std::string first = answered("--tp 4 --pp 4 --dp 2 --model llama2-13b --vpp 2 --json", folder.path()).out;
  run_command("ns-dist --tp 4 --pp 4 --dp 2 --model llama2-13b --vpp 2 --json > report.json", folder.path());
  EXPECT_EQ(answered("--from report.json --json", folder.path()).out, first);
  const json changed = json::parse(answered("--from report.json --recompute full --json", folder.path()).out);
  EXPECT_EQ(changed["inputs"]["plan"]["recompute"], "full");
  EXPECT_EQ(changed["inputs"]["plan"]["tp"], 4);
}

// However the folder of a Hugging Face file is called, the model has its name.
TEST(Answers, AFolderNamesItsModel) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "tiny-llama/inner");
  std::ofstream(folder.path() / "tiny-llama/config.json")
      << R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
             "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 1024})";
  for (const auto& [in, model] : {std::pair{".", "tiny-llama"},
                                  {".", "./tiny-llama/config.json"},
                                  {"tiny-llama", "."},
                                  {"tiny-llama", "config.json"},
                                  {"tiny-llama/inner", ".."}}) {
    const std::string out = answered(std::string("--global-batch 8 --json --model ") + model, folder.path() / in).out;
    EXPECT_EQ(json::parse(out)["inputs"]["model"]["id"], "tiny-llama") << in << ": " << model;
  }
}

// The summary says how much is recomputed.
TEST(Answers, WhichLayersAndModulesAreRecomputed) {
  for (const auto& [recompute, text] :
       {std::pair("selective:core_attn,mlp", ", selective recomputation of core_attn,mlp, "),
        std::pair("full", ", full recomputation, "),
        std::pair("full:1", ", full recomputation of 1 layer of each stage, "),
        std::pair("full:3 --vpp 2", ", full recomputation of 3 layers of each chunk, "),
        std::pair("full:uniform:2", ", full recomputation by 2 layers, ")}) {
    EXPECT_THAT(answered(std::string("--model gpt2 --pp 2 --dp 2 --global-batch 16 --recompute ") + recompute).out,
                HasSubstr(text));
  }
}

// Blanks around the commas of a list are no part of its values.
TEST(Answers, ListsMayHaveBlanks) {
  const std::string plan = "--model gpt2 --pp 2 --dp 2 --global-batch 16 --json ";
  EXPECT_EQ(
      answered(plan + "--overlap 'grad-reduce, p2p' --recompute 'selective:core_attn, mlp' --stage-speed '1, 0.9'").out,
      answered(plan + "--overlap grad-reduce,p2p --recompute selective:core_attn,mlp --stage-speed 1,0.9").out);
  const auto sizes = [](const std::string& gpus) {
    return json::parse(
        answered("search --model gpt2 --global-batch 64 --micro-batch 1 --schedule 1f1b --json --gpus " + gpus)
            .out)["table"];
  };
  EXPECT_EQ(sizes("'8, 16 .. 32'"), sizes("8,16..32"));
}

// Names are read without regard to case, and plans are compared by the names as they are listed.
TEST(Answers, NamesHaveAnyCase) {
  const std::string plan = "--model gpt2 --pp 4 --dp 2 --global-batch 16 --json ";
  EXPECT_EQ(answered(plan + "--schedule 1F1B --dtype BF16 --order TP-CP-DP-PP --algorithm Ring --zero 2 "
                            "--overlap Grad-Reduce --recompute FULL --flash-attention On --framework FSDP")
                .out,
            answered(plan + "--schedule 1f1b --dtype bf16 --order tp-cp-dp-pp --algorithm ring --zero 2 "
                            "--overlap grad-reduce --recompute full --flash-attention on --framework fsdp")
                .out);
  const auto plans = [](const std::string& schedules) {
    const std::string flags = "search --model gpt2 --gpus 8 --global-batch 64 --micro-batch 1 --json --schedule ";
    const json found = json::parse(answered(flags + schedules).out);
    return std::pair(found["space"].get<int>(), found["plans"][0]["command"].get<std::string>());
  };
  EXPECT_EQ(plans("1F1B,gpipe,1f1b"), plans("1f1b,gpipe"));
  EXPECT_EQ(answered("explain GEMM 4096x4096x8192 --layout NT --mode Sustained --pass FORWARD --gpu H100").out,
            answered("explain gemm 4096x4096x8192 --layout nt --mode sustained --pass forward --gpu h100").out);
}

// What was asked beside the work is asked again, with the prices of the time, where no flag says it otherwise.
TEST(Answers, AReportRepeatsItsQuestions) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "EUR", "gpu_hour": {"h100-sxm-80gb": 2}})";
  const std::string first =
      answered(
          "--model gpt2 --dp 8 --global-batch 64 --tokens 1T --prices prices.json --repair-time 1d "
          "--checkpoint-async --node-time-between-failures 90d --sensitivity --what-if 'hbm x2' --json",
          folder.path())
          .out;
  std::ofstream(folder.path() / "report.json") << first;
  std::filesystem::remove(folder.path() / "prices.json");
  EXPECT_EQ(answered("--from report.json --json", folder.path()).out, first);

  const std::string other = "--tokens 2T --time-between-failures 900d --what-if 'flops x2, hbm x3'";
  const json changed = json::parse(answered("--from report.json --json " + other, folder.path()).out);
  EXPECT_EQ(changed["training"]["tokens"], 2e12);
  EXPECT_EQ(changed["what_if"].size(), 3u);
  EXPECT_FALSE(changed["asked"].contains("node-time-between-failures")) << "a part of what a flag says as a whole";
  EXPECT_EQ(changed["asked"]["repair-time"], "1d");

  json edited = json::parse(first);
  edited["asked"]["tokens"] = 3;
  std::ofstream(folder.path() / "edited.json") << edited;
  const CommandResult refused = run_command("ns-dist --from edited.json", folder.path());
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("edited.json#/asked/tokens: 3 is no text; expected the text of a flag"));
}

// What flags beside --from change, told with an interval: of one machine narrow, of another one wide, for as many
// tokens.
TEST(Answers, AChangedReportIsComparedWithItsOwnPlan) {
  const ScratchFolder folder;
  const std::string work = "--tp 4 --pp 4 --dp 2 --model llama2-13b --global-batch 32";
  const json before = json::parse(answered(work + " --json", folder.path()).out);
  std::ofstream(folder.path() / "report.json") << before;
  const auto changed = [&](const std::string& flags) {
    return json::parse(answered("--from report.json --json " + flags, folder.path()).out);
  };
  EXPECT_FALSE(changed("").contains("against"));
  const auto width = [](const json& against) {
    return against["difference_high_s"].get<double>() - against["difference_low_s"].get<double>();
  };
  const json chunks = changed("--vpp 2"), &against = chunks["against"];
  EXPECT_EQ(against["report"], "report.json");
  EXPECT_EQ(against["step_time_s"], before["step_time_s"]);
  EXPECT_EQ(against["steps"], 1);
  EXPECT_NEAR(against["difference_s"].get<double>(),
              chunks["step_time_s"].get<double>() - before["step_time_s"].get<double>(), 1e-12);
  EXPECT_LT(width(against), chunks["step_time_high_s"].get<double>() - chunks["step_time_low_s"].get<double>());
  double parts = 0;
  for (const auto& [key, seconds] : against["difference_parts_s"].items()) {
    EXPECT_NEAR(seconds.get<double>(),
                chunks["breakdown_s"][key].get<double>() - before["breakdown_s"][key].get<double>(), 1e-12);
    parts += seconds.get<double>();
  }
  EXPECT_NEAR(parts, against["difference_s"].get<double>(), 1e-9);
  EXPECT_LT(against["difference_parts_s"]["bubble"], 0);
  EXPECT_THAT(answered("--from report.json --vpp 2", folder.path()).out, HasSubstr("its parts: pipeline bubble -"));

  // A second machine has errors of its own; a second network of one plan has only those of its collectives.
  EXPECT_GT(width(changed("--gpu a100")["against"]), 2 * width(against));
  const json network = changed("--intra-bandwidth '400 GB/s'")["against"];
  EXPECT_GT(network["difference_low_s"], 0);
  EXPECT_LT(width(network), 0.5 * width(against));

  const json twice = changed("--global-batch 64"), &longer = twice["against"];
  EXPECT_EQ(longer["steps"], 0.5);
  EXPECT_NEAR(longer["difference_s"].get<double>(),
              0.5 * twice["step_time_s"].get<double>() - before["step_time_s"].get<double>(), 1e-12);
  EXPECT_LT(longer["difference_s"], 0) << "a smaller bubble";
  const std::string text = answered("--from report.json --global-batch 64", folder.path()).out;
  EXPECT_THAT(text, ContainsRegex("against report.json: -[0-9.]+ % for as many tokens .90 % interval -"));
}

// A whole training with one plan takes what a search says of the same plan.
TEST(Answers, AWholeTrainingIsToldOfOnePlanToo) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json")
      << R"({"currency": "EUR", "date": "2026-11-20", "gpu_hour": {"h100": 2.5}})";
  const std::string work = "--model llama3-8b --gpu h100 --nodes 2 --tp 2 --dp 8 --global-batch 128 ";
  const std::string asked = "--tokens 1.5T --prices prices.json --repair-time 1d --gpu-spread 1 ";
  const json plan = json::parse(answered(work + asked + "--json", folder.path()).out);
  const json search =
      json::parse(answered("search " + work + asked +
                               "--pp 1 --cp 1 --schedule 1f1b --micro-batch 1 --zero 1 --recompute none "
                               "--overlap none --sequence-parallel on --json",
                           folder.path())
                      .out);
  EXPECT_EQ(plan["training"], search["plans"][0]["training"]);
  EXPECT_EQ(plan["training"]["tokens"], 1.5e12);
  EXPECT_EQ(plan["cost"], search["plans"][0]["cost"]);
  EXPECT_EQ(plan["prices"]["currency"], "EUR");
  EXPECT_FALSE(json::parse(answered(work + "--json").out).contains("training"));

  const std::string text = answered(work + asked + "--report page.html", folder.path()).out;
  for (const std::string& page : {text, read_text(folder.path() / "page.html")}) {
    for (const char* word :
         {"1.5T tokens with this plan", "goodput", "GPU-hours", " EUR (", "(prices of 2026-11-20)"}) {
      EXPECT_THAT(page, HasSubstr(word));
    }
  }
  const CommandResult incomplete = run_command("ns-dist " + work + "--repair-time 1d");
  EXPECT_EQ(incomplete.code, 2);
  EXPECT_THAT(incomplete.err, HasSubstr("write, for example, --tokens 15T"));
}

TEST(Answers, NetworkChoicesAndPlacementAreInputsToo) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "half.json")
      << R"({"schema": "ns-dist/network-calibration/1", "source": "twice as slow", "curves": [{"cluster": "dgx-h100",
          "fabric": "nvlink", "architecture": "hopper", "collective": "all_gather", "ranks": 4, "ranks_per_node": 4,
          "deviation": 0, "log_ratio": [0.71234, 0.71234567, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7,
          0.7123456, 0.7123456, 0.7123456, 0.7123456, 0.7123456, 0.7123456, 0.7, 0.7, 0.7, 0.7, 0.7]}]})";
  const std::string job = "--model llama2-13b --tp 4 --pp 4 --dp 2";
  const json plain = json::parse(answered(job + " --json").out);
  EXPECT_EQ(plain["inputs"]["plan"]["order"], "tp-cp-ep-dp-pp");
  EXPECT_EQ(plain["inputs"]["network"]["model"], "nccl");
  for (const char* choice : {"--order tp-pp-dp", "--order pp-dp-tp", "--network-model astra",
                             "--algorithm ring --protocol simple", "--calibration half.json"}) {
    const CommandResult first = answered(job + " " + choice + " --json", folder.path());
    const json report = json::parse(first.out);
    EXPECT_NE(report["step_time_s"], plain["step_time_s"]) << choice;
    std::ofstream(folder.path() / "report.json") << first.out;
    // The report repeats the run without the files that it was made with.
    std::filesystem::rename(folder.path() / "half.json", folder.path() / "gone");
    EXPECT_EQ(answered("--from report.json --json", folder.path()).out, first.out) << choice;
    std::filesystem::rename(folder.path() / "gone", folder.path() / "half.json");
  }
  EXPECT_GT(json::parse(answered(job + " --calibration half.json --json", folder.path()).out)["step_time_s"],
            plain["step_time_s"]);
}

// A report remembers what was asked for by name: warnings and advice of the repeated run are the same, to the byte.
TEST(Answers, AReportRepeatsItsWarningsAndAdvice) {
  const ScratchFolder folder;
  for (const char* work : {"--model phi-4 --gpu a100 --tp 2 --micro-batch 2 --global-batch 16 --zero 0 --overlap p2p",
                           "--model llama3-8b --pp 4 --dp 2 --global-batch 32 --overlap none",
                           "--model llama3-8b --pp 4 --dp 2 --global-batch 32 --schedule v-half"}) {
    const std::string first = answered(std::string(work) + " --json").out;
    std::ofstream(folder.path() / "report.json") << first;
    EXPECT_EQ(answered("--from report.json --json", folder.path()).out, first) << work;
  }
}

// A bandwidth of the user's own is named, and another machine that has its own says so.
TEST(Answers, AnOwnBandwidthIsShownAndNotLostInSilence) {
  const ScratchFolder folder;
  const std::string work = "--model gpt2 --gpu h100 --dp 16 --global-batch 16 --inter-bandwidth '12.5 GB/s'";
  EXPECT_THAT(answered(work).out, HasSubstr("2 nodes by InfiniBand NDR at 12.5 GB/s (8 ports per node)"));
  std::ofstream(folder.path() / "report.json") << answered(work + " --json").out;
  const auto warned = [&](const std::string& flags) {
    return run_command("ns-dist --from report.json " + flags, folder.path()).err;
  };
  EXPECT_THAT(warned("--gpu b200"),
              HasSubstr("InfiniBand NDR of 12.5 GB/s is left behind with its machine: --inter-bandwidth sets that of"));
  EXPECT_EQ(warned("--gpu b200 --inter-bandwidth '12.5 GB/s'"), "");
  EXPECT_EQ(warned("--micro-batch 1"), "");
}

TEST(Answers, ReportsOfEarlierVersionsAreRepeatedToo) {
  const ScratchFolder folder;
  const std::string now = answered("--tp 2 --model gpt2 --json").out;
  json before = json::parse(now);
  before["inputs"].erase("network");
  before["inputs"]["plan"].erase("order");
  std::ofstream(folder.path() / "report.json") << before;
  EXPECT_EQ(json::parse(answered("--from report.json --json", folder.path()).out)["step_time_s"],
            json::parse(now)["step_time_s"]);
}

TEST(Answers, AnAlgorithmThatNothingCanRunIsAWarning) {
  const json report = json::parse(answered("--model llama2-13b --tp 4 --global-batch 8 --algorithm pat --json").out);
  ASSERT_FALSE(report["warnings"].empty());
  EXPECT_TRUE(std::any_of(report["warnings"].begin(), report["warnings"].end(),
                          [](const json& warning) { return warning["code"] == "unused_choice"; }));
}

// The last stage alone has a collective that runs it.
TEST(Answers, AnAlgorithmThatOneStageRunsIsNoWarning) {
  const std::string plan = "--passes forward --model llama3-8b --tp 2 --pp 4 --dp 1 --nodes 1 --global-batch 16";
  const json report = json::parse(answered(plan + " --algorithm tree --json").out);
  for (const json& warning : report["warnings"]) EXPECT_NE(warning["code"], "unused_choice") << warning;
}

TEST(Answers, TheSameQuestionHasTheSameBytes) {
  EXPECT_EQ(answered("--tp 8 --pp 4 --dp 4 --json").out, answered("--tp 8 --pp 4 --dp 4 --json").out);
}

// Runs of a few thousand tokens say little of a million: the line tells how long their sequences are.
TEST(Answers, EvidenceTellsThatItsSequencesAreShort) {
  const std::string plan = "--model llama3-8b --gpu h100 --tp 8 --cp 8 --global-batch 8 ";
  EXPECT_THAT(answered(plan + "--seq 1048576").out,
              ContainsRegex("most like it, of at most [0-9,]+ tokens a sequence,"));
  EXPECT_THAT(answered(plan + "--seq 8192").out, Not(HasSubstr("tokens a sequence,")));
}

TEST(Answers, NotFittingIsAnAnswerWithARemedyThatFits) {
  const json report = json::parse(answered("--json").out);
  EXPECT_FALSE(report["memory"]["fits"].get<bool>());
  ASSERT_TRUE(report["memory"]["remedy"].is_object());
  const std::string flags = report["memory"]["remedy"]["flags"];
  const json remedied = json::parse(answered(flags + " --json").out);
  EXPECT_TRUE(remedied["memory"]["fits"].get<bool>()) << flags;
}

// 11.81 ms, not 11810 us beside 4.906 ms.
TEST(Answers, DurationsOfAnExplanationHaveTheirUsualUnit) {
  const std::string out = answered("explain all_reduce '1 GiB' --gpu h100 --ranks 3").out;
  EXPECT_THAT(out, HasSubstr(" ms "));
  EXPECT_THAT(out, Not(ContainsRegex("[0-9]{4,}(\\.[0-9]+)? [um]s")));
}

// Ten ranks are a node of eight and two of the next, and any ranks of a machine of known size are there.
TEST(Answers, RanksOfACollectiveFillNodesOneAfterTheOther) {
  EXPECT_EQ(answered("explain all_gather 1GiB --ranks 10 --cluster dgx-h100").out,
            answered("explain all_gather 1GiB --ranks 10 --nodes 2 --cluster dgx-h100").out);
  EXPECT_THAT(answered("explain all_gather 1GiB --ranks 3 --stride 8 --cluster dgx-h100").out, HasSubstr(" on 3 x "));
  const ScratchFolder folder;
  std::ofstream(folder.path() / "closed.json")
      << R"({"schema": "ns-dist/cluster/1", "id": "closed", "name": "closed", "gpu": "h100-sxm-80gb",
             "levels": [{"fabric": "nvlink4-nvswitch", "size": 8}, {"fabric": "ib-ndr", "size": 4}],
             "sources": {"/levels": "derived: a test"}})";
  const auto asked = [&](const std::string& ranks) {
    return run_command("ns-dist explain all_gather 1GiB --cluster closed.json --ranks " + ranks, folder.path());
  };
  EXPECT_EQ(asked("6").code, 0) << asked("6").err;
  EXPECT_THAT(asked("40").err, HasSubstr("40 ranks with a stride of 1 need 40 GPUs, but closed has 32"));
}

// An interval that was found on other frameworks' steps is wider, and the answer says why.
TEST(Answers, AFrameworkWithoutComparedStepsHasAWiderInterval) {
  const std::string job = "--model llama3-8b --gpu h100 --dp 16 --global-batch 32 --framework ";
  const auto width = [&](const char* framework) {
    const json answer = json::parse(answered(job + framework + " --json").out);
    const double step = answer["step_time_s"];
    return (answer["step_time_high_s"].get<double>() - answer["step_time_low_s"].get<double>()) / step;
  };
  EXPECT_GT(width("torchtitan"), 1.5 * width("megatron-core"));
  EXPECT_THAT(answered(job + "torchtitan").out, HasSubstr("defaults of torchtitan; none of its steps was compared"));
  EXPECT_THAT(answered(job + "megatron-core").out, Not(HasSubstr("was compared")));
}

// What a framework sets is shown as flags, which can be copied.
TEST(Answers, FrameworksSetFlags) {
  const std::string out = run_command("ns-dist list frameworks --json").out;
  EXPECT_THAT(out, HasSubstr("--zero 3"));
  EXPECT_THAT(out, Not(HasSubstr("plan/")));
}

// Advice is extrapolated from short steps; following it must give what was promised.
TEST(Answers, AdviceKeepsItsPromise) {
  for (const char* job :
       {"--tp 8 --pp 16 --dp 8", "--model gpt3-13b --gpu a100 --tp 8 --pp 2 --dp 4 --recompute full",
        "--model llama2-70b --gpu a100 --nodes 8 --tp 8 --global-batch 512",
        "--model deepseek-v3 --gpu h800 --pp 16 --ep 64 --dp 128 --schedule dualpipe --recompute full",
        "--model gpt2 --dp 8 --global-batch 16",
        "--model mixtral-8x7b --tp 2 --ep 8 --dp 32 --global-batch 256 --seq 4096 --recompute full",
        "--model gpt-oss-20b --gpu b200 --framework torchtitan --pp 4 --dp 16 --schedule v-min --dtype mxfp8 "
        "--global-batch 128",
        "--model llama3-8b --gpu a100 --tp 2 --cp 16 --dp 2 --seq 32768 --global-batch 8"}) {
    const ScratchFolder folder;
    ASSERT_EQ(run_command("ns-dist " + std::string(job) + " --json > report.json", folder.path()).code, 0);
    const json report = json::parse(read_text(folder.path() / "report.json"));
    const double step = report["step_time_s"];
    int followed = 0;
    for (const json& improvement : report["improvements"]) {
      if (improvement["at_most"].get<bool>()) continue;
      const std::string flags = improvement["flags"];
      const json changed = json::parse(answered("--from report.json --json " + flags, folder.path()).out);
      EXPECT_NEAR(changed["step_time_s"].get<double>(), step - improvement["saves_s"].get<double>(), 1e-3 * step)
          << job << " " << flags;
      EXPECT_TRUE(changed["memory"]["fits"].get<bool>()) << job << " " << flags;
      ++followed;
    }
    EXPECT_GE(followed, 1) << job;
  }
}

TEST(Answers, PackedDocumentsAreNamed) {
  const std::string job = "--model gpt2 --global-batch 8 --seq 1024 --document-tokens 128";
  const CommandResult packed = answered(job), found = answered("search --gpus 1 --micro-batch 8 " + job);
  EXPECT_THAT(packed.out, HasSubstr("1,024 tokens in documents of 128, micro-batch 1"));
  EXPECT_THAT(found.out, HasSubstr("1,024 tokens in documents of 128, bf16"));
  EXPECT_THAT(found.out, HasSubstr("--document-tokens 128"));
}

TEST(Answers, BandwidthsOverrideTheDataSheet) {
  const auto step = [](const std::string& more) {
    return json::parse(answered("--model gpt3-13b --tp 8 --nodes 4 --json " + more).out)["step_time_s"].get<double>();
  };
  EXPECT_GT(step("--intra-bandwidth '45 GB/s'"), step(""));
  EXPECT_GT(step("--inter-bandwidth '50 Gbit/s'"), step("--inter-bandwidth '400 Gbit/s'"));
}

TEST(Answers, TracesAreWritten) {
  const ScratchFolder folder;
  answered("--model gpt2 --tp 2 --pp 2 --global-batch 8 --trace trace.json --csv trace.csv", folder.path());
  EXPECT_TRUE(json::parse(read_text(folder.path() / "trace.json"))["traceEvents"].is_array());
  EXPECT_THAT(read_text(folder.path() / "trace.csv"), HasSubstr("node,stage,lane,name"));
}

TEST(Answers, ExportWritesAFileForEachRank) {
  const ScratchFolder folder;
  const CommandResult result =
      answered("export --tp 4 --pp 2 --dp 2 --global-batch 16 --model gpt3-13b --output traces", folder.path());
  EXPECT_THAT(result.out, HasSubstr("16 traces in traces"));
  // What a short name stands for.
  EXPECT_THAT(result.out, HasSubstr("\n  GPT-3 13B on NVIDIA H100 SXM5 80GB (h100-sxm-80gb)\n"));
  const CommandResult other = answered("annotate traces --gpu a100 --output annotated", folder.path());
  EXPECT_THAT(other.out, HasSubstr(" nodes, for NVIDIA A100 SXM4 80GB (a100-sxm-80gb)\n"));
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "traces" / ("trace." + std::to_string(rank) + ".et"))) << rank;
  }
}

TEST(Answers, EveryListNamesThings) {
  std::istringstream lists(answered("list").out);
  int count = 0;
  for (std::string line; std::getline(lists, line); ++count) {
    const std::string name = line.substr(0, line.find(' '));
    EXPECT_GE(lines_of(answered("list " + name).out), 2) << name;
    EXPECT_GE(json::parse(answered("list " + name + " --json").out).size(), 2u) << name;
  }
  EXPECT_GE(count, 6);
  EXPECT_THAT(answered("list gpus").out, HasSubstr("h100-sxm-80gb"));
}

TEST(Answers, EverySubjectOfExplainWorksAsItsExampleSays) {
  std::istringstream help(answered("explain --help").out);
  int subjects = 0;
  bool table = false;
  for (std::string line; std::getline(help, line);) {
    if (table && line.rfind("  ", 0) != 0) break;
    if (table) {
      std::istringstream words(line);
      std::string subject, rest;
      words >> subject;
      const std::size_t example = line.rfind("  " + subject + " ");
      ASSERT_NE(example, std::string::npos) << line;
      const std::string arguments = line.substr(example);
      const json answer = json::parse(answered("explain " + arguments + " --json").out);
      EXPECT_GT(answer["latency_s"].get<double>(), 0) << arguments;
      EXPECT_GE(answer["latency_s"].get<double>(), answer["floor_s"].get<double>()) << arguments;
      ++subjects;
    }
    table = table || line.rfind("Subjects", 0) == 0;
  }
  EXPECT_GE(subjects, 23);
  const std::string table_text = answered("explain --help").out;
  for (const json& family : json::parse(answered("list operators --json").out)) {
    EXPECT_THAT(table_text, HasSubstr("\n  " + family["id"].get<std::string>() + " "));
  }
}

// Two, where a collective is between two.
TEST(Answers, ExplanationsHaveAsManyRanksAsTheirCollectiveTakes) {
  EXPECT_EQ(answered("explain send_recv 64MiB").out, answered("explain send_recv 64MiB --ranks 2").out);
  EXPECT_EQ(answered("explain all_reduce 64MiB").out, answered("explain all_reduce 64MiB --ranks 8").out);
  EXPECT_EQ(answered("explain barrier").out, answered("explain barrier --ranks 8").out);
}

TEST(Answers, OperatorsAreAsLargeAsTheyAre) {
  for (const char* subject : {"optimizer 405000000000", "adam 405000000000", "unknown mine --flops '2 TFLOP'",
                              "rmsnorm 8192x4096 --pass backward", "conv 32x64x56x56x64x3x1 --pass backward"}) {
    EXPECT_GT(json::parse(answered("explain --json " + std::string(subject)).out)["latency_s"].get<double>(), 0);
  }
}

TEST(Answers, VersionSaysWhichBuild) {
  EXPECT_THAT(answered("version").out, ContainsRegex("^ns-dist [0-9]+\\.[0-9]+"));
}

// A catalog's file is a template of one's own: what is printed is read again, and forecasts the same.
TEST(Answers, AFileOfTheCatalogIsPrintedForACopy) {
  const ScratchFolder folder;
  const auto run = [&](const std::string& arguments) { return run_command("ns-dist " + arguments, folder.path()); };
  for (const auto& [what, id] : {std::pair("gpus", "h100"),
                                 {"models", "llama3-8b"},
                                 {"clusters", "dgx-h100"},
                                 {"fabrics", "ib-ndr"},
                                 {"frameworks", "nemo"},
                                 {"runs", "zero-bubble-2024"}}) {
    const CommandResult file = run(std::string("list ") + what + " " + id);
    EXPECT_EQ(file.code, 0) << file.err;
    EXPECT_TRUE(json::accept(file.out)) << what;
  }
  ASSERT_EQ(run("list gpus h100 > mine.json").code, 0);
  EXPECT_EQ(run("--model gpt2 --gpu mine.json --json").code, 0);
  EXPECT_EQ(json::parse(run("--model gpt2 --gpu mine.json --json").out)["step_time_s"],
            json::parse(run("--model gpt2 --gpu h100 --json").out)["step_time_s"]);
  ASSERT_EQ(run("list runs korthikanti-2022 > runs.json").code, 0);
  EXPECT_EQ(json::parse(run("validate --runs runs.json --json").out)["suites"][0]["tables"],
            json::parse(run("validate --runs korthikanti-2022 --json").out)["suites"][0]["tables"]);
  EXPECT_THAT(run("list gpus h1000").err, HasSubstr("list gpus: unknown GPU \"h1000\""));
  EXPECT_THAT(run("list schedules 1f1b").err, HasSubstr("\"1f1b\" has no file"));
}

// A GPU that holds a plan's tensors, but not the context and NCCL's buffers beside them.
TEST(Answers, TensorsLeaveRoomForNccl) {
  const ScratchFolder folder;
  const auto run = [&](const std::string& arguments) { return run_command("ns-dist " + arguments, folder.path()); };
  const std::string plan = "--model llama3-8b --tp 8 --global-batch 8 --gpu ";
  const json usual = json::parse(run(plan + "h100 --json").out)["memory"];
  EXPECT_TRUE(usual["fits"].get<bool>());
  json gpu = json::parse(run("list gpus h100").out);
  const double buffers = usual["per_stage"][0]["communicators"].get<double>() + 1024.0 * 1024 * 1024;
  const auto answer = [&](double share) {
    gpu["memory"]["capacity"] = std::to_string(usual["peak_bytes"].get<double>() + share * buffers) + " B";
    std::ofstream(folder.path() / "small.json") << gpu;
    return run(plan + "small.json").out;
  };
  EXPECT_THAT(answer(0.5), HasSubstr("does not fit beside 2.3 GiB of the CUDA context and NCCL's buffers"));
  EXPECT_THAT(answer(1.01), HasSubstr("fits, tight"));
}

// A folder on NS_DIST_PATH, even an empty one, makes the tool read the catalog's files.
TEST(Answers, TheIndexOfTheCatalogSaysWhatItsFilesSay) {
  const ScratchFolder folder;
  for (const char* kind : {"gpus", "models", "clusters", "fabrics"}) {
    const std::string command = std::string("ns-dist list ") + kind + " --json";
    const CommandResult indexed = run_command(command, folder.path());
    const CommandResult read = run_command("NS_DIST_PATH=. " + command, folder.path());
    EXPECT_EQ(indexed.code, 0);
    EXPECT_GT(lines_of(indexed.out), 10) << kind;
    EXPECT_EQ(indexed.out, read.out) << kind;
  }
}

// Does an explanation begin with what people ask, in units of data sheets, and end with what a model reads?
TEST(Answers, SaysFirstWhatPeopleAsk) {
  const std::string text = answered("explain gemm 8192x8192x8192 --gpu h100").out;
  // 2 x 8192^3 operations; two inputs and an output of 8192^2 in 2 bytes each; 989.4 TFLOP/s at most
  EXPECT_THAT(text,
              ContainsRegex("\n  work 1.100 TFLOP, [0-9]+ of 989 TFLOP/s; least traffic 384.0 MiB, [0-9]+ of 3,350 "
                            "GB/s; floor 1.111 ms; power [0-9]+ W\n"));
  EXPECT_THAT(text, Not(HasSubstr("e+12")));
  const std::size_t method = text.find("\n  method "), feature = text.find(" feature\n");
  ASSERT_NE(feature, std::string::npos);
  EXPECT_LT(method, feature);
  EXPECT_THAT(answered("explain all_reduce 48MiB").out, HasSubstr("all_reduce of 48MiB between 8 ranks"));
}

// Do the lines of `list frameworks` fit on a screen?
TEST(Answers, NamesFrameworksInShortLines) {
  std::istringstream lines(answered("list frameworks").out);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 120u) << line;
  EXPECT_GT(count, 10u);
  EXPECT_THAT(answered("list frameworks --json").out, HasSubstr("--separate-adapters on"));
}

// Do lines end before a terminal does, with their text below its begin? In a pipe they stay as they are.
TEST(Answers, LinesFitIntoATerminal) {
  if (run_command("command -v script && command -v stty").code != 0) GTEST_SKIP() << "no script or stty";
  const std::string job = "--tp 8 --pp 16 --dp 8";
  const std::string plain = answered(job).out;
  const auto shown = [&](int columns) {
    const std::string command = "stty cols " + std::to_string(columns) + "; NO_COLOR=1 " NS_DIST_BINARY " " + job;
    std::string text = run_command("script -qec '" + command + "' /dev/null").out;
    std::erase(text, '\r');
    return text;
  };
  EXPECT_EQ(shown(1000), plain);
  const std::string narrow = shown(72);
  std::istringstream lines(narrow);
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
    EXPECT_LE(columns, 72) << line;
  }
  EXPECT_THAT(narrow, ContainsRegex("\n  utilization   MFU [^\n]*\n                [^ ]"));
  const auto words = [](const std::string& text) {  // bars have the width that there is
    std::istringstream stream(text);
    std::vector<std::string> all(std::istream_iterator<std::string>(stream), {});
    std::erase_if(all, [](const std::string& word) { return static_cast<unsigned char>(word.front()) >= 0x80; });
    return all;
  };
  EXPECT_EQ(words(narrow), words(plain));
}

}  // namespace
}  // namespace ns_dist
