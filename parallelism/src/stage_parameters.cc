#include "stage_parameters.h"

#include <algorithm>

namespace ns_dist {

std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts) {
  const std::int64_t dense = dense_layers(*shape.model);

  std::vector<RankParameters> held(static_cast<std::size_t>(shape.plan->pp));
  std::vector<bool> first(held.size(), false), last(held.size(), false);
  for (const std::vector<Seat>& direction : seats) {
    for (std::size_t position = 0; position < direction.size(); ++position) {
      RankParameters& stage = held[static_cast<std::size_t>(direction[position].stage)];
      const LayerRange& range = layers[position];
      const std::int64_t below = std::clamp<std::int64_t>(dense - range.first, 0, range.count);
      stage += parts[Part::kDenseLayer].parameters * static_cast<double>(below);
      stage += parts[Part::kMoeLayer].parameters * static_cast<double>(range.count - below);
    }
    first[static_cast<std::size_t>(direction.front().stage)] = true;
    last[static_cast<std::size_t>(direction.back().stage)] = true;
  }
  const double table = static_cast<double>(shape.vocabulary) * static_cast<double>(shape.hidden);
  for (std::size_t stage = 0; stage < held.size(); ++stage) {
    if (first[stage]) held[stage] += parts[Part::kEmbedding].parameters;
    if (last[stage]) held[stage] += parts[Part::kLoss].parameters;
    if (first[stage] && last[stage] && shape.model->tied_embeddings && shape.plan->pp > 1) held[stage].dense -= table;
  }
  return held;
}

}  // namespace ns_dist
