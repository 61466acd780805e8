#include "correction.h"

#include <algorithm>
#include <cmath>

namespace ns_dist::network {

double knot_coordinate(double seconds) {
  const double x = kKnotsPerOctave * std::log2(seconds / kFirstKnot);
  return std::clamp(x, 0.0, static_cast<double>(kKnots - 1));
}

double time_at(double coordinate) { return kFirstKnot * std::exp2(coordinate / kKnotsPerOctave); }

double step_share(double coordinate, double position, double width) {
  return std::clamp((coordinate - position) / width + 0.5, 0.0, 1.0);
}

Correction::Correction(const Knots& log_ratio) : log_ratio_(log_ratio) {
  constexpr double kLn2 = 0.69314718055994531;
  constexpr double kSteepest = 0.98 * kLn2 / kKnotsPerOctave;  // a knot's distance in log time, less a little
  for (std::size_t k = 1; k < kKnots; ++k) log_ratio_[k] = std::max(log_ratio_[k], log_ratio_[k - 1] - kSteepest);
}

void Correction::add(const Step& step) {
  if (step_count_ < kMaxSteps && step.height > 0) steps_[step_count_++] = step;
}

double Correction::log_ratio(double seconds) const {
  const double x = knot_coordinate(seconds);
  const auto k = std::min(static_cast<std::size_t>(x), kKnots - 2);
  const double share = x - static_cast<double>(k);
  double ratio = log_ratio_[k] + share * (log_ratio_[k + 1] - log_ratio_[k]);
  for (std::size_t i = 0; i < step_count_; ++i)
    ratio += steps_[i].height * step_share(x, steps_[i].position, steps_[i].width);
  return ratio;
}

double Correction::apply(double seconds) const { return seconds * std::exp(log_ratio(seconds)); }

double Correction::apply(double seconds, double measured, double faster) const {
  double time = apply(seconds);
  if (measured == seconds) return time;
  // Links between those that were measured and these have modeled times between, as a latency and a transfer give them.
  // Of none of them are these more than proportionally faster or slower.
  const auto bound = [&](double between) {
    const double share = (between - seconds) / (measured - seconds);
    if (!(share > 0 && share <= 1)) return;
    const double there = apply(between) / (1 + (faster - 1) * share);
    time = faster > 1 ? std::max(time, there) : std::min(time, there);
  };
  bound(measured);
  for (std::size_t k = 0; k < kKnots; ++k) bound(time_at(static_cast<double>(k)));
  for (const Step& step : steps()) {
    bound(time_at(step.position - step.width / 2));
    bound(time_at(step.position + step.width / 2));
  }
  return time;
}

Correction Correction::mixed(const Correction& other, double weight) const {
  Correction result;
  for (std::size_t k = 0; k < kKnots; ++k) {
    result.log_ratio_[k] = (1 - weight) * log_ratio_[k] + weight * other.log_ratio_[k];
  }
  for (std::size_t i = 0; i < step_count_; ++i) {
    result.add({steps_[i].position, (1 - weight) * steps_[i].height, steps_[i].width});
  }
  for (std::size_t i = 0; i < other.step_count_; ++i) {
    result.add({other.steps_[i].position, weight * other.steps_[i].height, other.steps_[i].width});
  }
  return result;
}

Correction Correction::blurred() const {
  Correction result = *this;
  for (std::size_t i = 0; i < step_count_; ++i) result.steps_[i].width = kKnotsPerOctave;
  return result;
}

bool Correction::is_blurred() const { return step_count_ > 0 && steps_.front().width != kStepWidth; }

}  // namespace ns_dist::network
