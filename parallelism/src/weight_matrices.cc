#include "weight_matrices.h"

#include <algorithm>
#include <iterator>
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

// What `ranks` ranks update of the matrices of one kind.
struct Packing {
  Matrices busiest;
  double fullest = 0, all = 0;  // parameters: of the rank with the most, of all ranks
};
Packing pack(Matrices matrices, std::int64_t ranks) {
  Packing packing;
  for (const auto& [matrix, count] : matrices) packing.all += matrix.size() * static_cast<double>(count);
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
  const double most = kMostOverMean * packing.all / static_cast<double>(ranks);
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

}  // namespace

void add(const Matrices& from, std::int64_t times, Matrices& to) {
  for (const auto& [matrix, count] : from) {
    auto known = std::find_if(to.begin(), to.end(), [&](const MatrixCount& each) { return each.matrix == matrix; });
    if (known == to.end()) known = to.insert(known, {matrix, 0});
    known->count += count * times;
  }
}

MatrixShares share_matrices(const Matrices& matrices, const ParallelPlan& plan) {
  MatrixShares shares;
  for (const bool experts : {false, true}) {
    Matrices kind;
    std::copy_if(matrices.begin(), matrices.end(), std::back_inserter(kind),
                 [&](const MatrixCount& each) { return each.matrix.experts == experts; });
    if (kind.empty()) continue;
    const std::int64_t ranks = plan.zero == ZeroStage::kNone ? 1 : sharing_replicas(plan, experts);
    Packing packing = pack(std::move(kind), ranks);
    shares.owned += packing.fullest;
    if (!sums_whole_gradients(plan)) {
      (experts ? shares.expert_padding : shares.padding) = packing.fullest * static_cast<double>(ranks) / packing.all;
    }
    add(packing.busiest, 1, shares.updated);
  }
  return shares;
}

double updated_parameters(const RankParameters& held, const ParallelPlan& plan, const MatrixShares& shares) {
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
