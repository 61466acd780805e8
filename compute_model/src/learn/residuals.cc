#include "learn/residuals.h"

#include <algorithm>
#include <cmath>

namespace ns_dist {

Quantiles quantiles_of(const Residuals& residuals, double tail) {
  Quantiles quantiles{};
  for (std::size_t group = 0; group < kErrorGroups; ++group) {
    std::vector<double> logs;
    for (const auto& [forecast, residual] : residuals) {
      if (error_group(forecast) == group) logs.push_back(residual);
    }
    if (logs.size() < 50) {  // too few of this duration: all of them
      logs.clear();
      for (const auto& [forecast, residual] : residuals) logs.push_back(residual);
    }
    if (logs.size() < 20) {
      quantiles[2 * group] = -0.7F, quantiles[2 * group + 1] = 0.7F;
      continue;
    }
    std::sort(logs.begin(), logs.end());
    // Split conformal prediction (Lei et al. 2018): the ceil((n + 1) q)-th of n residuals.
    const double n = static_cast<double>(logs.size());
    const auto low = static_cast<std::size_t>(std::max(0.0, std::floor((n + 1) * tail) - 1));
    const auto high = static_cast<std::size_t>(std::min(n - 1, std::ceil((n + 1) * (1 - tail)) - 1));
    quantiles[2 * group] = static_cast<float>(std::clamp(logs[low], -4.0, -1e-3));
    quantiles[2 * group + 1] = static_cast<float>(std::clamp(logs[high], 1e-3, 4.0));
  }
  return quantiles;
}

double coverage(const Residuals& residuals, const Quantiles& quantiles) {
  std::size_t inside = 0;
  for (const auto& [forecast, residual] : residuals) {
    const std::size_t group = error_group(forecast);
    if (residual >= static_cast<double>(quantiles[2 * group]) &&
        residual <= static_cast<double>(quantiles[2 * group + 1])) {
      ++inside;
    }
  }
  return residuals.empty() ? 0 : static_cast<double>(inside) / static_cast<double>(residuals.size());
}

}  // namespace ns_dist
