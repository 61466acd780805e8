// The memory that a plan needs on a GPU of each pipeline stage.
//
// Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), eq. 1-6. They are counted tensor by tensor, so grouped
// queries, gated MLPs, experts and flash attention are covered.
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

// Memory of a GPU of each stage. peak(), reserved() and device() are what tools show on a GPU of the fullest stage;
// peak() is PyTorch's max_memory_allocated.
struct MemoryBudget {
  std::vector<StageMemory> stages;
  std::int64_t peak_stage = 0;
  Bytes peak() const { return stages.empty() ? Bytes() : stages[static_cast<std::size_t>(peak_stage)].total(); }
  // max_memory_reserved: blocks that the caching allocator cannot give back. 3 to 8 %, the middle of 22 plans of which
  // both figures are published (SimuMax v1.2, B200 release table).
  Bytes reserved() const { return 1.05 * peak(); }
  // nvidia-smi: with the CUDA context and NCCL's own buffers, which PyTorch does not count; 0.5 to 1.5 GiB on A100 and
  // H100.
  Bytes device() const { return stages.empty() ? Bytes() : reserved() + 1.0 * units::GiB; }
};

// Errors: those of check_plan and divide_layers, or a schedule that cannot run this shape.
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training);
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training,
                                   PlanMemory& memory);

// A lower bound of memory_budget(...).peak(), whatever the schedule, the number of chunks and of microbatches: when the
// first microbatch reaches the end of the model, the stages together hold all of its activations, and every parameter
// at least once. For plans that pass check_plan.
Bytes least_memory(const Model& model, const ParallelPlan& plan, const Training& training, PlanMemory& memory);

}  // namespace ns_dist
