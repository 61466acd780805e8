// What `fit` learned and the door reads: for each predictor, one model for the GPUs that were measured and one for all
// others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernel_features.h"
#include "network.h"
#include "trees.h"

namespace ns_dist {

// Kernels of like duration err alike: below 20 us, below 200 us, above.
inline constexpr std::size_t kErrorGroups = 3;
std::size_t error_group(double seconds);

// 5 % and 95 % quantiles of ln(measured / forecast) on rows not fitted on, by error group.
using Quantiles = std::array<float, 2 * kErrorGroups>;

// ln(latency / base) = network_share * network + trees (grown on what the network leaves).
struct Corrector {
  Network network;               // no layers: left out
  Trees trees;                   // no trees: left out
  std::vector<float> low, high;  // range of each feature in the fitted rows

  double evaluate(const double* features) const;
};

struct PredictorWeights {
  std::vector<std::string> gpus;  // ids, in the order of the indicator features of `known`
  Corrector known, transfer;
  std::vector<std::uint32_t> sorts;  // of each GPU, a bit for each sort_of() that was measured there
  std::vector<Quantiles> seen;       // of each GPU and sort measured there, in this order
  Quantiles near{}, far{};           // of GPUs not measured, whose generation was and was not
  Corrector power;  // ln(board power / limit) of kernels in sustained mode; no trees where nothing was measured
};

struct KernelWeights {
  std::map<std::string, std::string> metadata;
  std::array<std::optional<PredictorWeights>, kPredictorCount> predictors;
};

struct Correction {
  double seconds = 0, low = 0, high = 0;
  bool extrapolated = false;
};

// Where in `weights.gpus` a GPU stands; nothing where it was not measured.
std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu);

// Whether kernels of this sort were measured on the `gpu`-th.
bool knows(const PredictorWeights& weights, std::size_t gpu, std::size_t sort);

// On a GPU that was measured, the `gpu`-th, for an operator of a sort that it knows.
Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features, std::size_t gpu,
                   std::size_t sort);

// The same operator on the nearest measured GPU; its correction is carried over, beside the network's.
struct NeighborFeatures {
  Features features;
  std::size_t gpu = 0;
  double share = 0.5;
  bool same_generation = false;
  bool itself = false;  // the same GPU with another data sheet
  Pace pace;            // bounds of what is carried over: two bases need not lie in the same regime
};
// On any other GPU.
Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features,
                   const std::optional<NeighborFeatures>& neighbor);

// Mean board power of the kernel in sustained mode, in W; 0 where nothing is known.
double watts_of(const PredictorWeights& weights, Predictor predictor, const Features& features, const Machine& machine);

inline constexpr std::string_view kWeightsSchema = "ns-dist/kernel-weights/4";
std::string to_safetensors(const KernelWeights& weights);
// Errors: as Safetensors::parse; another schema; feature names other than this code's; trees or layers that do not fit
// together; values that are not finite.
Result<KernelWeights> read_kernel_weights(std::string_view bytes, const std::string& where);

// The weights compiled in, read once: the predictors of all files. Null when there are none.
const KernelWeights* standard_weights();

}  // namespace ns_dist
