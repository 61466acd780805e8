#include "trees.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "trainer.h"

namespace ns_dist {
namespace {

// y = 1 where x > 0.5, else -1, beside a feature that says nothing.
TrainingRows step_rows() {
  TrainingRows rows;
  rows.width = 2;
  for (int i = 0; i < 400; ++i) {
    const float x = static_cast<float>(i) / 400;
    rows.features.insert(rows.features.end(), {x, static_cast<float>(i % 7)});
    rows.targets.push_back(x > 0.5F ? 1.0F : -1.0F), rows.weights.push_back(1);
  }
  return rows;
}

TEST(Trees, LearnAStep) {
  TreeOptions options;
  options.trees = 150, options.leaves = 4, options.huber = 10;
  const Trees trees = grow(step_rows(), options);
  for (const double x : {0.1, 0.4, 0.6, 0.9}) {
    const double features[] = {x, 3};
    EXPECT_NEAR(trees.evaluate(features), x > 0.5 ? 1 : -1, 0.05) << x;
  }
}

TEST(Trees, TheSameRowsGiveTheSameTrees) {
  const Trees one = grow(step_rows(), {}), other = grow(step_rows(), {});
  ASSERT_EQ(one.nodes.size(), other.nodes.size());
  for (std::size_t n = 0; n < one.nodes.size(); ++n) {
    EXPECT_EQ(one.nodes[n].threshold, other.nodes[n].threshold);
    EXPECT_EQ(one.nodes[n].feature, other.nodes[n].feature);
  }
}

TEST(Trees, ConstantRowsAskNothing) {
  TrainingRows rows;
  rows.width = 1;
  for (int i = 0; i < 100; ++i) rows.features.push_back(2), rows.targets.push_back(0.3F), rows.weights.push_back(1);
  const Trees trees = grow(rows, {});
  const double features[] = {2};
  EXPECT_TRUE(std::isfinite(trees.evaluate(features)));
  EXPECT_TRUE(trees.nodes.empty());
}

// At a threshold itself the answer is the lower side.
TEST(Trees, AnswerAsTheirQuestionsSay) {
  Trees trees;
  trees.inputs = 2;
  ASSERT_TRUE(trees.add(std::array{0, 1, -1, -1, -1}, std::array{0.F, 3.F, 10.F, 20.F, 30.F}));
  for (int t = 0; t < 9; ++t) {  // more than are walked at once
    ASSERT_TRUE(trees.add(std::array{1, -1, -1}, std::array{static_cast<float>(t), 0.F, 100.F}));
  }
  const auto at = [&](double x, double y) { return trees.evaluate(std::array{x, y}.data()); };
  EXPECT_EQ(at(-1, -1), 20);
  EXPECT_EQ(at(0, 3), 20 + 300);
  EXPECT_EQ(at(0, 3.5), 30 + 400);
  EXPECT_EQ(at(1, 100), 10 + 900);
  EXPECT_EQ(at(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()), 10);
}

TEST(Network, LearnsAPlane) {
  TrainingRows rows;
  rows.width = 2;
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 32; ++j) {
      const float x = static_cast<float>(i) / 16 - 1, y = static_cast<float>(j) / 16 - 1;
      rows.features.insert(rows.features.end(), {x, y});
      rows.targets.push_back(0.5F * x - 0.25F * y + 1), rows.weights.push_back(1);
    }
  }
  TrainingOptions options;
  options.hidden = {16}, options.steps = 2000, options.batch = 128;
  const Network network = train(rows, options);
  for (const double x : {-0.5, 0.0, 0.5}) {
    for (const double y : {-0.5, 0.5}) {
      const double features[] = {x, y};
      EXPECT_NEAR(network.evaluate(features), 0.5 * x - 0.25 * y + 1, 0.03);
    }
  }
  const double outside[] = {100, 0}, edge[] = {static_cast<double>(network.high[0]), 0};
  EXPECT_DOUBLE_EQ(network.evaluate(outside), network.evaluate(edge));  // inputs are clamped to the fitted range
}

}  // namespace
}  // namespace ns_dist
