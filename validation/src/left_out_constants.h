// The constants of training steps, found anew without each publication.
#pragma once

#include <functional>
#include <span>

#include "ns_dist/catalog.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"
#include "published_runs.h"

namespace ns_dist {

struct JudgedRun {
  const CollectedRun* run = nullptr;
  Seconds measured;  // of its configuration
};

// For each publication: the constants that give the others their least error, and its own error with them. The least
// error is that of the mean over publications, over a grid of constants: no publication has more weight for its number
// of runs. A table; without rows where there are fewer than two publications. Errors: as step_time.
Result<SuiteTable> left_out_constants(std::span<const JudgedRun> runs, const Catalog& catalog,
                                      const std::function<void(double)>& progress);

}  // namespace ns_dist
