// From blocks to the fragments that an actor runs.
#pragma once

#include "block.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Turns calls into fragments of one program, whose work items it interns.
class FragmentMaker {
 public:
  FragmentMaker(const Shape& shape, const Mesh& mesh, WorkTable& works);

  // The kernels of one pass through `block`. A backward or input-gradient pass runs again what recomputation dropped.
  Fragment pass(const Block& block, PassKind kind) const;
  // A kernel or a communication alone.
  Fragment of(const Call& call, Category category) const;

 private:
  const Shape* shape_;
  RankGroup tensor_group_, expert_group_;
  WorkTable* works_;
};

// Two fragments that run at the same time: one computes while the other communicates. Kernels take turns wherever one
// fragment waits for a communication.
Fragment beside(const Fragment& first, const Fragment& second);

}  // namespace ns_dist
