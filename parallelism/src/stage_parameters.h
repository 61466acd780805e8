// The parameters that one rank of each pipeline stage holds.
#pragma once

#include <span>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "shape.h"

namespace ns_dist {

// By stage: the layers of all its chunks, with the embedding where it holds the first position and the final norm and
// output projection where it holds the last. A stage that holds both has one table for a tied projection. `layers` by
// position.
std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts);

}  // namespace ns_dist
