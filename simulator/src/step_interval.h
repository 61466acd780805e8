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
};
Unexplained unexplained(const Scenario& scenario);

// The 90 % interval of the step: the path's own deviations, and what they do not explain, as independent errors.
Interval step_interval(const Scenario& scenario, Seconds step, const Interval& path);

}  // namespace ns_dist
