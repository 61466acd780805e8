// Weights that an optimizer updates as whole matrices (ParallelPlan::optimizer), and which of the ranks that share them
// updates which.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/parallel_plan.h"
#include "shape.h"

namespace ns_dist {

// Which side of a weight is split over tensor-parallel ranks; of an expert's, over its own.
enum class SplitSide : std::uint8_t { kNone, kRows, kColumns };

// The part of a weight that lies on one rank: outputs x inputs of a linear layer.
struct WeightMatrix {
  std::int64_t rows = 1, columns = 1;
  SplitSide split = SplitSide::kNone;
  bool experts = false;
  // Rows of the parts that are matrices by themselves: queries, keys, values. Empty: it is one matrix.
  std::vector<std::int64_t> sections = {};
  std::int64_t batch = 1;  // so many of one tensor, which kernels update together
  double size() const { return static_cast<double>(batch) * static_cast<double>(rows) * static_cast<double>(columns); }
  friend bool operator==(const WeightMatrix&, const WeightMatrix&) = default;
};
struct MatrixCount {
  WeightMatrix matrix;
  std::int64_t count = 1;
  friend bool operator==(const MatrixCount&, const MatrixCount&) = default;
};
using Matrices = std::vector<MatrixCount>;  // each matrix once
void add(const Matrices& from, std::int64_t times, Matrices& to);
Matrices of_kind(const Matrices& all, bool experts);  // those of experts, or of all else
double parameters_of(const Matrices& matrices);

// What a rank holds and updates of the matrices of its stage.
struct MatrixShares {
  Matrices updated;  // as wholes, by the rank with the most work
  // Matrices of which each rank that shares weights updates a part; and those of them that the rank with the most work
  // gathers, so that it can make them orthogonal.
  Matrices in_parts, gathered;
  double owned = 0;   // parameters of the rank that updates the most
  double beyond = 0;  // parameters that are another rank's, of matrices of which this rank keeps the whole momentum
  // `in_parts` travel in buckets, one after the other. Of a bucket, the bytes of the rank that gathers most over the
  // mean.
  std::int64_t buckets = 1;
  double imbalance = 1, expert_imbalance = 1;
  // Elements of the buffers in which gradients are reduced and weights are gathered over the parameters in them. Each
  // rank's part of a buffer is as large as the largest.
  double padding = 1, expert_padding = 1;
  friend bool operator==(const MatrixShares&, const MatrixShares&) = default;
};
// Of `layers` layers, one of which has `layer_experts` experts on this rank.
//
// Under ZeRO 0 a rank updates all that it has. Under ZeRO 1 a matrix belongs to one of the ranks that hold it: from the
// most work to the least, each to the rank that has the least so far and is not too full (Megatron-Core, August 2026,
// layer_wise_optimizer.py, _compute_per_buffer_param_layout, of one bucket). Under ZeRO 2 ranks have equal parts of all
// matrices on end, and each updates those that begin or end in its part (DeepSpeed, August 2026, stage_1_and_2.py,
// get_flat_partition): one more than its share on average. Under ZeRO 3, FSDP2 has a part of each matrix on each rank,
// or whole experts where a layer has as many as there are ranks. Parts are gathered on the rank that has the least work
// so far, of some layers at a time; experts on the first ranks (torchtitan, August 2026, dist_muon.py,
// _optimizer_reshard_runtime.py and models/kimi_k2_7/config_registry.py).
inline constexpr std::int64_t kBucketLayers = 2;
MatrixShares share_matrices(const Matrices& matrices, const ParallelPlan& plan, std::int64_t layers = 1,
                            std::int64_t layer_experts = 0);

// Of the parameters that a rank holds, those that it updates; and those of the buffers, with their padding.
double updated_parameters(const RankParameters& held, const ParallelPlan& plan, const MatrixShares& shares);
RankParameters padded(const RankParameters& held, double padding, double expert_padding);

}  // namespace ns_dist
