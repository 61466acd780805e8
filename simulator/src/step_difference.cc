#include "step_difference.h"

#include <cmath>
#include <map>
#include <string_view>

namespace ns_dist {

Interval path_difference(std::span<const PathEntry> from, std::span<const PathEntry> to, double times) {
  struct Deviation {
    double below = 0, above = 0;
  };
  std::map<std::string_view, Deviation> families;
  const auto add = [&families](std::span<const PathEntry> path, double sign) {
    for (const PathEntry& entry : path) {
      const double count = sign * static_cast<double>(entry.count);
      Deviation& family = families[entry.kind];
      family.below += count * (entry.forecast.latency - entry.forecast.low).in_base();
      family.above += count * (entry.forecast.high - entry.forecast.latency).in_base();
    }
  };
  add(to, times);
  add(from, -1);
  double below = 0, above = 0;
  for (const auto& [name, family] : families) {
    // A family that is slower than forecast moves the difference by `above`, up or down.
    const double up = std::max({family.above, -family.below, 0.0}), down = std::max({family.below, -family.above, 0.0});
    above += up * up;
    below += down * down;
  }
  return {Seconds::from_base(std::sqrt(below)), Seconds::from_base(std::sqrt(above))};
}

}  // namespace ns_dist
