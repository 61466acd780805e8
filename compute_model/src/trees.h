// Boosted regression trees grown leaf by leaf (Friedman 2001; Ke et al. 2017, LightGBM). They learn what networks
// smooth over: which of its kernels a library picks for a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace ns_dist {

struct TrainingRows;

struct Trees {
  // Goes to `above` where features[feature] > threshold, else to `below`. A child of at least zero is a node, counted
  // from the tree's first; below zero it is leaf ~child, counted from the tree's first.
  struct Node {
    float threshold = 0;
    std::int16_t below = 0, above = 0;
    std::uint8_t feature = 0;
  };
  struct Tree {
    std::uint32_t node = 0, leaf = 0;  // its first; a tree without nodes is its one leaf
    std::uint32_t nodes = 0;
  };

  std::size_t inputs = 0;
  std::vector<Tree> trees;
  std::vector<Node> nodes;
  std::vector<float> leaves;

  double evaluate(const double* features) const;
};

struct TreeOptions {
  std::size_t trees = 400, leaves = 96;
  double rate = 0.1;  // shrinkage
  double row_share = 0.7, feature_share = 0.7;
  double ridge = 3;      // rows' worth of zeros in every leaf
  double smallest = 10;  // rows in a leaf
  double huber = 0.03;   // residuals beyond it count as it
  std::uint64_t seed = 1;
};

Trees grow(const TrainingRows& rows, const TreeOptions& options, const std::function<void(double)>& progress = {});

}  // namespace ns_dist
