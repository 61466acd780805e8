// Relative errors of many forecasts in a few figures.
#pragma once

#include <cstddef>
#include <vector>

namespace ns_dist {

struct ErrorFigures {
  std::size_t rows = 0;
  double mean = 0, median = 0, p90 = 0, largest = 0;  // of |forecast / measured - 1|
  double bias = 0;                                    // mean of forecast / measured - 1
};

// Of an even number of values the mean of the middle two; 0 of none.
double median_of(std::vector<double> values);

// Of forecast / measured - 1, each; zeros of none. `p90` is the error with 90 % of the rows below it.
ErrorFigures figures_of(std::vector<double> errors);

}  // namespace ns_dist
