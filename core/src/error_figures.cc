#include "ns_dist/error_figures.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ns_dist {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ErrorFigures figures_of(std::vector<double> errors) {
  ErrorFigures figures;
  figures.rows = errors.size();
  if (errors.empty()) return figures;
  const double count = static_cast<double>(errors.size());
  for (double& error : errors) {
    figures.bias += error / count;
    error = std::abs(error);
    figures.mean += error / count;
  }
  std::sort(errors.begin(), errors.end());
  figures.p90 = errors[errors.size() * 9 / 10];
  figures.largest = errors.back();
  figures.median = median_of(std::move(errors));
  return figures;
}

}  // namespace ns_dist
