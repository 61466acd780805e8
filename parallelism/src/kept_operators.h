// Recomputation by operators (Recompute::kOperators).
#pragma once

#include "block.h"

namespace ns_dist {

// Sets BlockStep::repeated and kept_outputs of a layer's steps.
//
// torchtitan, torchtitan/distributed/activation_checkpoint.py: the forward pass keeps the layer's input and what these
// return: attention, reduce-scatters and all-to-alls, and products without the router's: the first, third, fifth, ...
// of the layer (_apply_op_sac, 2025), or each (SelectiveAC, 2026). All else runs again before the layer's backward
// pass, but for what nothing reads (as torch.compile does). Products in 8 bits, with a bias, grouped and batched ones
// are no aten.mm: they are neither counted nor kept.
void keep_operators(const Shape& shape, Block& layer);

}  // namespace ns_dist
