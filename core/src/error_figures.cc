#include "ns_dist/error_figures.h"

#include <algorithm>
#include <cmath>

namespace ns_dist {

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
  figures.median = errors[errors.size() / 2], figures.p90 = errors[errors.size() * 9 / 10];
  figures.largest = errors.back();
  return figures;
}

}  // namespace ns_dist
