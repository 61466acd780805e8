// Time on a grid: sums and differences of multiples of one power of two are exact in double, so they do not depend on
// the order of summation or on when they happen, and ends that are equal in exact arithmetic are equal.
#pragma once

namespace ns_dist {

class Grid {
 public:
  // Exact up to `bound` seconds, at least 4,096 s; there the grid is 2^-40 s (0.9 ps).
  static Grid covering(double bound) {
    Grid grid;
    while (grid.limit_ < bound && grid.limit_ < 0x1p+900) grid.limit_ *= 2;
    return grid;
  }
  double limit() const { return limit_; }
  // The nearest multiple: near 1.5 times the limit, the last bit of a double is one step of the grid. `x` is from 0 to
  // the limit.
  double snap(double x) const { return (x + 1.5 * limit_) - 1.5 * limit_; }

 private:
  double limit_ = 4096;
};

}  // namespace ns_dist
