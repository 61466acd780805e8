// The pipeline of a plan: its schedule, and what that makes of this number of stages and microbatches.
#pragma once

#include <vector>

#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {

struct Pipeline {
  Seats seats;
  std::vector<LayerRange> layers;  // by position
  std::vector<PassList> orders;    // by stage
};

// Errors: those of check_plan, which asks for nothing else.
Result<Pipeline> pipeline_of(const Model& model, const ParallelPlan& plan, const Training& training);

}  // namespace ns_dist
