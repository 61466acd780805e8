// Grows boosted regression trees leaf by leaf (Friedman 2001; Ke et al. 2017, LightGBM).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trees.h"

namespace ns_dist {

struct TrainingRows {
  std::size_t width = 0;        // features a row
  std::vector<float> features;  // row after row
  std::vector<float> targets;   // ln(latency / base)
  std::vector<float> weights;
  std::size_t size() const { return targets.size(); }
};

struct TreeOptions {
  std::size_t trees = 400, leaves = 96;
  std::size_t depth = 14;  // questions on the way to a leaf
  double rate = 0.1;       // shrinkage
  double row_share = 0.7, feature_share = 0.7;
  double ridge = 3;               // rows' worth of zeros in every leaf
  double smallest = 10;           // rows in a leaf
  std::size_t inputs = SIZE_MAX;  // the first so many features may be asked for
  double huber = 0.03;            // residuals beyond it count as it
  std::uint64_t seed = 1;
};

Trees grow_trees(const TrainingRows& rows, const TreeOptions& options,
                 const std::function<void(double)>& progress = {});

}  // namespace ns_dist
