// Boosted regression trees grown leaf by leaf (Friedman 2001; Ke et al. 2017, LightGBM). They learn what networks
// smooth over: which of its kernels a library picks for a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ns_dist {

struct TrainingRows;

struct Trees {
  // A tree is its nodes level by level, so that both children of a node stand side by side: the walk goes on at
  // nodes[below], one further where features[feature] > threshold. A leaf asks for a feature that is never larger than
  // anything and leads to itself: walks of the same number of steps need no branch.
  struct Node {
    float threshold = 0;  // a leaf's value
    std::uint32_t feature : 8 = 0, below : 24 = 0;
  };
  struct Tree {
    std::uint32_t first = 0, nodes = 0, depth = 0;
  };

  std::size_t inputs = 0;
  std::vector<Tree> trees;
  std::vector<Node> nodes;

  bool is_leaf(const Node& node) const { return node.feature == inputs; }
  // `features` holds `inputs` values.
  double evaluate(const double* features) const;
  // Adds a tree from questions in the order of its nodes; `feature` of a leaf is negative. False where they are no
  // tree.
  bool add(std::span<const int> feature, std::span<const float> value);
};

struct TreeOptions {
  std::size_t trees = 400, leaves = 96;
  std::size_t depth = 14;  // questions on the way to a leaf
  double rate = 0.1;       // shrinkage
  double row_share = 0.7, feature_share = 0.7;
  double ridge = 3;      // rows' worth of zeros in every leaf
  double smallest = 10;  // rows in a leaf
  double huber = 0.03;   // residuals beyond it count as it
  std::uint64_t seed = 1;
};

Trees grow(const TrainingRows& rows, const TreeOptions& options, const std::function<void(double)>& progress = {});

}  // namespace ns_dist
