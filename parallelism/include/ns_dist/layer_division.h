// Which layers lie at which position of the pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/result.h"

namespace ns_dist {

struct LayerRange {
  std::int64_t first = 0, count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// The layers of each position of `seats` (positions of all directions hold the same layers). Layers are divided evenly;
// where that leaves a rest, the first positions get one layer more. ParallelPlan says otherwise with first_stage_layers
// and last_stage_layers (the layers of the stage that holds the embedding and of the one that holds the loss, spread
// over their chunks; Megatron-LM, --decoder-first-pipeline-num-layers) and with account_embedding and account_loss (the
// embedding or the loss counts as a layer, so that its position has one less; Megatron-LM,
// --account-for-embedding-in-pipeline-split).
// Errors: more positions than layers; stages whose own sizes leave nothing, or less than nothing, for the others.
Result<std::vector<LayerRange>> divide_layers(const Model& model, const ParallelPlan& plan, const Seats& seats);

}  // namespace ns_dist
