// Residuals of forecasts and the interval that they give.
#pragma once

#include <utility>
#include <vector>

#include "weights.h"

namespace ns_dist {

using Residuals = std::vector<std::pair<double, double>>;  // forecast in s, ln(measured / forecast) over widening

// Of each duration's residuals, `tail` on each side left out: split conformal prediction (Lei et al. 2018).
Quantiles quantiles_of(const Residuals& residuals, double tail = 0.05);
// Share of the residuals inside.
double coverage(const Residuals& residuals, const Quantiles& quantiles);

}  // namespace ns_dist
