#include "weight_matrices.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace ns_dist {
namespace {

// Work of orthogonalizing a matrix grows so (the same file, _ns_compute_cost): short side squared x long side.
double work_of(const WeightMatrix& matrix) {
  return matrix.size() * static_cast<double>(std::min(matrix.rows, matrix.columns));
}

// A rank takes no more parameters than this over the mean, if another can have them (_NUMEL_EPSILON there).
constexpr double kMostOverMean = 1.3;

// Of the experts of each layer, which are `all`, only so many, as one tensor.
Matrices of_experts(Matrices matrices, std::int64_t some, std::int64_t all) {
  for (MatrixCount& each : matrices) each.matrix.batch = some, each.count = each.count / all;
  return matrices;
}

// How many of a matrix so many of the `all` layers have, as the mean layer has them.
std::int64_t count_of_layers(const MatrixCount& each, std::int64_t some, std::int64_t all) {
  return some >= all ? each.count : (each.count * some + all / 2) / all;
}
Matrices of_layers(Matrices matrices, std::int64_t some, std::int64_t all) {
  for (MatrixCount& each : matrices) each.count = count_of_layers(each, some, all);
  std::erase_if(matrices, [](const MatrixCount& each) { return each.count == 0; });
  return matrices;
}
// The matrices of single layers of their kind, of which the mean layer has next to none.
Matrices of_single_layers(Matrices matrices, std::int64_t some, std::int64_t all) {
  std::erase_if(matrices, [=](const MatrixCount& each) { return count_of_layers(each, some, all) > 0; });
  return matrices;
}

// What `ranks` ranks update of the matrices of one kind.
struct Packing {
  Matrices busiest;
  double fullest = 0, all = 0;  // parameters: of the rank with the most, of all ranks
};
Packing pack(Matrices matrices, std::int64_t ranks, double most_over_mean) {
  Packing packing;
  packing.all = parameters_of(matrices);
  if (ranks == 1 || matrices.empty()) {
    packing.fullest = packing.all;
    packing.busiest = std::move(matrices);
    return packing;
  }
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const MatrixCount& a, const MatrixCount& b) { return work_of(a.matrix) > work_of(b.matrix); });
  std::set<std::pair<double, std::size_t>> loads;  // work and number of each rank
  std::int64_t whole = 0;
  for (const MatrixCount& each : matrices) whole += each.count;
  const auto used = static_cast<std::size_t>(std::min(ranks, whole));  // the others have nothing
  for (std::size_t rank = 0; rank < used; ++rank) loads.emplace(0, rank);
  std::vector<double> sizes(used);
  std::vector<std::vector<std::int64_t>> counts(matrices.size(), std::vector<std::int64_t>(used));
  const double most = most_over_mean * packing.all / static_cast<double>(ranks);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const double size = matrices[i].matrix.size();
    for (std::int64_t j = 0; j < matrices[i].count; ++j) {
      auto least =
          std::find_if(loads.begin(), loads.end(), [&](const auto& each) { return sizes[each.second] + size <= most; });
      if (least == loads.end()) {
        const auto smallest = static_cast<std::size_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
        least = std::find_if(loads.begin(), loads.end(), [&](const auto& each) { return each.second == smallest; });
      }
      const auto [load, rank] = *least;
      loads.erase(least);
      ++counts[i][rank];
      sizes[rank] += size;
      loads.emplace(load + work_of(matrices[i].matrix), rank);
    }
  }
  packing.fullest = *std::max_element(sizes.begin(), sizes.end());
  const std::size_t busiest = loads.rbegin()->second;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (counts[i][busiest] > 0) packing.busiest.push_back({matrices[i].matrix, counts[i][busiest]});
  }
  return packing;
}

// Ranks have equal parts of matrices on end, and update those that are in their part, be it in part.
void share_flat(Matrices matrices, std::int64_t ranks, MatrixShares& shares) {
  const double part = parameters_of(matrices) / static_cast<double>(ranks);
  const auto largest = std::max_element(
      matrices.begin(), matrices.end(),
      [](const MatrixCount& a, const MatrixCount& b) { return work_of(a.matrix) < work_of(b.matrix); });
  Matrices updated = {{largest->matrix, 1}};
  add(pack(matrices, ranks, kMostOverMean).busiest, 1, updated);
  for (MatrixCount& each : updated) {
    const auto all = std::find_if(matrices.begin(), matrices.end(),
                                  [&](const MatrixCount& other) { return other.matrix == each.matrix; });
    each.count = std::min(each.count, all->count);
  }
  shares.owned += part;
  shares.beyond += std::max(0.0, parameters_of(updated) - part);
  add(updated, 1, shares.updated);
}

// Ranks have a part of each matrix, or whole experts, which are of one tensor.
void share_experts(const Matrices& matrices, std::int64_t ranks, std::int64_t layer_experts, MatrixShares& shares) {
  if (layer_experts >= ranks) {
    const Matrices whole = of_experts(matrices, (layer_experts + ranks - 1) / ranks, layer_experts);
    shares.owned += parameters_of(whole);
    add(whole, 1, shares.updated);
    return;
  }
  shares.owned += parameters_of(matrices) / static_cast<double>(ranks);
  shares.expert_imbalance = static_cast<double>(ranks) / static_cast<double>(layer_experts);
  add(of_experts(matrices, layer_experts, layer_experts), 1, shares.in_parts);
  add(of_experts(matrices, 1, layer_experts), 1, shares.gathered);
}

// Two buckets are under way at a time, and the next one waits for the rank that has most of them to do.
void share_dense(const Matrices& matrices, std::int64_t ranks, std::int64_t layers, MatrixShares& shares) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  constexpr std::int64_t kUnderWay = 2 * kBucketLayers;
  shares.owned += parameters_of(matrices) / static_cast<double>(ranks);
  add(matrices, 1, shares.in_parts);
  const std::int64_t times = std::max<std::int64_t>(1, (layers + kUnderWay - 1) / kUnderWay);
  add(pack(of_layers(matrices, kUnderWay, layers), ranks, kAny).busiest, times, shares.gathered);
  add(pack(of_single_layers(matrices, kUnderWay, layers), ranks, kAny).busiest, 1, shares.gathered);
  const Packing bucket = pack(of_layers(matrices, kBucketLayers, layers), ranks, kAny);
  if (bucket.all > 0) shares.imbalance = bucket.fullest * static_cast<double>(ranks) / bucket.all;
}

}  // namespace

void add(const Matrices& from, std::int64_t times, Matrices& to) {
  for (const auto& [matrix, count] : from) {
    auto known = std::find_if(to.begin(), to.end(), [&](const MatrixCount& each) { return each.matrix == matrix; });
    if (known == to.end()) known = to.insert(known, {matrix, 0});
    known->count += count * times;
  }
}

Matrices of_kind(const Matrices& all, bool experts) {
  Matrices kind;
  std::copy_if(all.begin(), all.end(), std::back_inserter(kind),
               [&](const MatrixCount& each) { return each.matrix.experts == experts; });
  return kind;
}

double parameters_of(const Matrices& matrices) {
  double all = 0;
  for (const auto& [matrix, count] : matrices) all += matrix.size() * static_cast<double>(count);
  return all;
}

MatrixShares share_matrices(const Matrices& matrices, const ParallelPlan& plan, std::int64_t layers,
                            std::int64_t layer_experts) {
  MatrixShares shares;
  shares.buckets = std::max<std::int64_t>(1, (layers + kBucketLayers - 1) / kBucketLayers);
  for (const bool experts : {false, true}) {
    Matrices kind = of_kind(matrices, experts);
    if (kind.empty()) continue;
    const std::int64_t ranks = plan.zero == ZeroStage::kNone ? 1 : sharing_replicas(plan, experts);
    if (ranks > 1 && plan.zero == ZeroStage::kGradients) {
      share_flat(std::move(kind), ranks, shares);
      continue;
    }
    if (ranks > 1 && plan.zero == ZeroStage::kParameters) {
      experts ? share_experts(kind, ranks, layer_experts, shares) : share_dense(kind, ranks, layers, shares);
      continue;
    }
    Packing packing = pack(std::move(kind), ranks, kMostOverMean);
    shares.owned += packing.fullest;
    if (!sums_whole_gradients(plan)) {
      (experts ? shares.expert_padding : shares.padding) = packing.fullest * static_cast<double>(ranks) / packing.all;
    }
    add(packing.busiest, 1, shares.updated);
  }
  return shares;
}

double updated_parameters(const RankParameters& held, const ParallelPlan& plan, const MatrixShares& shares) {
  if (plan.optimizer != OptimizerKind::kMuon || plan.passes != Passes::kTraining) return share_of_rank(held, plan);
  RankParameters others = held;
  others.dense -= held.matrices;
  others.experts -= held.expert_matrices;
  return share_of_rank(others, plan) + shares.owned;
}

RankParameters padded(const RankParameters& held, double padding, double expert_padding) {
  RankParameters all = held;
  all.dense += held.matrices * (padding - 1);
  all.experts += held.expert_matrices * (expert_padding - 1);
  return all;
}

}  // namespace ns_dist
