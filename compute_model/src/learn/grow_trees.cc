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

}  // namespace

Trees grow_trees(const TrainingRows& rows, const TreeOptions& options, const std::function<void(double)>& progress) {
  const std::size_t count = rows.size(), width = rows.width;
  std::vector<PlainTree> trees;
  std::vector<std::vector<float>> borders(width);
  std::vector<std::size_t> offset(width + 1, 0);
  std::vector<std::uint8_t> bins(count * width);  // row after row
  std::vector<std::size_t> usable;
  for (std::size_t f = 0; f < width; ++f) {
    std::vector<float> values(count);
    for (std::size_t r = 0; r < count; ++r) values[r] = rows.features[r * width + f];
    borders[f] = borders_of(values);
    offset[f + 1] = offset[f] + borders[f].size() + 1;
    for (std::size_t r = 0; r < count; ++r) {
      bins[r * width + f] = static_cast<std::uint8_t>(
          std::lower_bound(borders[f].begin(), borders[f].end(), values[r]) - borders[f].begin());
    }
    if (!borders[f].empty() && f < options.inputs) usable.push_back(f);
  }
  if (usable.empty()) return {};

  Random random(options.seed);
  std::vector<float> residual(rows.targets), gradient(count), mass(count);
  std::vector<std::uint32_t> order, scratch(count);
  std::vector<std::size_t> candidates;
  const float huber = static_cast<float>(options.huber);

  const auto fill = [&](Open& leaf) {
    leaf.histogram.assign(offset[width], Cell{});
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const std::size_t r = order[i];
      const std::uint8_t* bin = &bins[r * width];
      const float g = gradient[r], m = mass[r];
      for (const std::size_t f : candidates) {
        Cell& cell = leaf.histogram[offset[f] + bin[f]];
        cell.gradient += g, cell.mass += m, cell.rows += 1;
      }
    }
  };
  const auto find = [&](Open& leaf) {
    leaf.best = Split{};
    if (leaf.depth >= options.depth) return;
    for (const std::size_t f : candidates) {
      const Cell* cells = &leaf.histogram[offset[f]];
      const std::size_t bin_count = borders[f].size() + 1;
      double total = 0, total_mass = 0, total_rows = 0;
      for (std::size_t b = 0; b < bin_count; ++b) {
        total += static_cast<double>(cells[b].gradient), total_mass += static_cast<double>(cells[b].mass);
        total_rows += static_cast<double>(cells[b].rows);
      }
      const double whole = total * total / (total_mass + options.ridge);
      double low = 0, low_mass = 0, low_rows = 0;
      for (std::size_t b = 0; b + 1 < bin_count; ++b) {
        low += static_cast<double>(cells[b].gradient), low_mass += static_cast<double>(cells[b].mass);
        low_rows += static_cast<double>(cells[b].rows);
        if (low_rows < options.smallest || total_rows - low_rows < options.smallest) continue;
        const double high = total - low, high_mass = total_mass - low_mass;
        const double gain = low * low / (low_mass + options.ridge) + high * high / (high_mass + options.ridge) - whole;
        if (gain > leaf.best.gain) leaf.best = {gain, f, b};
      }
    }
  };

  for (std::size_t tree = 0; tree < options.trees; ++tree) {
    order.clear();
    for (std::size_t r = 0; r < count; ++r) {
      if (random.uniform() < options.row_share) order.push_back(static_cast<std::uint32_t>(r));
    }
    candidates.clear();
    for (const std::size_t f : usable) {
      if (random.uniform() < options.feature_share) candidates.push_back(f);
    }
    if (candidates.empty()) candidates.push_back(usable[random.next() % usable.size()]);
    // Newton steps on a Huber loss: a residual beyond `huber` pulls as one at it, with the mass of its secant.
    for (const std::size_t r : order) {
      const float error = residual[r], weight = rows.weights[r];
      const float secant = std::abs(error) <= huber ? 1.0F : huber / std::abs(error);
      gradient[r] = weight * error * secant, mass[r] = weight * secant;
    }
    // Later trees step less: the last fifth polishes.
    const double done = static_cast<double>(tree) / static_cast<double>(options.trees);
    const double rate = options.rate * (done < 0.8 ? 1 : 1 - 4 * (done - 0.8));

    std::vector<Open> leaves(1);
    leaves[0].end = order.size();
    fill(leaves[0]), find(leaves[0]);
    std::vector<Growing> grown(1);
    while (leaves.size() < options.leaves) {
      std::size_t widest = 0;
      for (std::size_t l = 1; l < leaves.size(); ++l) {
        if (leaves[l].best.gain > leaves[widest].best.gain) widest = l;
      }
      const Split split = leaves[widest].best;
      if (!(split.gain > 1e-9)) break;
      Open& low = leaves[widest];
      Growing& question = grown[low.node];
      question.feature = static_cast<int>(split.feature), question.value = borders[split.feature][split.bin];
      question.below = grown.size();
      low.node = grown.size();
      grown.resize(grown.size() + 2);
      // A stable partition keeps the order of rows, so sums do not depend on how leaves were opened.
      std::size_t low_end = low.begin, high_count = 0;
      for (std::size_t i = low.begin; i < low.end; ++i) {
        const std::uint32_t r = order[i];
        if (bins[r * width + split.feature] <= split.bin)
          order[low_end++] = r;
        else
          scratch[high_count++] = r;
      }
      std::copy_n(scratch.begin(), high_count, order.begin() + static_cast<std::ptrdiff_t>(low_end));
      Open high;
      high.begin = low_end, high.end = low.end, high.node = low.node + 1, high.depth = ++low.depth;
      low.end = low_end;
      Open& fewer = low.end - low.begin <= high.end - high.begin ? low : high;
      Open& more = &fewer == &low ? high : low;
      std::vector<Cell> both = std::move(low.histogram);
      fill(fewer);
      for (std::size_t c = 0; c < both.size(); ++c) {
        both[c].gradient -= fewer.histogram[c].gradient, both[c].mass -= fewer.histogram[c].mass;
        both[c].rows -= fewer.histogram[c].rows;
      }
      more.histogram = std::move(both);
      find(low), find(high);
      leaves.push_back(std::move(high));
    }
    for (const Open& leaf : leaves) {
      double sum = 0, total = options.ridge;
      for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
        sum += static_cast<double>(gradient[order[i]]), total += static_cast<double>(mass[order[i]]);
      }
      grown[leaf.node].value = static_cast<float>(rate * sum / total);
    }
    for (std::size_t r = 0; r < count; ++r) {
      std::size_t at = 0;
      while (grown[at].feature >= 0) {
        const auto f = static_cast<std::size_t>(grown[at].feature);
        at = grown[at].below + static_cast<std::size_t>(rows.features[r * width + f] > grown[at].value);
      }
      residual[r] -= grown[at].value;
    }
    trees.push_back(plain_tree(grown));
    if (progress && tree % 8 == 0) progress(done);
  }
  std::optional<Trees> packed = Trees::pack(width, trees);
  NS_EXPECTS(packed.has_value());
  return *std::move(packed);
}

}  // namespace ns_dist
