// What `fit` learned, and how it corrects a physical estimate: for each predictor, one corrector for the GPUs that were
// measured and one for all others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
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

// ln(latency / base) = network + trees, which were grown on the network's residuals.
struct Corrector {
  Network network;               // no layers: left out
  Trees trees;                   // no trees: left out
  std::vector<float> low, high;  // range of each feature in the fitted rows

  double evaluate(const double* features) const;
};

// Long runs of BF16 products of at least 1e10 FLOP take 1.1-1.25 times as long as single ones on H200, B200 and GB200.
inline constexpr double kMostSlowdown = 1.3;

struct PredictorWeights {
  std::vector<Gpu> gpus;  // data sheets of the measured GPUs, in the order of the indicator features
  Corrector on_measured_gpu, on_other_gpu;
  std::vector<std::uint32_t> kernel_classes;  // of each GPU, a bit for each kernel_class() that was measured there
  std::vector<Quantiles> measured;            // of each GPU and kernel class measured there, in this order
  Quantiles same_generation{}, other_generation{};  // of GPUs not measured, by whether their generation was
  Corrector power;  // ln(board power / limit) of kernels in sustained mode; no trees where nothing was measured
  // ln(long run / burst) of the same kernel; no trees where nothing was measured in both modes.
  Corrector slowdown;
};

struct KernelWeights {
  std::map<std::string, std::string> metadata;
  std::array<std::optional<PredictorWeights>, kPredictorCount> predictors;
};

// Index in `weights.gpus`; nothing for a GPU that was not measured.
std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu);

// Whether measurements of one GPU are valid on others. GPUs that were measured in different ways teach nothing that is.
bool learned_elsewhere(const PredictorWeights& weights);

// Whether the nearest GPU's measurements are scaled to another one: `itself` is the same GPU with another data sheet.
bool carries_over(const PredictorWeights& weights, Predictor predictor, bool itself, bool same_generation);

// Whether kernels of this class were measured on the `gpu`-th.
bool was_measured(const PredictorWeights& weights, std::size_t gpu, std::size_t kernel_class);

// The same operator on the reference GPU, a measured one whose correction is scaled to this GPU.
struct ReferenceFeatures {
  Features features;
  std::size_t gpu = 0;
  double share = 0.5;  // of the reference GPU's correction; the corrector of other GPUs has the rest
  bool same_generation = false;
  bool itself = false;  // the same GPU with another data sheet
  Pace pace;            // bounds of the scaling: the two bases need not lie in the same regime
};

struct Correction {
  double seconds = 0, low = 0, high = 0;
  double widening = 1;  // that is in the interval for the GPU's sake
  bool extrapolated = false;
};

// A correction that waits for the sums of its trees, so that the trees of many can be evaluated together.
struct PendingCorrection {
  // One evaluation of a corrector.
  struct Term {
    const Trees* trees = nullptr;  // null: the term is left out
    double network = 0;            // output of the corrector's network
    double sum = 0;                // of the trees, once evaluated
    Trees::Bins bins;
  };
  Term measured, other, power, slowdown;
  double base = 0;                                          // s
  double share = 1;                                         // of `measured`
  double trust = 1;                                         // share of what was learned that is believed
  bool scaled = false;                                      // `measured` is another GPU's and is bounded by its pace
  double ratio = 0, log_least_pace = 0, log_most_pace = 0;  // ln(base on the reference GPU / base)
  const Quantiles* quantiles = nullptr;
  bool outside = false;  // a feature lies outside the range of the fitted rows
  double widening = 1;   // of the interval, in logarithms: how far this GPU's ratios lie outside those of fitted GPUs

  Correction finish() const;
  // Long run over burst, from one on.
  double slowdown_factor() const;
  // Mean board power in W of a GPU with this limit; 0 where it is unknown.
  double watts(double limit) const;
};

// On the `gpu`-th measured GPU, for an operator of a class that was measured there.
void prepare_measured(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                      const Features& features, std::size_t gpu, std::size_t kernel_class);
// On another GPU, by the measurements of the reference GPU and, where its share is below one, the corrector of other
// GPUs.
void prepare_scaled(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                    const Features& features, const ReferenceFeatures& reference);
// On another GPU, by the corrector of other GPUs alone, or by the base where that has learned nothing.
void prepare_other(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features, bool same_generation);
// Adds the board power where it was measured.
void prepare_power(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features);
// Adds how much a product slows down in long runs; `features` are of the product in sustained mode.
void prepare_slowdown(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                      const Features& features);
// Evaluates the trees of all terms. Terms of the same trees that follow each other are evaluated together.
void evaluate(std::span<PendingCorrection* const> all);

// The same at once, for `fit`.
Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features, std::size_t gpu,
                   std::size_t kernel_class);
Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features,
                   const std::optional<ReferenceFeatures>& reference);

}  // namespace ns_dist
