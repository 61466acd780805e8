// How far a measured step may lie from the forecast.
#pragma once

#include <string_view>

#include "ns_dist/report.h"

namespace ns_dist {

// What kernels and collectives do not explain of a measured step, as shares of the forecast: framework overhead,
// jitter, kernels that the plan does not know, routing that is not even.
struct Unexplained {
  std::string_view situation;
  double below = 0, above = 0;
  double between = 0;  // of the difference of two plans, as a share of the longer step: each plan errs by itself, too
};
Unexplained unexplained(const Scenario& scenario);

// `path`: the 90 % interval of the critical path.
IntervalParts interval_parts(const Scenario& scenario, Seconds step, const Interval& path);
// The 90 % interval of the step: both parts, as independent errors.
Interval step_interval(Seconds step, const IntervalParts& parts);

}  // namespace ns_dist
