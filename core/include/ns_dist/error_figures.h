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

// Of forecast / measured - 1, each; zeros of none. A quantile is the error with that share of the rows below it.
ErrorFigures figures_of(std::vector<double> errors);

}  // namespace ns_dist
