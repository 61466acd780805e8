// A residual branch: its norm, and its sum with the hidden states.
#pragma once

#include <cstdint>
#include <string_view>

#include "blocks/common.h"

namespace ns_dist::blocks {

// A normalization of `rows` x `columns` in the model's kind.
BlockStep norm(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns);
// The same without the kernels that add its gradients to the sums.
BlockStep norm_without_sums(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns);
// The streams of hyper-connections (Model::residual_streams) as one hidden state: a sum with weights that a product
// makes of each token. `mixes`: the product also makes the weights with which end_branch mixes the streams (Xie et al.
// 2025, arXiv 2512.24880, s. 4.3, whose kernels these are).
BlockStep stream_sum(const Shape& shape, std::string_view branch, bool mixes);
// The start of a residual branch: a norm, where the model has one there. Its backward ends with the sum of the branch's
// gradient and the gradient that went around the branch.
BlockStep branch_start(const Shape& shape, std::string_view branch, NormPlacement placement);
inline BlockStep branch_start(const Shape& shape, std::string_view branch) {
  return branch_start(shape, branch, shape.model->norm_placement);
}
// Whether its first product alone reads that norm's output. Parallel branches may share one.
inline bool alone_behind_norm(const Shape& shape) {
  const bool shared = shape.parallel_branches() && shape.model->branches == Branches::kParallel;
  return shape.model->norm_placement != NormPlacement::kPost && !shared;
}
// The end of a residual branch: a norm, where the model has one there, and the sum with the hidden states, with dropout
// where the model has it.
void end_branch(const Shape& shape, Block& block, std::string_view branch, NormPlacement placement);
inline void end_branch(const Shape& shape, Block& block, std::string_view branch) {
  end_branch(shape, block, branch, shape.model->norm_placement);
}

// What `readers` parts of a branch read at its `start` gets a gradient of each, which autograd adds up.
void add_gradients(const Shape& shape, BlockStep& start, std::string_view branch, int readers);

// The backward kernel of a dropout of what a branch adds to the hidden states, or of these, and its mask.
void dropout_backward(const Shape& shape, BlockStep& step, std::string_view name, DType dtype);

}  // namespace ns_dist::blocks
