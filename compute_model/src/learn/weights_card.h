// The card of fitted weights, in Markdown: what was fitted on what, and how well.
#pragma once

#include <string>
#include <vector>

#include "learn/kernel_samples.h"
#include "ns_dist/kernel_fit.h"
#include "weights.h"

namespace ns_dist {

std::string card_of(const KernelFitOptions& options, const KernelSamples& data, const KernelWeights& weights,
                    const std::vector<KernelFitScore>& scores);

}  // namespace ns_dist
