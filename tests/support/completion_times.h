// Flows that start and end: max-min fair rates (ns_dist/fair_sharing.h) between one event and the next, for comparing
// with simulators that report when each transfer ends.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "ns_dist/fair_sharing.h"

namespace ns_dist::test {

struct TimedFlow : SharedFlow {
  Bytes size;
  Seconds start;
};

// When each flow ends. Errors: those of max_min_rates, and a size or a start that is negative or not finite.
inline Result<std::vector<Seconds>> completion_times(std::span<const BytesPerSecond> capacities,
                                                     std::span<const TimedFlow> flows) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> left;
  for (const TimedFlow& flow : flows) {
    for (const double value : {flow.size.in_base(), flow.start.in_base()}) {
      if (!(value >= 0) || value == kInfinity) {
        return fail({ErrorCode::kInvalidInput, "a flow of impossible size or start", ""});
      }
    }
    left.push_back(flow.size.in_base());
  }
  std::vector<std::size_t> waiting(flows.size()), active;
  for (std::size_t f = 0; f < flows.size(); ++f) waiting[f] = f;
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](std::size_t a, std::size_t b) { return flows[a].start < flows[b].start; });
  std::vector<Seconds> ends(flows.size());
  double now = 0;
  std::size_t next = 0;
  while (next < waiting.size() || !active.empty()) {
    if (active.empty()) now = std::max(now, flows[waiting[next]].start.in_base());
    while (next < waiting.size() && flows[waiting[next]].start.in_base() <= now) active.push_back(waiting[next++]);
    std::vector<SharedFlow> running;
    for (const std::size_t f : active) running.push_back(flows[f]);
    NS_TRY(const std::vector<BytesPerSecond> rates, max_min_rates(capacities, running));
    const auto end_of = [&](std::size_t i) { return now + left[active[i]] / rates[i].in_base(); };
    double event = next < waiting.size() ? flows[waiting[next]].start.in_base() : kInfinity;
    for (std::size_t i = 0; i < active.size(); ++i) event = std::min(event, end_of(i));
    constexpr double kNothing = 1e-12;  // of the flow's size: what rounding leaves
    std::vector<std::size_t> still;
    for (std::size_t i = 0; i < active.size(); ++i) {
      const std::size_t f = active[i];
      left[f] = end_of(i) <= event ? 0 : left[f] - (event - now) * rates[i].in_base();
      if (left[f] <= kNothing * flows[f].size.in_base()) {
        ends[f] = event * units::s;
      } else {
        still.push_back(f);
      }
    }
    active = std::move(still);
    now = event;
  }
  return ends;
}

}  // namespace ns_dist::test
