// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982): the kernels that
// update one weight matrix.
#pragma once

#include <vector>

#include "block.h"
#include "shape.h"
#include "weight_matrices.h"

namespace ns_dist {

// The momentum takes in the gradient, Newton-Schulz iterations make it near orthogonal, and the weights move along it
// (NVIDIA's Emerging-Optimizers, August 2026, orthogonalized_optimizer.py and muon_utils.py, which run in eager mode).
// Products are bf16; with m rows and n columns, m <= n, an iteration is 4 m^2 n + 2 m^3 FLOPs. `gradient`: in which the
// optimizer reads it; `weights`: in which it updates.
std::vector<Call> muon_update(const Shape& shape, const WeightMatrix& matrix, DType gradient, DType weights);

// The same of a matrix of which each of `ranks` ranks has a part (torchtitan, August 2026, dist_muon.py): each rank
// updates the momentum of its part, one rank gathers and orthogonalizes the whole, and each moves its part of the
// weights. What travels is fp32.
struct MuonParts {
  std::vector<Call> momentum, orthogonal, update;
};
MuonParts muon_parts(const Shape& shape, const WeightMatrix& matrix, std::int64_t ranks, DType gradient, DType weights);

}  // namespace ns_dist
