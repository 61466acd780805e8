// What mixers without attention have in common: one projection makes all that they read, another ends them.
#pragma once

#include <cstdint>
#include <string_view>

#include "blocks/linear.h"

namespace ns_dist::blocks {

// The start of the branch and the projection ("mamba.in_proj"), of which `in` tells what is the mixer's own: outputs,
// readers, products, who updates it.
void begin_mixer(const Shape& shape, Block& block, std::string_view branch, Linear in);
// The projection of `channels` to the hidden states ("mamba.out_proj") and the end of the branch.
void end_mixer(const Shape& shape, Block& block, std::string_view branch, std::int64_t channels);

}  // namespace ns_dist::blocks
