#include "ns_dist/interval_sum.h"

#include <cmath>

#include "ns_dist/result.h"

namespace ns_dist {

void IntervalSum::add(const IntervalEstimate& part, double times) {
  const double below = times * (part.value - part.low), above = times * (part.high - part.value);
  value_ += times * part.value;
  below_ += below, above_ += above;
  below_squared_ += below * below, above_squared_ += above * above;
}

void IntervalSum::add(const IntervalSum& sum, double times) {
  value_ += times * sum.value_;
  below_ += times * sum.below_, above_ += times * sum.above_;
  below_squared_ += times * times * sum.below_squared_, above_squared_ += times * times * sum.above_squared_;
}

IntervalEstimate IntervalSum::estimate(double share) const {
  NS_EXPECTS(share >= 0 && share <= 1);
  const auto width = [&](double sum, double squared) {
    return std::sqrt(share * share * sum * sum + (1 - share * share) * squared);
  };
  return {value_, value_ - width(below_, below_squared_), value_ + width(above_, above_squared_)};
}

}  // namespace ns_dist
