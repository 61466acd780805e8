// Finds the coefficients of kernels whose time is a sum (term_sums.h).
#pragma once

#include <vector>

#include "term_sums.h"

namespace ns_dist {

struct MeasuredSum {
  TermSum sum;
  double seconds = 0;  // what the sum should be
};

// For each class of the rows, and for each class within it: non-negative least squares of relative errors, large ones
// damped, and of the distance to the coefficients of the wider class.
Sums fit_sums(const SumKind& kind, const std::vector<MeasuredSum>& rows);

}  // namespace ns_dist
