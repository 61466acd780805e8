#include "step_difference.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "step_interval.h"

namespace ns_dist {

Interval path_difference(std::span<const PathEntry> from, std::span<const PathEntry> to, double times) {
  struct Deviation {
    double below = 0, above = 0;
  };
  std::map<std::string_view, Deviation> families;
  // What decides them, such as the route of transfers over PCIe, makes all of these collectives long, or all short.
  std::set<std::string_view> by_route;  // kinds
  for (const auto& path : {from, to}) {
    for (const PathEntry& entry : path) {
      const bool is_collective = enumerator_from_name<CollectiveKind>(entry.kind).has_value();
      if (is_collective && entry.name != kHiddenWork && differs_between_machines(entry.forecast))
        by_route.insert(entry.kind);
    }
  }
  const auto family_of = [&](std::string_view kind) { return by_route.contains(kind) ? "one route" : kind; };
  const auto add = [&](std::span<const PathEntry> path, double sign) {
    for (const PathEntry& entry : path) {
      const double count = sign * static_cast<double>(entry.count);
      Deviation& family = families[family_of(entry.kind)];
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

namespace {

Interval step_difference(const Unexplained& rest, const Prediction& from, const Prediction& to, double times) {
  const Seconds difference = times * to.step - from.step;
  const Interval paths = path_difference(from.critical_path, to.critical_path, times);
  // What lies outside the model lengthens both steps in the same proportion.
  const double longer = difference > Seconds() ? rest.above : rest.below;
  const double shorter = difference > Seconds() ? rest.below : rest.above;
  const double between = rest.between * (max(from.step, times * to.step) / units::s);
  const double below = std::hypot(paths.low / units::s, shorter * (difference / units::s), between);
  const double above = std::hypot(paths.high / units::s, longer * (difference / units::s), between);
  return {difference - below * units::s, difference + above * units::s};
}

Interval step_interval(const Scenario& scenario, const Prediction& prediction) {
  return step_interval(prediction.step,
                       interval_parts(scenario, prediction.step, path_interval(prediction.critical_path)));
}

// Whether the forecasts of two steps have their errors in common.
bool err_together(const Scenario& one, const Scenario& other) {
  return one.model == other.model && one.cluster.gpu == other.cluster.gpu && one.framework == other.framework &&
         one.kernel_calibration == other.kernel_calibration && one.network.calibration == other.network.calibration;
}

}  // namespace

Interval step_difference(const Scenario& scenario, const Prediction& from, const Prediction& to) {
  return step_difference(unexplained(scenario), from, to, 1);
}

Interval machine_difference(const Scenario& scenario, const Prediction& from, const Prediction& to) {
  Unexplained rest = unexplained(scenario);
  rest.between = 0;
  return step_difference(rest, from, to, 1);
}

static std::int64_t gpus_of(const Scenario& scenario) { return rank_count(scenario.plan).value_or(0); }

StepDifference compare(const Scenario& from, const Prediction& one, const Scenario& to, const Prediction& other,
                       double weight) {
  const double steps = tokens_of_step(from.training) / tokens_of_step(to.training), times = weight * steps;
  StepDifference found;
  found.from = one.step, found.steps = steps;
  found.longer = times * other.step - one.step;
  found.share = found.longer / one.step;
  found.from_gpus = gpus_of(from), found.gpus = gpus_of(to);
  for (const BreakdownPart& part : kBreakdownParts) {
    found.parts.*part.seconds = times * (other.breakdown.*part.seconds) - one.breakdown.*part.seconds;
  }
  if (err_together(from, to)) {
    Unexplained rest = unexplained(to);
    if (from.plan == to.plan && from.training == to.training) rest.between = 0;
    const Interval difference = step_difference(rest, one, other, times);
    found.low = difference.low, found.high = difference.high;
    found.share_low = found.low / one.step, found.share_high = found.high / one.step;
    return found;
  }
  const Interval before = step_interval(from, one), after = step_interval(to, other);
  const double below = std::hypot(times * (other.step - after.low) / units::s, (before.high - one.step) / units::s);
  const double above = std::hypot(times * (after.high - other.step) / units::s, (one.step - before.low) / units::s);
  found.low = found.longer - below * units::s, found.high = found.longer + above * units::s;
  const auto log_ratio = [](Seconds step, Seconds end) { return std::log(end / step); };
  const double less = std::hypot(log_ratio(other.step, after.low), log_ratio(one.step, before.high));
  const double more = std::hypot(log_ratio(other.step, after.high), log_ratio(one.step, before.low));
  found.share_low = (1 + found.share) * std::exp(-less) - 1;
  found.share_high = (1 + found.share) * std::exp(more) - 1;
  return found;
}

Result<StepDifference> compare(const Scenario& from, const Scenario& to, const Session& session) {
  NS_TRY(const Session before, Session::make(from));
  NS_TRY(const Prediction one, predict(from, before));
  NS_TRY(const Prediction other, predict(to, session));
  return compare(from, one, to, other);
}

}  // namespace ns_dist
