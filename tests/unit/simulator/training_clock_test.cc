#include "ns_dist/training_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>
#include <vector>

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

KernelCalibration calibration_of(std::string_view family, DType dtype, std::size_t kernels) {
  FamilyCalibration measured;
  measured.family = family, measured.dtype = dtype;
  measured.points.resize(kernels);
  return {"h100-sxm-80gb", Mode::kSustained, {measured}};
}

CalibratedShares measured(std::size_t kernels, std::string_view family = "gemm", DType dtype = DType::kBf16) {
  return CalibratedShares(calibration_of(family, dtype, kernels));
}

// An A100 has the power for its products; an H100 makes 1.777 times as many of a joule: (540,672^2 * 700
// / 4.66e-31)^(1/3) / 700 W = 1.086 TFLOP/J, and 1.777^0.24 = 1.148. What one has no data for is left alone.
TEST(TrainingClock, ProductsRunAtTheClockThatPowerLeaves) {
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), {}, 1).factor(kProduct), 1);
  EXPECT_NEAR(TrainingClock(gpu("h100-sxm-80gb"), {}, 1).factor(kProduct), 1.148, 0.001);
  EXPECT_EQ(TrainingClock(gpu("h100-sxm-80gb"), {}, 1).factor(kNorm), 1);
  // Its own measurements have most of the load: 1.777^0.06 = 1.035.
  EXPECT_NEAR(TrainingClock(gpu("h100-sxm-80gb"), measured(20), 1).factor(kProduct), 1.035, 0.001);
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), measured(20), 1).factor(kProduct), 1);
  EXPECT_NEAR(TrainingClock(gpu("h100-sxm-80gb"), measured(10), 1).factor(kProduct), std::sqrt(1.148 * 1.035), 0.001);
  // FP32 products are no tensor cores' work.
  EXPECT_EQ(TrainingClock(gpu("h100-sxm-80gb"), {}, 1).factor({Gemm{}, DType::kFp32}), 1);
  Gpu saving = gpu("h100-sxm-80gb");  // twice the clock for the same power
  for (const DType dtype : kAllDTypes) saving.tensor[dtype] = 2 * saving.tensor[dtype];
  saving.boost_clock = 2 * saving.boost_clock, saving.flop_energy = 0.5;
  EXPECT_NEAR(training_slowdown(saving), training_slowdown(gpu("h100-sxm-80gb")), 1e-12);
  Gpu unknown = gpu("h100-sxm-80gb");
  unknown.board_power = {};
  EXPECT_EQ(TrainingClock(unknown, {}, 1).factor(kProduct), 1);
}

// Twenty measured products take most of the load of all; fewer less, and other kernels and fp32 none. Attention that
// was measured says nothing of products; products that correct attention do.
TEST(TrainingClock, CalibrationsCountByTheirProducts) {
  Scenario scenario;
  scenario.cluster.gpu = gpu("h100-sxm-80gb");
  const auto load = [&](std::string_view family, DType dtype, std::size_t kernels) {
    scenario.kernel_calibration = calibration_of(family, dtype, kernels);
    return training_clock(scenario, 1).factor(kProduct);
  };
  EXPECT_NEAR(load("gemm", DType::kBf16, 40), 1.035, 0.001);
  EXPECT_NEAR(load("gemm", DType::kBf16, 20), 1.035, 0.001);
  EXPECT_NEAR(load("gemm", DType::kBf16, 10), std::sqrt(1.148 * 1.035), 0.001);
  EXPECT_NEAR(load("normalization", DType::kBf16, 40), 1.148, 0.001);
  EXPECT_NEAR(load("gemm", DType::kFp32, 40), 1.148, 0.001);
  EXPECT_NEAR(load("attention", DType::kBf16, 40), 1.148, 0.001);
  EXPECT_NEAR(load("grouped_gemm", DType::kBf16, 40), 1.148, 0.001);
  const TrainingClock attention(gpu("h100-sxm-80gb"), measured(40, "attention"), 1),
      products(gpu("h100-sxm-80gb"), measured(40), 1);
  EXPECT_NEAR(attention.factor({Attention{}, DType::kBf16}), 1.035, 0.001);
  EXPECT_NEAR(products.factor({Attention{}, DType::kBf16}), 1.035, 0.001);
}

// What a planner asks of a GPU that nobody has yet: no board of the catalog takes longer for a step when its data sheet
// promises more.
TEST(TrainingClock, ABetterDataSheetMakesNoStepLonger) {
  const auto rates = [](Gpu& gpu, double factor) {
    for (RateTable* table : {&gpu.tensor, &gpu.vector}) {
      for (const DType dtype : kAllDTypes) (*table)[dtype] = factor * (*table)[dtype];
    }
  };
  using Change = std::function<void(Gpu&, double)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"clock", [](Gpu& gpu, double factor) { gpu.boost_clock *= factor; }},
      {"clock and rates", [&](Gpu& gpu, double factor) { gpu.boost_clock *= factor, rates(gpu, factor); }},
      {"rates", rates},
      {"SMs and rates",
       [&](Gpu& gpu, double factor) {
         const double more = std::ceil(factor * static_cast<double>(gpu.sm_count)) / static_cast<double>(gpu.sm_count);
         rates(gpu, more);
         gpu.sm_count = static_cast<int>(std::lround(more * static_cast<double>(gpu.sm_count)));
       }},
      {"power", [](Gpu& gpu, double factor) { gpu.board_power *= factor; }},
      {"memory bandwidth", [](Gpu& gpu, double factor) { gpu.memory_bandwidth *= factor; }},
  };
  for (const CatalogEntry& entry : Catalog::built_in().list(CatalogKind::kGpu)) {
    ScenarioSpec spec;
    spec.set("model", "llama3.2-1b").set("machine/gpu", std::string_view(entry.id)).set("training/global_batch", 2);
    if (!(gpu(entry.id).tensor[DType::kBf16] > FlopsPerSecond())) spec.set("training/dtype", "fp16");
    const auto resolved = resolve(spec, Catalog::built_in());
    ASSERT_TRUE(resolved) << to_text(resolved.error());
    const Scenario& scenario = *resolved;
    const auto step = [&](const Scenario& of) { return simulate(of)->step / units::s; };
    const double before = step(scenario);
    for (const auto& [what, change] : changes) {
      for (const double factor : {1.1, 1.3}) {
        Scenario better = scenario;
        change(better.cluster.gpu, factor);
        EXPECT_LE(step(better), before * (1 + 1e-3)) << entry.id << ": " << what << " x " << factor;
      }
    }
  }
}

// fp16 and bf16 run the same kernels where the data sheet has one rate for both; V100 has no bf16, MI100 half a rate.
TEST(TrainingClock, ProductsInFp16AreThoseInBf16) {
  const auto format = [](const char* id, const OperatorKind& kind, const CalibratedShares& calibrated = {}) {
    return TrainingClock(gpu(id), calibrated, 1).kernel_of({kind, DType::kFp16}).dtype;
  };
  EXPECT_EQ(format("a100-sxm-80gb", Gemm{}), DType::kBf16);
  EXPECT_EQ(format("a100-sxm-80gb", Attention{}), DType::kBf16);
  EXPECT_EQ(format("a100-sxm-80gb", Normalization{}), DType::kFp16);
  EXPECT_EQ(format("a100-sxm-80gb", Gemm{}, measured(3, "gemm", DType::kFp16)), DType::kFp16);
  EXPECT_EQ(format("a100-sxm-80gb", Gemm{}, measured(40)), DType::kBf16);
  EXPECT_EQ(format("v100-sxm2-32gb", Gemm{}), DType::kFp16);
  EXPECT_EQ(format("mi100", Gemm{}), DType::kFp16);
  EXPECT_EQ(TrainingClock(gpu("a100-sxm-80gb"), {}, 1).kernel_of({Gemm{}, DType::kFp32}).dtype, DType::kFp32);
}

TEST(TrainingClock, ForecastsTheKernelThatRuns) {
  const auto kernels = make_compute_model(gpu("l40s"));
  ASSERT_TRUE(kernels.has_value());
  const TrainingClock clock(gpu("l40s"), {}, 8);
  const Gemm product{.m = 2048, .n = 1920, .k = 5120, .epilogue = Epilogue::kBias};
  const auto half = clock.forecast(**kernels, {product, DType::kFp16});
  const auto bf16 = clock.forecast(**kernels, {product, DType::kBf16});
  ASSERT_TRUE(half && bf16);
  EXPECT_EQ(half->latency, bf16->latency);
  EXPECT_EQ(bf16->latency, clock.factor({product}) * (*kernels)->forecast({product})->latency);
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
  const TrainingClock clock(gpu("h100-sxm-80gb"), {}, 64);
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
  const TrainingClock clock(gpu("h100-sxm-80gb"), {}, 64);
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

// No step was published of boards with GDDR, of other vendors and of newer generations: theirs may be as slow as a
// benchmark, or as much slower as the forecast says again, and at least as much as an H100.
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
  EXPECT_DOUBLE_EQ(parts("mi300x").clock_above, 0.15);
  EXPECT_EQ(parts("l40s").clock_below, 0);
  EXPECT_DOUBLE_EQ(parts("l40s").clock_above, 0.15);
  EXPECT_DOUBLE_EQ(parts("vr200").clock_above, training_slowdown(gpu("vr200")) - 1);
  EXPECT_EQ(parts("vr200").situation, "dense models, on GPUs of a generation without comparable steps");
  EXPECT_EQ(parts("vr200").rest_above, parts("mi300x").rest_above);
  EXPECT_GT(parts("vr200").rest_above, parts("gb300").rest_above);
  scenario.cluster.gpu = gpu("mi300x"), scenario.cluster.gpu.board_power *= 0.5;
  const IntervalParts short_of_power = interval_parts(scenario, 10 * units::s, {9 * units::s, 11 * units::s});
  EXPECT_GT(short_of_power.clock_above, 0.2);
  EXPECT_DOUBLE_EQ(short_of_power.clock_above, training_slowdown(scenario.cluster.gpu) - 1);
  EXPECT_DOUBLE_EQ(step_interval(10 * units::s, parts("mi300x")).low / units::s,
                   10 * (1 - std::hypot(0.1, 0.15, 1 - 1 / load)));
  scenario.kernel_calibration = KernelCalibration{};
  EXPECT_EQ(parts("mi300x").clock_above, 0) << "measured on this very GPU";
}

}  // namespace
}  // namespace ns_dist
