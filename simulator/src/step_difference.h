// How much longer one step takes than another. Both are forecast by the same models, so most errors cancel.
#pragma once

#include <span>

#include "ns_dist/report.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

// The 90 % interval of the difference of two steps of `scenario`'s model. Forecasts of one operator family err
// together, in both steps alike, and what no forecast explains lengthens both in the same proportion.
Interval step_difference(const Scenario& scenario, const Prediction& from, const Prediction& to);

// Of two critical paths: by how much the difference may be below (low) and above (high) its forecast. Both are
// positive.
Interval path_difference(std::span<const PathEntry> from, std::span<const PathEntry> to);

}  // namespace ns_dist
