// A forest of regression trees, in the form in which it is asked: read in place from a file of weights, or packed from
// trees that were just grown. Trees learn which of its kernels a library picks for a shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ns_dist {

// One tree level by level: both children of a question stand side by side and after it.
struct PlainTree {
  std::vector<int> feature;  // negative: a leaf
  std::vector<float> value;  // of a question: the second child is next where features[feature] > value
};

// The thresholds of a feature, its borders, are few (127 of a grown forest). A row is therefore looked up once as the
// number of borders below each feature, its bins, and a node compares two small integers.
//
// A node is 32 bits, from the lowest: feature 8, border 8, a bit of a leaf's value, distance to the first child 15.
// A walk goes on at `at + distance + (bins[feature] > border)`. A leaf has distance 0 and a feature of 128 or more,
// whose bin is 0: it leads to itself, so that walks of a fixed number of steps need no branch. The low 17 bits of a
// leaf hold its value: 7 + 8 + 1 bits, in multiples of `step` around 32768.
class Trees {
 public:
  static constexpr std::size_t kMostFeatures = 128, kMostBorders = 255, kMostNodes = std::size_t{1} << 15;  // a tree's
  static constexpr std::size_t kBlock = 64;  // rows that walk a tree together
  // Bins of one row by feature, zeros beyond the features.
  using Bins = std::array<std::uint8_t, 256>;

  // What a file holds. The spans' owner must live as long as the trees.
  struct Parts {
    std::span<const std::uint32_t> nodes;
    std::span<const std::uint32_t> roots, depths;  // of each tree: its first node, the most questions to a leaf
    std::span<const float> borders;                // of each feature in turn, ascending
    std::span<const std::uint32_t> border_counts;  // of each feature
    float step = 0;                                // of the leaves' values
  };

  Trees() = default;
  // Contract: is_sound(parts). `owner` keeps the spans alive; null where they live forever.
  explicit Trees(const Parts& parts, std::shared_ptr<const void> owner = nullptr);
  // Nothing where a tree has a node that leads out of it, a feature of `inputs` or more or a value that is not finite,
  // or where a limit above is exceeded. Values of leaves are rounded to 1 / 32767 of the largest.
  static std::optional<Trees> pack(std::size_t inputs, std::span<const PlainTree> trees);
  // Whether every walk ends at a leaf of its own tree and asks for features and borders that exist.
  static bool is_sound(const Parts& parts);

  struct Node {
    std::size_t first_child = 0;  // in `nodes`; 0 of a leaf
    std::size_t feature = 0, border = 0;
    float value = 0;  // of a leaf
  };
  static Node node(const Parts& parts, std::size_t at);

  const Parts& parts() const { return parts_; }
  std::size_t size() const { return parts_.roots.size(); }
  bool empty() const { return parts_.roots.empty(); }
  std::size_t inputs() const { return parts_.border_counts.size(); }

  // The first `count` trees: what boosting learned before the rest. Refers to these trees' parts.
  Trees first(std::size_t count) const;

  // `features` holds inputs() values.
  void find_bins(const double* features, Bins& bins) const;
  // The sum of the leaves that a row leads to.
  double evaluate(const double* features) const;
  double evaluate(const Bins& bins) const;
  // The same sums, bit by bit, of many rows; rows.size() is sums.size(). A third of the time of one row after another.
  void evaluate(std::span<const Bins* const> rows, std::span<double> sums) const;

 private:
  struct Lookup;

  double leaf_value(std::uint32_t node) const;
  void walk(std::span<const Bins* const> rows, std::span<double> sums) const;

  Parts parts_;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<Lookup> lookup_;  // what is made of the parts when it is first needed; copies share it
};

}  // namespace ns_dist
