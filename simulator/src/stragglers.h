// Whether a scenario's stragglers are ranks of its plan.
#pragma once

#include "ns_dist/result.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

// Errors: a slow stage that the pipeline does not have, speeds of another number of stages; speeds, a factor or a
// launch cost out of range.
Result<void> check_stragglers(const Scenario& scenario);

}  // namespace ns_dist
