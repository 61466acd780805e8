// How tokens come to experts and back.
#pragma once

#include "blocks/local_experts.h"

namespace ns_dist::blocks {

// From tokens to rows of experts: two steps, with `beside` beside the exchange. Where each rank gets a token once, the
// exchange sends the tokens themselves, and rows are made behind it (Megatron-Core, token_dispatcher.py,
// _DeepepManager).
BlockStep send_rows(const Shape& shape, const LocalExperts& size, Beside beside);
BlockStep receive_rows(const Shape& shape, const LocalExperts& size, Beside beside);
// From rows of experts to the weighted sum of each token. Where each rank gets a token once, the exchange itself adds
// the sums of ranks and nodes.
BlockStep combine(const Shape& shape, const LocalExperts& size);

// The same of experts_in_one_kernel: rows sorted by expert, and weighted in fp32.
BlockStep take_rows(const Shape& shape, const LocalExperts& size);
BlockStep sum_rows(const Shape& shape, const LocalExperts& size);

}  // namespace ns_dist::blocks
