// Tables of kernels, as people make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Kernels : public ::testing::Test {
 protected:
  CommandResult run(const std::string& arguments) { return run_command("ns-dist " + arguments, folder_.path()); }
  CommandResult kernels(const std::string& csv, const std::string& flags = "") {
    write("in.csv", csv);
    return run("kernels --input in.csv " + flags);
  }
  void write(const char* name, const std::string& text) {
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
  }
  std::string read(const char* name) { return read_text(folder_.path() / name); }
  const std::string rows_ = "gpu,op,b,h\nh100,softmax,8192,4096\n";

 private:
  const ScratchFolder folder_;
};

TEST_F(Kernels, SaysOnceWhatIsNoTable) {
  for (const char* csv : {"gpu;op;b;h\nh100;softmax;1;2\nh100;softmax;1;3\n", "gpu\top\nh100\tsoftmax\n",
                          "GPU,operator\nh100,softmax\n", "\x7f\x45LF\x02\x01\n\x03\x1b[31m\n"}) {
    const CommandResult result = kernels(csv);
    EXPECT_EQ(result.code, 1) << csv;
    EXPECT_THAT(result.out, IsEmpty()) << csv;
    EXPECT_THAT(result.err, HasSubstr("in.csv:1: no column \"op\"; expected columns gpu, op")) << csv;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("\x1b"))) << csv;
  }
  EXPECT_THAT(kernels("op,b,h\nsoftmax,8,8\n").err, HasSubstr("no column \"gpu\""));
  EXPECT_THAT(kernels("gpu,op,m,n,k\nh100,gemm,1024.5,8,8\n").err,
              HasSubstr("in.csv:2: m is \"1024.5\"; expected a whole number up to 2,147,483,648"));
  EXPECT_THAT(kernels("gpu,op,m,n,k\nh100,GEMM,8,8,8\n").err, HasSubstr("did you mean \"gemm\"?"));
  EXPECT_EQ(kernels("op,b,h\nsoftmax,8,8\n", "--gpu h100").code, 0);
  // `explain` takes the formats that a table takes.
  for (const char* format : {"half", "bfloat16", "fp64", "FP8"}) {
    EXPECT_EQ(kernels(std::string("gpu,op,dtype,m,n,k\nh100,gemm,") + format + ",64,64,64\n").code, 0) << format;
    EXPECT_EQ(run_command(std::string("ns-dist explain gemm 64x64x64 --dtype ") + format).code, 0) << format;
  }
  const CommandResult empty = kernels("gpu,op\n");
  EXPECT_EQ(empty.code, 0);
  EXPECT_THAT(empty.err, HasSubstr("in.csv: no rows"));
}

TEST_F(Kernels, RefusesWhatItWouldSpoil) {
  EXPECT_THAT(kernels(rows_, "--output ./in.csv").err, HasSubstr("--output: \"./in.csv\" is the file that is read"));
  EXPECT_EQ(read("in.csv"), rows_);
  EXPECT_EQ(kernels(rows_, "--output ./in.csv").code, 2);
  EXPECT_THAT(kernels(rows_, "--output no/such/out.csv").err, HasSubstr("--output: \"no/such/out.csv\" cannot be"));
  EXPECT_THAT(kernels(rows_, "--gpu nope").err, HasSubstr("--gpu: unknown GPU \"nope\""));
}

TEST_F(Kernels, AnswersItsOwnAnswer) {
  const std::string first = kernels(rows_).out;
  const CommandResult second = kernels(first);
  EXPECT_EQ(second.out, first);
  EXPECT_THAT(second.err, HasSubstr("in.csv:1: new forecasts take the place of columns forecast_ms, low_ms"));
}

TEST_F(Kernels, RefusesAQuoteThatIsNotClosed) {
  const CommandResult result =
      kernels("gpu,op,b,h,note\nh100,softmax,8192,4096,\"two\nlines\"\nh100,softmax,8192,4096,\"one, line\"\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: a quote is not closed on its line; expected fields without line breaks, "
                                    "in quotes where they hold commas"));
  EXPECT_THAT(result.err, HasSubstr("2 of 3 rows could not be forecast"));
  EXPECT_THAT(result.out, HasSubstr("\nh100,softmax,8192,4096,\"two\",,,,,,,,,,\n"));
}

// What was not measured is forecast all the same, and the row is named.
TEST_F(Kernels, ForecastsRowsWhoseMeasurementIsNone) {
  const CommandResult result =
      kernels("gpu,op,b,h,latency_ms\nh100,softmax,8192,4096,OOM\nh100,softmax,8192,4096,0\nh100,softmax,8192,4096,\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: latency_ms is \"OOM\"; expected a positive number of ms from 1e-9 to "
                                    "1e9, or nothing"));
  EXPECT_THAT(result.err, HasSubstr("2 of 3 rows have no usable latency_ms"));
  EXPECT_THAT(result.err, Not(HasSubstr("could not be forecast")));
  EXPECT_THAT(result.out, HasSubstr("OOM,0."));
}

// A table of errors counts each row, or says that it does not.
TEST_F(Kernels, NamesTimesThatAreTooShortOrTooLong) {
  const CommandResult result = kernels(
      "gpu,op,b,h,latency_ms\nh100,softmax,8192,4096,1e-50\nh100,softmax,8192,4096,1e39\nh100,softmax,8192,4096,0.1\n",
      "--output out.csv");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, ContainsRegex("\nh100-sxm-80gb +softmax +1 "));
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: latency_ms is \"1e-50\""));
  EXPECT_THAT(result.err, HasSubstr("in.csv:3: latency_ms is \"1e39\""));
  EXPECT_THAT(result.err, HasSubstr("2 of 3 rows have no usable latency_ms"));
}

TEST_F(Kernels, ErrorsAreThoseOfAGpuHoweverItIsSpelled) {
  const std::string errors =
      kernels("gpu,op,b,h,latency_ms\nh100,softmax,8192,4096,0.1\nh100-sxm-80gb,softmax,8192,4096,0.1\n",
              "--output out.csv")
          .out;
  EXPECT_THAT(errors, ContainsRegex("\nh100-sxm-80gb +softmax +2 "));
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 3) << "a heading, one GPU, all\n" << errors;
}

TEST_F(Kernels, WritesGzip) {
  ASSERT_EQ(kernels(rows_, "--output out.csv.gz").code, 0);
  EXPECT_EQ(read("out.csv.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(run("kernels --input out.csv.gz").out, kernels(rows_).out);
}

TEST_F(Kernels, HelpNamesOperatorsAndColumns) {
  const std::string help = run("kernels --help").out;
  for (const char* words : {"num_tokens hidden inter topk", "gemm linear", "cin cout", "flops read_bytes"}) {
    EXPECT_THAT(help, HasSubstr(words));
  }
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 40);
  EXPECT_THAT(kernels("gpu,op\nh100,frobnicate\n").err, AllOf(HasSubstr("normalization"), HasSubstr("gelu")));
}

TEST_F(Kernels, FamiliesHaveTheSameForecastUnderBothNames) {
  write("in.csv",
        "gpu,op,dtype,b,h,m,n,k\nh100,normalization,bf16,8192,4096,,,\nh100,layernorm,bf16,8192,4096,,,\n"
        "h100,gemm,fp8_block,,,4096,4096,4096\nh100,elementwise,bf16,8192,4096,,,\nh100,linear,fp32,,,512,512,512\n"
        "h100,gemm,fp8-block,,,4096,4096,4096\n");
  const std::string out = run("kernels --mode sustained --input in.csv").out;
  std::istringstream lines(out);
  std::vector<double> milliseconds;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream fields(line);
    for (int i = 0; i < 9; ++i) std::getline(fields, line, ',');
    milliseconds.push_back(std::stod(line));
  }
  ASSERT_EQ(milliseconds.size(), 6u);
  EXPECT_EQ(milliseconds[0], milliseconds[1]);
  // A table without a library is one of inference frameworks.
  const char* same[] = {"layernorm 8192x4096 --library serving", "normalization 8192x4096 --library serving",
                        "gemm 4096x4096x4096 --dtype fp8_block", "elementwise 8192x4096",
                        "linear 512x512x512 --dtype fp32",       "gemm 4096x4096x4096 --dtype fp8-block"};
  EXPECT_EQ(milliseconds[5], milliseconds[2]);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string text = run("explain --gpu h100 --json " + std::string(same[i])).out;
    const std::size_t at = text.find("\"latency_s\": ");
    ASSERT_NE(at, std::string::npos) << same[i];
    EXPECT_NEAR(std::stod(text.substr(at + 13)) * 1e3 / milliseconds[i], 1, 1e-5) << same[i];
  }
}

// One kernel has the operands of its name, as in a table: relu reads one tensor, add two.
TEST_F(Kernels, OneKernelIsTheRowOfItsName) {
  for (const std::string name : {"relu", "gelu", "mulu", "attn_rope", "cast", "add", "mlp_act", "elementwise"}) {
    const std::string row = kernels("gpu,op,b,h\nh100," + name + ",8192,4096\n").out;
    const auto ms =
        std::stod(row.substr(row.rfind('\n', row.size() - 2) + 1 + ("h100," + name + ",8192,4096,").size()));
    const std::string one = run("kernels " + name + " 8192x4096 --gpu h100 --json").out;
    const std::string key = "\"latency_s\": ";
    ASSERT_NE(one.find(key), std::string::npos) << one;
    EXPECT_NEAR(std::stod(one.substr(one.find(key) + key.size())) * 1e3 / ms, 1, 1e-3) << name;
  }
  EXPECT_NE(run("kernels relu 8192x4096 --gpu h100 --inputs 2").out, run("kernels relu 8192x4096 --gpu h100").out);
}

// What a row says of one kernel, a flag says too.
TEST_F(Kernels, OneKernelHasTheColumnsOfItsRow) {
  struct Case {
    const char *columns, *row, *arguments, *plain;
  };
  const Case cases[] = {
      {"op,m,n,k,layout,accumulate,out_dtype", "gemm,4096,4096,8192,tn,1,fp32",
       "gemm 4096x4096x8192 --layout tn --accumulate fp32", "gemm 4096x4096x8192 --layout tn"},
      {"op,m,n,k,layout,accumulate,out_dtype", "gemm,4096,4096,8192,tn,1,bf16",
       "gemm 4096x4096x8192 --layout tn --accumulate bf16", "gemm 4096x4096x8192 --layout tn --accumulate fp32"},
      {"op,experts,m,n,k,accumulate,main_grad_dtype", "grouped_gemm,8,8192,4096,4096,1,fp32",
       "grouped_gemm 8x8192x4096x4096 --accumulate fp32", "grouped_gemm 8x8192x4096x4096"},
      {"op,experts,m,n,k,accumulate,out_dtype,main_grad_dtype", "grouped_gemm,8,8192,4096,4096,1,bf16,fp32",
       "grouped_gemm 8x8192x4096x4096 --accumulate fp32", "grouped_gemm 8x8192x4096x4096 --accumulate bf16"},
      {"op,experts,m,n,k,one_kernel", "grouped_gemm,8,8192,4096,4096,1", "grouped_gemm 8x8192x4096x4096 --one-kernel",
       "grouped_gemm 8x8192x4096x4096"},
  };
  for (const Case& each : cases) {
    const std::string row = kernels(std::string("gpu,") + each.columns + "\nh100," + each.row + "\n").out;
    const std::string key = "h100," + std::string(each.row) + ",";
    ASSERT_NE(row.find(key), std::string::npos) << row;
    const double ms = std::stod(row.substr(row.find(key) + key.size()));
    const auto latency = [&](const std::string& arguments) {
      const std::string text = run("kernels " + arguments + " --gpu h100 --json").out;
      const std::string name = "\"latency_s\": ";
      EXPECT_NE(text.find(name), std::string::npos) << text;
      return std::stod(text.substr(text.find(name) + name.size())) * 1e3;
    };
    EXPECT_NEAR(latency(each.arguments) / ms, 1, 1e-3) << each.arguments;
    EXPECT_NE(latency(each.arguments), latency(each.plain)) << each.arguments;
  }
  // A kernel of another kind has no such flag, and a sum has a format of its own.
  EXPECT_NE(run("explain softmax 8x8 --accumulate fp32").err.find("only with gemm grouped_gemm"), std::string::npos);
  EXPECT_NE(run("explain gemm 8x8x8 --accumulate fp8").err.find("one of fp32, bf16, fp16"), std::string::npos);
  EXPECT_NE(run("explain gemm 8x8x8 --one-kernel").err.find("only with grouped_gemm"), std::string::npos);
}

// Without a table: one kernel or collective, as explain shows it. Kernels are those of benchmarks here.
TEST_F(Kernels, OneOperatorOrCollectiveIsExplained) {
  const std::string gemm = " gemm 4096x4096x4096 --gpu a100";
  EXPECT_EQ(run("kernels" + gemm).out, run("explain --mode burst" + gemm).out);
  EXPECT_EQ(run("kernels" + gemm + " --mode sustained").out, run("explain" + gemm).out);
  EXPECT_NE(run("kernels" + gemm).out, run("explain" + gemm).out);
  EXPECT_EQ(run("collectives all_reduce 64MiB --ranks 16").out, run("explain all_reduce 64MiB --ranks 16").out);
}

// As --dtype of a plan calls it.
TEST_F(Kernels, FourBitProductsHaveTheNameOfTheirRecipeToo) {
  const std::string shape = ",8192,8192,8192";
  write("in.csv", "gpu,op,dtype,m,n,k\nb200,gemm,fp4" + shape + "\nb200,gemm,nvfp4" + shape + "\n");
  std::istringstream lines(run("kernels --mode sustained --input in.csv").out);
  std::string header, fp4, nvfp4;
  std::getline(lines, header), std::getline(lines, fp4), std::getline(lines, nvfp4);
  const std::string forecast = fp4.substr(fp4.find(shape) + shape.size() + 1);
  EXPECT_EQ(forecast, nvfp4.substr(nvfp4.find(shape) + shape.size() + 1));
  const std::string text = run("explain gemm 8192x8192x8192 --gpu b200 --dtype nvfp4 --json").out;
  EXPECT_NEAR(std::stod(text.substr(text.find("\"latency_s\": ") + 13)) * 1e3 / std::stod(forecast), 1, 1e-5);
}

// What no library runs on a GPU is forecast all the same, with the warning that a step has.
TEST_F(Kernels, ExplainTellsWhichFormatsAGpuDoesNotRun) {
  const auto warning = [&](const char* arguments) {
    return run(std::string("explain gemm 64x64x64 ") + arguments).err;
  };
  EXPECT_THAT(warning("--gpu h100 --dtype mxfp8"), HasSubstr("warning: mxfp8 does not run on NVIDIA H100"));
  EXPECT_EQ(warning("--gpu h100 --dtype fp8-block"), "");
  EXPECT_EQ(warning("--gpu b200 --dtype mxfp8"), "");
}

TEST_F(Kernels, CorrectionsSayWhichModeTheyAreOf) {
  std::string rows = "op,dtype,m,n,k,latency_ms\n";
  for (int i = 1; i <= 12; ++i) rows += "linear,bf16," + std::to_string(1024 * i) + ",8192,8192,1\n";
  write("mine.csv", rows);
  ASSERT_EQ(run("calibrate --gpu h100 --kernels mine.csv --output mine.json").code, 0);
  const CommandResult burst = run("kernels --input mine.csv --gpu h100 --kernel-calibration mine.json");
  EXPECT_EQ(burst.code, 2);
  EXPECT_THAT(burst.err, ContainsRegex("--kernel-calibration: measured on sustained .*add --mode sustained"));
  EXPECT_EQ(std::count(burst.err.begin(), burst.err.end(), '\n'), 1);
  EXPECT_EQ(run("kernels --mode sustained --input mine.csv --gpu h100 --kernel-calibration mine.json").code, 0);
  EXPECT_THAT(run("explain gemm 8x8x8 --mode burst --kernel-calibration mine.json").err, HasSubstr("--mode sustained"));
  EXPECT_THAT(run("calibrate --gpu h100 --kernels mine.csv --output mine.csv").err, HasSubstr("is the file that is"));
}

TEST_F(Kernels, CorrectionsThatHarmAreWarnedOf) {
  // The forecast itself, now a little above, now a little below: nothing to learn.
  std::string rows = "op,dtype,m,n,k\n";
  for (int i = 1; i <= 12; ++i) rows += "linear,bf16," + std::to_string(1024 * i) + ",8192,8192\n";
  write("in.csv", rows);
  std::istringstream lines(run("kernels --mode sustained --gpu h100 --input in.csv").out);
  std::string measured = "op,dtype,m,n,k,latency_ms\n", line;
  std::getline(lines, line);
  for (int i = 1; i <= 12; ++i) {
    std::getline(lines, line);
    std::istringstream fields(line);
    for (int f = 0; f < 6; ++f) std::getline(fields, line, ',');
    measured += "linear,bf16," + std::to_string(1024 * i) + ",8192,8192," +
                std::to_string(std::stod(line) * (i % 2 == 0 ? 1.05 : 1 / 1.05)) + "\n";
  }
  write("mine.csv", measured);
  const CommandResult result = run("calibrate --gpu h100 --kernels mine.csv --output mine.json");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              ContainsRegex("warning: rows of gemm bf16 that the correction does not know are forecast worse with it"))
      << result.out;
}

}  // namespace
}  // namespace ns_dist
