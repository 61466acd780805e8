// The step of a plan as a graph.
#pragma once

#include "ns_dist/planner.h"

namespace ns_dist {

// Every pass of every microbatch, written out. Errors: those of plan_program.
inline Result<ExecutionGraph> planned_graph(const Model& model, const ParallelPlan& plan, const Training& training) {
  return plan_program(model, plan, training).map([](const StepProgram& program) { return expand(program).graph; });
}

}  // namespace ns_dist
