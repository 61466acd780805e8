// Where the time of a program's step goes, read off the history of its event queue.
#pragma once

#include <cstdint>
#include <vector>

#include "clocks/program_queue.h"
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
};

// `queue` has run with Options::record.
StepAnalysis analyze(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, Seconds step);

}  // namespace ns_dist
