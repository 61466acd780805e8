// The pipeline of a plan: its schedule, and what that makes of this number of stages and microbatches.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ns_dist/layer_division.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/planner.h"
#include "shape.h"
#include "stage_passes.h"

namespace ns_dist {

struct Pipeline {
  std::shared_ptr<const StagePasses> passes;
  std::vector<LayerRange> layers;  // by position
};

// Errors: those of check_plan, which asks for nothing else.
Result<Pipeline> pipeline_of(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache);

// Whether replicas hold different parts of what the optimizer updates.
inline bool shards_optimizer(const ParallelPlan& plan) { return plan.zero != ZeroStage::kNone && has_replicas(plan); }
// The gradient norm is summed over the ranks that hold different parts of the model, or of what the optimizer updates:
// their dimensions, as in mesh_of.
struct NormRanks {
  std::vector<std::string_view> axes;
  std::int64_t count = 1;
};
inline NormRanks norm_ranks(const ParallelPlan& plan) {
  NormRanks ranks;
  const auto add = [&](std::string_view axis, std::int64_t size) {
    if (size == 1) return;
    ranks.axes.push_back(axis);
    ranks.count *= size;
  };
  if (plan.passes != Passes::kTraining) return ranks;
  add("tp", plan.tp);
  add("pp", plan.pp);
  if (!shards_optimizer(plan) && plan.ep == 1) return ranks;
  add("cp", plan.cp);
  add("dp", plan.dp);
  return ranks;
}

}  // namespace ns_dist
