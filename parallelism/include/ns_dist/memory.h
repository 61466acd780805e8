// What a plan keeps in the memory of each pipeline stage's GPUs.
//
// Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), eq. 1-6, by tensor so that grouped queries,
// gated MLPs, experts and flash attention are covered by the same sums.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/plan_memory.h"
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

// Errors: those of check_plan and divide_layers, or a schedule that cannot run this shape.
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training);
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training,
                                   PlanMemory& memory);

}  // namespace ns_dist
