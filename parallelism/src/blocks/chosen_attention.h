// Latent attention to chosen keys.
#pragma once

#include "blocks/common.h"

namespace ns_dist::blocks {

// Appends what stands between the latents of latent attention and its output projection where the model has an indexer.
void chosen_latent_core(const Shape& shape, Block& block);

}  // namespace ns_dist::blocks
