#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/simulator.h"
#include "search/bounds.h"

namespace ns_dist {
namespace {

// Four layers of 1 s forward and 2 s backward, half of it kernels; nothing before and behind them.
PassesOfOne four_layers(double times = 1) {
  PassesOfOne one;
  one.parts.resize(7);
  for (std::size_t layer = 1; layer <= 4; ++layer) one.parts[layer] = {times, 2 * times, 0.5, 1};
  return one;
}

double bound(const char* schedule, const PassesOfStages& stages = {{four_layers()}}) {
  Scenario scenario;
  scenario.model.layers = 4;
  scenario.plan.pp = 2;
  scenario.plan.schedule = schedule;
  return pipeline_bound(stages, scenario, 4);
}

// (m + p - 1) (t_f + t_b) of Narayanan et al. 2021, s.2.2: (4 + 2 - 1) x (2 + 4).
TEST(SearchBounds, OnEvenStagesTheBoundIsTheStepOf1F1B) { EXPECT_DOUBLE_EQ(bound("1f1b"), 30); }

// Four times 1.5 x (2 + 4) s of the second stage, between 2 s forward and 4 s backward on the first.
TEST(SearchBounds, TheStageWithTheSlowerCollectivesBinds) {
  EXPECT_DOUBLE_EQ(bound("1f1b", {{four_layers(), four_layers(1.5)}, {0, 1}}), 2 + 4 * 9 + 4);
}

// Beside each other, one pass hides the collectives of the other, but not its own: four times 4 s of backward passes,
// behind 2 s forward and before 4 s backward on the first stage.
TEST(SearchBounds, PairedPassesHideEachOthersCollectives) { EXPECT_DOUBLE_EQ(bound("combined-1f1b"), 2 + 4 * 4 + 4); }

// Two layers of the first stage are exchanged in 6 s beside 2 s forward, and in 2 s beside 4 s backward: four times 6 +
// 4 s.
TEST(SearchBounds, NoPassIsShorterThanWhatReplicasExchangeBesideIt) {
  Scenario scenario;
  scenario.model.layers = 4;
  scenario.plan.pp = 2;
  const std::vector<ExchangeTime> exchanges(4, {3, 1});
  EXPECT_DOUBLE_EQ(pipeline_bound({{four_layers()}}, scenario, 4, exchanges), 40);
}

// Of each stage's two layers one is recomputed, in 3 s more: (4 + 2 - 1) x (2 + 4 + 3).
TEST(SearchBounds, DoLayersThatAreKeptTakeLess) {
  PassesOfOne again = four_layers();
  for (std::size_t layer = 1; layer <= 4; ++layer) again.parts[layer].backward += 3;
  const PassesOfOne kept = four_layers();
  Scenario scenario;
  scenario.model.layers = 4;
  scenario.plan.pp = 2;
  scenario.plan.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(pipeline_bound({{again}}, scenario, 4), 60);
  scenario.plan.recompute_layers = 1;
  EXPECT_DOUBLE_EQ(pipeline_bound({{again}}, scenario, 4, {}, &kept), 45);
}

TEST(SearchBounds, WhatReplicasExchangeBesidePassesIsABoundOfTheStep) {
  for (const char* const zero : {"1", "2", "3"}) {
    ScenarioSpec spec;
    spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 4).set("training/global_batch", 128);
    spec.set("plan/pp", 2).set("plan/dp", 16).set("plan/zero", zero).set("training/sequence", 512);
    const Scenario scenario = *resolve(spec, Catalog::standard());
    const auto session = Session::make(scenario);
    ASSERT_TRUE(session.has_value());
    const std::vector<ExchangeTime> exchanges = exchange_times(scenario, *session);
    const bool shares = scenario.plan.zero != ZeroStage::kOptimizer;
    ASSERT_EQ(exchanges.size(), shares ? 32u : 0u);
    if (!shares) continue;
    EXPECT_EQ(exchanges.front().forward > 0, scenario.plan.zero == ZeroStage::kParameters);
    EXPECT_GT(exchanges.front().backward, exchanges.front().forward);
    const PassesOfStages passes{{least_passes(scenario, *session)}};
    const double closer = pipeline_bound(passes, scenario, 8, exchanges);
    EXPECT_GT(closer, pipeline_bound(passes, scenario, 8));
    EXPECT_LT(closer, *step_time(scenario, *session) / units::s);
  }
}

// Of frozen layers, which have no backward pass, weights are gathered forward.
TEST(SearchBounds, FrozenLayersExchangeForwardAlone) {
  for (const char* const zero : {"2", "3"}) {
    ScenarioSpec spec;
    spec.set("model", "llama3-8b").set("machine/gpu", "h100").set("machine/nodes", 4).set("training/global_batch", 128);
    spec.set("plan/pp", 2).set("plan/dp", 16).set("plan/zero", zero).set("training/sequence", 512);
    const std::vector<ExchangeTime> all =
        exchange_times(*resolve(spec, Catalog::standard()), *Session::make(*resolve(spec, Catalog::standard())));
    const Scenario scenario = *resolve(spec.set("plan/frozen_layers", 20), Catalog::standard());
    const auto session = Session::make(scenario);
    const std::vector<ExchangeTime> exchanges = exchange_times(scenario, *session);
    ASSERT_EQ(exchanges.size(), 32u);
    for (std::size_t layer = 0; layer < 32; ++layer) {
      EXPECT_EQ(exchanges[layer].forward, all[layer].forward) << layer;
      EXPECT_EQ(exchanges[layer].backward, layer < 20 ? 0 : all[layer].backward) << layer;
    }
    const double bound = pipeline_bound({{least_passes(scenario, *session)}}, scenario, 8, exchanges);
    EXPECT_GT(bound, 0);
    EXPECT_LT(bound, *step_time(scenario, *session) / units::s);
  }
}

// Most passes of a round reduce nothing. Those that run beside others do, so the bound is the one of pairs.
TEST(SearchBounds, OfGradientsThatARoundReduces) {
  for (const auto& [model, schedule] :
       {std::pair("llama3-8b", "interleaved"), std::pair("llama3-8b", "breadth-first"),
        std::pair("llama3-8b", "dualpipe-v"), std::pair("qwen3-30b-a3b", "combined-1f1b")}) {
    ScenarioSpec spec;
    spec.set("model", model).set("machine/gpu", "h100").set("machine/nodes", 4).set("training/global_batch", 128);
    spec.set("plan/pp", 2).set("plan/dp", 16).set("plan/vpp", 2).set("plan/schedule", schedule).set("plan/zero", 2);
    spec.set("plan/reduce_each", "round").set("training/sequence", 1024);
    if (schedule == std::string("combined-1f1b")) spec.set("plan/ep", 8);
    const Scenario scenario = *resolve(spec, Catalog::standard());
    const auto session = Session::make(scenario);
    ASSERT_TRUE(session.has_value());
    EXPECT_TRUE(exchange_times(scenario, *session).empty());
    EXPECT_EQ(pairs_passes(scenario.plan), traits_of(scenario.plan).pairs_passes);
    const double bound = pipeline_bound({{least_passes(scenario, *session)}}, scenario, 8),
                 step = *step_time(scenario, *session) / units::s;
    EXPECT_LT(bound, step) << schedule;
    EXPECT_GT(bound, 0) << schedule;
  }
}

// Racks of 72 GPUs, experts over 16 of them.
Scenario on_racks(std::int64_t pp, std::int64_t dp) {
  ScenarioSpec spec;
  spec.set("model", "deepseek-v3").set("machine/gpu", "gb200").set("plan/pp", pp).set("plan/dp", dp);
  spec.set("plan/ep", 16).set("training/global_batch", 8 * dp).set("machine/nodes", (pp * dp + 71) / 72);
  return *resolve(spec, Catalog::standard());
}

TEST(SearchBounds, StagesLieAtMultiplesOfTheirSizeInARack) {
  EXPECT_EQ(distance_of_places(on_racks(1, 288)), 72);
  EXPECT_EQ(distance_of_places(on_racks(2, 144)), 72);  // two racks each: all lie alike
  EXPECT_EQ(distance_of_places(on_racks(6, 48)), 24);
  Scenario scenario = on_racks(6, 48);
  scenario.plan.order = "tp-cp-pp-ep-dp";  // experts' ranks are 6 apart, on one stage 1
  EXPECT_EQ(distance_of_places(scenario), 0);
}

// Six stages of 48 ranks begin at 0, 48 and 24 of a rack, and again. Of their three groups of 16 one lies across two
// racks in the second stage alone, at 64.
TEST(SearchBounds, OnlyTheStageWithAGroupAcrossRacksIsSlower) {
  const Scenario scenario = on_racks(6, 48);
  const auto session = Session::make(scenario);
  ASSERT_TRUE(session.has_value());
  const PassesOfOne least = least_passes(scenario, *session);
  const PassesOfStages stages = passes_on_each_stage(scenario, *session);
  ASSERT_EQ(stages.of_stage, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));
  const auto layer = [](const PassesOfOne& one) { return one.layer(60); };  // with experts
  EXPECT_DOUBLE_EQ(layer(stages.stage(0)).forward, layer(least).forward);
  EXPECT_GT(layer(stages.stage(1)).forward, 1.2 * layer(least).forward);
  EXPECT_DOUBLE_EQ(layer(stages.stage(2)).forward, layer(least).forward);
  for (std::int32_t stage = 0; stage < 6; ++stage) {
    EXPECT_DOUBLE_EQ(layer(stages.stage(stage)).kernels(), layer(least).kernels());
  }
}

// Nine stages of 32 ranks lie at multiples of 8. A group of 16 at 64 would lie across two racks, so it is not the
// least.
TEST(SearchBounds, ACollectiveCountsWhereItTakesLeast) {
  const Scenario scenario = on_racks(9, 32);
  ASSERT_EQ(distance_of_places(scenario), 8);
  const auto session = Session::make(scenario);
  ASSERT_TRUE(session.has_value());
  const PassesOfOne least = least_passes(scenario, *session);
  const PassesOfStages stages = passes_on_each_stage(scenario, *session);
  double longest = 0;
  for (std::int32_t stage = 0; stage < 9; ++stage) {
    const double forward = stages.stage(stage).layer(60).forward;
    EXPECT_GE(forward, (1 - 1e-12) * least.layer(60).forward);
    longest = std::max(longest, forward);
  }
  EXPECT_DOUBLE_EQ(stages.stage(0).layer(60).forward, least.layer(60).forward);
  EXPECT_GT(longest, 1.2 * least.layer(60).forward);
}

}  // namespace
}  // namespace ns_dist
