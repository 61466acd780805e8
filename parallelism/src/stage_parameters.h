// The parameters that one rank of each pipeline stage holds.
#pragma once

#include <span>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "shape.h"

namespace ns_dist {

// By stage: the parameters of all its chunks that are trained, or those that are frozen. A stage that holds both ends
// of the model has one table for a tied projection or for multi-token prediction. `layers` by position.
std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts,
                                             RankParameters ModelPart::*which = &ModelPart::parameters);

}  // namespace ns_dist
