// What the interface promises of `ns-dist search`.
#include "ns_dist/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Few plans, so that tests are quick.
constexpr const char* kSmall = "--model gpt3-13b --gpus 16 --schedule 1f1b,interleaved --micro-batch 1,2";

json searched(const std::string& arguments, const std::filesystem::path& folder) {
  const CommandResult result = run_command("ns-dist search " + arguments + " --json", folder);
  EXPECT_EQ(result.code, 0) << result.err;
  return json::parse(result.out);
}
json searched(const std::string& arguments) { return searched(arguments, std::filesystem::temp_directory_path()); }

TEST(SearchCommand, JsonHasEveryPromisedField) {
  const json found = searched(kSmall);
  for (const char* key : {"schema", "version", "plans", "infeasible", "evaluated", "seconds", "space", "table"}) {
    EXPECT_TRUE(found.contains(key)) << key;
  }
  ASSERT_FALSE(found["plans"].empty());
  double before = 0;
  for (const json& plan : found["plans"]) {
    for (const char* key : {"why", "command", "behind_s", "step_time_s", "step_time_low_s", "step_time_high_s", "mfu",
                            "memory", "breakdown_s", "inputs", "critical_path", "warnings"}) {
      EXPECT_TRUE(plan.contains(key)) << key;
    }
    EXPECT_GE(plan["step_time_s"], before) << "the best first";
    before = plan["step_time_s"];
    EXPECT_TRUE(plan["memory"]["fits"]);
  }
  EXPECT_THAT(found["plans"][0]["why"].get<std::string>(), HasSubstr("fastest"));
}

// The inputs, without who named them: the user, or the search.
json work_of(const json& report) {
  json inputs = report["inputs"];
  inputs.erase("named"), inputs.erase("chosen");
  return inputs;
}

// Every answer repeats: by its command, and by --from.
TEST(SearchCommand, EveryAnswerRepeats) {
  const ScratchFolder folder;
  const std::string save = std::string("ns-dist search ") + kSmall + " --inter-bandwidth '25 GB/s' --json > found.json";
  ASSERT_EQ(run_command(save, folder.path()).code, 0);
  const json found = json::parse(read_text(folder.path() / "found.json"));
  ASSERT_GE(found["plans"].size(), 2u);
  for (std::size_t i = 0; i < found["plans"].size(); ++i) {
    const std::string command = found["plans"][i]["command"];
    for (const std::string& again :
         {command + " --json", "ns-dist --from found.json#" + std::to_string(i + 1) + " --json"}) {
      const CommandResult result = run_command(again, folder.path());
      ASSERT_EQ(result.code, 0) << again << "\n" << result.err;
      EXPECT_EQ(json::parse(result.out)["step_time_s"], found["plans"][i]["step_time_s"]) << again;
      EXPECT_EQ(work_of(json::parse(result.out)), work_of(found["plans"][i])) << again;
    }
  }
  const CommandResult beyond = run_command("ns-dist --from found.json#99", folder.path());
  EXPECT_EQ(beyond.code, 1);
  const std::string last = std::to_string(found["plans"].size());
  EXPECT_THAT(beyond.err, HasSubstr("expected a number from 1 to " + last + "; write found.json#" + last));
}

TEST(SearchCommand, TheNumberOfThreadsChangesNothing) {
  const std::string job = std::string(kSmall) + " --threads ";
  json one = searched(job + "1"), three = searched(job + "3");
  for (json* each : {&one, &three}) each->erase("seconds");
  EXPECT_EQ(one, three);
}

TEST(SearchCommand, SizesGpusAndPricesMakeATable) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2}})";
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100,a100 --gpus 8..16 --global-batch 256 --schedule 1f1b --micro-batch "
      "1 "
      "--tokens 1T --prices prices.json";
  const CommandResult table = run_command(job, folder.path());
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* word : {"h100-sxm-80gb", "a100-sxm-80gb", "no price", "XYZ", "goodput", "The cheapest", " *"}) {
    EXPECT_THAT(table.out, HasSubstr(word));
  }
  const json found = json::parse(run_command(job + " --json --csv found.csv", folder.path()).out);
  ASSERT_EQ(found["table"].size(), 4u);
  for (const json& row : found["table"]) {
    const bool priced = row["gpu"] == "h100-sxm-80gb";
    EXPECT_EQ(row.contains("cost"), priced);
    if (priced) {
      EXPECT_NEAR(row["cost"].get<double>(), 2 * row["training"]["gpu_hours"].get<double>(), 1e-6);
    }
  }
  const std::string csv = read_text(folder.path() / "found.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + static_cast<std::ptrdiff_t>(found["plans"].size()));
}

TEST(SearchCommand, ADeadlineFindsTheLeastCluster) {
  const std::string job =
      "--model gpt3-13b --tokens 300B --schedule 1f1b --micro-batch 1,2 --recompute none --deadline ";
  const json found = searched(job + "20d");
  const json& table = found["table"];
  ASSERT_GE(table.size(), 1u);
  EXPECT_TRUE(table.back()["in_time"]);
  EXPECT_LE(table.back()["training"]["seconds"].get<double>(), 20 * 86400);
  for (std::size_t i = 0; i + 1 < table.size(); ++i) EXPECT_FALSE(table[i].value("in_time", false));
  const std::string half = std::to_string(table.back()["gpus"].get<int>() / 2);
  EXPECT_FALSE(searched(job + "20d --gpus " + half)["table"][0].value("in_time", false));
}

// A deadline that no size meets: the search ends where more GPUs train no sooner, and says how soon it would be.
TEST(SearchCommand, ADeadlineThatNobodyMeetsEndsWhereMoreGpusDoNotHelp) {
  const std::string job =
      "--model llama3-8b --tokens 15T --deadline 2d --global-batch 512 --schedule 1f1b --micro-batch 1 --recompute "
      "none "
      "--tp 8 --cp 1 --zero 1";
  const json found = searched(job);
  ASSERT_GE(found["table"].size(), 3u);
  EXPECT_LT(found["table"].back()["gpus"].get<int>(), 1 << 20);
  const json* soonest = &found["table"][0];
  for (const json& row : found["table"]) {
    EXPECT_FALSE(row.value("in_time", false));
    if (row["training"]["seconds"] < (*soonest)["training"]["seconds"]) soonest = &row;
  }
  const std::string page = run_command("ns-dist search " + job).out;
  EXPECT_THAT(page, HasSubstr("None of the sizes that were tried is in time; the soonest takes"));
  EXPECT_THAT(page, HasSubstr("; more GPUs help little with this --global-batch: try a larger one\n"));
  // With failures, not by the step alone.
  const std::string gpus = std::to_string((*soonest)["gpus"].get<int>());
  std::string fastest = page.substr(page.find("The fastest: ") + 13);
  fastest.resize(fastest.find(' '));
  std::erase(fastest, ',');
  EXPECT_EQ(fastest, gpus) << page;
}

// Several fabrics, or models, are rows of one table, which tells them apart.
// Peak rates alone would take more GPUs than are searched, and so many have no plan: the soonest of those that have.
TEST(SearchCommand, ADeadlineBeyondAllGpusNamesTheSoonest) {
  const CommandResult found = run_command(
      "ns-dist search --model llama3-8b --tokens 15T --deadline 1s --global-batch 64 --schedule 1f1b --micro-batch 1 "
      "--recompute none --tp 8 --pp 1 --cp 1 --zero 1");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("None of the sizes that were tried is in time; the soonest takes"));
  EXPECT_THAT(found.out, HasSubstr("The fastest: 512 x h100-sxm-80gb"));
  EXPECT_THAT(found.out, ::testing::Not(HasSubstr("no plan is possible")));
}

// 480 sequences are shared by 480 replicas, but by neither 64 nor 128: sizes that cannot share them do not end a
// search.
TEST(SearchCommand, SizesThatCannotShareTheBatchAreSteppedOver) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2.5}})";
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100 --global-batch 480 --framework llm-foundry --micro-batch 1 --tokens "
      "1T ";
  const std::string deadline = run_command(job + "--deadline 20d").out;
  EXPECT_THAT(deadline, HasSubstr("The fewest GPUs of these that are in time: 96 x"))
      << "80, the next size below, take longer";
  const std::string budget = run_command(job + "--prices prices.json --budget 1M", folder.path()).out;
  EXPECT_THAT(budget,
              AllOf(HasSubstr("The most GPUs of these that the budget buys: 480 x"), Not(HasSubstr("no plan"))));
}

// The middle of an interval may be in time and its end late: a larger size is searched whose whole interval is not.
TEST(SearchCommand, ASizeWhoseWholeIntervalIsInTimeIsNamed) {
  const std::string job =
      "ns-dist search --model llama3.2-1b --gpu h100 --global-batch 1024 --schedule 1f1b --micro-batch 1 --recompute "
      "none --tp 1 --pp 1 --cp 1 --tokens 1T --deadline ";
  const auto table_of = [&](const std::string& deadline) {
    return json::parse(run_command(job + deadline + " --json").out)["table"];
  };
  const auto days = [](double seconds) { return std::to_string(seconds / 86400) + "d"; };
  const json first = table_of("20d");
  const auto fewest = std::ranges::find_if(first, [](const json& row) { return row["in_time"].get<bool>(); });
  ASSERT_NE(fewest, first.end());
  // Just in time, as the middle of the interval goes.
  const double middle = (*fewest)["training"]["seconds"].get<double>();
  const json tight = table_of(days(1.001 * middle));
  const auto of = [](const json& table, const json& gpus) {
    return *std::ranges::find_if(table, [&](const json& row) { return row["gpus"] == gpus; });
  };
  EXPECT_TRUE(of(tight, (*fewest)["gpus"])["in_time"]);
  EXPECT_FALSE(of(tight, (*fewest)["gpus"])["surely_in_time"]);
  const json& largest = tight.back();
  EXPECT_TRUE(largest["surely_in_time"]);
  EXPECT_GT(largest["gpus"], (*fewest)["gpus"]);
  EXPECT_LE(largest["training"]["high_s"].get<double>(), 1.001 * middle);
  const std::string text = run_command(job + days(1.001 * middle)).out;
  EXPECT_THAT(text, HasSubstr("but the end of the interval is too late"));
  EXPECT_THAT(text, HasSubstr("The fewest GPUs of these whose whole interval is in time: "));
  // With time to spare nothing larger is searched, and one size is named.
  const double end = (*fewest)["training"]["high_s"].get<double>();
  const std::string spare = run_command(job + days(1.001 * end)).out;
  EXPECT_THAT(spare, Not(HasSubstr("whole interval")));
}

// Smaller clusters are cheaper and late: the first plan, and the cheapest one that is named, meet the deadline.
TEST(SearchCommand, TheCheapestInTimeIsNamed) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2.5}})";
  const std::string job =
      "ns-dist search --model llama3.2-1b --gpu h100 --gpus 32,128 --global-batch 512 --schedule 1f1b --micro-batch 1 "
      "--recompute none --tokens 1T --prices prices.json --objective cost --deadline ";
  const json all = json::parse(run_command(job + "1000d --json", folder.path()).out);
  const json &small = all["table"][0], &large = all["table"][1];
  ASSERT_LT(small["cost"], large["cost"]);
  ASSERT_LT(large["training"]["seconds"], small["training"]["seconds"]);
  EXPECT_EQ(all["plans"][0]["ranks"], 32);
  const double between =
      (small["training"]["seconds"].get<double>() + large["training"]["seconds"].get<double>()) / 2 / 3600;
  const std::string deadline = std::to_string(between) + "h";
  EXPECT_EQ(json::parse(run_command(job + deadline + " --json", folder.path()).out)["plans"][0]["ranks"], 128);
  EXPECT_THAT(run_command(job + deadline, folder.path()).out,
              AllOf(HasSubstr("The cheapest: 32 x"), HasSubstr("The cheapest that is in time: 128 x")));
}

// 7 sequences are no whole number of pairs: no size has a plan, and the smallest says why.
TEST(SearchCommand, NoSizeAtAllSaysWhy) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100": 2.5}})";
  for (const char* goal : {"--deadline 100d", "--budget 1M --prices prices.json"}) {
    const CommandResult result = run_command(
        std::string("ns-dist search --model gpt2 --gpu h100 --global-batch 7 --tokens 1T --micro-batch 2 ") + goal,
        folder.path());
    EXPECT_EQ(result.code, 0) << goal;
    EXPECT_THAT(result.out, HasSubstr("no plan is possible: --global-batch must be a multiple of")) << goal;
  }
}

// Where more GPUs are no sooner, fewer may be: the first size that is tried is no bound.
TEST(SearchCommand, TheSoonestMayHaveFewerGpusThanTheFirstSize) {
  const std::string job =
      "--model llama3.2-1b --gpu h100 --global-batch 256 --schedule 1f1b --micro-batch 1 --recompute none --tokens 1T ";
  const json found = searched(job + "--deadline 1h")["table"], sizes = searched(job + "--gpus 1024..4096")["table"];
  const auto soonest = [](const json& table) {
    double least = std::numeric_limits<double>::infinity();
    for (const json& row : table) least = std::min(least, row["training"]["seconds"].get<double>());
    return least;
  };
  EXPECT_LE(soonest(found), soonest(sizes));
}

// 4,608 sequences are 512 times nine: 32,768 GPUs give replicas nine sequences each, 36,864 GPUs eight.
TEST(SearchCommand, SizesOfWholeReplicasAreTriedBesidePowersOfTwo) {
  const json found = searched(
      "--model llama3-70b --gpu gb200 --global-batch 4608 --tokens 15T --schedule 1f1b --tp 4,8 --pp 1 --micro-batch 1 "
      "--deadline 4d");
  const auto in_time = [](const json& row) { return row["training"]["seconds"].get<double>() <= 4 * 86400; };
  std::vector<std::int64_t> gpus;
  for (const json& row : found["table"]) {
    if (in_time(row)) gpus.push_back(row["gpus"]);
  }
  ASSERT_FALSE(gpus.empty());
  EXPECT_LE(*std::min_element(gpus.begin(), gpus.end()), 36'864);
}

// Batches of other numbers than powers of two: of all multiples of a node, which were searched one by one, the fewest
// in time are found, and the fewest whose whole interval is.
TEST(SearchCommand, TheFewestGpusInTimeAreThoseOfAllSizes) {
  const std::string job =
      "--model llama3.2-1b --gpu h100 --schedule 1f1b --micro-batch 1 --recompute none --zero 1 --tp 1 --cp 1 --tokens "
      "1T --global-batch ";
  std::string sizes = "8";
  for (int gpus = 16; gpus <= 160; gpus += 8) sizes += "," + std::to_string(gpus);
  for (const char* batch : {"96", "480", "1000"}) {
    const json all = searched(job + batch + " --gpus " + sizes)["table"];
    double soonest = std::numeric_limits<double>::infinity();
    for (const json& row : all) {
      if (row.contains("training")) soonest = std::min(soonest, row["training"]["seconds"].get<double>());
    }
    for (const double times : {1.3, 2.6, 5.0}) {
      const double deadline = times * soonest;
      const auto fewest = [&](const json& table, const char* end) {
        int gpus = 1 << 20;
        for (const json& row : table) {
          if (row.contains("training") && row["training"][end] <= deadline)
            gpus = std::min(gpus, row["gpus"].get<int>());
        }
        return gpus;
      };
      const json found = searched(job + batch + " --deadline " + std::to_string(deadline / 86400) + "d")["table"];
      EXPECT_EQ(fewest(found, "seconds"), fewest(all, "seconds")) << batch << " in " << deadline;
      EXPECT_LE(fewest(found, "high_s"), fewest(all, "high_s")) << batch << " in " << deadline;
      EXPECT_LE(found.size(), 9u) << batch << " in " << deadline;
    }
  }
}

// Doublings of 4,608 sequences' replicas, and not powers of two, train ever sooner: the budget buys 36,864 GPUs, which
// are sooner than 18,432.
TEST(SearchCommand, ABudgetBuysSizesOfWholeReplicas) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"gb200": 3}})";
  const json found = searched(
      "--model llama3-70b --gpu gb200 --global-batch 4608 --tokens 15T --schedule 1f1b --tp 4,8 --pp 1 --micro-batch 1 "
      "--prices prices.json --budget 10M",
      folder.path());
  int most = 0;
  for (const json& row : found["table"]) {
    if (row["in_budget"]) most = std::max(most, row["gpus"].get<int>());
  }
  EXPECT_GE(most, 36'864);
}

// The user gave GPUs, from which the nodes follow.
TEST(SearchCommand, AnErrorOfTheSizeNamesTheFlagThatWasGiven) {
  const CommandResult result =
      run_command("ns-dist search --model llama3-70b --cluster h100-leaf-spine --gpus 1016 --global-batch 508");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--gpus: 127 nodes do not fill groups of 32"), HasSubstr("96 or 128 nodes")));
}

// The other sizes of a list are searched.
TEST(SearchCommand, ASizeThatNoMachineHasIsLeftOutOfAList) {
  const CommandResult result = run_command(
      "ns-dist search --model llama3-8b --gpu h100 --gpus 8,12 --tp 1 --pp 1 --cp 1 --schedule 1f1b --global-batch 96");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("left out: --gpus: 12 GPUs do not fill nodes of 8"));
}

TEST(SearchCommand, WarnsOfTheLinksOfAnotherGpu) {
  const CommandResult found =
      run_command("ns-dist search --gpus 8 --cluster dgx-h100 --gpu b200 --tp 8 --pp 1 --cp 1 --global-batch 8");
  EXPECT_THAT(found.err, HasSubstr("b200-sxm has the links of dgx-h100, which is a machine of h100-sxm-80gb: --cluster "
                                   "hgx-b200 has its own"));
}

TEST(SearchCommand, RowsOfATableAreToldApart) {
  const std::string job = "search --gpus 16 --schedule 1f1b --micro-batch 1 --global-batch 64 ";
  const std::string fabrics =
      run_command("ns-dist " + job + "--model llama3-8b --inter-bandwidth '12.5 GB/s,50 GB/s'").out;
  for (const char* word : {"between nodes", " 12.5 GB/s ", " 50 GB/s "}) EXPECT_THAT(fabrics, HasSubstr(word));
  EXPECT_THAT(fabrics, ::testing::Not(HasSubstr("inside nodes")));
  const std::string models = run_command("ns-dist " + job + "--model llama3-8b,gpt3-13b").out;
  for (const char* word : {"model ", " llama3-8b ", " gpt3-13b "}) EXPECT_THAT(models, HasSubstr(word));
  const std::string frameworks = run_command("ns-dist " + job + "--model llama3-8b --framework jax,fsdp").out;
  for (const char* word : {"framework ", " jax ", " fsdp ", "--framework "}) EXPECT_THAT(frameworks, HasSubstr(word));
  // A longer sequence is another task, with its own fastest plan.
  const std::string lengths = run_command("ns-dist " + job + "--model llama3-8b --seq 4096,8192 --json").out;
  const json lines = json::parse(lengths)["table"];
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["sequence"], 4096);
  EXPECT_EQ(lines[1]["sequence"], 8192);
  EXPECT_LT(lines[0]["step_time_s"].get<double>(), lines[1]["step_time_s"].get<double>());
  const std::string sizes = run_command("ns-dist search --gpus 8,16 --model llama3-8b --tp 1 --pp 1").out;
  EXPECT_THAT(sizes, ::testing::Not(HasSubstr("between nodes"))) << "sizes alone need no column";
}

// Two names of one GPU, or of one model, are one machine.
TEST(SearchCommand, NamesOfOneMachineAreSearchedOnce) {
  const json found = searched(
      "--gpus 8 --gpu h100,h100-sxm-80gb,a100 --tp 8 --micro-batch 1 --model llama3-8b,llama3.1-8b --global-batch 64 "
      "--recompute full");
  EXPECT_EQ(found["table"].size(), 2u);
}

TEST(SearchCommand, EqualSizesAreOne) {
  const std::string job = "--model llama3-8b --tp 8 --pp 1 --cp 1 --global-batch 64 --recompute full --gpus ";
  std::vector<std::int64_t> sizes;
  const json found = searched(job + "8,16,8,8..16");
  for (const json& row : found["table"]) sizes.push_back(row["gpus"]);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{8, 16}));
}

// Two dots are a range of numbers, or a folder.
TEST(SearchCommand, FilesOfAFolderAboveAreNoRanges) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() / "below");
  std::filesystem::copy_file(std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs/models/llama3-8b.json",
                             folder.path() / "m.json");
  const CommandResult found = run_command(
      "ns-dist search --model ../m.json --gpus 8 --tp 8 --pp 1 --cp 1 --global-batch 8", folder.path() / "below");
  EXPECT_EQ(found.code, 0) << found.err;
  std::ofstream(folder.path() / "below/sweep.json") << R"({"model": "../m.json", "tp": 8})";
  EXPECT_EQ(run_command("ns-dist search --sweep sweep.json --output o.jsonl", folder.path() / "below").code, 0);
  EXPECT_THAT(read_text(folder.path() / "below/o.jsonl"), HasSubstr("step_time_s"));
}

// What the user set is said in the user's words, not as the flags that these stand for.
TEST(SearchCommand, AdviceAgainstOverlapNoneSaysSo) {
  const std::string out =
      answered("search --model llama3-8b --gpus 16 --gpu h100 --global-batch 64 --overlap none").out;
  EXPECT_THAT(out, HasSubstr("communicate while computing (you set --overlap none): --overlap-param-gather on"));
}

// What fails, how checkpoints are written, who waits for whom: the page says what was assumed.
TEST(SearchCommand, ATrainingHasItsFailures) {
  const std::string job = "--model llama3-8b --gpus 64 --global-batch 256 --schedule 1f1b --micro-batch 1 --tokens 1T ";
  const json plain = searched(job)["table"][0]["training"];
  EXPECT_EQ(plain["checkpoint_standstill_s"], plain["checkpoint_s"]);
  const json more = searched(job + "--checkpoint-async --repair-time 7d --gpu-spread 1%")["table"][0]["training"];
  EXPECT_LT(more["checkpoint_standstill_s"].get<double>(), more["checkpoint_s"].get<double>());
  EXPECT_GT(more["spare_nodes"].get<int>(), 0);
  EXPECT_GT(more["step_time_s"].get<double>(), plain["step_time_s"].get<double>());
  const std::string page =
      run_command("ns-dist search " + job + "--checkpoint-async --repair-time 7d --spare-nodes 1 --gpu-spread 1").out;
  for (const char* word : {"training stands still for", "1 spare node:", "GPUs differ in speed by 1 %"}) {
    EXPECT_THAT(page, HasSubstr(word));
  }
  const json equal = searched(job + "--gpu-spread 0")["table"][0]["training"];
  EXPECT_LT(equal["step_time_s"].get<double>(), plain["step_time_s"].get<double>()) << "0 replaces the usual spread";
  const json often = searched(job +
                              "--gpu-time-between-failures 1000h --node-time-between-failures 1000h "
                              "--network-time-between-failures 1000h")["table"][0]["training"];
  EXPECT_NEAR(often["time_between_failures_s"].get<double>(), 3600 * 1000 / (64.0 + 8 + 64), 1e-6);
}

// 54 days of 16,384 GPUs over 419, 246 and 35 failures, and of 2,048 nodes over 138: 50,677.0, 86,315.7, 606,676.1 and
// 19,233.4 hours.
TEST(SearchCommand, ItsHelpRoundsTheDefaultsOfFailures) {
  const std::string help = run_command("ns-dist search --help").out;
  for (const char* hours : {"[50677 h]", "[86316 h]", "[19233 h]", "[606676 h]"}) EXPECT_THAT(help, HasSubstr(hours));
}

constexpr const char* kTrained =
    "ns-dist search --model llama3-8b --gpu h100 --global-batch 256 --schedule 1f1b --micro-batch 1 --recompute none "
    "--tokens 1T --prices prices.json ";

// The most GPUs: as many cost no more than the budget, and the next size that was tried costs more.
TEST(SearchCommand, ABudgetBuysTheMostGpus) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json")
      << R"({"currency": "XYZ", "date": "2026-01-02", "gpu_hour": {"h100-sxm-80gb": 2}})";
  const json sizes =
      json::parse(run_command(kTrained + std::string("--gpus 8..256 --json"), folder.path()).out)["table"];
  ASSERT_EQ(sizes.size(), 6u);
  const double cheap = sizes[3]["cost"], dear = sizes[5]["cost"];
  ASSERT_LT(cheap, dear) << "256 GPUs train 256 sequences worse than 64";
  const std::string budget = std::to_string((cheap + dear) / 2);
  const json found = json::parse(run_command(kTrained + ("--json --budget " + budget), folder.path()).out);
  EXPECT_EQ(found["cost"]["date"], "2026-01-02");
  int most = 0, above = 0;
  double before = 0;
  for (const json& row : found["table"]) {
    EXPECT_GE(row["gpus"].get<double>(), before) << "by size";
    before = row["gpus"];
    EXPECT_EQ(row["in_budget"], row.contains("cost") && row["cost"].get<double>() <= std::stod(budget));
    if (row["in_budget"]) most = std::max(most, row["gpus"].get<int>());
  }
  for (const json& row : found["table"]) {
    if (row["gpus"].get<int>() > most) ++above;
  }
  EXPECT_GE(most, 64);
  EXPECT_GE(above, 1) << "a size that it does not buy was tried";
  const CommandResult page = run_command(kTrained + ("--budget " + budget), folder.path());
  EXPECT_THAT(page.out, HasSubstr("The most GPUs of these that the budget buys: " + std::to_string(most) + " x"));
  EXPECT_THAT(page.out, HasSubstr("prices of 2026-01-02"));
  EXPECT_THAT(run_command(kTrained + std::string("--budget 1"), folder.path()).out, HasSubstr("buys none of these"));
}

// Board power decides where steps are alike: by energy the least comes first.
TEST(SearchCommand, TheObjectiveOrdersThePlans) {
  const std::string job =
      "--model llama3-8b --gpu h100,a100,b200 --gpus 8 --global-batch 256 --schedule 1f1b --micro-batch 1 --recompute "
      "none --objective ";
  for (const char* objective : {"time", "energy"}) {
    const json found = searched(job + objective);
    double before = 0;
    for (const json& plan : found["plans"]) {
      const double value = objective == std::string("time")
                               ? 1 / plan["tokens_per_s"].get<double>()
                               : plan["energy"]["trillion_tokens_kwh_at_most"].get<double>();
      EXPECT_GE(value, before) << objective;
      before = value;
    }
  }
  const std::string table = run_command("ns-dist search " + job + "energy").out;
  for (const char* word : {"The least energy: 8 x", "no more energy", "GPUs alone, each at its board power, PUE 1"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
}

// By what the table says: with failures and spare nodes, which cost the small cluster more.
TEST(SearchCommand, TheFirstPlanIsThatOfTheBestLine) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100": 2.5}})";
  const json found = json::parse(
      run_command("ns-dist search --model llama3-8b --gpu h100 --gpus 8,64 --global-batch 512 --tp 1 --pp 1 "
                  "--cp 1 --micro-batch 1 --tokens 1T --prices prices.json --objective cost "
                  "--repair-time 5d --json",
                  folder.path())
          .out);
  const json& table = found["table"];
  ASSERT_EQ(table.size(), 2u);
  ASSERT_LT(table[1]["cost"].get<double>(), table[0]["cost"].get<double>());
  EXPECT_EQ(found["plans"][0]["ranks"], 64);
}

// What is not known is compared with nothing: GPUs are no cost.
TEST(SearchCommand, AGpuWithoutAPriceIsNotCompared) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"a100": 1.5}})";
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100,a100 --gpus 8 --global-batch 64 --tp 1 --pp 1 --cp 1 --micro-batch "
      "1 "
      "--prices prices.json ";
  const json table = json::parse(run_command(job + "--json", folder.path()).out)["table"];
  EXPECT_FALSE(table[0]["on_front"]) << "the faster one, without a price";
  EXPECT_TRUE(table[1]["on_front"]);
  EXPECT_THAT(run_command(job, folder.path()).out,
              HasSubstr("* no other line that has a price is faster with no higher cost"));
}

// What is asked of one machine is told of several, too.
TEST(SearchCommand, ATableTellsWhatIsTightAndWhatWouldHelp) {
  const std::string page = run_command(
                               "ns-dist search --model llama3-8b --gpu h100 --gpus 8,16 --global-batch 480 --framework "
                               "llm-foundry --micro-batch 1 --seq 8704 --sensitivity")
                               .out;
  EXPECT_THAT(page, HasSubstr("tp 1 pp 1 dp 8 zero 3, tight"));
  EXPECT_THAT(page, HasSubstr("tp 1 pp 1 dp 16 zero 3 *"));
  EXPECT_THAT(page, HasSubstr("  tight: may run out of memory\n"));
  EXPECT_THAT(page, HasSubstr("What 1 % better changes, with the fastest plan\n  efficiency of kernels"));
}

// A step of 8 sequences takes less than one of 12: what counts is the time for each token.
TEST(SearchCommand, StepsOfOtherBatchesAreComparedByToken) {
  const ScratchFolder folder;
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100 --global-batch 8,12 --tp 1,2 --schedule 1f1b --recompute "
      "none,selective:layernorm --gpus ";
  const CommandResult made = run_command(job + "8 --json --report page.html", folder.path());
  const json plans = json::parse(made.out)["plans"];
  const double step = plans[0]["step_time_s"], rate = plans[0]["tokens_per_s"];
  bool differs = false;
  for (const json& plan : plans) {
    const double times = rate * step / (plan["tokens_per_s"].get<double>() * plan["step_time_s"].get<double>());
    EXPECT_NEAR(plan["behind_s"].get<double>(), times * plan["step_time_s"].get<double>() - step, 1e-9);
    EXPECT_GE(plan["behind_s"].get<double>(), 0);
    EXPECT_LE(plan["behind_low_s"].get<double>(), plan["behind_s"].get<double>());
    EXPECT_GE(plan["behind_high_s"].get<double>(), plan["behind_s"].get<double>());
    differs |= std::abs(times - 1) > 0.1;
  }
  EXPECT_TRUE(differs) << "else nothing is tested";
  EXPECT_THAT(run_command(job + "8").out, HasSubstr(" of the fastest, for each token"));
  const std::string page = read_text(folder.path() / "page.html");
  EXPECT_THAT(page, HasSubstr("global batch 12 or 8 of 8,192 tokens, bf16"));
  EXPECT_THAT(page, HasSubstr("for the tokens of the first row"));
  EXPECT_THAT(run_command("ns-dist search --model llama3-70b --gpus 8 --tp 8 --global-batch 64,128").out,
              HasSubstr("global batch 64 or 128 of 8,192 tokens"))
      << "what was asked, without an answer, too";
  EXPECT_THAT(run_command(job + "8,16").out, ::testing::ContainsRegex("GPU +batch +GPUs"));
  EXPECT_EQ(json::parse(made.out)["table"][0]["global_batch"], 12);
}

// Costs of two sizes of one machine err together; those of two GPUs do not.
TEST(SearchCommand, TellsWhichCostsAreNoHigherWithinTheInterval) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json")
      << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2, "h200-sxm": 2.1, "a100-sxm-80gb": 1.9}})";
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100-sxm-80gb,h200-sxm,a100-sxm-80gb --gpus 8,16 --global-batch 64 --tp "
      "2 "
      "--recompute none --tokens 1T --prices prices.json";
  const json table = json::parse(run_command(job + " --json", folder.path()).out)["table"];
  const json& cheapest = *std::min_element(table.begin(), table.end(), [](const json& a, const json& b) {
    return a["cost"].get<double>() < b["cost"].get<double>();
  });
  EXPECT_FALSE(cheapest.contains("cost_behind"));
  double same = 0, other = 0;  // widths of the intervals
  for (const json& row : table) {
    const double more = row["cost"].get<double>() / cheapest["cost"].get<double>() - 1;
    EXPECT_EQ(row.contains("cost_behind"), more > 0 && more <= 0.5) << row;
    if (!row.contains("cost_behind")) continue;
    const double low = row["cost_behind_low"], high = row["cost_behind_high"];
    EXPECT_NEAR(row["cost_behind"].get<double>(), more, 1e-9);
    EXPECT_LT(low, more);
    EXPECT_GT(high, more);
    (row["gpu"] == cheapest["gpu"] ? same : other) = high - low;
  }
  EXPECT_GT(same, 0);
  EXPECT_GT(other, same);
  EXPECT_THAT(run_command(job, folder.path()).out, HasSubstr("\n  may cost no more: "));
}

// Racks of 72 GPUs: groups of powers of two fill 64 of them.
TEST(SearchCommand, FewerGpusOfARackMayBeFaster) {
  const std::string page = run_command(
                               "ns-dist search --model deepseek-v3 --gpu gb200 --gpus 576 --global-batch 9216 --dtype "
                               "mxfp8 --cp 1 --tp 1 --micro-batch 1 --pp 8 --schedule 1f1b --ep 4,64")
                               .out;
  EXPECT_THAT(page, HasSubstr("fewer GPUs are faster: --gpus 512, "));
}

// On one GPU, too, weights are those of the framework: PyTorch's in fp32, which no ZeRO stage shares.
TEST(SearchCommand, OneGpuHasTheWeightsOfItsFramework) {
  const CommandResult found =
      run_command("ns-dist search --model gpt2 --gpu a100 --gpus 1 --global-batch 8 --framework transformers");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("\nfastest"));
}

// PyTorch's FSDP recomputes whole layers or none: of 40 as few as fit, which no other plan of the search reaches.
TEST(SearchCommand, TheFastestRecomputesNoMoreLayersThanItMust) {
  const std::string job =
      "ns-dist search --model llama2-13b --gpu a100 --gpus 64 --global-batch 512 --seq 8192 --framework fsdp --json";
  const json plans = json::parse(run_command(job).out)["plans"],
             all = json::parse(run_command(job + " --recompute full").out)["plans"];
  const std::string recompute = plans[0]["inputs"]["plan"]["recompute"];
  ASSERT_TRUE(recompute.starts_with("full:")) << recompute;
  EXPECT_LT(plans[0]["step_time_s"].get<double>(), 0.9 * all[0]["step_time_s"].get<double>());
  EXPECT_EQ(all[0]["inputs"]["plan"]["recompute"], "full") << "as it was asked";
  for (const json& plan : plans) EXPECT_LE(plan["behind_s"], 0.1 * plans[0]["step_time_s"].get<double>() * 1.0001);
  const std::int64_t layers = std::stoll(recompute.substr(5));
  const std::string command = plans[0]["command"];
  const std::string fewer =
      std::regex_replace(command, std::regex("full:[0-9]+"), "full:" + std::to_string(layers - 1));
  const json memory = json::parse(run_command(fewer + " --json").out)["memory"];
  EXPECT_GT(memory["device_bytes"].get<double>(), memory["capacity_bytes"].get<double>()) << "one fewer is too few";
}

// The answer that planners can run: its memory with fragmentation and NCCL's buffers fits, too.
TEST(SearchCommand, TheFastestMayBeTightAndAnotherIsNot) {
  const json plans = json::parse(
      run_command("ns-dist search --model llama2-7b --gpu a100-pcie-80gb --gpus 8 --global-batch 256 --cp 1 --json")
          .out)["plans"];
  const auto named = [&](const std::string& why) {
    return std::find_if(plans.begin(), plans.end(), [&](const json& plan) {
      return plan["why"].get<std::string>().find(why) != std::string::npos;
    });
  };
  const double capacity = plans[0]["memory"]["capacity_bytes"], fastest = plans[0]["memory"]["device_bytes"];
  const auto roomy = named("fastest that is not tight");
  ASSERT_GT(fastest, capacity) << "else nothing is tested";
  ASSERT_NE(roomy, plans.end());
  EXPECT_LE((*roomy)["memory"]["device_bytes"].get<double>(), capacity);
}

constexpr const char* kFewPlans = " --gpu h100 --global-batch 256 --schedule 1f1b --cp 1 --zero 1 --micro-batch 1,2 ";

// As many layers as fit without being tight are not recomputed.
TEST(SearchCommand, ThePlanThatIsNotTightRecomputesFewLayers) {
  const json plans = searched(std::string("--model qwen3-32b --gpus 8") + kFewPlans)["plans"];
  const auto is_tight = [](const json& plan) {
    return plan["memory"]["device_bytes"].get<double>() > plan["memory"]["capacity_bytes"].get<double>();
  };
  ASSERT_TRUE(is_tight(plans[0])) << "else nothing is tested";
  const auto found = std::find_if(plans.begin(), plans.end(), [](const json& plan) {
    return plan["why"].get<std::string>().find("fastest that is not tight") != std::string::npos;
  });
  ASSERT_NE(found, plans.end());
  EXPECT_FALSE(is_tight(*found));
  EXPECT_THAT((*found)["command"].get<std::string>(), HasSubstr("--recompute full:"));
}

TEST(SearchCommand, SlowerPlansMayBeLessTight) {
  const std::string job = std::string("ns-dist search --model qwen3-30b-a3b --gpus 16") + kFewPlans;
  EXPECT_THAT(run_command(job + "--within 5").out,
              AllOf(HasSubstr("are tight: try a larger --within"), Not(HasSubstr("not tight"))));
  EXPECT_THAT(run_command(job).out, AllOf(HasSubstr("fastest that is not tight"), Not(HasSubstr("larger --within"))));
}

TEST(SearchCommand, ASlowStageThatNoPlanHasIsTheReason) {
  const std::string job = "ns-dist search --model llama3-8b --gpus 8 --global-batch 64 ";
  EXPECT_THAT(
      run_command(job + "--slow-rank 99:1.2").out,
      AllOf(HasSubstr("most because of --slow-rank, as in: there is no pipeline stage 99"), Not(HasSubstr("memory"))));
  EXPECT_THAT(run_command(job + "--stage-speed 1,1,1,1,1,1,1,1,1,1").out, HasSubstr("most because of --stage-speed"));
}

// The flag that an answer's command has for all overlap keeps messages from following the schedule: advice says so.
TEST(SearchCommand, AdviceHoldsBesideThePrintedCommand) {
  const json found = searched(
      "--model llama2-70b --gpu h100 --gpus 64 --global-batch 128 --schedule 1f1b --tp 8 --pp 4 --cp 1 --micro-batch 1 "
      "--overlap-tp on --sequence-parallel on");
  const json& plan = found["plans"][0];
  ASSERT_THAT(plan["command"].get<std::string>(), HasSubstr("--overlap "));
  int tried = 0;
  for (const json& change : plan["improvements"]) {
    if (!change.contains("flags") || change["flags"] == "") continue;
    std::string command = plan["command"];
    std::istringstream flags(change["flags"].get<std::string>());
    for (std::string flag, value; flags >> flag >> value;) {
      const std::size_t at = command.find(flag + " ");
      if (at != std::string::npos) command.erase(at, command.find(" --", at + 1) - at);
      command += " " + flag + " " + value;
    }
    const json again = json::parse(answered(command.substr(8) + " --json").out);
    EXPECT_NEAR(again["step_time_s"].get<double>(), plan["step_time_s"].get<double>() - change["saves_s"].get<double>(),
                1e-9)
        << command;
    ++tried;
  }
  EXPECT_GE(tried, 1);
}

// A row of the file says which work it is, what is computed again, and what the training takes.
TEST(SearchCommand, RowsOfTheCsvAreToldApart) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100": 2.5}})";
  const std::string job =
      "ns-dist search --model llama3-8b --gpu h100 --gpus 8 --global-batch 64,128 --tp 1 --pp 1 --cp 1 --micro-batch 1 "
      "--recompute selective:layernorm --csv found.csv --tokens 1T --prices prices.json --json";
  const json row = json::parse(run_command(job, folder.path()).out)["table"][0];
  const std::string csv = read_text(folder.path() / "found.csv");
  EXPECT_THAT(csv, ::testing::StartsWith("model,framework,gpu,gpus,inside_nodes,between_nodes,global_batch,sequence,"
                                         "dtype,why,step_time_s,"));
  EXPECT_THAT(csv, HasSubstr("\nllama3-8b,megatron-core,h100-sxm-80gb,8,nvlink4-nvswitch 450 GB/s,ib-ndr 50 GB/s,128,"
                             "8192,bf16,"));
  EXPECT_THAT(csv, HasSubstr(",recompute,training_s,cost,command\n"));
  EXPECT_THAT(csv, HasSubstr(fmt::format(",selective:layernorm,{},{},ns-dist ",
                                         row["training"]["seconds"].get<double>(), row["cost"].get<double>())));
}

// Every flag with a list has a column, once, whether its values are tried in one search or have a search each.
TEST(SearchCommand, ListedFlagsAreColumnsOfTheCsv) {
  const ScratchFolder folder;
  const std::string job =
      "ns-dist search --model gpt2 --gpu h100 --gpus 8 --seq 512,1024 --layers 6,12 --launch-cost 2us,4us --tp 1,2 "
      "--pp 1 --cp 1 --micro-batch 4 --zero 1 --gpus-per-node 4,8 --recompute none --reshard on,off --global-batch 32 "
      "--within 1 --csv found.csv";
  ASSERT_EQ(run_command(job, folder.path()).code, 0);
  std::istringstream csv(read_text(folder.path() / "found.csv"));
  std::string line;
  ASSERT_TRUE(std::getline(csv, line));
  EXPECT_THAT(line, ::testing::EndsWith(",zero,recompute,layers,launch_cost,reshard,gpus_per_node,command"));
  std::set<std::string> rows;
  const std::regex behind(R"(,none,(\d+),(\d) us,(on|off),(\d),"?(ns-dist .*))");
  while (std::getline(csv, line)) {
    std::smatch cells;
    ASSERT_TRUE(std::regex_search(line, cells, behind)) << line;
    EXPECT_THAT(cells[5].str(), AllOf(HasSubstr(fmt::format("--layers {} ", cells[1].str())),
                                      HasSubstr(fmt::format("--launch-cost {}us ", cells[2].str())),
                                      HasSubstr(fmt::format("--gpus-per-node {} ", cells[4].str()))));
    rows.insert(fmt::format("{} {} {}", cells[1].str(), cells[2].str(), cells[4].str()));
  }
  EXPECT_EQ(rows.size(), 8u);  // 2 x 2 x 2 searches
}

TEST(SearchCommand, ATrainingThatNeverEndsHasNoSum) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "USD", "gpu_hour": {"h100-sxm-80gb": 2}})";
  const CommandResult result = run_command(
      "ns-dist search --model gpt2 --gpus 8,16 --dp 8 --pp 1,2 --tp 1 --global-batch 16 --micro-batch 1 --zero 1 "
      "--tokens 1T --time-between-failures 1s --objective energy --prices prices.json",
      folder.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("endless"), Not(HasSubstr("inf")), Not(HasSubstr("nan"))));
  // A failure every 10 s, and 600 s to restart: a share of 1e-26 is no end either.
  const CommandResult rare = run_command(
      "ns-dist search --model gpt2 --gpus 8 --dp 8 --pp 1 --tp 1 --global-batch 16 --micro-batch 1 --zero 1 --tokens "
      "1T --time-between-failures 80s --prices prices.json --json",
      folder.path());
  ASSERT_EQ(rare.code, 0) << rare.err;
  const json row = json::parse(rare.out)["table"][0];
  for (const char* key : {"seconds", "low_s", "high_s", "gpu_hours", "kwh_at_most"}) {
    EXPECT_TRUE(row["training"][key].is_null()) << key << row["training"][key];
  }
  EXPECT_TRUE(row["cost"].is_null());
  EXPECT_GT(row["training"]["goodput"], 0);
}

TEST(SearchCommand, APriceOfAnUnknownGpuIsTold) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100": 2, "a100-sxm-80bg": 1}})";
  const std::string job =
      "ns-dist search --model gpt2 --gpu h100,a100 --gpus 8 --dp 8 --pp 1 --tp 1 --global-batch 16 --micro-batch 1 "
      "--zero 1 --tokens 1B --prices prices.json";
  const std::string told =
      "prices.json#/gpu_hour/a100-sxm-80bg: no GPU of `ns-dist list gpus` is called so; did you "
      "mean \"a100-sxm-80gb\"?";
  EXPECT_THAT(run_command(job, folder.path()).out, AllOf(HasSubstr(told), HasSubstr("no price")));
  const json found = json::parse(run_command(job + " --json", folder.path()).out);
  EXPECT_EQ(found["cost"]["unknown"], json({told}));
  EXPECT_TRUE(found["table"][0].contains("cost")) << "by another name";
}

// The page has what --json says, and its plans repeat.
TEST(SearchCommand, ThePageHoldsTheAnswers) {
  const ScratchFolder folder;
  const CommandResult made =
      run_command(std::string("ns-dist search ") + kSmall + " --report page.html --json", folder.path());
  ASSERT_EQ(made.code, 0) << made.err;
  const json found = json::parse(made.out);
  const std::string page = read_text(folder.path() / "page.html");
  for (const json& plan : found["plans"]) {
    EXPECT_THAT(page, HasSubstr("<code>" + plan["command"].get<std::string>() + "</code>"));
  }
  EXPECT_THAT(page, HasSubstr("step against memory"));
  EXPECT_THAT(page, HasSubstr("<circle"));
  EXPECT_THAT(page, HasSubstr(std::string("ns-dist search ") + kSmall + "</code>")) << "what was typed";
  const json again = json::parse(run_command("ns-dist --from page.html#2 --json", folder.path()).out);
  EXPECT_EQ(again["step_time_s"], found["plans"][1]["step_time_s"]);
  EXPECT_EQ(run_command(std::string("ns-dist search ") + kSmall + " --report /no/where", folder.path()).code, 1);
}

// What was asked, what each plan costs, and what to doubt of which.
TEST(SearchCommand, ThePageAnswersWhatWasAsked) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "p.json") << R"({"currency": "USD", "gpu_hour": {"h100": 2.5}})";
  const std::string asked = " --tokens 1T --deadline 1d --prices p.json --budget 9M --report page.html --json";
  const CommandResult made = run_command(std::string("ns-dist search ") + kSmall + asked, folder.path());
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string page = read_text(folder.path() / "page.html");
  for (const char* words :
       {"1T tokens in 24 h, at most 9,000,000 USD", "too late</td>", "in budget</td>", "<p>Warnings:</p>", "(row 1"}) {
    EXPECT_THAT(page, HasSubstr(words));
  }
}

// Is everything to be seen on a narrow screen and on paper? A command has a line of its own, machines are a table, and
// the ticks of the axis are round numbers.
TEST(SearchCommand, ThePageIsAsWideAsTheScreen) {
  const ScratchFolder folder;
  const std::string job = "--model gpt3-13b --gpus 8,16 --schedule 1f1b --micro-batch 1 --report page.html";
  ASSERT_EQ(run_command("ns-dist search " + job, folder.path()).code, 0);
  const std::string page = read_text(folder.path() / "page.html");
  const auto count = [&](const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_GT(count("<tr class=\"planned\">"), 1u);
  EXPECT_EQ(count("<tr class=\"plan\"><td></td><td colspan=\"7\"><code>ns-dist "), count("<tr class=\"planned\">"));
  EXPECT_THAT(page, HasSubstr("<h2>All machines</h2>\n<div class=\"scroll\"><table>\n<tr><th>GPU</th>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"number\">16</td>"));
  EXPECT_THAT(page, HasSubstr("measured step"));
  const std::regex tick("<text class=\"end\"[^>]*>([0-9.]+) (s|ms|us)</text>");
  std::size_t ticks = 0;
  for (std::sregex_iterator match(page.begin(), page.end(), tick), end; match != end; ++match, ++ticks) {
    const std::string digits = (*match)[1];
    EXPECT_FALSE(digits.find('.') != std::string::npos && digits.ends_with("0")) << digits;
  }
  EXPECT_GT(ticks, 3u);
}

#ifdef NS_DIST_MPIEXEC
// Several processes print, and write, what one does.
TEST(SearchCommand, ProcessesOfMpiAnswerAsOne) {
  const ScratchFolder folder;
  const std::string mpi =  // whose own memory leaks
      "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none " NS_DIST_MPIEXEC " -n 2 " NS_DIST_BINARY " search ";
  const std::string job = std::string(kSmall) + " --threads 1";
  const CommandResult one = run_command("ns-dist search " + job, folder.path());
  const CommandResult two = run_command(mpi + job, folder.path());
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);

  std::ofstream(folder.path() / "sweep.json") << R"({"tp": [1, 3], "pp": [1, 2, 3], "micro-batch": "1..3", "dp": 4})";
  const std::string sweep = "--sweep sweep.json --model gpt3-13b --global-batch 24 --threads 1 --output ";
  ASSERT_EQ(run_command("ns-dist search " + sweep + "one.jsonl", folder.path()).code, 0);
  const CommandResult swept = run_command(mpi + sweep + "two.jsonl", folder.path());
  ASSERT_EQ(swept.code, 0) << swept.err;
  EXPECT_EQ(read_text(folder.path() / "two.jsonl"), read_text(folder.path() / "one.jsonl"));

  const CommandResult refused = run_command(mpi + "--gpus 16 --tpp 2", folder.path());
  EXPECT_NE(refused.code, 0);
  const std::size_t first = refused.err.find("did you mean --tp");
  ASSERT_NE(first, std::string::npos) << refused.err;
  EXPECT_EQ(refused.err.find("did you mean --tp", first + 1), std::string::npos) << "said once";
}
#endif

// What a row says does not depend on the rows before it, whose models of the machine it may share: number formats with
// another clock, numbers of ranks of ASTRA-Sim's formulas, racks that hold other numbers of GPUs.
TEST(SearchCommand, RowsOfASweepDoNotDependOnTheirOrder) {
  const ScratchFolder folder;
  const auto steps = [&](const std::string& sweep, const std::string& flags) {
    std::ofstream(folder.path() / "sweep.json") << sweep;
    const CommandResult result = run_command(
        "ns-dist search --sweep sweep.json --output o.jsonl --threads 1 " + flags + " && cat o.jsonl && rm o.jsonl",
        folder.path());
    std::map<std::string, double> found;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("{")) continue;
      const json row = json::parse(line);
      if (!row.contains("set")) continue;  // the first line, of the whole sweep
      EXPECT_FALSE(row.contains("error")) << line;
      found[row["set"].dump()] = row.value("step_time_s", 0.0);
    }
    return found;
  };
  const std::string small = "--model llama2-7b --layers 4 --global-batch 144 ";
  const auto alike = [&](const char* one, const char* other, const std::string& flags) {
    const auto first = steps(one, small + flags);
    EXPECT_EQ(first.size(), 2u) << one;
    EXPECT_EQ(first, steps(other, small + flags)) << one;
  };
  alike(R"({"dtype": ["fp32", "bf16"]})", R"({"dtype": ["bf16", "fp32"]})", "--tp 8");
  alike(R"({"tp": [1, 8]})", R"({"tp": [8, 1]})", "--network-model astra");
  alike(R"({"dp": [72, 9]})", R"({"dp": [9, 72]})", "--gpu gb200 --tp 8");
}

TEST(SearchCommand, SensitivityIsSorted) {
  const json found = searched(std::string(kSmall) + " --sensitivity");
  const json& rows = found["table"][0]["sensitivity"];
  ASSERT_GE(rows.size(), 5u);
  double before = 1;
  for (const json& row : rows) {
    const double change = row["step_share"];
    EXPECT_LE(std::abs(change), before);
    EXPECT_GT(change, -0.011) << "1 % of one part saves no more than 1 %";
    EXPECT_NEAR(row["step_time_s"].get<double>(), (1 + change) * found["plans"][0]["step_time_s"].get<double>(), 1e-9);
    for (const char* key : {"part", "what", "factor", "fits"}) EXPECT_TRUE(row.contains(key)) << key;
    before = std::abs(change);
  }
  EXPECT_LT(rows[0]["step_share"].get<double>(), 0);
}

TEST(SearchCommand, AnInterruptPrintsTheBestSoFar) {
  const CommandResult result =
      run_command("timeout --preserve-status -s INT 2 ns-dist search --model deepseek-v3 --gpus 2048 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_TRUE(found["interrupted"]);
  const bool counted = found["space"].get<double>() > 0;
  EXPECT_EQ(found["left_out"]["not_looked_at"].get<double>() > 0, counted);
  for (const json& plan : found["plans"]) {
    EXPECT_GT(plan["network_s"].get<double>(), 0) << "several GPUs communicate, also in the best so far";
  }
}

// In a table, too: the last line is no answer of a whole search, and others may be missing.
TEST(SearchCommand, AnInterruptedTableSaysSo) {
  const CommandResult result =
      run_command("timeout --preserve-status -s INT 1 ns-dist search --gpu a100 --gpus 1024..4096");
  ASSERT_EQ(result.code, 0) << result.err;
  // A busy machine may not have timed a plan in a second.
  EXPECT_THAT(result.out, AnyOf(HasSubstr("  interrupted: the last line is the best so far"),
                                HasSubstr("  interrupted before a plan was timed")));
}

TEST(SearchCommand, NothingThatFitsSaysWhatMayFit) {
  const CommandResult result = run_command("ns-dist search --model llama3-70b --gpus 8 --global-batch 64 --tp 8");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no plan fits into memory"));
  EXPECT_THAT(result.out, HasSubstr("what fits: more GPUs, as --gpus 16; a part of the optimizer in the hosts' memory, "
                                    "--offload-optimizer 0.75,1\n"));
  const std::string job = "--model llama3-70b --global-batch 64 --tp 8 ";
  for (const char* advice : {"--gpus 16", "--gpus 8 --offload-optimizer 0.75", "--gpus 8 --offload-optimizer 1"}) {
    EXPECT_FALSE(searched(job + advice)["plans"].empty()) << advice;
  }
  EXPECT_TRUE(searched(job + "--gpus 8 --offload-optimizer 0.5")["plans"].empty()) << "a smaller part is not enough";
  // 671 billion parameters in 8 x 80 GB: twice the weights do not fit, with the optimizer on the hosts either.
  EXPECT_THAT(
      run_command("ns-dist search --model deepseek-v3 --gpu h100 --gpus 8 --global-batch 64 --micro-batch 1 "
                  "--schedule 1f1b --tp 1,8 --cp 1")
          .out,
      AllOf(HasSubstr("no plan fits into memory"), Not(HasSubstr("--offload-optimizer")), Not(HasSubstr("--gpus 64"))));
}

// One GPU holds the whole model of a framework that shares nothing: another framework fits, or less to train.
TEST(SearchCommand, WhatFitsWhereNothingIsShared) {
  const std::string job = "--model qwen3-14b --gpu h100 --gpus 8 ";
  const json none = searched(job + "--framework transformers-sdpa");
  ASSERT_TRUE(none["plans"].empty());
  EXPECT_EQ(
      none["table"][0]["advice"],
      "what fits: weights shared among GPUs, as by --framework transformers-fsdp; small adapters trained instead, "
      "--lora-rank 16");
  for (const char* advice : {"--framework transformers-fsdp", "--framework transformers-sdpa --lora-rank 16"}) {
    EXPECT_FALSE(searched(job + advice)["plans"].empty()) << advice;
  }
}

// Of most degrees no plan has 8 groups of experts. Those that have them lack memory, which more GPUs have.
TEST(SearchCommand, MemoryIsTheReasonOfPlansThatArePossibleOtherwise) {
  EXPECT_THAT(answered("search --model mixtral-8x7b --gpu h100 --gpus 8 --ep 8 --framework deepspeed").out,
              AllOf(HasSubstr("no plan fits into memory: the least needs "), HasSubstr("more GPUs, as --gpus 16"),
                    Not(HasSubstr("most because of"))));
}

// 256 sequences on 4,096 GPUs leave each little to do.
TEST(SearchCommand, FewerGpusThatAreFasterAreTold) {
  const std::string job =
      "search --model llama3.2-1b --gpu h100 --global-batch 256 --schedule 1f1b --micro-batch 1 --recompute none "
      "--gpus ";
  const auto step_of = [&](const char* gpus) {
    return searched(job.substr(7) + gpus)["plans"][0]["step_time_s"].get<double>();
  };
  ASSERT_LT(step_of("2048"), step_of("4096"));
  EXPECT_THAT(answered(job + "4096").out, HasSubstr("  fewer GPUs are faster: --gpus 2048, "));
  EXPECT_THAT(answered(job + "64").out, Not(HasSubstr("fewer GPUs")));
}

// 1,000 = 8 x 125 GPUs have no plan for 1,024 sequences of a model with 32 layers: of the sizes and batches near them,
// those of the fastest plans are named, and searches of these find no slower ones.
TEST(SearchCommand, WhatIsPossibleIsTold) {
  const std::string job = "search --model llama3-8b --gpu h100 --schedule 1f1b --gpus ";
  const std::string text = answered(job + "1000 --global-batch 1024").out;
  EXPECT_THAT(text, HasSubstr("what is possible: another batch, as --global-batch 1000: "));
  EXPECT_THAT(text, HasSubstr("; fewer GPUs, as --gpus 896: "));
  const json none = searched(job.substr(7) + "1000 --global-batch 1024");
  EXPECT_THAT(text, HasSubstr(none["table"][0]["advice"].get<std::string>()));
  const auto step_of = [&](const std::string& more) {
    return searched(job.substr(7) + more)["plans"][0]["step_time_s"].get<double>();
  };
  EXPECT_LT(step_of("896 --global-batch 1024"), step_of("992 --global-batch 1024"));
  EXPECT_LT(step_of("1000 --global-batch 1000"), step_of("896 --global-batch 1024"));
}

// DeepSeek-V3 needs 12 TB of weights, gradients and optimizer: 192 H100 hold them, 128 do not. The sizes that a search
// proposes are the smallest of the halves on the way to the next power of two.
TEST(SearchCommand, TheNextSizeThatFitsIsTold) {
  const json found = searched("--model deepseek-v3 --gpu h100 --gpus 64 --global-batch 512");
  const json& row = found["table"][0];
  EXPECT_TRUE(found["plans"].empty());
  EXPECT_THAT(row["advice"].get<std::string>(), HasSubstr("what fits: more GPUs, as --gpus 192; "));
  EXPECT_GT(row["least_memory_bytes"].get<double>(), 80 * 1.074e9);
}

// 32 A100 of 40 GB lack 1 % of the memory of the smallest plan: one node more has it.
TEST(SearchCommand, DoAFewNodesMoreFit) {
  const std::string job = "--model llama3-70b --gpu a100-40gb --global-batch 16 --gpus ";
  const json row = searched(job + "32")["table"][0];
  EXPECT_THAT(row["advice"].get<std::string>(), HasSubstr("what fits: more GPUs, as --gpus 40; "));
  EXPECT_FALSE(searched(job + "40")["plans"].empty());
}

// No number of replicas makes 64 a multiple of 3: another batch does, or another micro-batch, and fewer GPUs do not.
TEST(SearchCommand, WhatIsPossibleDividesTheBatchIntoMicrobatches) {
  for (const auto& [job, batch] :
       {std::pair{"--model llama3-8b --gpus 8", "72"}, std::pair{"--model gpt3-1.3b --gpus 1", "63"}}) {
    const std::string text = answered("search --gpu h100 --micro-batch 3 --global-batch 64 " + std::string(job)).out;
    EXPECT_THAT(text, HasSubstr(std::string("what is possible: another batch, as --global-batch ") + batch + ": "));
    EXPECT_THAT(text, HasSubstr("; without --micro-batch: "));
    EXPECT_THAT(text, Not(HasSubstr("fewer GPUs")));
  }
}

// Few GPUs of a large model recompute more: with 8, 16 and 32 the training costs more than the budget, and with 32 a
// little more than with 16, but with 64 less.
TEST(SearchCommand, ABudgetMayBuyMoreThanFewGpus) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "USD", "gpu_hour": {"mi300x": 2.2}})";
  const CommandResult result = run_command(
      "ns-dist search --model llama3-70b --gpu mi300x --global-batch 1024 --schedule 1f1b --tokens 2T --prices "
      "prices.json --budget 1M",
      folder.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("The most GPUs of these that the budget buys: "));
  EXPECT_THAT(result.out, Not(HasSubstr("The budget buys none")));
}

// 4 x 4 ranks of a replica leave at least 256 replicas: that is what binds, not the 4,096 of the first plan.
TEST(SearchCommand, NoPlanNamesWhatBinds) {
  const CommandResult result =
      run_command("ns-dist search --model gpt2 --gpus 4096 --global-batch 8 --cp 1 --tp 1,2,4 --pp 1,2,4");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no plan is possible: --global-batch must be a multiple of --micro-batch x --dp, "
                                    "which is at least 256 with the values that are tried, as in: 8 sequences are "
                                    "not divisible by micro-batch 1 x dp 256\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("dp 4096")));
}

// A flag that changes no plan has a search for each value, and the table a column for it.
TEST(SearchCommand, AnyFlagOfTheWorkTakesAList) {
  const std::string flags =
      "--model gpt2 --gpus 8 --global-batch 64 --micro-batch 1 --schedule 1f1b --launch-cost '2 us,50 us' --layers "
      "6,12";
  const json table = searched(flags)["table"];
  ASSERT_EQ(table.size(), 4u);
  std::map<std::pair<std::string, std::string>, double> steps;
  for (const json& line : table) {
    steps[{line["set"]["layers"], line["set"]["launch-cost"]}] = line["step_time_s"];
    EXPECT_EQ(line["set"].size(), 2u);
  }
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_LT(steps.at({"6", "2 us"}), steps.at({"12", "2 us"}));
  EXPECT_LT(steps.at({"12", "2 us"}), steps.at({"12", "50 us"}));
  const ScratchFolder folder;
  const CommandResult text = run_command("ns-dist search " + flags + " --report page.html", folder.path());
  EXPECT_THAT(text.out, AllOf(HasSubstr("  layers  launch-cost "), HasSubstr("  12      50 us ")));
  const std::string page = read_text(folder.path() / "page.html");
  const std::string title = "<h1>Plans for GPT-2 124M (small), 6 layers; GPT-2 124M (small)</h1>";
  EXPECT_THAT(page, HasSubstr(title));
  const std::size_t machine = page.find("<dt>Machine</dt>");
  EXPECT_NE(machine, std::string::npos);
  EXPECT_EQ(page.find("<dt>Machine</dt>", machine + 1), std::string::npos) << "one machine is named once";
  // Of these alone the commas belong to one value: the help tells them.
  EXPECT_THAT(run_command("ns-dist search --help").out,
              HasSubstr("but not --calibration, --kernel-calibration, --overlap, --cuda-graphs, --stage-speed."));
}

// The first of many thousand values, the last and their number; an interrupt ends the search while it still counts or
// looks for what is impossible. Without it, it takes minutes.
TEST(SearchCommand, AnInterruptedSearchOfManyValuesIsShort) {
  const std::string search = "ns-dist search --model llama3-8b --gpus 8 --global-batch 2048..8192 --recompute full";
  const CommandResult result = run_command("timeout --preserve-status -s INT -k 20 2 " + search);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("batch 2048 to 8192 (6,145 values) of"), HasSubstr("interrupted; ")));
  EXPECT_THAT(result.out, HasSubstr("interrupted before a plan was timed"));
  EXPECT_EQ(result.err, "");
}

TEST(SearchCommand, BadSearchesSaySoBeforeTheyStart) {
  struct Case {
    const char *arguments, *says;
    int code;
  };
  for (const Case& each :
       {Case{"", "--gpus", 2},
        Case{"--gpus 12", "write 8 or 16", 2},
        Case{"--gpus 16 --tp 1,2,x", "--tp", 2},
        Case{"--gpus 16 --tp 8..1", "write 1..8", 2},
        Case{"--gpus 16 --tpp 2", "did you mean --tp", 2},
        Case{"--gpus 256 --micro-batch 1..9999 --vpp 1..9999 --global-batch 1..9999", "--micro-batch (9999 values)", 2},
        Case{"--gpus 16 --tp 3", "16 GPUs", 1},
        Case{"--gpus 16 --schedule x", "--schedule", 2},
        Case{"--gpus 16 --order foo", "--order: \"foo\" is no parallel dimension; expected tp,", 2},
        Case{"--gpus 16 --pipeline-layout foo", "--pipeline-layout: \"f\" is no part of a model; expected", 2},
        Case{"--gpus 16 --algorithm ring,tre", "--algorithm: \"tre\" is not one of its values", 2},
        Case{"--gpus 16 --layers 1..96 --nodes 1..200",
             "the lists make 19200 searches; expected at most 10000; "
             "write fewer values of ",
             2},
        Case{"--gpus 16 --framework jax,fsp", "did you mean \"fsdp\"", 1},
        Case{"--gpus 16 --deadline 3d", "--tokens", 2},
        Case{"--dp 1000003 --tokens 1T --deadline 30d", "--dp: whole replicas on whole nodes of 8 need 8,000,024 GPUs",
             1},
        Case{"--gpus 16 --tokens 3X", "--tokens", 2},
        Case{"--gpus 16 --tokens 1T --deadline 3x", "--deadline", 2},
        Case{"--gpus 16 --within 0", "--within", 2},
        Case{"--gpus 16 --repair-time 1d", "--tokens", 2},
        Case{"--gpus 16 --tokens 1T --spare-nodes 1", "--repair-time", 2},
        Case{"--gpus 16 --tokens 1T --gpu-spread 11", "--gpu-spread", 2},
        Case{"--gpus 16 --tokens 1T --gpu-spread -1", "--gpu-spread", 2},
        Case{"--gpus 16 --tokens 1T --gpu-spread x", "--gpu-spread", 2},
        Case{"--gpus 16 --tokens 1T --time-between-failures 1d --node-time-between-failures 1d", "twice", 2},
        Case{"--gpus 16 --csv /no/where", "--csv", 1},
        Case{"--gpus 16 --prices /no/where", "--prices", 1},
        Case{"--nodes 2 --gpus 16", "twice", 2},
        Case{"--gpus 8 --model x,gpt3-13b", "--model", 1},
        Case{"--gpus 16 --budget 1M", "--prices", 2},
        Case{"--gpus 16 --budget x --prices p", "--budget", 2},
        Case{"--gpus 16 --objective speed", "--objective", 2},
        Case{"--gpus 16 --objective cost", "--prices", 2},
        Case{"--gpus 4096 --micro-batch 1..9999 --vpp 1..9999 --schedule 1f1b,interleaved", "e+", 2},
        Case{"--sweep x", "--output", 2},
        Case{"--gpus 8 --sweep x --output y", "--gpus: a sweep does not use it", 2},
        Case{"--sensitivity --sweep x --output y", "--sensitivity: a sweep does not use it", 2}}) {
    const CommandResult result = run_command(std::string("ns-dist search ") + each.arguments);
    EXPECT_EQ(result.code, each.code) << each.arguments << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(each.says)) << each.arguments;
    EXPECT_EQ(result.out, "") << each.arguments;
  }
}

// The search would be in vain: it is refused before it begins, with and without sizes.
// A budget beside a deadline: the fewest GPUs in time are those without a budget, no size is searched twice, and what
// is too late or too dear says so. Sizes end where more GPUs train no sooner.
TEST(SearchCommand, ABudgetChangesNoAnswerToADeadline) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2}})";
  const std::string job = kTrained + std::string("--deadline 40d ");
  const auto line = [](const std::string& page) {
    const std::size_t at = page.find("The fewest GPUs of these that are in time: ");
    return page.substr(at, page.find('\n', at) - at);
  };
  const std::string alone = run_command(job, folder.path()).out;
  const CommandResult both = run_command(job + "--budget 1K", folder.path());
  ASSERT_THAT(alone, HasSubstr("The fewest GPUs of these that are in time: "));
  EXPECT_EQ(line(both.out), line(alone));
  EXPECT_THAT(both.out, HasSubstr("above the budget"));
  const json found = json::parse(run_command(job + "--budget 1B --json", folder.path()).out);
  std::set<std::int64_t> sizes;
  double soonest = 1e300;
  int in_vain = 0;
  for (const json& row : found["table"]) {
    EXPECT_TRUE(sizes.insert(row["gpus"].get<std::int64_t>()).second) << "searched twice";
    const double time = row["training"]["seconds"];
    in_vain = time < soonest ? 0 : in_vain + 1;
    soonest = std::min(soonest, time);
  }
  EXPECT_LE(in_vain, 2) << "no larger size is sooner";
  EXPECT_GE(sizes.size(), 3u);
}

TEST(SearchCommand, ABudgetNeedsThePriceOfEveryGpu) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "prices.json") << R"({"currency": "XYZ", "gpu_hour": {"h100-sxm-80gb": 2}})";
  for (const char* sizes : {"", " --gpus 8", " --gpus 8..16", " --nodes 2"}) {
    const std::string job = std::string("ns-dist search --model llama3-8b --gpu h100,a100 --global-batch 256 ") +
                            "--schedule 1f1b --micro-batch 1 --tokens 1T --prices prices.json --budget 30K" + sizes;
    const CommandResult result = run_command(job, folder.path());
    EXPECT_EQ(result.code, 1) << sizes;
    EXPECT_THAT(result.err, HasSubstr("there is no price of a100-sxm-80gb")) << sizes;
    EXPECT_THAT(result.err, HasSubstr("add \"a100-sxm-80gb\" to \"gpu_hour\"")) << sizes;
    EXPECT_EQ(result.out, "") << sizes;
  }
}

// Errors of a sweep's file name what the file has, in every line.
TEST(SearchCommand, MistakesOfASweepNameItsOwnKeys) {
  const ScratchFolder folder;
  const auto refused = [&](const char* text) {
    std::ofstream(folder.path() / "sweep.json") << text;
    const CommandResult result = run_command("ns-dist search --sweep sweep.json --output o.jsonl", folder.path());
    EXPECT_EQ(result.code, 1) << text;
    EXPECT_THAT(result.err, Not(HasSubstr("plan/"))) << text;
    return result.err;
  };
  EXPECT_THAT(refused(R"({"tp": [1, "x", "y"]})"), HasSubstr(R"(sweep.json#/tp: "y" is not)"));
  EXPECT_THAT(refused(R"({"tp": [1, "x"]})"), HasSubstr(R"(write digits only, as in "tp": 8)"));
  EXPECT_THAT(refused(R"({"tp": "1..20000", "dp": "1..20000"})"), HasSubstr("write fewer values of --tp"));
}

// Killed at any byte, a sweep goes on without losing or repeating a row.
TEST(SweepCommand, GoesOnAfterAKill) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json")
      << R"({"tp": [1, 3], "plan/pp": [1, 2, 3], "micro-batch": "1..3", "dp": 4})";
  const std::string job = "ns-dist search --sweep sweep.json --output rows.jsonl --model gpt3-13b --global-batch 24";
  ASSERT_EQ(run_command(job, folder.path()).code, 0);
  const std::string whole = read_text(folder.path() / "rows.jsonl");
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 19);
  EXPECT_THAT(whole, HasSubstr("\"error\":\"--tp")) << "3 does not divide 40 heads: the row is answered, too";
  for (const double share : {0.0, 0.001, 0.01, 0.3, 0.5, 0.77, 0.999, 1.0}) {
    const auto bytes = static_cast<std::size_t>(share * static_cast<double>(whole.size()));
    std::ofstream(folder.path() / "rows.jsonl", std::ios::binary) << whole.substr(0, bytes);
    ASSERT_EQ(run_command(job, folder.path()).code, 0) << bytes;
    EXPECT_EQ(read_text(folder.path() / "rows.jsonl"), whole) << bytes;
  }
  const CommandResult other = run_command(job + " --seq 1024", folder.path());
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("not of this sweep"));
  EXPECT_EQ(read_text(folder.path() / "rows.jsonl"), whole);
}

// The same as a CSV: a row is one line, whatever its error says.
TEST(SweepCommand, ACsvGoesOnAfterAKill) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"tp": [1, 3], "micro-batch": "1..5", "cp": [1, 7]})";
  const std::string job = "ns-dist search --sweep sweep.json --model gpt3-13b --global-batch 24 --output rows.";
  ASSERT_EQ(run_command(job + "csv", folder.path()).code, 0);
  ASSERT_EQ(run_command(job + "jsonl", folder.path()).code, 0);
  const std::string whole = read_text(folder.path() / "rows.csv"), lines = read_text(folder.path() / "rows.jsonl");
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), std::count(lines.begin(), lines.end(), '\n'));
  EXPECT_THAT(whole, ::testing::StartsWith("row,plan/tp,training/micro_batch,plan/cp,ranks,step_time_s,"));
  std::istringstream of_lines(lines);
  std::string line;
  for (int i = 0; i < 2; ++i) std::getline(of_lines, line);
  const json first = json::parse(line);
  EXPECT_THAT(whole, HasSubstr("\n0,1,1,1,1," + first["step_time_s"].dump() + ","));
  for (const double share : {0.0, 0.01, 0.3, 0.77, 0.999, 1.0}) {
    const auto bytes = static_cast<std::size_t>(share * static_cast<double>(whole.size()));
    std::ofstream(folder.path() / "rows.csv", std::ios::binary) << whole.substr(0, bytes);
    ASSERT_EQ(run_command(job + "csv", folder.path()).code, 0) << bytes;
    EXPECT_EQ(read_text(folder.path() / "rows.csv"), whole) << bytes;
  }
  const CommandResult other = run_command(job + "csv --seq 1024", folder.path());
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("not of this sweep"));
  EXPECT_EQ(read_text(folder.path() / "rows.csv"), whole);
}

// Rows of another state of an input file are rows of another sweep.
TEST(SweepCommand, DoesNotGoOnWhenAnInputFileChanged) {
  const ScratchFolder folder;
  const auto write_gpu = [&](const char* bandwidth) {
    std::ofstream(folder.path() / "mine.json")
        << R"({"schema": "ns-dist/gpu/1", "id": "mine", "name": "mine", "like": "h100", "memory": {"bandwidth": ")"
        << bandwidth << R"("}, "sources": {"/memory/bandwidth": "a plan"}})";
  };
  std::ofstream(folder.path() / "sweep.json") << R"({"gpu": ["h100", "./mine.json"], "tp": [1, 2]})";
  const std::string job = "ns-dist search --sweep sweep.json --model gpt3-13b --global-batch 24 --output rows.jsonl";
  write_gpu("2 TB/s");
  ASSERT_EQ(run_command(job, folder.path()).code, 0);
  const std::string whole = read_text(folder.path() / "rows.jsonl");
  EXPECT_THAT(whole, Not(HasSubstr("error")));
  EXPECT_EQ(run_command(job, folder.path()).code, 0);
  write_gpu("3 TB/s");
  const CommandResult other = run_command(job, folder.path());
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("input files"));
  EXPECT_EQ(read_text(folder.path() / "rows.jsonl"), whole);

  // Nor when a file was mended.
  std::filesystem::remove(folder.path() / "rows.jsonl");
  std::ofstream(folder.path() / "mine.json") << "{";
  ASSERT_EQ(run_command(job, folder.path()).code, 0);
  EXPECT_THAT(read_text(folder.path() / "rows.jsonl"), HasSubstr("error"));
  write_gpu("2 TB/s");
  EXPECT_EQ(run_command(job, folder.path()).code, 1);
}

TEST(SweepCommand, RowsAreWhatSimulateAnswers) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"gpu": ["a100", "h100"], "micro-batch": [1, 2]})";
  ASSERT_EQ(
      run_command("ns-dist search --sweep sweep.json --output rows.jsonl --model gpt3-13b --tp 8", folder.path()).code,
      0);
  std::istringstream lines(read_text(folder.path() / "rows.jsonl"));
  std::string line;
  std::getline(lines, line);
  int rows = 0;
  for (; std::getline(lines, line); ++rows) {
    const json row = json::parse(line);
    const std::string set = " --gpu " + row["set"]["machine/gpu"].get<std::string>() + " --micro-batch " +
                            row["set"]["training/micro_batch"].get<std::string>();
    const json answer = json::parse(run_command("ns-dist --model gpt3-13b --tp 8 --json" + set).out);
    for (const char* key : {"step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "mfu"}) {
      EXPECT_EQ(row[key], answer[key]) << key << set;
    }
    EXPECT_EQ(row["fits"], answer["memory"]["fits"]);
    EXPECT_TRUE(row["memory_peak_bytes"].is_number_integer());
    EXPECT_EQ(row["memory_peak_bytes"], answer["memory"]["peak_bytes"]);
  }
  EXPECT_EQ(rows, 4);
}

// Whatever is a flag of the work is a key of a sweep, --overlap too; a text of a field of lists is one value.
TEST(SweepCommand, TakesEveryFlagOfTheWork) {
  const ScratchFolder folder;
  const std::string help = run_command("ns-dist search --help").out;
  const std::size_t work = help.find("What is trained:"), again = help.find("Again:");
  ASSERT_LT(work, again);
  int flags = 0;
  for (std::size_t at = work; (at = help.find("\n  --", at)) < again; ++at) {
    const std::string key = help.substr(at + 5, help.find(' ', at + 5) - at - 5);
    const auto fields = read_sweep("{\"" + key + "\": []}", "s.json");
    ASSERT_FALSE(fields);
    EXPECT_THAT(to_text(fields.error()), HasSubstr("there are no values")) << key;
    ++flags;
  }
  EXPECT_GT(flags, 80);

  std::ofstream(folder.path() / "sweep.json") << R"({"overlap": ["none", "grad-reduce,p2p"], "stage-speed": "1,0.9"})";
  const std::string plan = " --model gpt3-13b --tp 8 --pp 2 --vpp 2 --global-batch 64 ";
  ASSERT_EQ(run_command("ns-dist search --sweep sweep.json --output rows.jsonl" + plan, folder.path()).code, 0);
  std::istringstream lines(read_text(folder.path() / "rows.jsonl"));
  std::string line;
  std::getline(lines, line);
  std::vector<json> rows;
  while (std::getline(lines, line)) rows.push_back(json::parse(line));
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) {
    const std::string set = "--stage-speed 1,0.9 --overlap " + row["set"]["plan/overlap"].get<std::string>();
    EXPECT_EQ(row["step_time_s"], json::parse(run_command("ns-dist --json" + plan + set).out)["step_time_s"]) << set;
  }
  EXPECT_NE(rows[0]["step_time_s"], rows[1]["step_time_s"]);
}

// What a flag says is not overruled in silence.
TEST(SweepCommand, AFlagThatTheFileSetsIsRefused) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"tp": [1, 2], "overlap": ["none"]})";
  for (const auto& [flag, key] : {std::pair{"--tp 8", "tp"}, std::pair{"--overlap-p2p on", "overlap"}}) {
    const CommandResult result = run_command(
        std::string("ns-dist search --sweep sweep.json --output o.jsonl --model gpt3-13b ") + flag, folder.path());
    EXPECT_EQ(result.code, 2) << flag;
    EXPECT_THAT(result.err, HasSubstr(std::string("the file sets it, too, as \"") + key + "\"")) << flag;
  }
}

TEST(SweepCommand, EqualValuesAreOne) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"tp": [4, 8, "4", 4], "micro-batch": "1,2,1"})";
  const CommandResult result =
      run_command("ns-dist search --sweep sweep.json --output rows.csv --model gpt3-13b", folder.path());
  EXPECT_THAT(result.out, HasSubstr("4 of 4 rows")) << result.err;
}

TEST(SweepCommand, BadSweepsSaySoBeforeTheyStart) {
  const ScratchFolder folder;
  struct Case {
    const char *text, *says;
  };
  for (const Case& each : {Case{"{}", "no fields"}, Case{"[1]", "no fields"}, Case{"{", "JSON"},
                           Case{R"({"tpp": 1})", "did you mean \"tp\""}, Case{R"({"tp": []})", "no values"},
                           Case{R"({"tp": "4..1"})", "write 1..4"}, Case{R"({"tp": [0]})", "bad.json#/tp"},
                           Case{R"({"tp": {}})", "no value"}, Case{R"({"tp": 1, "plan/tp": 2})", "twice"},
                           Case{R"({"overlap": "tp", "overlap-p2p": "on"})", "#/overlap-p2p: \"overlap\" sets it, too"},
                           Case{R"({"overlap-p2p": "on", "overlap": "tp"})", "#/overlap: \"overlap-p2p\" sets it, too"},
                           Case{R"({"overlap": ["none", "dp"]})", "bad.json#/overlap: \"dp\""},
                           Case{R"({"tp": "1..99999", "pp": "1..99999"})", "1e+10 rows"},
                           Case{R"({"tp": "1..10000", "pp": "1..10000", "dp": "1..10000"})", "1e+12 rows"}}) {
    std::ofstream(folder.path() / "bad.json") << each.text;
    const CommandResult result = run_command("ns-dist search --sweep bad.json --output rows.jsonl", folder.path());
    EXPECT_EQ(result.code, 1) << each.text;
    EXPECT_THAT(result.err, HasSubstr(each.says)) << each.text;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "rows.jsonl"));
  }
}

}  // namespace
}  // namespace ns_dist
