#include "ns_dist/balanced_layout.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

PartTimes layers_of_one_second(std::size_t layers, double loss, std::int64_t predictions = 0) {
  PartTimes times;
  times.layers.assign(layers, 1.0);
  times.loss = loss;
  times.prediction_count = predictions;
  times.predictions = static_cast<double>(predictions) * 1.0;
  return times;
}

std::string layout(const PartTimes& times, const Seats& seats, std::vector<std::int64_t> start) {
  return pipeline_layout_text(balanced(times, seats, std::move(start)));
}

TEST(BalancedLayout, TheStageOfALongLossHasFewerLayers) {
  EXPECT_EQ(layout(layers_of_one_second(14, 2), loop_seats({4, 1, 1}), {4, 4, 3, 3}), "Et*4|t*4|t*4|ttL");
}

TEST(BalancedLayout, WhatIsEvenStaysEven) {
  EXPECT_EQ(layout(layers_of_one_second(8, 0), loop_seats({4, 1, 1}), {2, 2, 2, 2}), "Ett|tt|tt|ttL");
}

// Long layers count as what they take: two of the first four, or four of the others.
TEST(BalancedLayout, LayersThatTakeLongerAreFewer) {
  PartTimes times = layers_of_one_second(12, 0);
  for (std::size_t i = 0; i < 4; ++i) times.layers[i] = 2;
  EXPECT_EQ(layout(times, loop_seats({4, 1, 1}), {3, 3, 3, 3}), "Ett|tt|t*4|t*4L");
}

// Chunks around the stages take turns: the loss is one position's, and no shorter chunk of its stage makes up for it.
TEST(BalancedLayout, EachRoundOfChunksIsEven) {
  EXPECT_EQ(layout(layers_of_one_second(14, 2), loop_seats({2, 1, 2}), {4, 4, 3, 3}), "Et*4|t*4|t*4|ttL");
}

// On a vee the first stage holds both ends.
TEST(BalancedLayout, AStageMayHoldBothEnds) {
  const std::vector<PositionParts> parts = balanced(layers_of_one_second(14, 2), vee_seats({2, 1, 2}), {4, 4, 3, 3});
  EXPECT_EQ(parts[0].layers + parts[3].layers, 6);
}

// 61 layers, one that predicts further and two losses: Megatron-Core's own layout of DeepSeek-V3.
TEST(BalancedLayout, FindsMegatronsLayoutOfDeepSeekV3) {
  PartTimes times = layers_of_one_second(61, 1.9, 1);
  times.predictions = 1.3;
  for (std::size_t i = 0; i < 3; ++i) times.layers[i] = 0.6;  // dense: no tokens travel
  std::vector<std::int64_t> start(32, 2);
  start[29] = start[30] = start[31] = 1;
  EXPECT_EQ(layout(times, loop_seats({16, 1, 2}), start), "Ettt|(tt|)*29m|L");
}

}  // namespace
}  // namespace ns_dist
