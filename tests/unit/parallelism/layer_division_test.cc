#include "ns_dist/layer_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace ns_dist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model with_layers(std::int64_t layers) {
  Model model;
  model.layers = layers;
  return model;
}

ParallelPlan with_stages(std::int64_t pp, std::int64_t vpp = 1) {
  ParallelPlan plan;
  plan.pp = pp;
  plan.vpp = vpp;
  return plan;
}

Seats around(const ParallelPlan& plan) { return loop_seats({plan.pp, 1, plan.vpp}); }

std::vector<std::int64_t> counts(std::int64_t layers, const ParallelPlan& plan, const Seats& seats) {
  std::vector<std::int64_t> result;
  const auto ranges = divide_layers(with_layers(layers), plan, seats);
  EXPECT_TRUE(ranges) << to_text(ranges.error());
  for (const LayerRange& range : *ranges) result.push_back(range.count);
  return result;
}

std::string mistake(std::int64_t layers, const ParallelPlan& plan, const Seats& seats) {
  return to_text(divide_layers(with_layers(layers), plan, seats).error());
}

TEST(LayerDivision, FirstStagesGetTheRest) {
  const ParallelPlan plan = with_stages(4);
  const std::vector<LayerRange> expected = {{0, 3}, {3, 3}, {6, 2}, {8, 2}};
  EXPECT_EQ(*divide_layers(with_layers(10), plan, around(plan)), expected);
}

TEST(LayerDivision, ChunksNeedNotBeEven) {
  const ParallelPlan plan = with_stages(2, 2);
  EXPECT_THAT(counts(8, plan, around(plan)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(9, plan, around(plan)), ElementsAre(3, 2, 2, 2));
}

// Megatron-LM's --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers.
TEST(LayerDivision, EndsMayHaveTheirOwnSize) {
  ParallelPlan plan = with_stages(4);
  plan.first_stage_layers = 5;
  EXPECT_THAT(counts(17, plan, around(plan)), ElementsAre(5, 4, 4, 4));
  plan.last_stage_layers = 2;
  EXPECT_THAT(counts(17, plan, around(plan)), ElementsAre(5, 5, 5, 2));
}

TEST(LayerDivision, AStageSpreadsItsOwnSizeOverItsChunks) {
  ParallelPlan plan = with_stages(2, 2);
  plan.first_stage_layers = 5;
  EXPECT_THAT(counts(9, plan, around(plan)), ElementsAre(3, 2, 2, 2));
}

// On a vee the first stage holds the embedding and the loss.
TEST(LayerDivision, OneStageMayHoldBothEnds) {
  ParallelPlan plan = with_stages(2, 2);
  plan.first_stage_layers = 2;
  EXPECT_THAT(counts(8, plan, vee_seats({2, 1, 2})), ElementsAre(1, 3, 3, 1));
  plan.last_stage_layers = 3;
  EXPECT_THAT(mistake(8, plan, vee_seats({2, 1, 2})), HasSubstr("plan/last_stage_layers=2"));
}

// Megatron-LM's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split.
TEST(LayerDivision, EmbeddingAndLossMayCountAsLayers) {
  ParallelPlan plan = with_stages(4);
  plan.account_embedding = true;
  EXPECT_THAT(counts(15, plan, around(plan)), ElementsAre(3, 4, 4, 4));
  plan.account_loss = true;
  EXPECT_THAT(counts(14, plan, around(plan)), ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(counts(126, with_stages(16), around(with_stages(16))).front(), 8);
  plan.first_stage_layers = 3;
  EXPECT_THAT(mistake(14, plan, around(plan)), HasSubstr("plan/account_embedding=off"));
}

// Both copies of the model are divided alike, so that one direction says it all.
TEST(LayerDivision, TwoDirectionsHoldTheSameLayers) {
  EXPECT_THAT(counts(10, with_stages(4, 2), mirrored_seats({4, 2, 2})), ElementsAre(3, 3, 2, 2));
}

TEST(LayerDivision, TheLastStageIsThatOfTheLoss) {
  // Its layers, its chunks, and the positions of all stages.
  const auto last = [](std::int64_t layers, std::int64_t vpp, const char* schedule) {
    ParallelPlan plan = with_stages(4, vpp);
    plan.schedule = schedule;
    const LastStage found = last_stage(with_layers(layers), plan).value_or(LastStage{});
    return std::array{found.layers, found.chunks, found.positions};
  };
  using Found = std::array<std::int64_t, 3>;
  EXPECT_EQ(last(10, 1, "1f1b"), (Found{2, 1, 4}));
  EXPECT_EQ(last(17, 2, "interleaved"), (Found{4, 2, 8}));
  EXPECT_EQ(last(9, 2, "zb-v"), (Found{3, 2, 8})) << "it holds the embedding, too";
  EXPECT_EQ(last(3, 1, "1f1b"), (Found{0, 0, 0}));
}

// Megatron-Core's --pipeline-model-parallel-layout.
TEST(LayerDivision, ALayoutSaysWhatEachPositionHolds) {
  ParallelPlan plan = with_stages(2, 2);
  plan.pipeline_layout = {"Et|(tt|)*2L"};
  EXPECT_THAT(counts(5, plan, around(plan)), ElementsAre(1, 2, 2, 0));
  EXPECT_THAT(mistake(6, plan, around(plan)), HasSubstr("a layout of 5 layers"));
  plan.vpp = 1;
  EXPECT_THAT(mistake(5, plan, around(plan)), HasSubstr("write 1 \"|\", or plan/schedule=interleaved"));
  plan.schedule = "interleaved";
  EXPECT_THAT(mistake(5, plan, around(plan)), HasSubstr("plan/vpp=2"));
  plan.pp = 3;
  EXPECT_THAT(mistake(5, plan, around(plan)), HasSubstr("write 2 \"|\""));
  plan = with_stages(2, 2);
  plan.pipeline_layout = {"Et|(tt|)*2L"};
  plan.account_loss = true;
  EXPECT_THAT(mistake(5, plan, around(plan)), HasSubstr("write plan/account_loss=off, or plan/pipeline_layout=even"));
}

TEST(LayerDivision, EveryPartNeedsALayer) {
  const ParallelPlan plan = with_stages(8, 2);
  EXPECT_THAT(mistake(12, plan, around(plan)), HasSubstr("plan/pp=6"));
}

// Llama 3.1 405B (arXiv 2407.21783, s.3.3.2: 126 layers, one less in the first and in the last stage): 16 stages of 8
// chunks have 128 places for them, the embedding and the loss.
TEST(LayerDivision, WhatCountsAsALayerFillsAPart) {
  ParallelPlan plan = with_stages(16, 8);
  plan.schedule = "interleaved";
  plan.account_embedding = plan.account_loss = true;
  std::vector<std::int64_t> all(128, 1);
  all.front() = all.back() = 0;
  EXPECT_EQ(counts(126, plan, around(plan)), all);
  EXPECT_TRUE(divide_layers(with_layers(126), plan));
  EXPECT_TRUE(divides_without_rest(with_layers(126), plan));
  EXPECT_THAT(mistake(125, plan, around(plan)),
              HasSubstr("125 layers, the embedding and the loss do not fill the 128 parts of the pipeline"));
  EXPECT_THAT(mistake(125, plan, around(plan)), HasSubstr("plan/vpp=7"));
  plan.account_loss = false;
  EXPECT_THAT(mistake(126, plan, around(plan)), HasSubstr("126 layers and the embedding do not fill"));
  EXPECT_EQ(counted_layers(with_layers(126), plan), 127);
}

TEST(LayerDivision, OwnSizesLeaveLayersForTheOthers) {
  ParallelPlan plan = with_stages(4);
  plan.first_stage_layers = 7;
  EXPECT_THAT(mistake(8, plan, around(plan)), HasSubstr("plan/first_stage_layers"));
  plan.first_stage_layers = 9;
  EXPECT_THAT(mistake(8, plan, around(plan)), HasSubstr("have 9 layers, and the model has 8"));
  plan = with_stages(1);
  plan.first_stage_layers = 7;
  EXPECT_THAT(mistake(8, plan, around(plan)), HasSubstr("add up"));
  plan = with_stages(2, 2);
  plan.first_stage_layers = 1;
  EXPECT_THAT(mistake(8, plan, around(plan)), HasSubstr("at least 2"));
}

// What the hint leaves can be divided.
TEST(LayerDivision, OwnSizesThatDoNotFitAreLeftOut) {
  const auto hint = [](std::int64_t first, std::int64_t last) {
    ParallelPlan plan = with_stages(4);
    plan.first_stage_layers = first, plan.last_stage_layers = last;
    return divide_layers(with_layers(12), plan, around(plan)).error().hint;
  };
  EXPECT_EQ(hint(6, 6), "use plan/first_stage_layers=0");
  EXPECT_EQ(hint(6, 30), "use plan/last_stage_layers=0");
  EXPECT_EQ(hint(30, 6), "use plan/first_stage_layers=0");
  EXPECT_EQ(hint(30, 30), "use plan/first_stage_layers=0 and plan/last_stage_layers=0");
  EXPECT_EQ(hint(0, 12), "use plan/last_stage_layers=0");
}

}  // namespace
}  // namespace ns_dist
