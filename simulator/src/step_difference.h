// How much longer one step takes than another. Both are forecast by the same models, so most errors cancel.
#pragma once

#include <span>

#include "ns_dist/report.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

// Whether the forecast of a collective differs that much between machines: by another route, for example.
inline bool differs_between_machines(const Forecast& forecast) {
  constexpr double kTimes = 2;  // as long, or as short, at an end of the interval
  return forecast.high > kTimes * forecast.latency || kTimes * forecast.low < forecast.latency;
}

// Of two critical paths, the second one gone `times` times: by how much the difference may be below (low) and above
// (high) its forecast. Both are positive.
Interval path_difference(std::span<const PathEntry> from, std::span<const PathEntry> to, double times = 1);

// step_difference (simulator.h) of one plan on a machine and on the same with a part changed: what no forecast explains
// lengthens both alike.
Interval machine_difference(const Scenario& scenario, const Prediction& from, const Prediction& to);

// The most that a change saves of a step of `step`, as a share of it, where it is forecast to save `saves` and may save
// `most`: by as much as it saves more than forecast, the step itself is longer than forecast.
inline double most_saved(Seconds step, Seconds saves, Seconds most) {
  return most / (most > Seconds() ? step + max(most - saves, Seconds()) : step);
}

}  // namespace ns_dist
