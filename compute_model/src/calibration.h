// What a calibration asks of a forecast.
#pragma once

#include <array>
#include <utility>

#include "ns_dist/gpu.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// Where a forecast stands: ln(forecast / 100 us), ln(compute / memory).
std::array<double, 2> calibration_inputs(double seconds, double compute, double memory);
// ln(measured / forecast) there, by the measurements.
double correction_at(const FamilyCalibration& family, const std::array<double, 2>& x);

// Seconds of `op` at the nominal peak and at the nominal memory bandwidth.
std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op);

}  // namespace ns_dist
