// What `fit` learned, and how it corrects a physical estimate: for each predictor, one corrector for the GPUs that were
// measured and one for all others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernel_features.h"
#include "trees.h"

namespace ns_dist {

// Kernels of like duration err alike: below 20 us, below 200 us, above.
inline constexpr std::size_t kErrorGroups = 3;
std::size_t error_group(double seconds);

// 5 % and 95 % quantiles of ln(measured / forecast) on rows not fitted on, by error group.
using Quantiles = std::array<float, 2 * kErrorGroups>;

// ln(latency / base) by the features.
struct Corrector {
  Trees trees;                   // none: nothing was learned
  std::vector<float> low, high;  // range of each feature in the fitted rows
};

// Long runs of BF16 products of at least 1e10 FLOP take 1.1-1.25 times as long as single ones on H200, B200 and GB200.
inline constexpr double kMostSlowdown = 1.3;

struct PredictorWeights {
  std::vector<Gpu> gpus;  // data sheets of the measured GPUs, in the order of the indicator features
  Sums sums;              // coefficients of the base, for predictors whose base is a sum
  // Trees that see which GPU it is, and trees over all GPUs that see the shape alone.
  Corrector on_measured_gpu, on_other_gpu;
  Trees on_sibling;                           // the first trees of `on_measured_gpu`, by trees_for_siblings
  std::vector<std::uint32_t> rows;            // of each GPU, that were fitted
  std::vector<std::uint32_t> kernel_classes;  // of each GPU, a bit for each kernel_class() that was measured there
  std::vector<Quantiles> measured;            // of each GPU and kernel class measured there, in this order
  Quantiles same_generation{}, other_generation{};  // of GPUs not measured, by whether their generation was
  Corrector power;  // ln(board power / limit) of kernels in sustained mode; no trees where nothing was measured
  // ln(long run / burst) of the same kernel; no trees where nothing was measured in both modes.
  Corrector slowdown;
};

// What other GPUs of the generation are told of a measured one: its first trees. Later ones learn its scatter, which
// does not carry over. Mean errors of GPUs left out with all 200 trees, 80 and 60: products 7.3, 7.3, 7.3 %; in
// FP8 5.2, 5.2, 5.2; attention 6.3, 6.3, 6.4; experts 9.9, 9.3, 9.1.
Trees trees_for_siblings(const Corrector& on_measured_gpu);

struct KernelWeights {
  std::map<std::string, std::string> metadata;
  std::array<std::optional<PredictorWeights>, kPredictorCount> predictors;
};

// Index in `weights.gpus`; nothing for a GPU that was not measured.
std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu);

// Whether the `gpu`-th can be the nearest one of another GPU: trees hardly see rows that are fewer than a hundredth of
// the mean of all GPUs.
bool teaches_others(const PredictorWeights& weights, std::size_t gpu);

// Whether measurements of one GPU are valid on others. GPUs that were measured in different ways teach nothing that is.
bool learned_elsewhere(const PredictorWeights& weights);

// Whether the nearest GPU's measurements are scaled to another one: `itself` is the same GPU with another data sheet.
bool carries_over(Predictor predictor, bool itself, bool same_generation);

// Whether GPUs that were not measured are forecast by a base without any fitted coefficient (FP32 products, streams):
// measurements of their generation say no more of them than those of any other one.
bool by_data_sheet_alone(Predictor predictor);

// Whether kernels of this class were measured on the `gpu`-th.
bool was_measured(const PredictorWeights& weights, std::size_t gpu, std::size_t kernel_class);

// The same operator on another machine, whose correction is carried over to this one.
struct OtherMachine {
  Features features;
  Pace pace;  // bounds of the scaling: the two bases need not lie in the same regime
};

// On a measured GPU of the same generation.
struct ReferenceFeatures {
  OtherMachine machine;
  std::size_t gpu = 0;
  bool itself = false;  // the same GPU with another data sheet
};

struct Correction {
  double seconds = 0, low = 0, high = 0;
  double widening = 1;  // that is in the interval for the GPU's sake
  bool extrapolated = false;
};

// A widening of the interval for one more reason: reasons to be further off add up as independent errors do.
double widened(double widening, double by);

// A correction that waits for the sums of its trees, so that the trees of many can be evaluated together.
struct PendingCorrection {
  // One evaluation of a corrector, on this machine or on another one.
  struct Term {
    const Trees* trees = nullptr;                             // null: the term is left out
    double sum = 0;                                           // of the trees, once evaluated
    double ratio = 0, log_least_pace = 0, log_most_pace = 0;  // ln(base on the other machine / base), and its bounds
    Trees::Bins bins;
  };
  Term measured, other, power, slowdown;
  double base = 0;   // s
  double share = 1;  // of `measured`
  double trust = 1;  // share of what was learned that is believed
  const Quantiles* quantiles = nullptr;
  const Corrector* fitted = nullptr;  // whose rows the features are compared with
  std::size_t compared = 0;           // of them, the first so many
  bool outside = false;               // one of these lies outside their range
  double doubt = 0;                   // half-width of what is not known of the base, in logarithms
  double widening = 1;  // of the interval, in logarithms: how far this GPU's ratios lie outside those of fitted GPUs

  Correction finish() const;
  // Long run over burst, from one on.
  double slowdown_factor() const;
  // Mean board power in W of a GPU with this limit; 0 where it is unknown.
  double watts(double limit) const;
};

// Whether the `f`-th feature, which is `value`, lies outside the range of the rows that `fitted` learned from.
bool is_outside(const Corrector& fitted, std::size_t f, double value);

// On the `gpu`-th measured GPU, for an operator of a class that was measured there.
void prepare_measured(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                      const Features& features, std::size_t gpu, std::size_t kernel_class);
// On another GPU of a measured generation, by the measurements of the reference GPU and those of all GPUs. `common`:
// features that trees over all GPUs see.
void prepare_scaled(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                    const Features& features, const ReferenceFeatures& reference, const Features& common);
// On another GPU, by the measurements of all GPUs, or by the base where these teach nothing.
void prepare_other(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features, const Features& common, bool same_generation);
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
                   const std::optional<ReferenceFeatures>& reference, const Features& common, bool same_generation);

}  // namespace ns_dist
