// What stands between the projections of attention: the weighted sums of values, by one kernel or written out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "blocks/common.h"

namespace ns_dist::blocks {

// Key-value heads that this rank stores. Latent attention expands its latents to as many as there are queries.
inline std::int64_t key_heads(const Shape& shape) { return shape.model->mla ? shape.heads : shape.kv_heads; }

// The same where ranks exchange heads for tokens, of as many tokens: more ranks than heads have copies of them.
inline std::int64_t exchanged_key_heads(const Shape& shape) { return std::max(key_heads(shape), shape.cp_inner); }

// Adds the kernels of a fused core to `step`, those of each part of the keys under context parallelism, with what they
// keep.
void add_fused_attention(const Shape& shape, BlockStep& step);

// The same of a core that is written out: products, a softmax, and what else PyTorch runs between them.
void add_unfused_attention(const Shape& shape, BlockStep& step);

}  // namespace ns_dist::blocks
