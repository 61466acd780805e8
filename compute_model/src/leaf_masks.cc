#include "leaf_masks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace ns_dist {

std::optional<LeafMasks> LeafMasks::of(const Trees::Parts& parts) {
  struct Question {
    std::size_t tree, feature, border;
    std::uint64_t mask;
  };
  std::vector<Question> questions;
  LeafMasks out;
  out.trees_ = (parts.roots.size() + kTogether - 1) / kTogether * kTogether;
  out.values_.assign(out.trees_ * kMostLeaves, 0);
  for (std::size_t tree = 0; tree < parts.roots.size(); ++tree) {
    std::size_t leaves = 0;  // from the first to the last, as the first bit of a mask to the last
    const std::function<void(std::size_t)> visit = [&](std::size_t at) {
      const Trees::Node node = Trees::node(parts, at);
      if (leaves > kMostLeaves) return;
      if (node.first_child == 0) {
        if (leaves < kMostLeaves) out.values_[tree * kMostLeaves + leaves] = node.value;
        ++leaves;
        return;
      }
      const std::size_t begin = leaves;
      visit(node.first_child);
      if (leaves < kMostLeaves) {
        const std::uint64_t below = (std::uint64_t{1} << leaves) - (std::uint64_t{1} << begin);
        questions.push_back({tree, node.feature, node.border, ~below});
      }
      visit(node.first_child + 1);
    };
    visit(parts.roots[tree]);
    if (leaves > kMostLeaves) return std::nullopt;
  }

  std::vector<bool> asked(parts.border_counts.size());
  for (const Question& q : questions) asked[q.feature] = true;
  std::vector<std::size_t> first(asked.size());
  for (std::size_t f = 0; f < asked.size(); ++f) {
    if (!asked[f]) continue;
    first[f] = out.bins_;
    out.features_.push_back({f, out.bins_});
    out.bins_ += parts.border_counts[f] + 1;
  }
  out.masks_.assign(out.bins_ * out.trees_, ~std::uint64_t{0});
  const auto mask = [&](std::size_t tree, std::size_t bin) -> std::uint64_t& {
    return out.masks_[(tree / kTogether * out.bins_ + bin) * kTogether + tree % kTogether];
  };
  // The least bin above the border, and all larger ones.
  for (const Question& q : questions) mask(q.tree, first[q.feature] + q.border + 1) &= q.mask;
  for (const Feature& feature : out.features_) {
    for (std::size_t bin = 1; bin <= parts.border_counts[feature.index]; ++bin) {
      for (std::size_t tree = 0; tree < out.trees_; ++tree) {
        mask(tree, feature.first + bin) &= mask(tree, feature.first + bin - 1);
      }
    }
  }
  return out;
}

void LeafMasks::sum(std::span<const Trees::Bins* const> rows, std::span<double> sums) const {
  // Two masks fit into a register of every 64-bit processor.
  using Pair = std::uint64_t __attribute__((vector_size(2 * sizeof(std::uint64_t))));
  constexpr std::size_t kPairs = kTogether / 2;
  std::fill(sums.begin(), sums.end(), 0.0);
  for (std::size_t tree = 0; tree < trees_; tree += kTogether) {
    const std::uint64_t* const masks = masks_.data() + tree * bins_;
    const float* const values = values_.data() + tree * kMostLeaves;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Trees::Bins& bins = *rows[r];
      Pair left[kPairs];
#pragma GCC unroll 8
      for (Pair& pair : left) pair = ~Pair{};
      for (const Feature& feature : features_) {
        const std::uint64_t* const own = masks + (feature.first + bins[feature.index]) * kTogether;
#pragma GCC unroll 8
        for (std::size_t p = 0; p < kPairs; ++p) {
          Pair more;
          std::memcpy(&more, own + 2 * p, sizeof(more));
          left[p] &= more;
        }
      }
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kTogether; ++i) {
        sums[r] += static_cast<double>(
            values[i * kMostLeaves + static_cast<std::size_t>(std::countr_zero(left[i / 2][i % 2]))]);
      }
    }
  }
}

}  // namespace ns_dist
