// From blocks to the fragments that an actor runs.
#pragma once

#include <array>
#include <span>

#include "block.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Turns calls into fragments of one program, whose work items it interns. Keeps references to `shape` and `works`.
class FragmentMaker {
 public:
  FragmentMaker(const Shape& shape, const Mesh& mesh, WorkTable& works);

  // The kernels of one pass through `block`. A backward or input-gradient pass runs again what recomputation dropped.
  // In a pass that computes one gradient alone, communication runs beside kernels only where Communication::beside says
  // so.
  Fragment pass(const Block& block, PassKind kind) const;
  // Kernels and communications one after the other. A communication of one rank is left out. `category` is that of
  // kernels.
  Fragment of(std::span<const Call> calls, Category category) const;
  Fragment of(const Call& call, Category category) const { return of(std::span(&call, 1), category); }

 private:
  const Shape* shape_;
  std::array<RankGroup, 6> groups_;  // by Axis
  WorkTable* works_;
};

// Two fragments of one program that run at the same time: one computes while the other communicates. `first` starts.
// A fragment hands over when its next kernel waits for a communication that was started since its turn began.
Fragment beside(const Fragment& first, const Fragment& second);

// The nodes of `from` behind those of `made`; `last_kernel` is the one before them.
void append(const Fragment& from, std::int32_t last_kernel, Fragment& made);

}  // namespace ns_dist
