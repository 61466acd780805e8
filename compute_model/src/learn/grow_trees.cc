#include "learn/grow_trees.h"

#include <algorithm>
#include <cmath>

#include "learn/random.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::size_t kBins = 128;

// Borders between bins of about equally many rows; at most kBins - 1, between distinct values.
std::vector<float> borders_of(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  std::vector<float> distinct = values;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<float> borders;
  const auto middle = [](float a, float b) { return a + (b - a) / 2; };
  if (distinct.size() <= kBins) {
    for (std::size_t i = 1; i < distinct.size(); ++i) borders.push_back(middle(distinct[i - 1], distinct[i]));
    return borders;
  }
  for (std::size_t bin = 1; bin < kBins; ++bin) {
    const float value = values[values.size() * bin / kBins];
    const auto above = std::upper_bound(distinct.begin(), distinct.end(), value);
    if (above == distinct.end()) break;
    const float border = middle(value, *above);
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
  return borders;
}

// The features of all rows, each in a bin of its feature.
class BinnedRows {
 public:
  // `inputs`: only the first so many features may be asked for.
  BinnedRows(const TrainingRows& rows, std::size_t inputs)
      : width_(rows.width), borders_(width_), first_cell_(width_ + 1, 0), bins_(rows.size() * width_) {
    const std::size_t count = rows.size();
    std::vector<float> values(count);
    for (std::size_t f = 0; f < width_; ++f) {
      for (std::size_t r = 0; r < count; ++r) values[r] = rows.features[r * width_ + f];
      borders_[f] = borders_of(values);
      first_cell_[f + 1] = first_cell_[f] + borders_[f].size() + 1;
      for (std::size_t r = 0; r < count; ++r) {
        bins_[r * width_ + f] = static_cast<std::uint8_t>(
            std::lower_bound(borders_[f].begin(), borders_[f].end(), values[r]) - borders_[f].begin());
      }
      if (!borders_[f].empty() && f < inputs) usable_.push_back(f);
    }
  }

  const std::vector<std::size_t>& usable() const { return usable_; }  // features that differ between rows
  std::size_t cells() const { return first_cell_[width_]; }           // of a histogram over all features
  std::size_t first_cell(std::size_t feature) const { return first_cell_[feature]; }
  std::size_t bins_of(std::size_t feature) const { return borders_[feature].size() + 1; }
  float border(std::size_t feature, std::size_t bin) const { return borders_[feature][bin]; }
  const std::uint8_t* row(std::size_t r) const { return &bins_[r * width_]; }

 private:
  std::size_t width_;
  std::vector<std::vector<float>> borders_;  // by feature
  std::vector<std::size_t> first_cell_;      // by feature
  std::vector<std::uint8_t> bins_;           // row after row
  std::vector<std::size_t> usable_;
};

struct Cell {
  float gradient = 0, mass = 0, rows = 0;
};

struct Split {
  double gain = 0;
  std::size_t feature = 0, bin = 0;
};

// A leaf that may still be split: its rows are a range of the order, its histogram sums them by feature and bin.
struct Open {
  std::size_t begin = 0, end = 0, depth = 0;
  std::vector<Cell> histogram;
  Split best;
  std::size_t node = 0;  // in the tree that is grown
  std::size_t size() const { return end - begin; }
};

// A tree while it grows: children are added in the order of the splits.
struct Growing {
  int feature = -1;  // of a leaf
  float value = 0;
  std::size_t below = 0;  // the other child follows it
};

// Level by level, as PlainTree wants it.
PlainTree plain_tree(const std::vector<Growing>& nodes) {
  PlainTree tree;
  std::vector<std::size_t> queue = {0};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const Growing& node = nodes[queue[i]];
    tree.feature.push_back(node.feature);
    tree.value.push_back(node.value);
    if (node.feature < 0) continue;
    queue.push_back(node.below);
    queue.push_back(node.below + 1);
  }
  return tree;
}

// One tree after another, each on what those before it leave.
class Grower {
 public:
  Grower(const TrainingRows& rows, const BinnedRows& binned, const TreeOptions& options)
      : rows_(rows),
        binned_(binned),
        options_(options),
        random_(options.seed),
        residual_(rows.targets),
        gradient_(rows.size()),
        mass_(rows.size()),
        scratch_(rows.size()) {}

  // `rate`: the share of its step that the tree takes.
  PlainTree grow(double rate) {
    draw();
    derive();
    std::vector<Open> leaves(1);
    leaves[0].end = order_.size();
    fill(leaves[0]), find(leaves[0]);
    grown_.assign(1, {});
    while (leaves.size() < options_.leaves) {
      const auto widest = std::ranges::max_element(leaves, {}, [](const Open& leaf) { return leaf.best.gain; });
      if (!(widest->best.gain > kLeastGain)) break;
      leaves.push_back(split(*widest));
    }
    for (const Open& leaf : leaves) grown_[leaf.node].value = value_of(leaf, rate);
    subtract();
    return plain_tree(grown_);
  }

 private:
  static constexpr double kLeastGain = 1e-9;

  // The rows and the features of the next tree.
  void draw() {
    order_.clear();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (random_.uniform() < options_.row_share) order_.push_back(static_cast<std::uint32_t>(r));
    }
    candidates_.clear();
    const std::vector<std::size_t>& usable = binned_.usable();
    for (const std::size_t f : usable) {
      if (random_.uniform() < options_.feature_share) candidates_.push_back(f);
    }
    if (candidates_.empty()) candidates_.push_back(usable[random_.next() % usable.size()]);
  }

  // Newton steps on a Huber loss: a residual beyond `huber` pulls as one at it, with the mass of its secant.
  void derive() {
    const float huber = static_cast<float>(options_.huber);
    for (const std::size_t r : order_) {
      const float error = residual_[r], weight = rows_.weights[r];
      const float secant = std::abs(error) <= huber ? 1.0F : huber / std::abs(error);
      gradient_[r] = weight * error * secant, mass_[r] = weight * secant;
    }
  }

  void fill(Open& leaf) const {
    leaf.histogram.assign(binned_.cells(), Cell{});
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const std::size_t r = order_[i];
      const std::uint8_t* bin = binned_.row(r);
      const float g = gradient_[r], m = mass_[r];
      for (const std::size_t f : candidates_) {
        Cell& cell = leaf.histogram[binned_.first_cell(f) + bin[f]];
        cell.gradient += g, cell.mass += m, cell.rows += 1;
      }
    }
  }

  // The best split of a leaf, by its histogram.
  void find(Open& leaf) const {
    leaf.best = Split{};
    if (leaf.depth >= options_.depth) return;
    for (const std::size_t f : candidates_) {
      const Cell* cells = &leaf.histogram[binned_.first_cell(f)];
      const std::size_t bins = binned_.bins_of(f);
      double total = 0, total_mass = 0, total_rows = 0;
      for (std::size_t b = 0; b < bins; ++b) {
        total += static_cast<double>(cells[b].gradient), total_mass += static_cast<double>(cells[b].mass);
        total_rows += static_cast<double>(cells[b].rows);
      }
      const double whole = total * total / (total_mass + options_.ridge);
      double low = 0, low_mass = 0, low_rows = 0;
      for (std::size_t b = 0; b + 1 < bins; ++b) {
        low += static_cast<double>(cells[b].gradient), low_mass += static_cast<double>(cells[b].mass);
        low_rows += static_cast<double>(cells[b].rows);
        if (low_rows < options_.smallest || total_rows - low_rows < options_.smallest) continue;
        const double high = total - low, high_mass = total_mass - low_mass;
        const double gain =
            low * low / (low_mass + options_.ridge) + high * high / (high_mass + options_.ridge) - whole;
        if (gain > leaf.best.gain) leaf.best = {gain, f, b};
      }
    }
  }

  // `low` becomes the lower child of its best split; returns the other one. The histogram of the larger child is what
  // that of the smaller one leaves of both.
  Open split(Open& low) {
    const Split best = low.best;
    Growing& question = grown_[low.node];
    question.feature = static_cast<int>(best.feature), question.value = binned_.border(best.feature, best.bin);
    question.below = grown_.size();
    low.node = grown_.size();
    grown_.resize(grown_.size() + 2);
    const std::size_t middle = part(low, best);
    Open high;
    high.begin = middle, high.end = low.end, high.node = low.node + 1, high.depth = ++low.depth;
    low.end = middle;
    Open& fewer = low.size() <= high.size() ? low : high;
    Open& more = &fewer == &low ? high : low;
    std::vector<Cell> both = std::move(low.histogram);
    fill(fewer);
    for (std::size_t c = 0; c < both.size(); ++c) {
      both[c].gradient -= fewer.histogram[c].gradient, both[c].mass -= fewer.histogram[c].mass;
      both[c].rows -= fewer.histogram[c].rows;
    }
    more.histogram = std::move(both);
    find(low), find(high);
    return high;
  }

  // Moves the rows of the lower child to the front of the leaf's and returns where they end. The rows of each child
  // keep their order, so sums do not depend on how leaves were opened.
  std::size_t part(const Open& leaf, const Split& split) {
    std::size_t low_end = leaf.begin, high_count = 0;
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const std::uint32_t r = order_[i];
      if (binned_.row(r)[split.feature] <= split.bin)
        order_[low_end++] = r;
      else
        scratch_[high_count++] = r;
    }
    std::copy_n(scratch_.begin(), high_count, order_.begin() + static_cast<std::ptrdiff_t>(low_end));
    return low_end;
  }

  float value_of(const Open& leaf, double rate) const {
    double sum = 0, total = options_.ridge;
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      sum += static_cast<double>(gradient_[order_[i]]), total += static_cast<double>(mass_[order_[i]]);
    }
    return static_cast<float>(rate * sum / total);
  }

  // What the tree says of each row, of those too that it was not grown on.
  void subtract() {
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      std::size_t at = 0;
      while (grown_[at].feature >= 0) {
        const auto f = static_cast<std::size_t>(grown_[at].feature);
        at = grown_[at].below + static_cast<std::size_t>(rows_.features[r * rows_.width + f] > grown_[at].value);
      }
      residual_[r] -= grown_[at].value;
    }
  }

  const TrainingRows& rows_;
  const BinnedRows& binned_;
  const TreeOptions& options_;
  Random random_;
  std::vector<float> residual_, gradient_, mass_;  // by row
  std::vector<std::uint32_t> order_, scratch_;     // rows of the tree, those of a leaf side by side
  std::vector<std::size_t> candidates_;            // features of the tree
  std::vector<Growing> grown_;
};

}  // namespace

Trees grow_trees(const TrainingRows& rows, const TreeOptions& options, const std::function<void(double)>& progress) {
  const BinnedRows binned(rows, options.inputs);
  if (binned.usable().empty()) return {};
  Grower grower(rows, binned, options);
  std::vector<PlainTree> trees;
  for (std::size_t tree = 0; tree < options.trees; ++tree) {
    // Later trees step less: the last fifth polishes.
    const double done = static_cast<double>(tree) / static_cast<double>(options.trees);
    trees.push_back(grower.grow(options.rate * (done < 0.8 ? 1 : 1 - 4 * (done - 0.8))));
    if (progress && tree % 8 == 0) progress(done);
  }
  std::optional<Trees> packed = Trees::pack(rows.width, trees);
  NS_EXPECTS(packed.has_value());
  return *std::move(packed);
}

}  // namespace ns_dist
