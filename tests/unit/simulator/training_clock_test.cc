#include "ns_dist/training_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ns_dist/catalog.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "step_interval.h"

namespace ns_dist {
namespace {

Gpu gpu(std::string_view id) { return *Catalog::built_in().gpu(id); }

const Operator kProduct{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16};
const Operator kExperts{GroupedGemm{}, DType::kBf16};
const Operator kNorm{Softmax{.rows = 8192, .columns = 8192}, DType::kBf16};

// An A100 has the power for its products; an H100 has 989.4 TFLOP/s for 700 W, 1.812 times as many for each watt:
// 1.812^0.23 = 1.147. What one has no data for is left alone.
TEST(TrainingClock, ProductsRunAtTheClockThatPowerLeaves) {
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), false, 1).factor(kProduct), 1);
  EXPECT_NEAR(TrainingClock(gpu("h100-sxm-80gb"), false, 1).factor(kProduct), 1.147, 0.001);
  EXPECT_EQ(TrainingClock(gpu("h100-sxm-80gb"), false, 1).factor(kNorm), 1);
  // Its own measurements have most of the load: 1.812^0.05 = 1.030.
  EXPECT_NEAR(TrainingClock(gpu("h100-sxm-80gb"), true, 1).factor(kProduct), 1.030, 0.001);
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), true, 1).factor(kProduct), 1);
  // FP32 products are no tensor cores' work.
  EXPECT_EQ(TrainingClock(gpu("h100-sxm-80gb"), false, 1).factor({Gemm{}, DType::kFp32}), 1);
  Gpu saving = gpu("h100-sxm-80gb");  // twice the rate for the same power
  for (const DType dtype : kAllDTypes) saving.tensor[dtype] = 2 * saving.tensor[dtype];
  saving.flop_energy = 0.5;
  EXPECT_EQ(training_slowdown(saving), training_slowdown(gpu("h100-sxm-80gb")));
  Gpu unknown = gpu("h100-sxm-80gb");
  unknown.board_power = {};
  EXPECT_EQ(TrainingClock(unknown, false, 1).factor(kProduct), 1);
}

// fp16 and bf16 run the same kernels where the data sheet has one rate for both; V100 has no bf16, MI100 half a rate.
TEST(TrainingClock, ProductsInFp16AreThoseInBf16) {
  const auto format = [](const char* id, const OperatorKind& kind, bool calibrated = false) {
    return TrainingClock(gpu(id), calibrated, 1).kernel_of({kind, DType::kFp16}).dtype;
  };
  EXPECT_EQ(format("a100-sxm-80gb", Gemm{}), DType::kBf16);
  EXPECT_EQ(format("a100-sxm-80gb", Attention{}), DType::kBf16);
  EXPECT_EQ(format("a100-sxm-80gb", Normalization{}), DType::kFp16);
  EXPECT_EQ(format("a100-sxm-80gb", Gemm{}, true), DType::kFp16);  // its own measurements are of the format
  EXPECT_EQ(format("v100-sxm2-32gb", Gemm{}), DType::kFp16);
  EXPECT_EQ(format("mi100", Gemm{}), DType::kFp16);
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), false, 1).kernel_of({Gemm{}, DType::kFp32}).dtype, DType::kFp32);
}

// Closed forms (David and Nagaraja, Order Statistics, s.3.2): 1/sqrt(pi) of two, 3/(2 sqrt(pi)) of three. Tables:
// 1.26721 of 6, 2.50759 of 100 (Harter 1961).
TEST(TrainingClock, TheLargestOfNumbersOfANormalDistribution) {
  const double root = std::sqrt(std::numbers::pi);
  for (int again = 0; again < 2; ++again) {  // the second answers are remembered
    EXPECT_NEAR(mean_of_largest(1), 0, 1e-12);
    EXPECT_NEAR(mean_of_largest(2), 1 / root, 1e-12);
    EXPECT_NEAR(mean_of_largest(3), 1.5 / root, 1e-12);
    EXPECT_NEAR(mean_of_largest(6), 1.26721, 1e-5);
    EXPECT_NEAR(mean_of_largest(100), 2.50759, 1e-5);
  }
  EXPECT_GT(mean_of_largest(16'384), mean_of_largest(8'192));
  EXPECT_LT(mean_of_largest(16'384), std::sqrt(2 * std::log(16'384.0))) << "its upper bound";
}

TEST(TrainingClock, AllWaitForTheSlowest) {
  EXPECT_EQ(slowest_of(1), 1);
  for (const std::int64_t ranks : {2, 6, 100}) {
    EXPECT_NEAR(slowest_of(ranks), 1 + 0.0075 * mean_of_largest(static_cast<double>(ranks)), 1e-12);
  }
  for (std::int64_t ranks = 1; ranks < 100'000; ranks *= 2) EXPECT_GT(slowest_of(2 * ranks), slowest_of(ranks));
}

TEST(TrainingClock, ProductsOfExpertsTakeLonger) {
  const TrainingClock clock(gpu("h100-sxm-80gb"), false, 64);
  EXPECT_DOUBLE_EQ(clock.factor(kExperts), TrainingConstants().experts * clock.factor(kProduct));
}

// A rank that has all experts waits for no other: uneven groups alone make its products longer.
TEST(TrainingClock, OneRankWithAllExpertsWaitsForNoOther) {
  Scenario scenario;
  scenario.cluster.gpu = gpu("h100-sxm-80gb");
  EXPECT_EQ(training_clock(scenario, 8).experts, 1.08);
  scenario.plan.ep = 8;
  EXPECT_EQ(training_clock(scenario, 8).experts, 1.3);
}

// A plan with an imbalance of its own has that part of the factor already. What is longer holds: 1.3 times even groups,
// or the busiest rank's tokens. Products that only read weights take as long for more tokens, and no less than before.
TEST(TrainingClock, AnImbalanceIsAPartOfWhatExpertsTake) {
  const TrainingClock clock(gpu("h100-sxm-80gb"), false, 64);
  Forecast even;
  even.latency = 10 * units::us, even.low = 9 * units::us, even.high = 12 * units::us;
  const double usual = clock.in_training(even, kExperts).latency / units::us;
  for (const double longer : {1.0, 1.1, 1.3, 1.5, 3.0}) {
    Forecast busiest = even;
    busiest.latency *= longer, busiest.low *= longer, busiest.high *= longer;
    const Forecast in_step = clock.in_training(busiest, even, kExperts);
    EXPECT_NEAR(in_step.latency / units::us, usual * std::max(1.0, longer / 1.3), 1e-9) << longer;
    EXPECT_NEAR(in_step.high / in_step.latency, 1.2, 1e-9) << longer;
  }
}

// The more uneven groups are, the longer the step, also where products take as long for more tokens.
TEST(TrainingClock, UnevenGroupsMakeNoStepShorter) {
  ScenarioSpec spec;
  spec.set("model", "deepseek-v2-lite").set("plan/dp", 8).set("plan/ep", 8).set("training/global_batch", 16);
  for (const std::int64_t sequence : {256, 8192}) {
    double before = 0;
    for (const char* imbalance : {"1", "1.1", "1.3", "1.5", "3"}) {
      spec.set("training/sequence", sequence).set("plan/expert_imbalance", std::string_view(imbalance));
      const auto report = simulate(*resolve(spec, Catalog::built_in()));
      ASSERT_TRUE(report) << to_text(report.error());
      const double step = report->step / units::s;
      EXPECT_GE(step, before * (1 - 1e-6)) << sequence << " " << imbalance;
      before = step;
    }
  }
}

// What the clock under load adds to a step: nothing where the host is slower than the kernels, however long they take.
TEST(TrainingClock, AddsNothingToStepsThatWaitForTheHost) {
  const auto added = [](const char* launch) {
    ScenarioSpec spec;
    spec.set("model", "llama3.2-1b").set("training/global_batch", 1).set("training/sequence", 4096);
    spec.set("host/launch_cost", std::string_view(launch));
    const Scenario scenario = *resolve(spec, Catalog::built_in());
    const Session session = *Session::make(scenario);
    const Prediction prediction = *predict(scenario, session);
    const std::vector<Addition> all = additions(scenario, prediction, session);
    const auto load =
        std::find_if(all.begin(), all.end(), [](const auto& each) { return each.name == "clock under load"; });
    EXPECT_NE(load, all.end());
    return load->seconds / prediction.step;
  };
  EXPECT_GT(added("0 us"), 0.05);
  EXPECT_NEAR(added("20 ms"), 0, 0.002);
}

// No step was published of boards with GDDR and of other vendors: theirs may be as slow as a benchmark, or twice as
// much slower.
TEST(TrainingClock, WithoutPublishedStepsTheIntervalHasAllOfIt) {
  Scenario scenario = *resolve(ScenarioSpec{}, Catalog::built_in());
  const auto parts = [&](std::string_view id) {
    scenario.cluster.gpu = gpu(id);
    return interval_parts(scenario, 10 * units::s, {9 * units::s, 11 * units::s});
  };
  EXPECT_EQ(parts("h100-sxm-80gb").clock_above, 0);
  const double load = training_slowdown(gpu("mi300x"));
  EXPECT_GT(load, 1.1);
  EXPECT_DOUBLE_EQ(parts("mi300x").clock_below, 1 - 1 / load);
  EXPECT_DOUBLE_EQ(parts("mi300x").clock_above, load - 1);
  EXPECT_DOUBLE_EQ(step_interval(10 * units::s, parts("mi300x")).low / units::s,
                   10 * (1 - std::hypot(0.1, 0.05, 1 - 1 / load)));
  scenario.kernel_calibration = KernelCalibration{};
  EXPECT_EQ(parts("mi300x").clock_above, 0) << "measured on this very GPU";
}

}  // namespace
}  // namespace ns_dist
