// Which measured GPU a forecast refers to: this GPU itself, or the one nearest to it.
#pragma once

#include <optional>

#include "machine.h"
#include "weights.h"

namespace ns_dist {

struct ReferenceGpu {
  struct Nearest {
    Machine machine;
    Neighbor neighbor;  // `index` in the weights' GPUs
    Pace pace;
    bool itself = false;  // a GPU of the same id with another data sheet
  };
  std::optional<std::size_t> measured;  // index of this GPU in the weights' GPUs
  std::optional<Nearest> nearest;       // where this GPU was not measured

  // The index of either; nothing where the weights name no usable GPU.
  std::optional<std::size_t> index() const {
    if (measured) return measured;
    return nearest ? std::optional(nearest->neighbor.index) : std::nullopt;
  }
};

ReferenceGpu reference_gpu(const PredictorWeights& weights, const Machine& machine);

}  // namespace ns_dist
