// Which layers lie at which position of the pipeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/result.h"

namespace ns_dist {

struct LayerRange {
  std::int64_t first = 0, count = 0;
  std::int64_t predictions = 0;  // layers for multi-token prediction, where they are trained
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
// How many of these are frozen: the first ones. Those that the plan recomputes, or that the host keeps, are counted
// from the layer behind them on.
constexpr std::int64_t frozen_layers_of(const ParallelPlan& plan, const LayerRange& range) {
  return std::clamp<std::int64_t>(frozen_layers_of(plan) - range.first, 0, range.count);
}

// The layers of each position of `seats` (positions of all directions hold the same layers). Layers are divided evenly;
// if there is a remainder, the first positions get one layer more. Four members of ParallelPlan change this.
// first_stage_layers and last_stage_layers: the layers of the stage with the embedding and of the stage with the loss,
// divided over their chunks (Megatron-LM, --decoder-first-pipeline-num-layers). account_embedding and account_loss: the
// embedding or the loss counts as one layer, so its position has one layer less (Megatron-LM,
// --account-for-embedding-in-pipeline-split).
// Layers for multi-token prediction are at the last position. pipeline_layout says for each position what it holds,
// and a position may be without layers then. So may the one of an embedding or of a loss that counts as a layer.
// Errors: more positions than counted_layers; first and last stages that leave no layers for the others; a layout that
// is none, or of other positions or layers.
Result<std::vector<LayerRange>> divide_layers(const Model& model, const ParallelPlan& plan, const Seats& seats);
// Of the plan's own schedule. Errors: an unknown schedule, too.
Result<std::vector<LayerRange>> divide_layers(const Model& model, const ParallelPlan& plan);

// Positions from the first on that no gradient is sent to: all that they hold is frozen. `layers` by position.
std::int64_t frozen_positions(const ParallelPlan& plan, std::span<const LayerRange> layers);

// What an even division counts: layers, and the embedding and the loss where the plan counts them as one.
std::int64_t counted_layers(const Model& model, const ParallelPlan& plan);
std::string counted_layers_text(const Model& model, const ParallelPlan& plan);  // "126 layers and the loss"

// Whether a layout, where there is one, can be read and has the model's layers: errors that do not depend on seats.
Result<void> check_layout(const Model& model, const ParallelPlan& plan);

// The stage with the loss: its layers, over how many chunks they are divided, and the positions of all stages. Nothing
// where layers cannot be divided.
struct LastStage {
  std::int64_t layers = 0, chunks = 0, positions = 0;
};
std::optional<LastStage> last_stage(const Model& model, const ParallelPlan& plan);
// Whether all chunks have as many layers, those of the first or the last stage where these are given: what
// Megatron-Core asks for where no layout is (transformer_block.py, get_num_layers_to_build). An embedding or a loss
// that takes the place of a layer is one.
bool divides_without_rest(const Model& model, const ParallelPlan& plan);

}  // namespace ns_dist
