// Weights as a safetensors file, and those that are compiled in.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "weights.h"

namespace ns_dist {

inline constexpr std::string_view kWeightsSchema = "ns-dist/kernel-weights/7";
std::string to_safetensors(const KernelWeights& weights);

// Trees are used in place: the weights refer to `bytes`, which `owner` keeps alive; null where they live forever.
// Errors: as Safetensors::parse; another schema; names of features or of terms other than this code's; data sheets
// without a field; trees that do not fit together; values that are not finite.
Result<KernelWeights> read_kernel_weights(std::string_view bytes, const std::string& where,
                                          std::shared_ptr<const void> owner = nullptr);
// With a copy of `bytes`.
Result<KernelWeights> read_kernel_weights_copy(std::string bytes, const std::string& where);

// The weights that are compiled in for one predictor, parsed when they are first asked for. Null where there are none.
const PredictorWeights* standard_weights(Predictor predictor);
// Coefficients of its sums; none where there are no weights.
const Sums& standard_sums(Predictor predictor);

}  // namespace ns_dist
