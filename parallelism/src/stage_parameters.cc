#include "stage_parameters.h"

#include <algorithm>

namespace ns_dist {

std::optional<std::int64_t> second_table_stage(const Shape& shape, const std::vector<Seat>& direction,
                                               std::span<const LayerRange> layers) {
  if (shape.model->ties_logits()) return direction.back().stage;
  for (std::size_t position = 0; position < direction.size(); ++position) {
    if (shape.prediction_layers > 0 && layers[position].predictions > 0) return direction[position].stage;
  }
  return std::nullopt;
}

bool reads_one_table(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers) {
  return shape.plan->pp > 1 && std::all_of(seats.begin(), seats.end(), [&](const std::vector<Seat>& direction) {
           const auto again = second_table_stage(shape, direction, layers);
           const auto reads_first = [&](const std::vector<Seat>& other) { return other.front().stage == *again; };
           return !again || std::any_of(seats.begin(), seats.end(), reads_first);
         });
}

RankParameters part_parameters(const Shape& shape, const ModelParts& parts, Part part, bool one_table,
                               RankParameters ModelPart::*which) {
  RankParameters held = parts[part].*which;
  const bool has_tables = (which == &ModelPart::frozen) == freezes_tables(*shape.plan);
  if (!one_table || !has_tables) return held;
  const bool tied = shape.model->ties_logits();
  if (part == Part::kLoss && tied) held.dense -= shape.table();
  if (part == Part::kPrediction && !tied) held.dense -= shape.table() / static_cast<double>(shape.prediction_layers);
  return held;
}

std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts, RankParameters ModelPart::*which) {
  const bool one_table = reads_one_table(shape, seats, layers);
  std::vector<RankParameters> held(static_cast<std::size_t>(shape.plan->pp));
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      RankParameters& stage = held[static_cast<std::size_t>(direction[position].stage)];
      for_each_run(parts, *shape.plan, layers, position, [&](const PartRun& run) {
        stage += part_parameters(shape, parts, run.part, one_table, which) * static_cast<double>(run.count);
      });
    }
  }
  return held;
}

std::vector<MatrixShares> stage_shares(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                       const ModelParts& parts) {
  const ParallelPlan& plan = *shape.plan;
  std::vector<MatrixShares> shares(static_cast<std::size_t>(plan.pp));
  if (plan.optimizer != OptimizerKind::kMuon || plan.passes != Passes::kTraining) return shares;
  std::vector<Matrices> held(shares.size());
  std::vector<std::int64_t> count(shares.size());
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      const auto stage = static_cast<std::size_t>(direction[position].stage);
      const LayerRange& range = layers[position];
      count[stage] += range.count - frozen_layers_of(plan, range) + range.predictions;
      for_each_run(parts, plan, layers, position,
                   [&](const PartRun& run) { add(parts[run.part].matrices, run.count, held[stage]); });
    }
  }
  const std::int64_t layer_experts = shape.model->moe ? shape.model->moe->experts / plan.ep : 0;
  for (std::size_t stage = 0; stage < held.size(); ++stage) {
    const bool alike = stage > 0 && held[stage] == held[stage - 1] && count[stage] == count[stage - 1];
    shares[stage] = alike ? shares[stage - 1] : share_matrices(held[stage], plan, count[stage], layer_experts);
  }
  return shares;
}

}  // namespace ns_dist
