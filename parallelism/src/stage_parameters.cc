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
  return std::all_of(seats.begin(), seats.end(), [&](const std::vector<Seat>& direction) {
    const auto again = second_table_stage(shape, direction, layers);
    const auto reads_first = [&](const std::vector<Seat>& other) { return other.front().stage == *again; };
    return !again || std::any_of(seats.begin(), seats.end(), reads_first);
  });
}

std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts, RankParameters ModelPart::*which) {
  std::vector<RankParameters> held(static_cast<std::size_t>(shape.plan->pp));
  std::vector<bool> first(held.size(), false), again(held.size(), false);
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      RankParameters& stage = held[static_cast<std::size_t>(direction[position].stage)];
      for_each_run(parts, *shape.plan, layers, position,
                   [&](const PartRun& run) { stage += parts[run.part].*which * static_cast<double>(run.count); });
    }
    first[static_cast<std::size_t>(direction.front().stage)] = true;
    if (const auto stage = second_table_stage(shape, direction, layers)) again[static_cast<std::size_t>(*stage)] = true;
  }
  const bool tables = (which == &ModelPart::frozen) == (shape.plan->lora_rank > 0);
  const double table = static_cast<double>(shape.vocabulary) * static_cast<double>(shape.hidden);
  for (std::size_t stage = 0; stage < held.size(); ++stage) {
    if (tables && first[stage] && again[stage] && shape.plan->pp > 1) held[stage].dense -= table;
  }
  return held;
}

}  // namespace ns_dist
