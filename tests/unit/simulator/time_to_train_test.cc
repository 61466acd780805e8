#include "ns_dist/time_to_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ns_dist/energy.h"
#include "ns_dist/parameters.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

constexpr Seconds kHour = 3600.0 * units::s;

// A cluster of the size of the source fails as often as the source says.
TEST(TimeToTrain, TheClusterOfTheSourceFailsFourHundredNineteenTimes) {
  const Seconds between = kGpuTimeBetweenFailures / 16'384.0;
  EXPECT_NEAR((54 * 24.0 * kHour) / between, 419, 1e-9);
  EXPECT_NEAR(between / kHour, 3.09, 0.005);
}

TEST(TimeToTrain, RareFailuresLeaveYoungsInterval) {
  // Young 1974: sqrt(2 D M), when D is small against M.
  for (const double checkpoint : {1.0, 60.0}) {
    const double between = 1e9;
    const double interval = checkpoint_interval(checkpoint * units::s, between * units::s) / units::s;
    EXPECT_NEAR(interval / std::sqrt(2 * checkpoint * between), 1, 1e-3);
  }
  EXPECT_EQ(checkpoint_interval(30.0 * units::s, 10.0 * units::s), 10.0 * units::s);
}

// No other interval loses less: the derivative of the goodput is zero at the optimum, where
// e^((t + D)/M) (1 - t/M) = 1.
TEST(TimeToTrain, NoIntervalIsMuchBetter) {
  const Seconds between = 3.0 * kHour;
  for (const double checkpoint : {5.0, 60.0, 600.0}) {
    const Seconds delta = checkpoint * units::s;
    const Seconds chosen = checkpoint_interval(delta, between);
    const double share = goodput(chosen, delta, kRestart, between);
    double best = 0;
    for (double factor = 0.2; factor < 5; factor *= 1.01) {
      best = std::max(best, goodput(factor * chosen, delta, kRestart, between));
    }
    EXPECT_GE(share, best * (1 - 1e-4)) << checkpoint;
    EXPECT_LT(goodput(0.3 * chosen, delta, kRestart, between), share);
    EXPECT_LT(goodput(3 * chosen, delta, kRestart, between), share);
    const double t = chosen / between, d = delta / between;
    EXPECT_NEAR(std::exp(t + d) * (1 - t), 1, 0.01);
  }
}

// A checkpoint holds weights in bf16, master weights and two moments: 14 bytes a parameter, 8 with moments in 8 bits.
TEST(TimeToTrain, CheckpointsHoldWhatTheOptimizerKeeps) {
  const Model model = Catalog::built_in().model("llama3-8b").value();
  const double parameters = model_parameters(model).total();
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, MomentType::kFp32) / units::B, 14 * parameters);
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, MomentType::k8Bit) / units::B, 8 * parameters);
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kFp32, MomentType::kFp32) / units::B, 12 * parameters);
}

TEST(TimeToTrain, WithoutFailuresOnlyCheckpointsCost) {
  // M to infinity: t / (t + D).
  EXPECT_NEAR(goodput(900.0 * units::s, 100.0 * units::s, kRestart, 1e15 * units::s), 0.9, 1e-9);
  EXPECT_NEAR(goodput(Seconds(), Seconds(), Seconds(), kHour), 1, 1e-12);
}

// Daly 2006: an interval t takes M e^(R/M) (e^((t + D)/M) - 1), as also a restart may fail.
TEST(TimeToTrain, RestartsTakeTheirTime) {
  EXPECT_NEAR(goodput(kHour, Seconds(), 0.5 * kHour, kHour), 1 / (std::exp(0.5) * (std::exp(1.0) - 1)), 1e-12);
  EXPECT_NEAR(goodput(0.5 * kHour, 0.5 * kHour, Seconds(), kHour), 0.5 / (std::exp(1.0) - 1), 1e-12);
}

TEST(TimeToTrain, StepsTimesStepByGoodput) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const auto answer = simulate(*resolve(spec, Catalog::standard()));
  ASSERT_TRUE(answer.has_value());
  const auto time = time_to_train(*answer, 300e9);
  ASSERT_TRUE(time.has_value());
  EXPECT_EQ(time->steps, std::ceil(300e9 / (1536.0 * 2048.0)));
  EXPECT_NEAR(time->total * time->goodput / (time->steps * answer->step), 1, 1e-12);
  EXPECT_LT(time->goodput, 1);
  EXPECT_GT(time->goodput, 0.9);
  EXPECT_NEAR(time->time_between_failures / (kGpuTimeBetweenFailures / 1024.0), 1, 1e-12);
  EXPECT_LT(time->low, time->total);
  EXPECT_GT(time->high, time->total);
  EXPECT_NEAR(time->low / time->total, answer->step_low / answer->step, 1e-12);
  EXPECT_NEAR(time->high / time->total, answer->step_high / answer->step, 1e-12);
  EXPECT_NEAR(time->gpu_hours, 1024 * (time->total / kHour), 1e-6);
  // 174.6 B parameters of 14 bytes over 1,024 shares of 2 TB/s / 16,384.
  EXPECT_NEAR(time->checkpoint / units::s, 174.6e9 * 14 / (2e12 / 16), 0.01 * 20);
  Reliability given;
  given.checkpoint = 60.0 * units::s;
  EXPECT_EQ(time_to_train(*answer, 300e9, given)->checkpoint, 60.0 * units::s);
  EXPECT_FALSE(time_to_train(*answer, 0).has_value());
}

// Worked by hand: 1,024 GPUs of 700 W for the step, and for as many steps as 1e12 tokens need.
TEST(Energy, IsBoardPowerTimesTime) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const auto answer = simulate(*resolve(spec, Catalog::standard()));
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->energy.has_value());
  const double step = answer->step / units::s;
  EXPECT_NEAR(answer->energy->step / kKilowattHour, 1024 * 0.7 * step / 3600, 1e-9);
  EXPECT_NEAR(answer->energy->trillion_tokens / kKilowattHour, 1024 * 0.7 * step / 3600 * 1e12 / (1536 * 2048), 1e-3);
  const auto time = time_to_train(*answer, 300e9);
  EXPECT_NEAR(*time->energy / kKilowattHour, 0.7 * time->gpu_hours, 1e-6 * time->gpu_hours);

  const auto building = simulate(*resolve(spec.set("facility/pue", "1.2"), Catalog::standard()));
  EXPECT_NEAR(building->energy->step / answer->energy->step, 1.2, 1e-12);
  EXPECT_EQ(building->step, answer->step);
  EXPECT_FALSE(resolve(spec.set("facility/pue", "0.9"), Catalog::standard()).has_value()) << "below 1 is no PUE";
}

TEST(Prices, AreStrict) {
  const auto prices = read_prices(R"({"currency": "USD", "date": "2026-01-01", "gpu_hour": {"h100": 2.5}})", "p.json");
  ASSERT_TRUE(prices.has_value());
  EXPECT_EQ(prices->gpu_hour.at("h100"), 2.5);
  EXPECT_EQ(prices->date, "2026-01-01");
  for (const char* bad : {R"({"currency": "USD"})", R"({"currency": "USD", "gpu_hour": {"h100": 0}})",
                          R"({"currency": "USD", "gpu_hour": {"h100": "2"}})",
                          R"({"currency": "USD", "gpu_hours": {}, "gpu_hour": {}})", "[]"}) {
    const auto refused = read_prices(bad, "p.json");
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_THAT(to_text(refused.error()), HasSubstr("p.json")) << bad;
  }
}

}  // namespace
}  // namespace ns_dist
