// The sum of forecasts that have intervals.
#pragma once

namespace ns_dist {

// A number with its interval, low <= value <= high.
struct IntervalEstimate {
  double value = 0, low = 0, high = 0;
};

// The sum of forecasts whose errors are partly common to all. The error of part i with half-width u_i is
// u_i (share g + sqrt(1 - share^2) e_i). g is common to all parts (a hot GPU, a wrong rate); e_i is independent. Both
// have the width of a single interval. The sum's half-width is then sqrt((share U)^2 + (1 - share^2) Q) with U = sum of
// u_i and Q = sum of u_i^2; below and above separately. share = 1 adds the ends, share = 0 adds in quadrature, and a
// sum of one part keeps its interval. All in one unit.
class IntervalSum {
 public:
  void add(const IntervalEstimate& part, double times = 1);  // `times` repetitions of one part have one common error
  void add(const IntervalSum& sum, double times = 1);

  double value() const { return value_; }
  IntervalEstimate estimate(double share) const;  // 0 <= share <= 1

 private:
  double value_ = 0;
  double below_ = 0, above_ = 0;                  // sums of half-widths
  double below_squared_ = 0, above_squared_ = 0;  // sums of their squares
};

}  // namespace ns_dist
