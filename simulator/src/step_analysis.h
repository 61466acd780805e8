// Where the time of a program's step goes, read off the history of its event queue.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "clocks/program_queue.h"
#include "ns_dist/outline.h"
#include "ns_dist/report.h"

namespace ns_dist {

// How often a work is on the critical path, and what it took there altogether.
struct PathWork {
  std::uint32_t row = 0;  // of ProgramCosts
  WorkId work{};
  std::int64_t count = 0;
  Seconds seconds;
};

struct StepAnalysis {
  Breakdown breakdown;
  std::vector<PathWork>
      path;             // the chain of works that wait for one another, from the beginning to the end of the step
  Seconds path_length;  // equals the step
  StepOutline outline;  // where it was asked for
};

// `queue` has run with Options::record. `pieces`: see outline(); 0: no outline.
StepAnalysis analyze(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, Seconds step,
                     std::size_t pieces = 0);

// The step and its analysis; nothing when the step takes too many events. Parts that do not sum to the step, as the
// history of a folded step may rarely give, are read off the unfolded one instead.
struct AnalyzedStep {
  Seconds step;
  Folding folding;
  StepAnalysis analysis;
  bool analyzed_unfolded = false;
};
std::optional<AnalyzedStep> run_and_analyze(const StepProgram& program, const ProgramCosts& costs,
                                            ProgramQueue::Options options, std::size_t pieces = 0);

}  // namespace ns_dist
