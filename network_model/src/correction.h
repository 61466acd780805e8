// How measured collectives differ from NCCL's own constants: the logarithm of measured over modeled time, as a
// function of the modeled time: piecewise linear, with steps where the choice of the protocol changes (there NCCL's
// belief about two protocols is equal, and what they really take is not). As a function of time (not of bytes) it keeps
// every order that the model has: a faster link or a shorter message can never come out slower.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace ns_dist::network {

// Knots at 5 us x 2^(k/2): 5 us to 10 ms.
inline constexpr std::size_t kKnots = 23;
inline constexpr double kFirstKnot = 5e-6;  // s
inline constexpr double kKnotsPerOctave = 2;
inline constexpr std::size_t kMaxSteps = 12;

// Rises by `height` within `width` knots around `position` (a knot coordinate): a ramp, so that times do not jump. The
// width is not fitted.
inline constexpr double kStepWidth = 0.1;
struct Step {
  double position = 0, height = 0, width = kStepWidth;
};

class Correction {
 public:
  using Knots = std::array<double, kKnots>;

  Correction() : log_ratio_{} {}
  // Slopes down are flattened where they would make a longer modeled time a shorter corrected one.
  explicit Correction(const Knots& log_ratio);

  // Heights of at most 0 and steps beyond kMaxSteps are left out.
  void add(const Step& step);

  // Corrected time; grows with `seconds`.
  double apply(double seconds) const;
  // The same on links `faster` times as fast as those that were measured, on which the modeled time would be
  // `measured`. Links twice as fast save at most half: curves over time were measured over sizes, and rise where longer
  // messages go another way.
  double apply(double seconds, double measured, double faster) const;
  double log_ratio(double seconds) const;
  const Knots& knots() const { return log_ratio_; }
  std::span<const Step> steps() const { return {steps_.data(), step_count_}; }

  // This one with weight 1 - `weight` and `other` with `weight`.
  Correction mixed(const Correction& other, double weight) const;

  // For other collectives or numbers of ranks than the measured ones, whose protocols change at another time: steps
  // rise over an octave of time, as far apart as the sizes that were measured.
  Correction blurred() const;
  bool is_blurred() const;

 private:
  Knots log_ratio_;
  std::array<Step, kMaxSteps> steps_{};
  std::size_t step_count_ = 0;
};

// Knot coordinate of a time: 0 at the first knot, kKnots - 1 at the last, clamped.
double knot_coordinate(double seconds);

// Its inverse, seconds.
double time_at(double coordinate);

// 0 before, 1 after a step at `position` of `width`, both in knots.
double step_share(double coordinate, double position, double width = kStepWidth);

}  // namespace ns_dist::network
