// What goes to standard output is one thing: rows, JSON or a text for people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/answered.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Outputs, OneOfThemIsStandardOutput) {
  const ScratchFolder folder;
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  const std::string step = "--model gpt2 --global-batch 2 ";
  refused(step + "--json --csv -", folder.path(), 2, "^ns-dist: --csv: \"-\" is standard output, which --json takes; ");
  refused(step + "--json --trace /dev/stdout", folder.path(), 2, "--trace: \"/dev/stdout\" is standard output");
  refused(step + "--json --report /dev/fd/1", folder.path(), 2, "--report: \"/dev/fd/1\" is standard output");
  refused(step + "--csv - --trace /proc/self/fd/1", folder.path(), 2,
          "--csv: \"-\" is standard output, which --trace takes");
  refused("replay t --json --csv -", folder.path(), 2, "--csv: \"-\" is standard output, which --json takes");
  refused("replay t --csv - --trace /dev/stdout", folder.path(), 2, "--trace: .* which --csv takes");
  refused("annotate t/trace.0.et --gpu b200 --json --output -", folder.path(), 2, "--output: \"-\" .* --json takes");
  refused("calibrate --gpu h100 --next - --output /dev/stdout", folder.path(), 2, "--next: \"-\" .* --output takes");
  // Each to a place of its own, or not asked for.
  const CommandResult both = answered(step + "--json --csv rows.csv --trace /dev/null", folder.path());
  EXPECT_TRUE(json::accept(both.out));
  answered(step + "--csv /dev/null --trace /dev/null", folder.path());
}

// Whatever a command reads stays as it is: prices, a configuration in a model's folder, a GPU that another one is like.
TEST(Outputs, WhatIsReadIsNotOverwritten) {
  const ScratchFolder folder;
  const auto write = [&](const std::filesystem::path& name, const std::string& text) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.path() / name) << text;
  };
  write("prices.json", R"({"currency": "USD", "date": "2026-11-30", "gpu_hour": {"h100-sxm-80gb": 2}})");
  write("hf/config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 128, "max_position_embeddings": 128})");
  write("base.json", R"({"like": "h100", "id": "base", "name": "Base", "sources": "a test"})");
  write("own.json", R"({"like": "base.json", "id": "own", "name": "Own", "sources": "a test"})");
  const auto keeps = [&](const std::string& arguments, const char* flag, const char* file) {
    const std::string before = read_text(folder.path() / file);
    const std::string message = std::string("^ns-dist: ") + flag + ": \"" + file + "\" is the file that is read; ";
    refused(arguments + " " + flag + " " + file, folder.path(), 2, message.c_str());
    EXPECT_EQ(read_text(folder.path() / file), before) << file;
  };
  for (const char* flag : {"--report", "--csv"}) {
    keeps("--model gpt2 --global-batch 2 --tokens 1B --prices prices.json", flag, "prices.json");
    keeps("--model hf --global-batch 2", flag, "hf/config.json");
    keeps("--model gpt2 --global-batch 2 --gpu own.json", flag, "base.json");
    keeps("search --model gpt2 --gpus 2 --prices prices.json", flag, "prices.json");
    keeps("search --model hf --gpus 2 --global-batch 2", flag, "hf/config.json");
    keeps("search --model gpt2 --gpus 2 --gpu own.json", flag, "base.json");
  }
}

// A name that no file can have is known before the work, not when its answer is to be renamed: nothing is written.
TEST(Outputs, ANameThatIsTooLongIsRefusedAtOnce) {
  const ScratchFolder folder;
  const std::string name(300, 'a');
  std::ofstream(folder.path() / "in.csv") << "op,dtype,m,n,k,latency_ms\n"
                                          << "gemm,bf16,1024,4096,4096,0.07\ngemm,bf16,2048,4096,4096,0.12\n"
                                          << "gemm,bf16,4096,4096,4096,0.24\ngemm,bf16,8192,4096,4096,0.47\n";
  refused("calibrate --gpu h100 --kernels in.csv --output out.json --next " + name, folder.path(), 1,
          "^ns-dist: --next: .*File name too long");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.json"));
  refused("--model gpt2 --global-batch 2 --csv " + name, folder.path(), 1, "^ns-dist: --csv: .*File name too long");
}

TEST(Outputs, NoRoomIsAnErrorThatNamesTheFileAndNotItsFlag) {
  const ScratchFolder folder;
  for (const std::string command : {"--model gpt2 --global-batch 2 --report ", "--model gpt2 --global-batch 2 --csv ",
                                    "search --model gpt2 --gpus 2 --global-batch 2 --report ",
                                    "search --model gpt2 --gpus 2 --global-batch 2 --csv "}) {
    refused(command + "/dev/full", folder.path(), 1, "^ns-dist: /dev/full: cannot be written: No space left on device");
  }
}

// A reader that has seen enough is no mistake: whatever goes to standard output ends silently.
TEST(Outputs, AReaderThatEndsIsNoMistake) {
  const ScratchFolder folder;
  std::ofstream table(folder.path() / "in.csv");
  table << "gpu,op,b,h\n";
  for (int i = 1; i <= 20'000; ++i) table << "h100,relu," << i << ",4096\n";
  table.close();
  for (const std::string command :
       {"ns-dist kernels --input in.csv", "ns-dist --model gpt2 --global-batch 512 --csv -"}) {
    const CommandResult result = run_command(command + " | head -n 1", folder.path());
    EXPECT_EQ(result.err.find("cannot be written"), std::string::npos) << result.err;
  }
}

// The text for people goes to standard error then.
TEST(Outputs, RowsOnStandardOutputStandAlone) {
  const ScratchFolder folder;
  const auto run = [&](const std::string& arguments) { return run_command("ns-dist " + arguments, folder.path()); };
  const auto expect_alone = [&](const std::string& arguments, const char* flag, const char* text) {
    const CommandResult apart = run(arguments + " " + flag + " apart");
    ASSERT_EQ(apart.code, 0) << apart.err;
    EXPECT_THAT(apart.out, HasSubstr(text)) << arguments;
    for (const char* name : {"-", "/dev/stdout"}) {
      const CommandResult result = run(arguments + " " + flag + " " + name);
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_EQ(result.out, read_text(folder.path() / "apart")) << arguments << name;
      EXPECT_THAT(result.err, HasSubstr(text)) << arguments << name;
    }
  };
  expect_alone("--model gpt2 --global-batch 2", "--csv", "tokens");
  answered("export --model gpt2 --tp 2 --global-batch 2 --output t", folder.path());
  expect_alone("replay t", "--csv", "ends last");
  expect_alone("replay --workload-configuration t/trace", "--csv", "finished");
  expect_alone("annotate t/trace.0.et --gpu b200", "--output", "duration from");
  expect_alone("calibrate --gpu h100", "--next", "What to measure next");
  refused("annotate t --gpu b200 --output -", folder.path(), 2,
          "--output: \"-\" is standard output; expected a folder");
}

// Errors of forecasts are a text for people, too; without --output they are not asked for.
TEST(Outputs, TablesOnStandardOutputHaveNoErrorsBehindThem) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "kernels.csv") << "gpu,op,b,h,latency_ms\nh100,softmax,8192,4096,0.1\n";
  std::ofstream(folder.path() / "collectives.csv")
      << "gpu,collective,ranks,bytes,latency_ms\nh100,all_reduce,8,67108864,0.3\n";
  for (const std::string command : {"kernels", "collectives"}) {
    const std::string input = command + " --input " + command + ".csv";
    const std::string rows = answered(input, folder.path()).out;
    EXPECT_EQ(answered(input + " --output -", folder.path()).out, rows) << command;
    EXPECT_EQ(answered(input + " --output /dev/stdout", folder.path()).out, rows) << command;
    EXPECT_THAT(answered(input + " --output out.csv", folder.path()).out, HasSubstr("MAPE %")) << command;
    EXPECT_EQ(read_text(folder.path() / "out.csv"), rows) << command;
  }
}

TEST(Outputs, WhatNeedsAFileSaysWhy) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "sweep.json") << R"({"tp": [1, 2]})";
  for (const std::string name : {"-", "/dev/stdout"}) {
    refused("fit --data . --output " + name, folder.path(), 2,
            "--output: \"[-/a-z]*\" is standard output; expected a file: the card is written beside it");
    refused("search --sweep sweep.json --model gpt2 --output " + name, folder.path(), 2,
            "--output: \"[-/a-z]*\" is standard output; expected a file: the same command goes on with its rows");
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "-"));
}

}  // namespace
}  // namespace ns_dist
