#include "ns_dist/time_to_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "host_work.h"
#include "ns_dist/energy.h"
#include "ns_dist/parameters.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

constexpr Seconds kHour = 3600.0 * units::s;

// A cluster of the size of the source fails as often as the source says.
TEST(TimeToTrain, TheClusterOfTheSourceFailsFourHundredNineteenTimes) {
  const Seconds between = time_between_failures({}, 16'384, 2'048, true);
  EXPECT_NEAR((54 * 24.0 * kHour) / between, 419, 1e-9);
  EXPECT_NEAR(between / kHour, 3.09, 0.005);
  EXPECT_NEAR(kGpuTimeBetweenFailures / 16'384.0 / between, 1, 1e-12);
}

// Rates add up: of GPUs, of nodes, and of the switches and cables, of which one node needs none.
TEST(TimeToTrain, RatesOfPartsAddUp) {
  Reliability parts;
  parts.gpu_alone = 800.0 * kHour;
  parts.node = 100.0 * kHour;
  parts.network = 1600.0 * kHour;
  EXPECT_NEAR(time_between_failures(parts, 16, 2, true) / kHour, 1 / (16 / 800.0 + 2 / 100.0 + 16 / 1600.0), 1e-9);
  EXPECT_NEAR(time_between_failures(parts, 8, 1, false) / kHour, 1 / (8 / 800.0 + 1 / 100.0), 1e-9);
  parts.gpu_time_between_failures = 400.0 * kHour;
  EXPECT_NEAR(time_between_failures(parts, 16, 2, true) / kHour, 25, 1e-9);
}

// What happens, one failure after the other: a node fails while training runs, and is back after `repair`.
double share_with_all_nodes(std::int64_t spares, double repair, double between) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> failure(1 / between);
  std::deque<double> back;  // when each node that is away returns
  double now = 0, whole = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double until = failure(random);
    whole += until, now += until;
    while (!back.empty() && back.front() <= now) back.pop_front();
    back.push_back(now + repair);
    if (static_cast<std::int64_t>(back.size()) <= spares) continue;
    now = back.front();
    back.pop_front();
  }
  return whole / now;
}

// Without spares, training stands still for a repair after each failure: 1 / (1 + a). With one, two must be away.
TEST(TimeToTrain, SpareNodesReplaceThoseThatAreAway) {
  for (const double a : {0.1, 1.0, 3.0}) {
    EXPECT_NEAR(whole_share(0, a * kHour, kHour), 1 / (1 + a), 1e-12);
    EXPECT_NEAR(whole_share(1, a * kHour, kHour), (1 + a) / (1 + a + a * a / 2), 1e-12);
    EXPECT_NEAR(whole_share(1000, a * kHour, kHour), 1, 1e-12);
  }
  // 16,384 GPUs that lose a node each 3.09 hours, for two days.
  for (const std::int64_t spares : {0, 10, 16, 20}) {
    EXPECT_NEAR(whole_share(spares, 48.0 * kHour, 3.09 * kHour), share_with_all_nodes(spares, 48, 3.09), 0.01);
  }
  EXPECT_EQ(whole_share(3, Seconds(), kHour), 1);
  EXPECT_EQ(whole_share(3, kHour, Seconds()), 0);
}

// What happens, one failure after the other: a checkpoint counts only when it has been written, `write` after its copy.
double trained_share(double interval, double standstill, double write, double restart, double between) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> failure(1 / between);
  double now = 0, trained = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double until = failure(random);  // from the end of a restart
    const double cycle = interval + standstill;
    double whole = std::floor(until / cycle);
    if (whole > 0 && until - whole * cycle < write) --whole;
    trained += whole * interval;
    now += until + restart;
  }
  return trained / now;
}

TEST(TimeToTrain, AsynchronousCheckpointsCountWhenTheyAreWritten) {
  for (const double write : {0.0, 200.0, 600.0}) {
    const double between = 36'000, interval = 700, standstill = 5, restart = 100;
    const double forecast =
        goodput(interval * units::s, standstill * units::s, (restart + write) * units::s, between * units::s);
    EXPECT_NEAR(forecast / trained_share(interval, standstill, write, restart, between), 1, 0.002) << write;
  }
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
// Of adapters, it holds theirs: rank 16 on the four products of a layer of Llama 3 8B, those of one input together.
TEST(TimeToTrain, CheckpointsHoldWhatTheOptimizerKeeps) {
  const Model model = Catalog::built_in().model("llama3-8b").value();
  const double parameters = model_parameters(model).total();
  ParallelPlan plan;
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, plan) / units::B, 14 * parameters);
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kFp32, plan) / units::B, 12 * parameters);
  plan.optimizer_state = MomentType::k8Bit;
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, plan) / units::B, 8 * parameters);
  plan = {}, plan.lora_rank = 16;
  const double adapters = 32 * 16 * (4096 + 6144 + 2 * 4096 + 4096 + 2 * 14336 + 14336 + 4096);
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, plan) / units::B, 14 * adapters);
}

// Frozen layers have weights, and no optimizer states: 8 of the 32 layers of Llama 3 8B, and the embedding.
TEST(TimeToTrain, CheckpointsHoldTheWeightsOfFrozenLayers) {
  const Model model = Catalog::built_in().model("llama3-8b").value();
  const double parameters = model_parameters(model).total();
  const double layer = 4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096, frozen = 8 * layer + 128'256.0 * 4096;
  ParallelPlan plan;
  plan.frozen_layers = 8;
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, plan) / units::B, 14 * parameters - 12 * frozen);
  plan.optimizer = OptimizerKind::kMuon;
  const double matrices = 24 * (layer - 2 * 4096);
  EXPECT_DOUBLE_EQ(checkpoint_size(model, DType::kBf16, plan) / units::B, 14 * parameters - 12 * frozen - 4 * matrices);
}

// Layers for multi-token prediction are stored where they are trained.
TEST(TimeToTrain, CheckpointsHoldPredictionLayers) {
  const Model model = Catalog::built_in().model("deepseek-v3").value();
  const ModelParameters parameters = model_parameters(model);
  ASSERT_GT(parameters.prediction, 1e10);
  const Bytes without = checkpoint_size(model, DType::kBf16, {}), with = checkpoint_size(model, DType::kBf16, {}, true);
  EXPECT_DOUBLE_EQ((with - without) / units::B, 14 * parameters.prediction);
}

// A rack of 72 GPUs has more hosts than one: as many failures as 9 nodes of 8, but for the network.
TEST(TimeToTrain, RacksHaveHostsOfEightGpus) {
  const auto between = [](const char* gpu) {
    ScenarioSpec spec;
    spec.set("model", "llama3-8b").set("machine/gpu", gpu).set("plan/dp", 144).set("training/global_batch", 144);
    return time_to_train(*simulate(*resolve(spec, Catalog::built_in())), 1e9, {})->time_between_failures;
  };
  EXPECT_DOUBLE_EQ(between("gb200") / between("h100"), 1);
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

// Checkpoints are written between steps.
TEST(TimeToTrain, CheckpointsAreWholeStepsApart) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const Report answer = *simulate(*resolve(spec, Catalog::standard()));
  Reliability often;
  often.gpu_time_between_failures = 1024 * 0.3 * answer.step;
  often.restart = Seconds();
  EXPECT_EQ(time_to_train(answer, 300e9, often)->interval, answer.step);
  const auto time = time_to_train(answer, 300e9);
  const double wanted = checkpoint_interval(time->standstill, time->time_between_failures) / answer.step;
  EXPECT_EQ(time->interval, std::round(wanted) * answer.step);
  EXPECT_GT(wanted, 1);
  Reliability asynchronous;
  asynchronous.asynchronous = true;
  asynchronous.checkpoint = 1e5 * answer.step;
  EXPECT_EQ(time_to_train(answer, 300e9, asynchronous)->interval, 1e5 * answer.step) << "one at a time is written";
}

// Beyond a million years nothing that follows from the time is a number.
TEST(TimeToTrain, ATrainingThatFailsTooOftenNeverEnds) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const Report answer = *simulate(*resolve(spec, Catalog::standard()));
  Reliability often;
  often.gpu_time_between_failures = 10 * kHour;  // of 1,024 GPUs: 35 s, and a restart takes 600 s
  const auto time = time_to_train(answer, 300e9, often);
  EXPECT_GT(time->goodput, 0);
  for (const double value :
       {time->total / kHour, time->low / kHour, time->high / kHour, time->gpu_hours, *time->energy / kKilowattHour}) {
    EXPECT_TRUE(std::isinf(value)) << value;
  }
  EXPECT_LT(time->without_failures, kNever);
}

Report answer_of(const ScenarioSpec& spec) { return *simulate(*resolve(spec, Catalog::standard())); }

// Training stands still only while each GPU copies its share to its host: 14 bytes of 174.6 B parameters / 1,024 GPUs,
// at 0.8 of PCIe or, on a superchip, of NVLink-C2C, as offloading does.
TEST(TimeToTrain, AsynchronousCheckpointsAreCopiedFirst) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const Report answer = answer_of(spec);
  Reliability asynchronous;
  asynchronous.asynchronous = true;
  const auto time = time_to_train(answer, 300e9, asynchronous), before = time_to_train(answer, 300e9);
  const double share = checkpoint_size(answer.scenario.model, DType::kBf16, answer.scenario.plan) / units::B / 1024;
  const Gpu& gpu = answer.scenario.cluster.gpu;
  EXPECT_NEAR(time->standstill / units::s, share / (0.8 * gpu.pcie_bandwidth / (units::B / units::s)), 1e-9);
  Report superchips = answer;
  superchips.scenario.cluster.gpu.host = HostSide{"nvlink-c2c", 7 * gpu.pcie_bandwidth, {}};
  EXPECT_NEAR(time_to_train(superchips, 300e9, asynchronous)->standstill / time->standstill, 1.0 / 7, 1e-12);
  const HostWork copy{share * units::B, {}};
  EXPECT_NEAR(forecast_host_work(copy, gpu, {})->latency / time->standstill, 1, 1e-12);
  EXPECT_EQ(time->checkpoint, before->checkpoint);
  EXPECT_EQ(before->standstill, before->checkpoint);
  EXPECT_GE(time->interval, time->checkpoint) << "one at a time is written";
  EXPECT_GT(time->goodput, before->goodput);
  EXPECT_DOUBLE_EQ(time->goodput,
                   goodput(time->interval, time->standstill, kRestart + time->checkpoint, time->time_between_failures));
}

// The least number that is enough 99 % of the time; fewer cost time, more cost money.
TEST(TimeToTrain, SpareNodesArePaid) {
  ScenarioSpec spec;
  spec.set("plan/tp", 8).set("plan/pp", 16).set("plan/dp", 8);
  const Report answer = answer_of(spec);
  Reliability repaired;
  repaired.repair = 100.0 * kHour;  // two nodes away, on average
  const auto none = time_to_train(answer, 300e9), some = time_to_train(answer, 300e9, repaired);
  EXPECT_EQ(none->spare_nodes, 0);
  EXPECT_EQ(none->whole, 1);
  EXPECT_GE(some->whole, 0.99);
  EXPECT_LT(whole_share(some->spare_nodes - 1, *repaired.repair, some->time_between_failures), 0.99);
  EXPECT_DOUBLE_EQ(some->goodput, none->goodput * some->whole);
  EXPECT_NEAR(some->gpu_hours, (1024.0 + 8.0 * static_cast<double>(some->spare_nodes)) * (some->total / kHour), 1e-3);
  // They take power, too: 700 W each.
  EXPECT_NEAR(*some->energy / kKilowattHour / (0.7 * some->gpu_hours), 1, 1e-12);
  repaired.spare_nodes = 0;
  EXPECT_NEAR(time_to_train(answer, 300e9, repaired)->whole, 1 / (1 + *repaired.repair / some->time_between_failures),
              1e-12);
}

// All wait for the slowest: the step grows, and by no more than that GPU is slower. The spread that is said replaces
// the deviation that products have anyway (TrainingConstants), and is not added to it.
TEST(TimeToTrain, UnequalGpusWaitForTheSlowest) {
  ScenarioSpec spec;
  spec.set("model", "gpt3-13b").set("plan/tp", 4).set("plan/pp", 2).set("plan/dp", 4).set("host/cuda_graphs", "on");
  const Report answer = answer_of(spec);
  Scenario scenario = answer.scenario;
  scenario.constants.deviation = 0;
  const Seconds equal = simulate(scenario)->step;
  EXPECT_LT(equal, answer.step);
  EXPECT_EQ(*step_of_unequal_gpus(answer.scenario, 0), equal);
  const Seconds step = *step_of_unequal_gpus(answer.scenario, 0.02);
  const double factor = 1 / (1 - 0.02 * mean_of_largest(32));
  EXPECT_GT(step / equal, 1 + 0.5 * (factor - 1)) << "kernels are most of this step";
  EXPECT_LE(step / equal, factor);
  const auto time = time_to_train(answer, 1e12, {}, step);
  EXPECT_DOUBLE_EQ(time->without_failures / units::s, time->steps * (step / units::s));
  EXPECT_NEAR(time->high / time->total, answer.step_high / answer.step, 1e-12);
  // A slow rank of the user's own stays as slow.
  scenario = answer.scenario;
  scenario.stragglers.slow_stage = 1, scenario.stragglers.slow_factor = 1.5;
  Scenario without = scenario;
  without.constants.deviation = 0;
  EXPECT_GT(*step_of_unequal_gpus(scenario, 0.02), simulate(without)->step);
  for (const double wrong : {-0.01, 0.11}) EXPECT_FALSE(step_of_unequal_gpus(answer.scenario, wrong).has_value());
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
  EXPECT_EQ(prices->gpu_hour.at("h100-sxm-80gb"), 2.5) << "by any of its names";
  EXPECT_EQ(read_prices(R"({"currency": "USD", "gpu_hour": {"H100": 2.5}})", "p.json")->gpu_hour.at("h100-sxm-80gb"),
            2.5);
  EXPECT_TRUE(prices->unknown.empty());
  EXPECT_EQ(prices->date, "2026-01-01");
  for (const char* bad :
       {R"({"currency": "USD"})", R"({"currency": "USD", "gpu_hour": {"h100": 0}})",
        R"({"currency": "USD", "gpu_hour": {"h100": "2"}})", R"({"currency": "USD", "gpu_hours": {}, "gpu_hour": {}})",
        R"({"currency": "USD", "gpu_hour": {"h100": 2, "h100-sxm-80gb": 2}})",
        R"({"currency": "USD", "date": "yesterday", "gpu_hour": {}})",
        R"({"currency": "USD", "date": "2026-02-30", "gpu_hour": {}})",
        R"({"currency": "USD", "date": "2026-2-3", "gpu_hour": {}})",
        R"({"currency": "USD", "date": "", "gpu_hour": {}})", "[]"}) {
    const auto refused = read_prices(bad, "p.json");
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_THAT(to_text(refused.error()), HasSubstr("p.json")) << bad;
  }
}

// A GPU of the user's own has a price as others have: a name that nobody knows is told, and not refused.
TEST(Prices, NamesThatNobodyKnowsAreTold) {
  const auto prices = read_prices(R"({"currency": "USD", "gpu_hour": {"h100-sxm-80bg": 2, "mine": 3}})", "p.json");
  ASSERT_TRUE(prices.has_value()) << to_text(prices.error());
  ASSERT_EQ(prices->unknown.size(), 2U);
  EXPECT_EQ(prices->unknown.at("h100-sxm-80bg"),
            "p.json#/gpu_hour/h100-sxm-80bg: no GPU of `ns-dist list gpus` is called so; did you mean "
            "\"h100-sxm-80gb\"?");
  EXPECT_EQ(prices->gpu_hour.at("mine"), 3);
}

}  // namespace
}  // namespace ns_dist
