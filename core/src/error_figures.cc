#include "ns_dist/error_figures.h"

#include <algorithm>
#include <cmath>

namespace ns_dist {

static double middle_of(const std::vector<double>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return middle_of(values);
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
  figures.median = middle_of(errors);
  figures.p90 = errors[errors.size() * 9 / 10];
  figures.largest = errors.back();
  return figures;
}

}  // namespace ns_dist
