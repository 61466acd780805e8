// What each stage does during a step, coarse enough to draw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/units.h"

namespace ns_dist {

// What a stage did for how long: its own kernels, the communication that these waited for, and waiting for other
// stages.
struct StageTime {
  std::array<Seconds, kCategoryCount> by_category{};
  Seconds idle;
  Seconds of(Category category) const { return by_category[static_cast<std::size_t>(category)]; }
  Seconds total() const { return std::accumulate(by_category.begin(), by_category.end(), idle); }
};

// One pass or one wait; or several of them, if they are too short to be drawn alone.
struct OutlinePiece {
  Seconds start, end;            // on the outline's axis
  std::int32_t microbatch = -1;  // of a pass; -1: a wait, or no pass alone
  StageTime time;                // sums to end - start
};

// At time `at`, the outline leaves out `copies` repetitions of the part of `length` before it.
struct OutlineCut {
  Seconds at, length;
  std::int64_t copies = 0, microbatches = 0;  // microbatches: of one repetition
};

struct StepOutline {
  Seconds length;                                 // of the axis: the step without the repetitions that are left out
  std::vector<OutlineCut> cuts;                   // in order; none where nothing repeats
  std::vector<std::vector<OutlinePiece>> stages;  // each from 0 to `length` without gaps
};

}  // namespace ns_dist
