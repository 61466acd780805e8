// A few measurements of one cluster or GPU, and what they change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

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
      "dgx-h100,all_reduce,32,8,1048576\ndgx-h100,all_reduce,32,8,16777216\ndgx-h100,all_reduce,32,8,268435456\n";
  const std::vector<double> now = forecasts(measured, "", folder);
  ASSERT_EQ(now.size(), 6u);
  {
    std::ofstream csv(folder.path() / "mine.csv");
    csv << "collective,ranks,gpus_per_node,bytes,latency_ms\n";
    csv << "all_reduce,8,8,1048576," << 1.25 * now[0] << "\nall_reduce,8,8,16777216," << 1.25 * now[1]
        << "\nall_reduce,8,8,268435456," << 1.25 * now[2] << "\nall_reduce,32,8,1048576," << 1.5 * now[3]
        << "\nall_reduce,32,8,16777216," << 1.5 * now[4] << "\nall_reduce,32,8,268435456," << 1.5 * now[5] << "\n";
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

  const auto step = [&](const std::string& flags) {  // without the host, whose launches would hide the network
    return json::parse(
               run("--model llama2-13b --tp 8 --sequence-parallel off --global-batch 8 --cuda-graphs on --json " +
                       flags,
                   folder)
                   .out)["step_time_s"]
        .get<double>();
  };
  EXPECT_GT(step("--calibration mine.json"), step(""));
  EXPECT_THAT(run("--model gpt2 --dp 8 --gpu a100 --calibration mine.json --json", folder).out,
              HasSubstr("was measured on dgx-h100; it changes nothing on dgx-a100"));
  EXPECT_THAT(run("explain all_reduce 64MiB --gpu h100 --calibration mine.json", folder).out,
              HasSubstr("corrected by your calibration, which measured this group"));
  EXPECT_THAT(run("explain all_reduce 64MiB --ranks 64 --gpu h100 --calibration mine.json", folder).out,
              HasSubstr("corrected by your calibration, from other collectives, sizes, ranks or links"));
  EXPECT_THAT(run("explain all_gather 64MiB --gpu h100 --calibration mine.json", folder).out,
              HasSubstr("measured on this generation over NCCL's constants"));
  // A flag that changes the link: the correction is carried over, and the step says so.
  const std::string plan = "--model llama2-13b --tp 8 --global-batch 8 --gpu h100 --calibration mine.json ";
  EXPECT_THAT(run(plan + "--intra-bandwidth 225GB/s", folder).out,
              HasSubstr("measured with 450 GB/s a GPU inside nodes, and this machine has 225 GB/s"));
  EXPECT_THAT(run(plan, folder).out, Not(HasSubstr("inside nodes, and this machine has")));
  EXPECT_EQ(run("explain all_reduce 64MiB --gpu h100 --calibration mine.json", folder).err, "");
  EXPECT_THAT(run("explain all_reduce 64MiB --gpu a100 --calibration mine.json", folder).err,
              HasSubstr("was measured on dgx-h100; it changes nothing on dgx-a100"));
  std::ofstream(folder.path() / "other.csv") << "cluster,collective,ranks,bytes\ndgx-a100,all_reduce,8,67108864\n";
  EXPECT_THAT(run("collectives --input other.csv --calibration mine.json", folder).err,
              HasSubstr("was measured on dgx-h100; it changes nothing on dgx-a100"));
  EXPECT_THAT(run("collectives --input rows.csv --calibration mine.json", folder).err, Not(HasSubstr("warning")));
}

// What stays in an L40S server decides how long two of them take, and not what lies between them.
TEST(Calibrate, TellsWhichRowsSayNothingOfTheNetwork) {
  const ScratchFolder folder;
  const auto calibrated = [&](const std::string& rows) {
    std::ofstream(folder.path() / "mine.csv") << "collective,ranks,gpus_per_node,bytes,latency_ms\n" << rows;
    return run("calibrate --cluster l40s-server --collectives mine.csv --output mine.json", folder);
  };
  const std::string silent =
      "all_to_all,16,8,33554432,14.7\nall_to_all,16,8,67108864,29.5\nall_to_all,16,8,134217728,59\n";
  EXPECT_THAT(calibrated(silent).err, HasSubstr("no measurement tells of the network"));
  EXPECT_THAT(
      calibrated("all_to_all,128,8,16777216,1\nall_to_all,128,8,33554432,2\nall_to_all,128,8,67108864,4\n" + silent)
          .err,
      HasSubstr("3 of the rows tell nothing of the network (mine.csv:5, ...): what stays in a node takes longer"));
}

TEST(Calibrate, CorrectsTheKernelsOfTheGpuThatWasMeasured) {
  const ScratchFolder folder;
  std::string rows = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 12; ++i) rows += "linear,bf16," + std::to_string(1024 * i) + ",8192,8192,1\n";
  std::ofstream(folder.path() / "mine.csv") << rows;
  const auto mean_error = [&](const std::string& flags) {
    const CommandResult result =
        run("kernels --input mine.csv --gpu h100 --mode sustained --output out.csv " + flags, folder);
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream last(result.out.substr(result.out.rfind("all ")));
    std::string all;
    double count = 0, mean = 0;
    last >> all >> count >> mean;
    return mean;
  };
  const CommandResult result = run("calibrate --gpu h100 --kernels mine.csv --output mine.json", folder);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("sustained on h100-sxm-80gb"));
  EXPECT_THAT(result.out, HasSubstr("12 kernels"));
  EXPECT_LT(mean_error("--kernel-calibration mine.json"), 0.5 * mean_error(""));

  // Measured steps of this machine are forecast with it, too.
  std::ofstream(folder.path() / "runs.json")
      << R"({"schema": "ns-dist/runs/1", "id": "mine", "name": "Mine", "sources": {"/runs": "here"}, "cluster": "dgx-h100",
          "runs": [{"id": "a", "model": "llama2-13b", "tp": 8, "global_batch": 8, "step_time": "1 s"}]})";
  const std::string check = "validate --runs runs.json";
  const CommandResult checked = run(check + " --kernel-calibration mine.json", folder);
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_NE(checked.out, run(check, folder).out);
  EXPECT_THAT(run("validate --kernel-calibration mine.json", folder).err,
              HasSubstr("--kernel-calibration: a correction is of one machine, so it needs the runs of that machine"));

  // The report carries the correction, so that the file may go.
  const std::string plan = "--model llama2-13b --tp 8 --global-batch 8 --json ";
  const std::string corrected = run(plan + "--kernel-calibration mine.json", folder).out;
  EXPECT_THAT(run("--model llama2-13b --tp 8 --global-batch 8 --kernel-calibration mine.json", folder).out,
              HasSubstr("corrected by 12 measured kernels"));

  // A board of another power is another machine, whatever its file calls it.
  std::ofstream(folder.path() / "h100-sxm-80gb.json")
      << R"({"schema": "ns-dist/gpu/1", "id": "h100-sxm-80gb", "name": "H100", "like": "h100-nvl", "board_power": "300 W",
             "sources": "mine"})";
  const std::string other = "--model llama2-13b --tp 1 --global-batch 8 --gpu h100-sxm-80gb.json ";
  EXPECT_THAT(run(other + "--kernel-calibration mine.json", folder).out,
              HasSubstr("measured on h100-sxm-80gb of 132 SMs at 1980 MHz, 700 W, 3350 GB/s, and this one has"));
  EXPECT_THAT(run(plan + "--kernel-calibration mine.json", folder).out, Not(HasSubstr("calibration_of_another_board")));
  std::ofstream(folder.path() / "report.json") << corrected;
  std::filesystem::remove(folder.path() / "mine.json");
  const auto step = [](const std::string& text) { return json::parse(text)["step_time_s"].get<double>(); };
  EXPECT_NE(step(corrected), step(run(plan, folder).out));
  EXPECT_EQ(step(corrected), step(run("--from report.json --json", folder).out));
  EXPECT_EQ(step(run(plan, folder).out), step(run("--from report.json --kernel-calibration none --json", folder).out));
}

// A table of at most twenty kernels that `kernels` reads, of the plans that are asked for.
TEST(Calibrate, SaysWhatToMeasureNext) {
  const ScratchFolder folder;
  const auto rows_of = [&](const std::string& file) {
    std::ifstream in(folder.path() / file);
    std::vector<std::string> rows;
    for (std::string line; std::getline(in, line);) rows.push_back(line);
    return rows;
  };
  const CommandResult first = run("calibrate --gpu h100 --next first.csv", folder);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("six typical steps: expected error 21.0 %"));
  const std::vector<std::string> rows = rows_of("first.csv");
  EXPECT_GT(rows.size(), 15u);
  EXPECT_LE(rows.size(), 21u);
  EXPECT_EQ(run("calibrate --gpu h100 --next again.csv", folder).out.substr(0, 200), first.out.substr(0, 200));
  EXPECT_EQ(rows_of("again.csv"), rows);

  // Measured, they are a correction, and others come next.
  ASSERT_EQ(run("kernels --input first.csv --mode sustained --output measured.csv", folder).code, 0);
  std::string measured = read_text(folder.path() / "measured.csv");
  measured.replace(measured.find("forecast_ms"), 11, "latency_ms");
  std::ofstream(folder.path() / "measured.csv") << measured;
  const CommandResult next =
      run("calibrate --gpu h100 --kernels measured.csv --output mine.json --next next.csv", folder);
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_THAT(next.out, HasSubstr("mean error 0.0 % before"));
  std::vector<std::string> others = rows_of("next.csv");
  others.erase(others.begin());  // the header
  for (const std::string& row : others) EXPECT_EQ(std::count(rows.begin(), rows.end(), row), 0) << row;

  // A model of its own: its kernels have a share, and no others.
  std::ofstream(folder.path() / "report.json") << run("--model gpt2 --gpu h100 --json", folder).out;
  const CommandResult own = run("calibrate --gpu h100 --next own.csv --from report.json", folder);
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_THAT(own.out, HasSubstr("kernels of report.json"));
  EXPECT_THAT(own.out, HasSubstr("layernorm"));
  // RMSNorm, which it does not run, may be one of the three rows of a family without measurements; it has no share.
  std::istringstream lines(own.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("rmsnorm") != std::string::npos) {
      EXPECT_THAT(line, ::testing::StartsWith("      0.0 "));
    }
  }
}

// A table of at most ten collectives that `collectives` reads, none that was measured, of the steps that are asked for.
TEST(Calibrate, SaysWhichCollectivesToMeasureNext) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "mine.csv") << "collective,ranks,gpus_per_node,bytes,latency_ms\n"
                                               "all_reduce,8,8,1048576,0.05\nall_reduce,8,8,67108864,0.4\n"
                                               "all_reduce,8,8,1073741824,5\n";
  const std::string calibrate = "calibrate --gpu h100 --collectives mine.csv --output mine.json --next next.csv ";
  const CommandResult typical = run(calibrate, folder);
  ASSERT_EQ(typical.code, 0) << typical.err;
  EXPECT_THAT(typical.out, HasSubstr("What to measure next, by the collectives of six typical steps"));
  const auto next = [&] { return read_text(folder.path() / "next.csv"); };
  const std::string first = next();  // ten collectives that were not measured, of three sizes each
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 31);
  EXPECT_THAT(first, Not(HasSubstr("all_reduce,8,8,")));
  EXPECT_EQ(run("collectives --input next.csv", folder).code, 0);

  // Of a step without tensor parallelism: data-parallel collectives of its 16 GPUs alone.
  std::ofstream(folder.path() / "report.json")
      << run("--model gpt2 --gpu h100 --nodes 2 --tp 1 --dp 16 --json", folder).out;
  const CommandResult own = run(calibrate + "--from report.json", folder);
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_THAT(own.out, HasSubstr("by the collectives of report.json"));
  EXPECT_THAT(next(), HasSubstr(",16,8,"));
  EXPECT_THAT(next(), Not(HasSubstr(",8,8,")));
  std::ofstream(folder.path() / "other.json") << run("--model gpt2 --gpu a100 --json", folder).out;
  EXPECT_THAT(run(calibrate + "--from other.json", folder).err, HasSubstr("other.json: the report is of dgx-a100"));
}

TEST(Calibrate, SaysWhatIsWrongWithKernels) {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& csv, const std::string& flags) {
    std::ofstream(folder.path() / "mine.csv") << csv;
    const CommandResult result = run("calibrate " + flags + " --output mine.json", folder);
    EXPECT_NE(result.code, 0) << csv;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "mine.json"));
    return result.err;
  };
  const std::string header = "op,dtype,m,n,k,latency_ms\n", row = "linear,bf16,64,64,64,0.1\n";
  EXPECT_THAT(refused(header + row, "--kernels mine.csv"), HasSubstr("--gpu: the GPU of the measurements is missing"));
  EXPECT_THAT(refused(header + row, "--gpu h100 --kernels mine.csv"), HasSubstr("too few measurements"));
  EXPECT_THAT(refused(header + row + row + "linear,bf16,64,0,64,1\n", "--gpu h100 --kernels mine.csv"),
              HasSubstr("mine.csv:4"));
  EXPECT_THAT(refused(header + row, "--gpu h100 --kernels mine.csv --mode fast"), HasSubstr("--mode: \"fast\""));
  EXPECT_THAT(refused(header + row, "--gpu h100"), HasSubstr("no measurements are given"));
  EXPECT_THAT(refused(header + row + row + row, "--gpu h100 --kernels mine.csv --from none.json"),
              HasSubstr("none.json"));
  EXPECT_THAT(run("calibrate --gpu h100 --kernels mine.csv", folder).err, HasSubstr("--output"));
  EXPECT_THAT(refused(header + row, "--gpu h100 --kernels mine.csv --collectives mine.csv"), HasSubstr("one of them"));
}

// Latencies in microseconds, or one row that cannot be: no correction, and where the mistake may be.
TEST(Calibrate, RefusesLatenciesOfAnotherUnit) {
  const ScratchFolder folder;
  const std::string measured =
      "dgx-h100,all_reduce,8,8,1048576\ndgx-h100,all_reduce,8,8,16777216\ndgx-h100,all_reduce,8,8,268435456\n"
      "dgx-h100,all_reduce,8,8,536870912\n";
  const std::vector<double> now = forecasts(measured, "", folder);
  ASSERT_EQ(now.size(), 4u);
  const auto calibrate = [&](double all, double last) {
    std::ofstream csv(folder.path() / "mine.csv");
    csv << "collective,ranks,gpus_per_node,bytes,latency_ms\n";
    const char* bytes[] = {"1048576", "16777216", "268435456", "536870912"};
    for (std::size_t i = 0; i < 4; ++i) {
      csv << "all_reduce,8,8," << bytes[i] << "," << now[i] * (i == 3 ? last : all) << "\n";
    }
    csv.close();
    return run("calibrate --gpu h100 --collectives mine.csv --output mine.json", folder);
  };
  for (const auto& [factor, times] : {std::pair(1000.0, "1000"), std::pair(0.001, "0.001")}) {
    const CommandResult other = calibrate(factor, factor);
    EXPECT_EQ(other.code, 1);
    EXPECT_EQ(other.err, std::string("ns-dist: mine.csv: the middle row takes ") + times +
                             " times as long as forecast; expected latency_ms, in milliseconds, measured on this "
                             "cluster\n");
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "mine.json"));
  const CommandResult wild = calibrate(1, 1e6);
  EXPECT_EQ(wild.code, 0);
  EXPECT_THAT(wild.err,
              HasSubstr("mine.csv:5: left out, because it takes 1e+06 times as long as the other rows suggest"));
  // A machine may be slow; what is written is read.
  EXPECT_EQ(calibrate(15, 15).code, 0);
  EXPECT_EQ(run("explain all_reduce 64MiB --gpu h100 --calibration mine.json", folder).code, 0);

  std::string rows = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 12; ++i) rows += "linear,bf16," + std::to_string(1024 * i) + ",8192,8192,1000\n";
  std::ofstream(folder.path() / "kernels.csv") << rows;
  const CommandResult kernels = run("calibrate --gpu h100 --kernels kernels.csv --output kernels.json", folder);
  EXPECT_EQ(kernels.code, 1);
  EXPECT_THAT(kernels.err, ::testing::ContainsRegex("^ns-dist: kernels.csv: the middle row of gemm bf16 takes [0-9.]+ "
                                                    "times as long as forecast; expected latency_ms, in milliseconds"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "kernels.json"));
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
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\n", ""),
              HasSubstr("--cluster, --gpu: the machine of the measurements is missing"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\n", "--gpu h1000"), HasSubstr("--gpu: unknown GPU"));
  EXPECT_THAT(refused(header), HasSubstr("mine.csv: no rows"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,\nall_reduce,8,4096,OOM\n"),
              HasSubstr("mine.csv: 2 rows without a time in latency_ms: left out, the first at mine.csv:2; expected "
                        "measured collectives of dgx-h100"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.03\nall_reduce,8,4096,0.03\n"),
              HasSubstr("all_reduce of 8 ranks: 2 sizes, and a correction needs 3"));
  EXPECT_THAT(refused(header + "all_reduce,8,1024,0.1\nall_reduce,1,1024,0.1\n"), HasSubstr("mine.csv:3"));
  EXPECT_THAT(refused("gpus_per_node," + header + "16,all_reduce,16,1024,0.1\n"), HasSubstr("16 ranks in a node"));
  EXPECT_THAT(refused("gpus_per_node," + header + "8,all_reduce,12,1024,0.1\n"),
              HasSubstr("mine.csv:2: 12 ranks, 8 in each"));
  EXPECT_THAT(refused("gpu,collective,ranks,bytes,latency_ms\na100,all_reduce,8,1024,0.1\n"),
              HasSubstr("1 row of a100, not of h100-sxm-80gb: left out, the first at mine.csv:2"));
  EXPECT_THAT(refused("collective,ranks\n"), HasSubstr("no column \"bytes\""));
  const std::string row = "all_reduce,8,1024,0.1\n";
  EXPECT_THAT(refused(header + row, "--gpu h100 --mode burst"), HasSubstr("--mode: is not a flag of collectives"));
  EXPECT_THAT(refused("cluster," + header + "p5," + row), HasSubstr("1 row of p5, not of dgx-h100: left out"));
  EXPECT_THAT(refused("cluster," + header + "here," + row + "there," + row),
              HasSubstr("mine.csv: rows of 2 clusters that the catalog does not have: here, there"));
  std::ofstream(folder.path() / "mine.csv")  // another name of dgx-h100
      << "cluster," + header +
             "hgx-h100,all_reduce,8,1024,0.03\nhgx-h100,all_reduce,8,65536,0.03\n"
             "hgx-h100,all_reduce,8,1048576,0.05\n";
  EXPECT_EQ(run("calibrate --gpu h100 --collectives mine.csv --output mine.json", folder).code, 0);
  // A table of several machines, as published ones are: the rows of this one count.
  std::ofstream(folder.path() / "mine.csv") << "gpu,system," + header +
                                                   "h100,mine,all_reduce,8,1024,0.03\nh100,mine,all_reduce,8,65536,0."
                                                   "03\nh100,mine,all_reduce,8,1048576,0.05\n"
                                                   "a100,yours,all_reduce,8,1024,0.09\nh100,mine,all_reduce,8,4096,\n";
  const CommandResult several = run("calibrate --gpu h100 --collectives mine.csv --output mine.json", folder);
  EXPECT_EQ(several.code, 0);
  EXPECT_THAT(several.out, HasSubstr("3 rows, 2 curves for cluster dgx-h100"));
  EXPECT_THAT(several.err, HasSubstr("1 row of a100, not of h100-sxm-80gb: left out, the first at mine.csv:5"));
  EXPECT_THAT(several.err, HasSubstr("1 row without a time in latency_ms: left out, the first at mine.csv:6"));
  EXPECT_THAT(several.err, HasSubstr("rows of mine, which the catalog does not have, are taken for dgx-h100"));
  EXPECT_THAT(run("calibrate --kernels mine.csv --gpu h100 --cluster p5 --output k.json", folder).err,
              HasSubstr("--cluster: is not a flag of kernels"));
}

}  // namespace
}  // namespace ns_dist
