// Tables of collectives, as people make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class Collectives : public ::testing::Test {
 protected:
  CommandResult collectives(const std::string& csv, const std::string& flags = "") {
    std::ofstream(folder_.path() / "in.csv", std::ios::binary) << csv;
    return run_command("ns-dist collectives --input in.csv " + flags, folder_.path());
  }
  std::filesystem::path file(const char* name) const { return folder_.path() / name; }
  const std::string rows_ = "gpu,collective,ranks,bytes\nh100,all_reduce,8,67108864\n";

 private:
  const ScratchFolder folder_;
};

TEST_F(Collectives, AnswersItsOwnAnswer) {
  const std::string first = collectives(rows_).out;
  const CommandResult second = collectives(first);
  EXPECT_EQ(second.out, first);
  EXPECT_THAT(second.err, HasSubstr("in.csv:1: new forecasts take the place of columns forecast_ms, low_ms, high_ms"));
}

// nccl-tests writes the bus bandwidth that it measured under the name of ours.
TEST_F(Collectives, HasEachColumnOnce) {
  const CommandResult result =
      collectives("gpu,busbw_gbs,\"a, b\",collective,ranks,bytes\nh100,1,\"2, 3\",all_reduce,8,67108864\nh100,,,x\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:1: new forecasts take the place of columns busbw_gbs\n"));
  std::istringstream lines(result.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line,
            "gpu,\"a, b\",collective,ranks,bytes,forecast_ms,low_ms,high_ms,algorithm,protocol,busbw_gbs,extrapolated");
  std::getline(lines, line);
  EXPECT_THAT(line, StartsWith("h100,\"2, 3\",all_reduce,8,67108864,0."));
  std::getline(lines, line);
  EXPECT_EQ(line, "h100,,x,,,,,,,,,") << "a short row has all columns, too";
}

TEST_F(Collectives, RefusesRowsThatItCannotDivide) {
  const CommandResult result = collectives(
      "gpu,collective,ranks,bytes,note\nh100,all_reduce,8,67108864,8, not "
      "16\nh100,all_reduce,8,67108864,\"two\nlines\"\n"
      "h100,all_reduce,8,67108864,\"8, not 16\"\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: 6 fields; expected 5, as in the header; put fields with commas in "));
  EXPECT_THAT(result.err,
              HasSubstr("in.csv:3: a quote is not closed on its line; expected fields without line breaks"));
  EXPECT_THAT(result.err, HasSubstr("3 of 4 rows could not be forecast"));
  EXPECT_THAT(result.out, HasSubstr("\nh100,all_reduce,8,67108864,8,,,,,,,\n"));
  EXPECT_THAT(result.out, HasSubstr("\nh100,all_reduce,8,67108864,\"two\",,,,,,,\n"))
      << "one row for other readers, too";
  EXPECT_THAT(result.out, HasSubstr("\nh100,all_reduce,8,67108864,\"8, not 16\",0."));
}

TEST_F(Collectives, ForecastsRowsWhoseMeasurementIsNone) {
  const CommandResult result = collectives(
      "gpu,collective,ranks,bytes,latency_ms\nh100,all_reduce,8,67108864,nan\nh100,all_reduce,8,67108864,0.4\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: latency_ms is \"nan\"; expected a positive number of ms"));
  EXPECT_THAT(result.err, HasSubstr("1 of 2 rows have no usable latency_ms"));
  EXPECT_THAT(result.out, HasSubstr("\nh100,all_reduce,8,67108864,nan,0."));
}

TEST_F(Collectives, RefusesNumbersThatItDoesNotKnow) {
  const CommandResult result =
      collectives("gpu,collective,ranks,bytes,dtype\nh100,all_reduce,8,1024,int3\nh100,all_reduce,8,1024,int8\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:2: dtype \"int3\" is unknown; expected int8, uint8"));
  EXPECT_THAT(result.err, HasSubstr("1 of 2 rows could not be forecast"));
}

// Names have any case; others are near a known one.
TEST_F(Collectives, NamesTheCollectiveThatWasMeant) {
  const CommandResult result =
      collectives("gpu,collective,ranks,bytes\nh100,ALL_REDUCE,8,1024\nh100,AllReduce,8,1024\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("in.csv:3: unknown collective \"AllReduce\""));
  EXPECT_THAT(result.err, HasSubstr("did you mean \"all_reduce\"?"));
  EXPECT_THAT(result.err, HasSubstr("1 of 2 rows could not be forecast"));
}

TEST_F(Collectives, SaysThatThereAreNoRows) {
  const CommandResult empty = collectives("gpu,collective,ranks,bytes\n");
  EXPECT_EQ(empty.code, 0);
  EXPECT_THAT(empty.err, HasSubstr("in.csv: no rows"));
  EXPECT_THAT(collectives(rows_).err, IsEmpty());
}

TEST_F(Collectives, WhatIsWrongForEveryRowIsSaidOnceAndBeforeTheFirst) {
  for (const auto& [flags, code] :
       {std::pair{"--algorithm rin", 2}, {"--protocol ll127", 2}, {"--network-model astra --algorithm ring", 1}}) {
    const CommandResult result = collectives(rows_, flags);
    EXPECT_EQ(result.code, code) << flags;
    EXPECT_THAT(result.out, IsEmpty()) << flags;
    EXPECT_THAT(result.err, Not(HasSubstr("in.csv"))) << flags;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_THAT(collectives(rows_, "--algorithm rin --output out.csv").err,
              StartsWith("ns-dist: --algorithm: \"rin\" is not one of its values; expected one of auto, ring"));
  EXPECT_FALSE(std::filesystem::exists(file("out.csv")));
}

}  // namespace
}  // namespace ns_dist
