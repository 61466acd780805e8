// Fits one predictor, and judges it on shapes, GPUs and generations that were left out.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "learn/kernel_samples.h"
#include "ns_dist/kernel_fit.h"
#include "weights.h"

namespace ns_dist {

inline constexpr std::ptrdiff_t kFewestSamples = 100;  // rows that a predictor is fitted on; twice as many in all

// `progress` gets the share done, from 0 to 1. Rewrites the features of its samples.
PredictorWeights fit_predictor(Predictor predictor, KernelSamples& samples, double effort,
                               const std::function<void(double, std::string_view)>& progress,
                               std::vector<KernelFitScore>& scores);

}  // namespace ns_dist
