#include "trees.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "learn/grow_trees.h"

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
  const Trees trees = grow_trees(step_rows(), options);
  for (const double x : {0.1, 0.4, 0.6, 0.9}) {
    const double features[] = {x, 3};
    EXPECT_NEAR(trees.evaluate(features), x > 0.5 ? 1 : -1, 0.05) << x;
  }
}

// One tree of two leaves, of 30 rows each.
double leaf_of(const std::vector<float>& low, double huber, double ridge) {
  TrainingRows rows;
  rows.width = 1;
  for (int i = 0; i < 60; ++i) {
    rows.features.push_back(i < 30 ? 0 : 1), rows.weights.push_back(1);
    rows.targets.push_back(i < 30 ? low[static_cast<std::size_t>(i)] : -1.0F);
  }
  TreeOptions options;
  options.trees = 1, options.leaves = 2, options.rate = options.row_share = options.feature_share = 1;
  options.huber = huber, options.ridge = ridge;
  const double feature = 0;
  return grow_trees(rows, options).evaluate(&feature);
}

// Three rows' worth of zeros in a leaf of 30 rows: 30 / 33 of their target.
TEST(Trees, LeavesAreShrunk) { EXPECT_NEAR(leaf_of(std::vector<float>(30, 1.0F), 10, 3), 30.0 / 33, 1e-4); }

// A row at 10 among 29 at 0 pulls as one at 1 does, with a tenth of its mass: 1 / 29.1.
TEST(Trees, OutliersPullAsRowsAtTheirLimit) {
  std::vector<float> rows(30, 0.0F);
  rows[7] = 10;
  EXPECT_NEAR(leaf_of(rows, 1, 0), 1 / 29.1, 1e-4);
}

TEST(Trees, TheSameRowsGiveTheSameTrees) {
  const Trees one = grow_trees(step_rows(), {}), other = grow_trees(step_rows(), {});
  EXPECT_THAT(one.parts().nodes, testing::ElementsAreArray(other.parts().nodes));
  EXPECT_THAT(one.parts().borders, testing::ElementsAreArray(other.parts().borders));
  EXPECT_EQ(one.parts().step, other.parts().step);
}

TEST(Trees, ConstantRowsAskNothing) {
  TrainingRows rows;
  rows.width = 1;
  for (int i = 0; i < 100; ++i) rows.features.push_back(2), rows.targets.push_back(0.3F), rows.weights.push_back(1);
  const Trees trees = grow_trees(rows, {});
  const double features[] = {2};
  EXPECT_TRUE(std::isfinite(trees.evaluate(features)));
  EXPECT_TRUE(trees.parts().nodes.size() <= trees.size());
}

// Where all targets are equal, two leaves explain less than one: each is shrunk for itself.
TEST(Trees, WhatExplainsNothingIsNotAsked) {
  TrainingRows rows;
  rows.width = 1;
  for (int i = 0; i < 100; ++i) {
    rows.features.push_back(static_cast<float>(i));
    rows.targets.push_back(0.3F), rows.weights.push_back(1);
  }
  TreeOptions options;
  options.trees = 1;
  options.rate = options.row_share = options.huber = 1;
  const Trees trees = grow_trees(rows, options);
  for (const double at : {0.0, 3.0, 50.0, 99.0}) EXPECT_NEAR(trees.evaluate(&at), 0.3 * 100 / 103, 1e-4) << at;
}

std::vector<PlainTree> ten_trees() {
  std::vector<PlainTree> trees = {{{0, 1, -1, -1, -1}, {0.F, 3.F, 10.F, 20.F, 30.F}}};
  for (int t = 0; t < 9; ++t) {  // more than are walked at once
    trees.push_back({{1, -1, -1}, {static_cast<float>(t), 0.F, 100.F}});
  }
  return trees;
}

// At a threshold itself the answer is the lower side. Leaves are rounded to 1 / 32767 of the largest.
TEST(Trees, AnswerAsTheirQuestionsSay) {
  const auto trees = Trees::pack(2, ten_trees());
  ASSERT_TRUE(trees);
  const auto at = [&](double x, double y) { return trees->evaluate(std::array{x, y}.data()); };
  EXPECT_NEAR(at(-1, -1), 20, 0.01);
  EXPECT_NEAR(at(0, 3), 20 + 300, 0.01);
  EXPECT_NEAR(at(0, 3.5), 30 + 400, 0.01);
  EXPECT_NEAR(at(1, 100), 10 + 900, 0.01);
  EXPECT_NEAR(at(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()), 10, 0.01);
  EXPECT_EQ(at(std::numeric_limits<double>::quiet_NaN(), -1), at(-1e9, -1));  // larger than nothing
}

TEST(Trees, ManyRowsAtOnceHaveTheSameSums) {
  const auto trees = Trees::pack(2, ten_trees());
  ASSERT_TRUE(trees);
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{32}, std::size_t{75}}) {
    std::vector<Trees::Bins> bins(count);
    std::vector<const Trees::Bins*> rows;
    std::vector<double> alone, sums(count);
    for (std::size_t r = 0; r < count; ++r) {
      const std::array features{static_cast<double>(r % 5) - 2, static_cast<double>(r % 11) - 0.5};
      trees->find_bins(features.data(), bins[r]);
      rows.push_back(&bins[r]);
      alone.push_back(trees->evaluate(features.data()));
    }
    trees->evaluate(rows, sums);
    EXPECT_EQ(sums, alone) << count;
  }
}

// A tree with that many leaves, which asks for `features` features at thresholds from 0 to `borders`.
PlainTree random_tree(std::mt19937& random, std::size_t leaves, unsigned features, unsigned borders) {
  std::size_t questions = leaves - 1, open = 1;  // nodes that may still ask
  PlainTree tree;
  while (open > 0) {
    const bool asks = questions > 0 && (open == 1 || random() % 3 > 0);
    tree.feature.push_back(asks ? static_cast<int>(random() % features) : -1);
    tree.value.push_back(static_cast<float>(asks ? random() % borders : random() % 1000));
    open += asks ? 1 : static_cast<std::size_t>(-1);
    questions -= asks ? 1 : 0;
  }
  return tree;
}

// Trees of up to 64 leaves are evaluated by masks where many rows are asked, larger ones by walks; borders are looked
// up in steps that depend on how many the largest feature has.
TEST(Trees, ManyRowsHaveTheSameSumsWhateverTheSizeOfTheTrees) {
  std::mt19937 random(1);
  for (const std::size_t largest : {1U, 2U, 64U, 65U, 500U}) {
    for (const unsigned borders : {5U, 127U, 250U}) {
      std::vector<PlainTree> grown;
      for (std::size_t t = 0; t < 37; ++t)
        grown.push_back(random_tree(random, t == 17 ? largest : 1 + t % largest, 5, borders));
      const auto trees = Trees::pack(5, grown);
      ASSERT_TRUE(trees);
      std::vector<Trees::Bins> bins(150);
      std::vector<const Trees::Bins*> rows;
      std::vector<double> plain, sums(bins.size());
      for (Trees::Bins& own : bins) {
        std::array<double, 5> features{};
        for (double& feature : features) feature = static_cast<double>(random() % (2 * borders)) / 2 - 1;
        trees->find_bins(features.data(), own);
        rows.push_back(&own);
        // By hand: down every tree, by its questions.
        double sum = 0;
        for (const PlainTree& tree : grown) {
          std::vector<std::size_t> child(tree.feature.size());
          std::size_t next = 1, at = 0;
          for (std::size_t n = 0; n < child.size(); ++n) {
            child[n] = next;
            next += tree.feature[n] >= 0 ? 2U : 0U;
          }
          while (tree.feature[at] >= 0) {
            const double value = features[static_cast<std::size_t>(tree.feature[at])];
            at = child[at] + (value > static_cast<double>(tree.value[at]) ? 1U : 0U);
          }
          sum += static_cast<double>(tree.value[at]);
        }
        plain.push_back(sum);
      }
      trees->evaluate(rows, sums);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        EXPECT_EQ(sums[r], trees->evaluate(bins[r])) << largest << " leaves, row " << r;
        EXPECT_NEAR(sums[r], plain[r], 37 * 1000.0 / 32767) << largest << " leaves, row " << r;
      }
    }
  }
}

// Each is one change of a sound forest.
TEST(Trees, NodesThatLeadAstrayAreNotSound) {
  const auto trees = Trees::pack(2, ten_trees());
  ASSERT_TRUE(trees);
  const Trees::Parts sound = trees->parts();
  ASSERT_TRUE(Trees::is_sound(sound));
  const auto changed = [&](std::size_t node, std::uint32_t value) {
    std::vector<std::uint32_t> nodes(sound.nodes.begin(), sound.nodes.end());
    nodes[node] = value;
    Trees::Parts parts = sound;
    parts.nodes = nodes;
    return Trees::is_sound(parts);
  };
  const std::uint32_t root = sound.nodes[0];
  EXPECT_TRUE(changed(0, root));
  EXPECT_FALSE(changed(0, root | 100U << 17));                  // out of its tree
  EXPECT_FALSE(changed(0, (root & ~255U) | 2));                 // a feature that is not there
  EXPECT_FALSE(changed(0, (root & ~(255U << 8)) | 200U << 8));  // a border that is not there
  EXPECT_FALSE(changed(0, root & 0x1ffff));                     // a leaf that asks
  EXPECT_FALSE(changed(2, sound.nodes[1]));                     // deeper than its depth says, or out of the tree
  Trees::Parts parts = sound;
  parts.depths = parts.depths.first(parts.depths.size() - 1);
  EXPECT_FALSE(Trees::is_sound(parts));
  parts = sound;
  parts.borders = parts.borders.first(1);
  EXPECT_FALSE(Trees::is_sound(parts));
  parts = sound;
  parts.step = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(Trees::is_sound(parts));
}

}  // namespace
}  // namespace ns_dist
