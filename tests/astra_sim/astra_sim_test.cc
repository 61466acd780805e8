// Does the plugin put our forecasts in the place of ASTRA-Sim's durations, and say so when it cannot?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ns_dist_c.h"
#include "support/run_command.h"

namespace ns_dist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs a stub for a GPU of ours with the built library.
CommandResult run(const std::string& stub, const std::string& gpu, const std::string& library = LIBRARY) {
  return run_command("NS_DIST_GPU='" + gpu + "' NS_DIST_LIBRARY='" + library + "' '" STUBS "/" + stub);
}

// ns of the product of the stub's first nodes, which the first two write as ours and the third as PyTorch's.
std::int64_t product_ns(const char* layout, double times = 1) {
  const char* fields[] = {"machine/gpu=h100", nullptr};
  ns_dist_session* session = nullptr;
  EXPECT_EQ(ns_dist_open(NS_DIST_ABI, fields, &session), NS_DIST_OK);
  const std::string op = std::string("gemm dtype=bf16 m=4096 n=8192 k=1024") + layout;
  ns_dist_kernel kernel{};
  kernel.struct_size = sizeof(kernel), kernel.op = op.c_str(), kernel.ranks = 8;
  ns_dist_forecast out{};
  out.struct_size = sizeof(out);
  EXPECT_EQ(ns_dist_forecast_kernel(session, &kernel, &out), NS_DIST_OK) << ns_dist_error(session);
  ns_dist_close(session);
  return std::llround(times * out.ns);
}

// The end and the busy time: four kernels are forecast, one of them of twice the time; kernels of 13, 19 and 23 us and
// a wait of 31 us keep their durations, the host works for 17 us, and something else takes 1 us. A wait of 200 us
// becomes shorter by what the first kernel, of 7 us in the trace, hides more of it.
std::string expected_line() {
  const std::int64_t wait = 200'000 - (product_ns("") - 7'000);
  const std::int64_t kernels =
      2 * product_ns("") + product_ns("", 2) + product_ns(" layout=nn") + wait + 13'000 + 19'000 + 23'000 + 31'000;
  return "end " + std::to_string(kernels + 17'000 + 1'000) + " busy " + std::to_string(kernels) + "\n";
}

TEST(AstraSimPlugin, WithoutAGpuNothingChanges) {
  const CommandResult result = run_command("'" STUBS "/astra_wrapped'");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "end 358000 busy 340000\n");
  EXPECT_EQ(result.err, "");
}

TEST(AstraSimPlugin, KernelsAreForecastOrKeepTheirDurationAndAreCounted) {
  for (const char* stub : {"astra_wrapped'", "astra_two_lines'"}) {
    const CommandResult result = run(stub, "h100");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, expected_line()) << stub;
    EXPECT_EQ(result.err,
              "ns-dist: 5 of 9 kernels forecast for h100; 4 keep their duration, the first one is unknown: the node "
              "does not tell what it computes\n")
        << stub;
  }
}

TEST(AstraSimPlugin, TheSummaryOutlivesAnAbort) {
  const CommandResult result = run("astra_wrapped' abort", "h100");
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(result.out, expected_line());
  EXPECT_THAT(result.err, HasSubstr("5 of 9 kernels forecast"));
}

TEST(AstraSimPlugin, NoCallIsSaidLoudly) {
  for (const char* stub : {"astra_inlined'", "astra_wrapped' none"}) {
    const CommandResult result = run(stub, "h100");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("0 CALLS"), HasSubstr("link-time optimization"), HasSubstr("--wrap")))
        << stub;
  }
}

TEST(AstraSimPlugin, ALibraryThatIsMissingOrOfAnotherAgeEndsIt) {
  const CommandResult missing = run("astra_wrapped'", "h100", "/nowhere/libns_dist_c.so");
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/nowhere/libns_dist_c.so"), HasSubstr("set NS_DIST_LIBRARY"),
                                 HasSubstr("or unset NS_DIST_GPU")));
  const CommandResult other = run("astra_wrapped'", "h100", OTHER_ABI);
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err, AllOf(HasSubstr("has version 2 of the C interface"), HasSubstr("written for 1"),
                               HasSubstr("build ASTRA-Sim with the ns_dist_compute.cc that came with the library")));
  const CommandResult foreign = run("astra_wrapped'", "h100", "libc.so.6");
  EXPECT_EQ(foreign.code, 1);
  EXPECT_THAT(foreign.err, HasSubstr("libc.so.6 is no libns_dist_c.so"));
  const CommandResult unknown = run("astra_wrapped'", "h1000");
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("NS_DIST_GPU=h1000"), HasSubstr("unknown GPU")));
}

}  // namespace
}  // namespace ns_dist
