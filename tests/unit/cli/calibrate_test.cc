// A few measurements of one cluster, and what they change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kHeader = "cluster,collective,ranks,gpus_per_node,bytes";

CommandResult run(const std::string& arguments, const ScratchFolder& folder) {
  return run_command("ns-dist " + arguments, folder.path());
}

// Forecasts of rows, milliseconds, in their order.
std::vector<double> forecasts(const std::string& rows, const std::string& flags, const ScratchFolder& folder) {
  std::ofstream(folder.path() / "rows.csv") << kHeader << "\n" << rows;
  const CommandResult result = run("collectives --input rows.csv " + flags, folder);
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<double> found;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string field;
    for (int i = 0; i <= 5; ++i) std::getline(fields, field, ',');
    found.push_back(std::stod(field));
  }
  return found;
}

TEST(Calibrate, CorrectsTheClusterThatWasMeasuredAndNoOther) {
  const ScratchFolder folder;
  const std::string measured =
      "dgx-h100,all_reduce,8,8,1048576\ndgx-h100,all_reduce,8,8,16777216\ndgx-h100,all_reduce,8,8,268435456\n"
      "dgx-h100,all_reduce,32,8,16777216\n";
  const std::vector<double> now = forecasts(measured, "", folder);
  ASSERT_EQ(now.size(), 4u);
  {
    std::ofstream csv(folder.path() / "mine.csv");
    csv << "collective,ranks,gpus_per_node,bytes,latency_ms\n";
    csv << "all_reduce,8,8,1048576," << 1.25 * now[0] << "\nall_reduce,8,8,16777216," << 1.25 * now[1]
        << "\nall_reduce,8,8,268435456," << 1.25 * now[2] << "\nall_reduce,32,8,16777216," << 1.5 * now[3] << "\n";
  }
  const CommandResult result = run("calibrate --gpu h100 --collectives mine.csv --output mine.json", folder);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cluster dgx-h100"));

  // Sizes between and beyond the measured ones; more nodes than were measured; kinds and clusters that were not.
  const std::string asked =
      "dgx-h100,all_reduce,8,8,67108864\ndgx-h100,all_reduce,8,8,1073741824\ndgx-h100,all_reduce,64,8,16777216\n"
      "dgx-h100,all_to_all,8,8,67108864\ndgx-a100-40gb,all_reduce,8,8,67108864\n";
  const std::vector<double> before = forecasts(asked, "", folder);
  const std::vector<double> after = forecasts(asked, "--calibration mine.json", folder);
  ASSERT_EQ(after.size(), 5u);
  const double expected[] = {1.25, 1.25, 1.5, 1, 1};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(after[i] / before[i], expected[i], 0.02) << i;

  const auto step = [&](const std::string& flags) {
    return json::parse(run("--model llama2-13b --tp 8 --sequence-parallel off --global-batch 8 --json " + flags, folder)
                           .out)["step_time_s"]
        .get<double>();
  };
  EXPECT_GT(step("--calibration mine.json"), step(""));
  EXPECT_THAT(run("explain all_reduce 64MiB --gpu h100 --calibration mine.json", folder).out, HasSubstr("measured"));
}

TEST(Calibrate, SaysWhatIsWrong) {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& csv, const std::string& flags = "--gpu h100") {
    std::ofstream(folder.path() / "mine.csv") << csv;
    const CommandResult result = run("calibrate " + flags + " --collectives mine.csv --output mine.json", folder);
    EXPECT_NE(result.code, 0) << csv;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "mine.json"));
    return result.err;
  };
  const std::string header = "collective,ranks,bytes,latency_ms\n";
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\n", ""), HasSubstr("--cluster, --gpu: nothing says on which"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\n", "--gpu h1000"), HasSubstr("--gpu: unknown GPU"));
  EXPECT_THAT(refused(header), HasSubstr("mine.csv: no rows"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,\n"), HasSubstr("mine.csv:2: no latency_ms"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\nall_reduce,1,1024,0.1\n"), HasSubstr("mine.csv:3"));
  EXPECT_THAT(refused(header + "all_reduce,16,1024,0.1\n"), HasSubstr("16 ranks in a node"));
  EXPECT_THAT(refused("gpu,collective,ranks,bytes,latency_ms\na100,all_reduce,8,1024,0.1\n"),
              HasSubstr("measured on GPU \"a100\"; expected rows of \"h100-sxm-80gb\" only"));
  EXPECT_THAT(refused("collective,ranks\n"), HasSubstr("no column \"bytes\""));
}

}  // namespace
}  // namespace ns_dist
