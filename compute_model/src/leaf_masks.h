// Small trees without walks. Each question that leads to its second child rules out the leaves below its first; the
// first leaf that is left is the one that a walk ends at (Lucchese et al. 2015, "QuickScorer", SIGIR). The borders of a
// feature are sorted, and a value answers in this way those below it. Each bin therefore has one mask for its feature.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trees.h"

namespace ns_dist {

class LeafMasks {
 public:
  static constexpr std::size_t kMostLeaves = 64;  // of a tree: the bits of a mask
  // Nothing where a tree has more leaves. Contract: Trees::is_sound(parts).
  static std::optional<LeafMasks> of(const Trees::Parts& parts);

  // For each row the sum of the leaves that it leads to, in the order of the trees. Contract: as many sums as rows.
  void sum(std::span<const Trees::Bins* const> rows, std::span<double> sums) const;

 private:
  static constexpr std::size_t kTogether = 16;  // trees; their number is padded with trees of one leaf of zero

  struct Feature {
    std::size_t index = 0, first = 0;  // first: its bin 0 among the bins of all features
  };
  std::size_t trees_ = 0, bins_ = 0;  // trees: padded; bins: of all features that are asked for
  std::vector<Feature> features_;
  std::vector<std::uint64_t> masks_;  // by sixteen trees, bin and tree: all rows use those of sixteen trees
  std::vector<float> values_;         // by tree and leaf
};

}  // namespace ns_dist
