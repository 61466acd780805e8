// What a plan keeps in the memory of each pipeline stage's GPUs.
//
// Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), eq. 1-6, told apart by tensor so that grouped queries,
// gated MLPs, experts and flash attention are covered by the same sums.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct StageMemory {
  Bytes weights, gradients, optimizer, activations, other;  // other: communication buffers, workspace, framework
  Bytes total() const { return weights + gradients + optimizer + activations + other; }
};

struct MemoryBudget {
  std::vector<StageMemory> stages;
  std::int64_t peak_stage = 0;
  Bytes peak() const { return stages.empty() ? Bytes() : stages[static_cast<std::size_t>(peak_stage)].total(); }
};

// The layers of each stage's chunks: layers_of[stage][chunk] = {first layer, count}.
struct LayerRange {
  std::int64_t first = 0, count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
// Errors: schedules with several chunks need pp * vpp to divide the layers; a single chunk takes any split, the first
// stages getting one layer more.
Result<std::vector<std::vector<LayerRange>>> split_layers(const Model& model, const ParallelPlan& plan);

// Activation bytes of one transformer layer for one microbatch on one rank (Korthikanti eq. 1, 2, 4 and table 2).
Bytes layer_activations(const Model& model, const ParallelPlan& plan, const Training& training, std::int64_t layer);

Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training);

}  // namespace ns_dist
