// What a calibration asks of a forecast.
#pragma once

#include <array>
#include <utility>

#include "ns_dist/gpu.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// Of the regression: one, ln(forecast / 100 us), ln(compute / memory); clamped, so that nothing is carried far beyond
// what was measured.
std::array<double, 3> calibration_inputs(double seconds, double compute, double memory);

// Seconds of `op` at the nominal peak and at the nominal memory bandwidth.
std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op);

}  // namespace ns_dist
