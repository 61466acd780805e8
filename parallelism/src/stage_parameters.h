// The parameters that one rank of each pipeline stage holds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "shape.h"

namespace ns_dist {

// The stage that reads the embedding's table again, of one direction of `seats`: for a tied projection, or for
// multi-token prediction. Nothing where no stage does.
std::optional<std::int64_t> second_table_stage(const Shape& shape, const std::vector<Seat>& direction,
                                               std::span<const LayerRange> layers);

// Of several stages, whether each that reads the table again is one that reads it first, so that no stage has a copy.
bool reads_one_table(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers);
// The parameters of a part that are trained, or frozen. Where stages read one table, it is that of the part that reads
// it first.
RankParameters part_parameters(const Shape& shape, const ModelParts& parts, Part part, bool one_table,
                               RankParameters ModelPart::*which = &ModelPart::parameters);

// Of pipelines that train: whether two stages that hold the embedding's table sum its gradients, unless it is frozen,
// or mirrored stages sum those of all that they hold.
inline bool has_mirrors(const Seats& seats) { return seats.size() == 2; }
inline bool sums_tables(const ParallelPlan& plan, const Seats& seats) {
  return !freezes_tables(plan) && !has_mirrors(seats);
}

// By stage: the parameters of all its chunks that are trained, or those that are frozen. A stage that reads the table
// at both places has one. `layers` by position.
std::vector<RankParameters> stage_parameters(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                             const ModelParts& parts,
                                             RankParameters ModelPart::*which = &ModelPart::parameters);
// Of the matrices that the optimizer updates as wholes, by stage.
std::vector<MatrixShares> stage_shares(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                       const ModelParts& parts);

}  // namespace ns_dist
