#include "stage_chunks.h"

#include <algorithm>
#include <utility>

namespace ns_dist {
namespace {

void add(ChunkBytes& chunk, const KeptBytes& kept, std::int64_t count) {
  chunk.after_forward += kept.after_forward * static_cast<double>(count);
  chunk.after_input_gradient += kept.after_input_gradient * static_cast<double>(count);
}

// Of `count` layers from a chunk's layer `before` on, those that keep an input: each, or the first of as many as are
// recomputed at one time.
std::int64_t inputs_of(const ParallelPlan& plan, std::int64_t before, std::int64_t count) {
  if (plan.recompute != Recompute::kFull) return count;
  const std::int64_t each = plan.recompute_together;
  return (before + count + each - 1) / each - (before + each - 1) / each;
}

// `working`: bytes on top of what is kept while its backward pass runs.
void add_loss(const ParallelPlan& plan, const ModelPart& part, std::int64_t count, double working, ChunkBytes& chunk) {
  add(chunk, part.kept, count);
  chunk.loss += part.kept.after_forward * static_cast<double>(count);
  chunk.logged = std::max(chunk.logged, part.logged);
  // A forward pass alone works on what it would keep, and keeps nothing for a further loss.
  if (plan.passes == Passes::kForward) {
    chunk.loss_forward = std::max(chunk.loss_forward, part.working - part.kept.after_forward);
  } else {
    chunk.loss_forward = std::max(chunk.loss_forward, part.transient);
    chunk.loss_backward = std::max(chunk.loss_backward, working);
  }
}

// All but what they keep.
void add_layers(const ParallelPlan& plan, const ModelPart& part, std::int64_t layers, double working,
                StageChunks& stage, ChunkBytes& chunk) {
  const auto count = static_cast<double>(layers);
  if (plan.kv_cache) stage.cached += part.cached * count;
  chunk.working = std::max(chunk.working, working);
  stage.largest_parameters = std::max(stage.largest_parameters, part.parameters.total());
  stage.largest_of_replicas = std::max(stage.largest_of_replicas, replicated(part.parameters, plan).total());
  stage.largest_held = std::max(stage.largest_held, part.parameters.total() + part.frozen.total());
  stage.layer_parameters += part.parameters.total() * count;
  stage.layer_frozen += part.frozen.total() * count;
  const double gathered = gathered_parameters(plan, part.parameters, part.frozen);
  stage.largest_gathered = std::max(stage.largest_gathered, gathered);
  stage.layer_gathered += gathered * count;
}

}  // namespace

void StageChunks::add_away(std::size_t chunk, double bytes, double count) {
  away.resize(chunks.size());
  away[chunk].after_forward += count;
  if (bytes > most_kept) {
    next_kept = std::exchange(most_kept, bytes);
    largest_away.clear();
  }
  if (bytes < most_kept) {
    next_kept = std::max(next_kept, bytes);
    return;
  }
  largest_away.resize(chunks.size());
  largest_away[chunk].after_forward += count;
}

double gathered_parameters(const ParallelPlan& plan, const RankParameters& trained, const RankParameters& frozen) {
  const bool experts = has_fp32_shards(plan) || offloads_weights(plan) || sharing_replicas(plan, true) > 1;
  return trained.dense + frozen.dense + (experts ? trained.experts + frozen.experts : 0);
}

std::vector<StageChunks> kept_by_stage(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                       const ModelParts& parts) {
  const ParallelPlan& plan = *shape.plan;
  std::vector<StageChunks> stages(static_cast<std::size_t>(plan.pp));
  const bool splits = traits_of(plan).splits_backward;
  // The loss's gradients of a table that it shares are with its other ones.
  const bool shares_table = plan.pp == 1 && shape.model->ties_logits() && !freezes_tables(plan);
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      const auto chunk = static_cast<std::size_t>(direction[position].chunk);
      StageChunks& stage = stages[static_cast<std::size_t>(direction[position].stage)];
      stage.chunks.resize(std::max(stage.chunks.size(), chunk + 1));
      RankParameters trained;
      const std::int64_t frozen = frozen_layers_of(plan, layers[position]);
      for (const PartRun& run : part_runs(parts, plan, layers, position)) {
        const ModelPart& part = parts[run.part];
        trained += part.parameters * static_cast<double>(run.count);
        if (run.part == Part::kLoss && position > 0 && shares_table) trained.dense += shape.table();
        double working = splits ? part.working_of_split : part.working;
        if (run.part == Part::kLoss || run.part == Part::kPredictionLoss) {
          add_loss(plan, part, run.count, working, stage.chunks[chunk]);
          continue;
        }
        if (is_frozen(plan, run.part)) {
          stage.chunks[chunk].frozen = std::max(stage.chunks[chunk].frozen, part.transient);
        } else if (run.part >= Part::kLayers) {
          const std::int64_t before = run.layer - layers[position].first - frozen;
          const std::int64_t away = std::clamp<std::int64_t>(plan.offload_activations - before, 0, run.count);
          const std::int64_t inputs = inputs_of(plan, before, run.count), inputs_away = inputs_of(plan, before, away);
          stage.chunks[chunk].after_forward += part.kept.after_forward * static_cast<double>(inputs - inputs_away);
          stage.chunks[chunk].after_input_gradient += part.kept.after_input_gradient * static_cast<double>(run.count);
          if (inputs_away > 0) stage.add_away(chunk, part.kept.after_forward, static_cast<double>(inputs_away));
          const std::int64_t others = std::min(plan.recompute_together, layers[position].count - frozen) - 1;
          if (plan.recompute == Recompute::kFull && plan.passes != Passes::kForward)
            working += part.whole * static_cast<double>(others);
        } else {
          add(stage.chunks[chunk], part.kept, run.count);
        }
        if (run.part != Part::kEmbedding) add_layers(plan, part, run.count, working, stage, stage.chunks[chunk]);
      }
      stage.largest_chunk = std::max(stage.largest_chunk, replicated(trained, plan).total());
    }
  }
  return stages;
}

}  // namespace ns_dist
