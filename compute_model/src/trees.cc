#include "trees.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "leaf_masks.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::uint32_t kLeafFeature = 128;

constexpr std::uint32_t question(std::uint32_t feature, std::uint32_t border, std::uint32_t distance) {
  return feature | border << 8 | distance << 17;
}
constexpr std::uint32_t leaf(std::uint32_t value) {  // of 16 bits
  return (kLeafFeature | (value & 127)) | ((value >> 7) & 255) << 8 | (value >> 15) << 16;
}
constexpr std::uint32_t feature_of(std::uint32_t node) { return node & 255; }
constexpr std::uint32_t border_of(std::uint32_t node) { return node >> 8 & 255; }
constexpr std::uint32_t distance_of(std::uint32_t node) { return node >> 17; }
constexpr std::uint32_t value_of(std::uint32_t node) {
  return (node & 127) | (node >> 8 & 255) << 7 | (node >> 16 & 1) << 15;
}
static_assert(value_of(leaf(0xabcd)) == 0xabcd && distance_of(leaf(0xffff)) == 0);

// Where a walk goes on from `node` with this bin of its feature.
std::size_t next(std::size_t at, std::uint32_t node, std::uint8_t bin) {
  at += distance_of(node);
  if (static_cast<std::uint8_t>(node >> 8) < bin) ++at;  // compilers make an addition with carry of it, not a branch
  return at;
}

// Borders of a feature, padded with infinity to one less than a power of two: their number of halvings is the same for
// all features, so that no branch has to be guessed.
struct PaddedBorders {
  std::size_t size = 127;
  std::vector<float> values;  // `size` of each feature

  explicit PaddedBorders(const Trees::Parts& parts) {
    for (const std::uint32_t count : parts.border_counts) size = count > 127 ? 255 : size;
    static_assert(Trees::kMostBorders == 255);
    values.assign(parts.border_counts.size() * size, std::numeric_limits<float>::infinity());
    const float* from = parts.borders.data();
    for (std::size_t f = 0; f < parts.border_counts.size(); from += parts.border_counts[f++]) {
      std::copy_n(from, parts.border_counts[f], values.begin() + static_cast<std::ptrdiff_t>(f * size));
    }
  }
};

// A tree's nodes with what a walk needs, or nothing where they are no tree.
struct Storage {
  std::vector<std::uint32_t> nodes, roots, depths, border_counts;
  std::vector<float> borders;
};

bool is_tree(const PlainTree& tree, std::size_t inputs) {
  if (tree.feature.empty() || tree.feature.size() != tree.value.size() || tree.feature.size() > Trees::kMostNodes) {
    return false;
  }
  std::size_t next_child = 1;
  for (std::size_t n = 0; n < tree.feature.size(); ++n) {
    if (n >= next_child || tree.feature[n] >= static_cast<int>(inputs) || !std::isfinite(tree.value[n])) return false;
    if (tree.feature[n] >= 0) next_child += 2;
  }
  return next_child == tree.feature.size();
}

}  // namespace

struct Trees::Lookup {
  std::once_flag borders_once, masks_once;
  std::optional<PaddedBorders> borders;
  std::optional<LeafMasks> masks;  // where all trees are small
};

Trees::Trees(const Parts& parts, std::shared_ptr<const void> owner)
    : parts_(parts), owner_(std::move(owner)), lookup_(std::make_shared<Lookup>()) {}

Trees Trees::first(std::size_t count) const {
  Parts parts = parts_;
  parts.roots = parts.roots.first(std::min(count, parts.roots.size()));
  parts.depths = parts.depths.first(parts.roots.size());
  return Trees(parts, owner_);
}

Trees::Node Trees::node(const Parts& parts, std::size_t at) {
  const std::uint32_t node = parts.nodes[at];
  if (distance_of(node) == 0) {
    return {.value = static_cast<float>(static_cast<int>(value_of(node)) - 32768) * parts.step};
  }
  return {.first_child = at + distance_of(node), .feature = feature_of(node), .border = border_of(node)};
}

std::optional<Trees> Trees::pack(std::size_t inputs, std::span<const PlainTree> trees) {
  if (inputs > kMostFeatures) return std::nullopt;
  std::vector<std::vector<float>> borders(inputs);
  float largest = 1e-6F;
  for (const PlainTree& tree : trees) {
    if (!is_tree(tree, inputs)) return std::nullopt;
    for (std::size_t n = 0; n < tree.feature.size(); ++n) {
      if (tree.feature[n] < 0) {
        largest = std::max(largest, std::abs(tree.value[n]));
      } else {
        borders[static_cast<std::size_t>(tree.feature[n])].push_back(tree.value[n]);
      }
    }
  }
  auto storage = std::make_shared<Storage>();
  for (std::vector<float>& own : borders) {
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    if (own.size() > kMostBorders) return std::nullopt;
    storage->borders.insert(storage->borders.end(), own.begin(), own.end());
    storage->border_counts.push_back(static_cast<std::uint32_t>(own.size()));
  }
  const float step = largest / 32767;
  for (const PlainTree& tree : trees) {
    storage->roots.push_back(static_cast<std::uint32_t>(storage->nodes.size()));
    std::vector<std::uint32_t> depth(tree.feature.size(), 0);
    std::uint32_t child = 1;
    for (std::uint32_t n = 0; n < tree.feature.size(); ++n) {
      if (tree.feature[n] < 0) {
        storage->nodes.push_back(leaf(static_cast<std::uint32_t>(std::lround(tree.value[n] / step) + 32768)));
        continue;
      }
      const std::vector<float>& own = borders[static_cast<std::size_t>(tree.feature[n])];
      const auto border = std::lower_bound(own.begin(), own.end(), tree.value[n]) - own.begin();
      storage->nodes.push_back(
          question(static_cast<std::uint32_t>(tree.feature[n]), static_cast<std::uint32_t>(border), child - n));
      depth[child] = depth[child + 1] = depth[n] + 1;
      child += 2;
    }
    storage->depths.push_back(*std::max_element(depth.begin(), depth.end()));
  }
  const Parts parts{storage->nodes, storage->roots, storage->depths, storage->borders, storage->border_counts, step};
  return Trees(parts, std::move(storage));
}

bool Trees::is_sound(const Parts& parts) {
  if (parts.border_counts.size() > kMostFeatures || parts.roots.size() != parts.depths.size()) return false;
  if (!std::isfinite(parts.step)) return false;
  std::size_t first_border = 0;
  for (const std::uint32_t count : parts.border_counts) {
    if (count > kMostBorders || count > parts.borders.size() - first_border) return false;
    const auto own = parts.borders.subspan(first_border, count);
    for (std::size_t b = 0; b < count; ++b) {
      if (!std::isfinite(own[b]) || (b > 0 && !(own[b - 1] < own[b]))) return false;
    }
    first_border += count;
  }
  if (first_border != parts.borders.size()) return false;
  std::vector<std::uint32_t> depth;
  for (std::size_t t = 0; t < parts.roots.size(); ++t) {
    const std::size_t begin = parts.roots[t],
                      end = t + 1 < parts.roots.size() ? parts.roots[t + 1] : parts.nodes.size();
    if (begin >= end || end > parts.nodes.size() || end - begin > kMostNodes || (t == 0 && begin != 0)) return false;
    depth.assign(end - begin, 0);
    std::uint32_t deepest = 0;
    for (std::size_t n = begin; n < end; ++n) {
      const std::uint32_t node = parts.nodes[n], distance = distance_of(node), feature = feature_of(node);
      deepest = std::max(deepest, depth[n - begin]);
      if (distance == 0) {
        if (feature < kLeafFeature) return false;
        continue;
      }
      if (feature >= parts.border_counts.size() || border_of(node) >= parts.border_counts[feature]) return false;
      if ((node >> 16 & 1) != 0 || n + distance + 1 >= end) return false;
      for (const std::size_t below : {n - begin + distance, n - begin + distance + 1}) {
        depth[below] = std::max(depth[below], depth[n - begin] + 1);
      }
    }
    if (deepest != parts.depths[t]) return false;
  }
  return !parts.roots.empty() || parts.nodes.empty();
}

double Trees::leaf_value(std::uint32_t node) const {
  return static_cast<double>(static_cast<float>(static_cast<int>(value_of(node)) - 32768) * parts_.step);
}

void Trees::find_bins(const double* features, Bins& bins) const {
  bins.fill(0);
  if (lookup_ == nullptr) return;
  std::call_once(lookup_->borders_once, [&] { lookup_->borders.emplace(parts_); });
  const PaddedBorders& borders = *lookup_->borders;
  const float* own = borders.values.data();
  for (std::size_t f = 0; f < parts_.border_counts.size(); ++f, own += borders.size) {
    const float value = static_cast<float>(features[f]);
    // `below` borders are less than the value. A value that is not a number is below all.
    std::size_t below = borders.size == 255 && value > own[127] ? 128 : 0;
#pragma GCC unroll 7
    for (std::size_t half = 64; half > 0; half /= 2) below += value > own[below + half - 1] ? half : 0;
    bins[f] = static_cast<std::uint8_t>(below);
  }
}

double Trees::evaluate(const double* features) const {
  Bins bins;
  find_bins(features, bins);
  return evaluate(bins);
}

double Trees::evaluate(const Bins& bins) const {
  // Walks eight trees at a time: each step waits for memory, and eight waits overlap. (Gathering eight lanes with AVX2
  // was half as fast on processors whose microcode slows gathers.)
  constexpr std::size_t kTogether = 8;
  const std::uint32_t* const nodes = parts_.nodes.data();
  const std::uint32_t* const roots = parts_.roots.data();
  double sum = 0;
  std::size_t begin = 0;
  for (; begin + kTogether <= size(); begin += kTogether) {
    std::array<std::size_t, kTogether> at;
    std::uint32_t depth = 0;
    for (std::size_t i = 0; i < kTogether; ++i) {
      at[i] = roots[begin + i];
      depth = std::max(depth, parts_.depths[begin + i]);
    }
    for (; depth > 0; --depth) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kTogether; ++i) at[i] = next(at[i], nodes[at[i]], bins[feature_of(nodes[at[i]])]);
    }
    for (const std::size_t end : at) sum += leaf_value(nodes[end]);
  }
  for (; begin < size(); ++begin) {
    std::size_t at = roots[begin];
    for (std::uint32_t depth = parts_.depths[begin]; depth > 0; --depth) {
      at = next(at, nodes[at], bins[feature_of(nodes[at])]);
    }
    sum += leaf_value(nodes[at]);
  }
  return sum;
}

void Trees::evaluate(std::span<const Bins* const> rows, std::span<double> sums) const {
  NS_EXPECTS(rows.size() == sums.size());
  constexpr std::size_t kWorthIt = 16;  // masks take as long to make as some hundred rows to walk
  if (lookup_ != nullptr && rows.size() >= kWorthIt) {
    std::call_once(lookup_->masks_once, [&] { lookup_->masks = LeafMasks::of(parts_); });
    if (lookup_->masks) {
      lookup_->masks->sum(rows, sums);
      return;
    }
  }
  walk(rows, sums);
}

void Trees::walk(std::span<const Bins* const> rows, std::span<double> sums) const {
  constexpr std::size_t kTogether = 8, kBins = std::tuple_size_v<Bins>;
  // The bins of eight rows side by side, by feature: a step needs no pointer to its row.
  std::array<std::uint8_t, kBlock * kBins> block{};
  for (std::size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, rows.size() - begin);
    const std::size_t padded = (count + kTogether - 1) / kTogether * kTogether;
    for (std::size_t r = 0; r < padded; ++r) {
      const Bins& row = *rows[begin + std::min(r, count - 1)];
      std::uint8_t* const to = &block[r / kTogether * kTogether * kBins + r % kTogether];
      for (std::size_t f = 0; f < inputs(); ++f) to[f * kTogether] = row[f];
    }
    std::array<double, kBlock> sum{};
    for (std::size_t tree = 0; tree < size(); ++tree) {
      // All rows walk one tree, which stays in the first cache.
      const std::uint32_t* const nodes = parts_.nodes.data() + parts_.roots[tree];
      for (std::size_t r = 0; r < padded; r += kTogether) {
        const std::uint8_t* const bins = &block[r * kBins];
        std::array<std::size_t, kTogether> at{};
        for (std::uint32_t depth = parts_.depths[tree]; depth > 0; --depth) {
#pragma GCC unroll 8
          for (std::size_t i = 0; i < kTogether; ++i) {
            const std::uint32_t node = nodes[at[i]];
            at[i] = next(at[i], node, bins[feature_of(node) * kTogether + i]);
          }
        }
        for (std::size_t i = 0; i < kTogether; ++i) sum[r + i] += leaf_value(nodes[at[i]]);
      }
    }
    std::copy_n(sum.begin(), count, sums.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

}  // namespace ns_dist
