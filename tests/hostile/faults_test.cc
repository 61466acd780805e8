// What is left when a run ends before its time: killed, interrupted, without room, or beside another? The old files or
// the new ones, whole.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

using Files = std::map<std::string, std::string>;  // text by path

Files files_in(const std::filesystem::path& folder) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder).string()] = read_text(entry.path());
  }
  return files;
}

std::string unfinished_in(const std::filesystem::path& folder) {
  std::string names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().filename().string().find(".ns-dist") == 0) names += entry.path().string() + "\n";
  }
  return names;
}

// A command that writes `output`: a file, or a folder.
struct Work {
  const char* arguments;
  const char* output;
};
constexpr Work kWorks[] = {
    {"simulate --model gpt2 --tp 2 --pp 4 --global-batch 64 --trace out.json", "out.json"},
    {"simulate --model gpt2 --tp 2 --pp 4 --global-batch 64 --csv out.csv", "out.csv"},
    {"simulate --model gpt2 --tp 2 --pp 4 --global-batch 64 --trace out.json.gz", "out.json.gz"},
    {"export --model gpt2 --tp 2 --pp 4 --dp 2 --global-batch 16 --output out", "out"},
    {"kernels --input rows.csv --output out.csv", "out.csv"},
    {"replay traces --recorded --csv out.csv", "out.csv"},
};

void write_inputs(const std::filesystem::path& folder) {
  EXPECT_EQ(run_command("ns-dist export --model gpt2 --tp 2 --global-batch 4 --output traces", folder).code, 0);
  std::ofstream rows(folder / "rows.csv");
  rows << "gpu,op,m,n,k\n";
  for (int i = 1; i <= 4000; ++i) rows << "h100,gemm," << 8 * i << ",1024,1024\n";
}

// Runs the command for `lives`, then ends it by `signal`. Returns the status of wait().
int run_for(std::chrono::microseconds lives, int signal, const std::string& arguments,
            const std::filesystem::path& folder) {
  std::string words = std::string(NS_DIST_BINARY) + " " + arguments;
  std::vector<char*> argv;
  for (char* word = std::strtok(words.data(), " "); word != nullptr; word = std::strtok(nullptr, " ")) {
    argv.push_back(word);
  }
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.c_str()) != 0) _exit(99);
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(99);
  }
  std::this_thread::sleep_for(lives);
  kill(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// Files that the run wrote, without what a killed one leaves beside them under another name.
Files whole(Files files) {
  std::erase_if(files, [](const auto& file) { return file.first.find(".ns-dist") != std::string::npos; });
  return files;
}

TEST(Faults, ARunThatEndsEarlyLeavesTheOldFilesOrTheNewOnes) {
  std::mt19937 random(20240229);
  for (const Work& work : kWorks) {
    const ScratchFolder folder;
    write_inputs(folder.path());
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(run_command(std::string("ns-dist ") + work.arguments, folder.path()).code, 0) << work.arguments;
    const std::chrono::duration<double, std::micro> takes = std::chrono::steady_clock::now() - begin;
    const Files after = files_in(folder.path());
    for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
      std::filesystem::remove_all(folder.path() / work.output);
      const Files before = files_in(folder.path());
      const std::chrono::microseconds lives(
          static_cast<long>(takes.count() * static_cast<double>(random() % 100) / 100));
      const int status = run_for(lives, signal, work.arguments, folder.path());
      const Files left = whole(files_in(folder.path()));
      EXPECT_TRUE(left == whole(before) || left == after)
          << work.arguments << "\nsignal " << signal << " after " << lives.count() << " us";
      if (WIFEXITED(status)) {
        EXPECT_EQ(WEXITSTATUS(status), 0) << work.arguments;
      } else {
        EXPECT_EQ(WTERMSIG(status), signal) << work.arguments;
      }
      if (signal == SIGKILL) {
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
          if (entry.path().filename().string().find(".ns-dist") == 0) std::filesystem::remove_all(entry.path());
        }
      } else {
        EXPECT_EQ(unfinished_in(folder.path()), "") << work.arguments << "\nsignal " << signal;
      }
    }
    // And the next run does not mind.
    EXPECT_EQ(run_command(std::string("ns-dist ") + work.arguments, folder.path()).code, 0) << work.arguments;
    EXPECT_EQ(files_in(folder.path()), after) << work.arguments;
  }
}

// An export into the folder of an earlier one: after a kill the folder is whole, or its reader says that it is not.
TEST(Faults, AKilledExportIsWholeOrKnownToBeUnfinished) {
  const ScratchFolder folder;
  const std::string before = "export --model gpt2 --tp 2 --pp 2 --dp 4 --global-batch 16 --output out";
  const std::string after = "export --model gpt2 --tp 4 --pp 4 --dp 1 --global-batch 16 --output out";
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run_command("ns-dist " + before, folder.path()).code, 0);
  const std::chrono::duration<double, std::micro> takes = std::chrono::steady_clock::now() - begin;
  std::mt19937 random(1);
  for (int i = 0; i < 8; ++i) {
    run_for(std::chrono::microseconds(static_cast<long>(takes.count() * static_cast<double>(40 + random() % 70) / 100)),
            SIGKILL, i % 2 == 0 ? after : before, folder.path());
    const CommandResult lint = run_command("ns-dist lint out", folder.path());
    if (lint.code != 0) {
      EXPECT_THAT(lint.err, HasSubstr("not finished")) << i;
    }
  }
  EXPECT_EQ(run_command("ns-dist " + after, folder.path()).code, 0);
  EXPECT_EQ(run_command("ns-dist lint out", folder.path()).code, 0);
  EXPECT_EQ(unfinished_in(folder.path()), "");
}

TEST(Faults, TwoExportsIntoOneFolderAreNoMixture) {
  for (int round = 0; round < 3; ++round) {
    const ScratchFolder folder;
    const auto command = [](const char* plan, int number) {
      return std::string("(ns-dist export --model gpt2 ") + plan + " --global-batch 16 --output out; echo $? >code." +
             std::to_string(number) + ")";
    };
    run_command(command("--tp 2 --pp 2 --dp 4", 1) + " & " + command("--tp 4 --pp 4 --dp 1", 2) + " & wait",
                folder.path());
    const std::string codes = read_text(folder.path() / "code.1") + read_text(folder.path() / "code.2");
    EXPECT_TRUE(codes == "0\n1\n" || codes == "1\n0\n" || codes == "0\n0\n") << codes;
    const CommandResult lint = run_command("ns-dist lint out", folder.path());
    EXPECT_EQ(lint.code, 0) << lint.err;
    EXPECT_EQ(unfinished_in(folder.path()), "");
  }
}

TEST(Faults, ASweepGoesOnAfterItWasKilled) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"micro-batch": [1, 2, 4, 8], "pp": [1, 2, 3, 4, 6, 12],
    "global-batch": [96, 192, 288, 384, 480, 576, 672, 768]})";
  const std::string sweep = "search --model gpt2 --sweep sweep.json --threads 2 --output ";
  ASSERT_EQ(run_command("ns-dist " + sweep + "whole.jsonl", folder.path()).code, 0);
  std::mt19937 random(2);
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGKILL, SIGKILL}) {
    run_for(std::chrono::milliseconds(10 + random() % 150), signal, sweep + "killed.jsonl", folder.path());
  }
  // Two that go on at once: one of them is refused, or comes when the other is done.
  run_command("ns-dist " + sweep + "killed.jsonl & ns-dist " + sweep + "killed.jsonl & wait", folder.path());
  EXPECT_EQ(run_command("ns-dist " + sweep + "killed.jsonl", folder.path()).code, 0);
  EXPECT_EQ(read_text(folder.path() / "killed.jsonl"), read_text(folder.path() / "whole.jsonl"));
}

// Weights take long to fit: a run that ends early leaves those that were there.
TEST(Faults, AFitThatEndsEarlyLeavesTheOldWeights) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "data");
  std::ofstream rows(folder.path() / "data" / "bf16_gemm.csv");
  rows << "gpu,op,dtype,m,n,k,latency_ms\n";
  for (int m = 8; m <= 4096; m += 8) rows << "h200-sxm,linear,bf16," << m << ",1024,1024," << 0.005 + m * 1e-6 << "\n";
  rows.close();
  std::ofstream(folder.path() / "weights") << "old";
  for (const int signal : {SIGKILL, SIGINT, SIGTERM}) {
    const int status = run_for(std::chrono::milliseconds(150), signal,
                               "fit --data data --predictor gemm --output weights", folder.path());
    if (WIFEXITED(status)) GTEST_SKIP() << "the fit was too fast";
    EXPECT_EQ(read_text(folder.path() / "weights"), "old");
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "weights.md"));
    EXPECT_EQ(unfinished_in(folder.path()), "");
  }
}

TEST(Faults, NoRoomIsAnErrorThatNamesTheFile) {
  for (const Work& work : kWorks) {
    const ScratchFolder folder;
    write_inputs(folder.path());
    const bool is_folder = std::string(work.arguments).starts_with("export");
    if (!is_folder) std::ofstream(folder.path() / work.output) << "old";
    // Blocks of 512 bytes; the answers of these works are larger, unless they are packed or short.
    const CommandResult result =
        run_command(std::string("ulimit -f 1; ns-dist ") + work.arguments + " >/dev/null", folder.path());
    EXPECT_EQ(result.code, 1) << work.arguments << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(work.output)) << work.arguments;
    EXPECT_EQ(unfinished_in(folder.path()), "") << work.arguments;
    if (is_folder) {
      EXPECT_FALSE(std::filesystem::exists(folder.path() / work.output));
    } else {
      EXPECT_EQ(read_text(folder.path() / work.output), "old") << work.arguments;
    }
  }
}

TEST(Faults, SpecialFilesAreWrittenAsTheyAre) {
  const ScratchFolder folder;
  const std::string plan = "ns-dist --model gpt2 --global-batch 2 ";
  ASSERT_EQ(run_command(plan + "--csv plain.csv", folder.path()).code, 0);
  const std::string csv = read_text(folder.path() / "plain.csv");
  for (const std::string path : {"-", "/dev/stdout", "/proc/self/fd/1"}) {
    EXPECT_EQ(run_command(plan + "--csv " + path, folder.path()).out.rfind(csv, 0), 0u) << path;
  }
  EXPECT_EQ(run_command("mkfifo pipe; cat pipe >copy.csv & " + plan + "--csv pipe; wait", folder.path()).code, 0);
  EXPECT_EQ(read_text(folder.path() / "copy.csv"), csv);
  EXPECT_EQ(run_command(plan + "--csv /dev/null", folder.path()).code, 0);
  // A link to a file stays a link; permissions stay.
  std::filesystem::create_directory(folder.path() / "there");
  std::ofstream(folder.path() / "there" / "file.csv") << "old";
  std::filesystem::permissions(folder.path() / "there" / "file.csv", std::filesystem::perms(0640));
  std::filesystem::create_symlink("there/file.csv", folder.path() / "link.csv");
  EXPECT_EQ(run_command(plan + "--csv link.csv", folder.path()).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link.csv"));
  EXPECT_EQ(read_text(folder.path() / "there" / "file.csv"), csv);
  EXPECT_EQ(std::filesystem::status(folder.path() / "there" / "file.csv").permissions(), std::filesystem::perms(0640));
  // Nobody reads.
  for (const char* command : {"list models", "--csv /dev/stdout --model gpt2 --global-batch 64"}) {
    run_command(std::string("(ns-dist ") + command + "; echo $? >code) | true", folder.path());
    const std::string code = read_text(folder.path() / "code");
    EXPECT_TRUE(code == "0\n" || code == "1\n" || code == "141\n") << command << ": " << code;
  }
}

// What is written through a link that lies in an export's folder stays in the folder.
TEST(Faults, AnExportFollowsNoLinkOutOfItsFolder) {
  const ScratchFolder folder;
  const std::string command = "ns-dist export --model gpt2 --tp 2 --global-batch 2 --output out";
  ASSERT_EQ(run_command(command, folder.path()).code, 0);
  std::filesystem::create_directory(folder.path() / "elsewhere");
  std::ofstream(folder.path() / "elsewhere" / "file") << "mine";
  for (const char* name : {"trace.0.et", "manifest.json", "network.yml"}) {
    std::filesystem::remove(folder.path() / "out" / name);
    std::filesystem::create_symlink("../elsewhere/file", folder.path() / "out" / name);
  }
  ASSERT_EQ(run_command(command + " --force", folder.path()).code, 0);
  EXPECT_EQ(read_text(folder.path() / "elsewhere" / "file"), "mine");
  std::filesystem::create_directory_symlink("../elsewhere", folder.path() / "out" / ".ns-dist-export");
  run_command(command, folder.path());
  EXPECT_EQ(files_in(folder.path() / "elsewhere").size(), 1u);
}

}  // namespace
}  // namespace ns_dist
