// Weights, gradients and optimizer state of one pipeline stage on a rank.
#pragma once

#include <cstdint>

#include "ns_dist/memory.h"
#include "shape.h"
#include "stage_chunks.h"
#include "stage_parameters.h"

namespace ns_dist {

class StageState {
 public:
  // Of `trained` and `frozen` parameters, which, like all else, must outlive it. `layers` tells those of layers,
  // `shares` those of matrices.
  StageState(const Shape& shape, const RankParameters& trained, const RankParameters& frozen, const StageChunks& layers,
             const MatrixShares& shares);

  // Beside the activations of `used`, in a step of so many microbatches. `detail`: where it is asked for.
  void add_to(StageMemory& used, std::int64_t microbatches, StageMemoryDetail* detail = nullptr) const;

 private:
  void add_weights(StageMemory& used, StageMemoryDetail* detail) const;
  void add_gradients(StageMemory& used, std::int64_t microbatches, StageMemoryDetail* detail) const;
  void add_copies_of_gradients(StageMemory& used) const;
  void add_optimizer(StageMemory& used) const;
  Bytes beyond_activations(Bytes sums, Bytes activations) const;

  const Shape& shape_;
  const ParallelPlan& plan_;
  const RankParameters &trained_, &frozen_;
  const StageChunks& layers_;
  const MatrixShares& shares_;
  BytesPerParameter each_;
  double updated_ = 0;  // parameters that this rank updates
  double padding_ = 0;  // parameters that matrices are padded with
  double whole_ = 0;    // trained parameters that are whole on this rank where ranks share the rest
};

}  // namespace ns_dist
