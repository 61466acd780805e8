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
    bool itself = false;  // the same GPU with another data sheet, or one that Gpu::like names
  };
  struct AsSold {
    Machine machine;
    Pace pace;
  };
  // The machine as the weights know it: one that runs kernels alike a measured one (data_sheet.h) has that one's id.
  Machine known;
  std::optional<std::size_t> measured;  // index of this GPU in the weights' GPUs
  std::optional<Nearest> nearest;       // where this GPU was not measured
  std::optional<AsSold> sold;           // a GPU of the catalog that was not measured and that somebody changed
};

ReferenceGpu reference_gpu(const PredictorWeights& weights, const Machine& machine);

}  // namespace ns_dist
