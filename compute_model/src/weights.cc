#include "weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "predictors/predictor.h"

namespace ns_dist {

double widened(double widening, double by) { return 1 + std::hypot(widening - 1, by - 1); }

std::size_t error_group(double seconds) { return seconds < 20e-6 ? 0 : seconds < 200e-6 ? 1 : 2; }

std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu) {
  const auto found = std::find_if(weights.gpus.begin(), weights.gpus.end(), [&](const Gpu& g) { return g.id == gpu; });
  if (found == weights.gpus.end()) return std::nullopt;
  return static_cast<std::size_t>(found - weights.gpus.begin());
}

bool learned_elsewhere(const PredictorWeights& weights) { return !weights.on_other_gpu.trees.empty(); }

Trees trees_for_siblings(const Corrector& on_measured_gpu) {
  constexpr std::size_t kTrees = 80;
  return on_measured_gpu.trees.first(kTrees);
}

bool carries_over(Predictor predictor, bool itself, bool same_generation) {
  return itself || (same_generation && kind_of(predictor).capacity.elsewhere != Elsewhere::kPhysics);
}

bool by_data_sheet_alone(Predictor predictor) {
  const PredictorKind& kind = kind_of(predictor);
  return kind.capacity.elsewhere == Elsewhere::kPhysics && kind.sum == nullptr;
}

bool teaches_others(const PredictorWeights& weights, std::size_t gpu) {
  const double all = std::accumulate(weights.rows.begin(), weights.rows.end(), 0.0);
  return 100 * static_cast<double>(weights.rows[gpu]) * static_cast<double>(weights.rows.size()) >= all;
}

bool was_measured(const PredictorWeights& weights, std::size_t gpu, std::size_t kernel_class) {
  return (weights.kernel_classes[gpu] >> kernel_class & 1U) != 0;
}

bool is_outside(const Corrector& fitted, std::size_t f, double value) {
  constexpr double kMargin = 1e-3;  // rounding to float, and digits of data sheets
  const double slack = kMargin * (1 + std::abs(value));
  return value < static_cast<double>(fitted.low[f]) - slack || value > static_cast<double>(fitted.high[f]) + slack;
}

namespace {

using Term = PendingCorrection::Term;

// Index of a GPU's kernel class among the classes of all GPUs.
std::size_t class_index(const std::vector<std::uint32_t>& classes, std::size_t gpu, std::size_t kernel_class) {
  int before = std::popcount(classes[gpu] & ((std::uint32_t{1} << kernel_class) - 1));
  for (std::size_t g = 0; g < gpu; ++g) before += std::popcount(classes[g]);
  return static_cast<std::size_t>(before);
}

std::size_t shared_features(Predictor predictor) {
  return shape_features(predictor).size() + gpu_features(predictor).size();
}

// Compares the shape and the GPU with the fitted rows. A base that learned nothing does not extrapolate to another GPU.
void look_outside(PendingCorrection& pending, const Corrector& corrector, Predictor predictor,
                  const Features& features) {
  const bool learned = !corrector.trees.empty() || !by_data_sheet_alone(predictor);
  pending.fitted = &corrector;
  pending.compared = learned ? shared_features(predictor) : shape_features(predictor).size();
  pending.outside = false;
  for (std::size_t f = 0; f < pending.compared; ++f) pending.outside |= is_outside(corrector, f, features.values[f]);
}

// One and the octaves by which this GPU's ratios lie outside those of the fitted GPUs: a GPU like none of them is
// missed by more than the next one of a kind. Where nothing was learned the base does not extrapolate.
double widening_of(const Corrector& corrector, Predictor predictor, const Features& features) {
  double octaves = 0;
  if (corrector.trees.empty()) return 1;
  const std::size_t shared = shared_features(predictor);
  for (std::size_t f = shape_features(predictor).size(); f < shared; ++f) {
    const double value = features.values[f];
    octaves +=
        std::max({0.0, static_cast<double>(corrector.low[f]) - value, value - static_cast<double>(corrector.high[f])});
  }
  return 1 + std::min(octaves, 2.0);
}

// Of the correction of a GPU of a measured generation, the nearest one's measurements; those of all GPUs have the rest.
// Mean errors of GPUs left out with 1 and 0.85: products 7.3, 7.2 %; in FP8 5.2, 5.1; attention 6.3, 6.5; experts 9.3,
// 9.0.
constexpr double kNearestShare = 0.85;

using Input = std::array<double, 2 * kMaxFeatures>;

void prepare_term(Term& term, const Trees& trees, const Input& input) {
  term.trees = &trees;
  term.sum = 0;
  trees.find_bins(input.data(), term.bins);
}

// Features are clamped to the range of the fitted rows. `gpu` sets that GPU's indicator feature. `trees`: those of the
// corrector, or some of them.
void prepare_term(Term& term, const Corrector& corrector, const Trees& trees, Predictor predictor,
                  const Features& features, std::optional<std::size_t> gpu) {
  const std::size_t shared = shared_features(predictor);
  Input input{};
  for (std::size_t f = 0; f < shared; ++f) {
    const double low = static_cast<double>(corrector.low[f]), high = static_cast<double>(corrector.high[f]);
    input[f] = std::clamp(features.values[f], low, high);
  }
  if (gpu) input[shared + *gpu] = 1;
  prepare_term(term, trees, input);
}

void prepare_term(Term& term, const Corrector& corrector, Predictor predictor, const Features& features,
                  std::optional<std::size_t> gpu) {
  prepare_term(term, corrector, corrector.trees, predictor, features, gpu);
}

// On another machine: the correction there is carried over to `base`.
void prepare_term(Term& term, const Corrector& corrector, const Trees& trees, Predictor predictor,
                  const OtherMachine& other, double base, std::optional<std::size_t> gpu) {
  prepare_term(term, corrector, trees, predictor, other.features, gpu);
  term.ratio = std::log(other.features.base / base);
  term.log_least_pace = std::log(other.pace.least);
  term.log_most_pace = std::log(other.pace.most);
}

// Trees over all GPUs. They have no borders beyond the range of the fitted rows, so nothing is clamped.
void prepare_elsewhere(PendingCorrection& pending, const PredictorWeights& weights, const Features& common) {
  Input input{};
  std::ranges::copy(common.values, input.begin());
  prepare_term(pending.other, weights.on_other_gpu.trees, input);
}

double logarithm_of(const Term& term) { return std::clamp(term.sum, -4.0, 4.0); }

// Within the bounds of the scaling, where it is another machine's.
double carried_over(const Term& term) {
  const double here = logarithm_of(term) + term.ratio;
  return std::clamp(logarithm_of(term), here + term.log_least_pace, here + term.log_most_pace);
}

constexpr double kUnmeasuredShape = 1.5;

Correction around(double seconds, const Quantiles& quantiles, double widening, double doubt, bool extrapolated) {
  Correction correction;
  correction.widening = widening;
  correction.seconds = seconds;
  correction.extrapolated = extrapolated;
  // Nothing was measured there: half as much again.
  const double wider = extrapolated ? widened(widening, kUnmeasuredShape) : widening;
  const std::size_t group = error_group(seconds);
  const double below = wider * static_cast<double>(quantiles[2 * group]);
  const double above = wider * static_cast<double>(quantiles[2 * group + 1]);
  correction.low = seconds * std::exp(doubt > 0 ? -std::hypot(std::min(below, 0.0), doubt) : below);
  correction.high = seconds * std::exp(doubt > 0 ? std::hypot(std::max(above, 0.0), doubt) : above);
  return correction;
}

void evaluate(std::span<PendingCorrection* const> all, Term PendingCorrection::*member) {
  std::array<const Trees::Bins*, Trees::kBlock> rows;
  std::array<double, Trees::kBlock> sums;
  for (std::size_t begin = 0; begin < all.size();) {
    const Trees* trees = (all[begin]->*member).trees;
    std::size_t end = begin;
    while (end < all.size() && end - begin < Trees::kBlock && (all[end]->*member).trees == trees) ++end;
    if (trees != nullptr && end - begin == 1) {
      (all[begin]->*member).sum = trees->evaluate((all[begin]->*member).bins);
    } else if (trees != nullptr) {
      for (std::size_t i = begin; i < end; ++i) rows[i - begin] = &(all[i]->*member).bins;
      const std::size_t count = end - begin;
      trees->evaluate(std::span(rows).first(count), std::span(sums).first(count));
      for (std::size_t i = begin; i < end; ++i) (all[i]->*member).sum = sums[i - begin];
    }
    begin = end;
  }
}

Correction evaluated(PendingCorrection& pending) {
  PendingCorrection* const one = &pending;
  evaluate(std::span(&one, 1));
  return pending.finish();
}

}  // namespace

void prepare_measured(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                      const Features& features, std::size_t gpu, std::size_t kernel_class) {
  pending.base = features.base;
  pending.quantiles = &weights.measured[class_index(weights.kernel_classes, gpu, kernel_class)];
  look_outside(pending, weights.on_measured_gpu, predictor, features);
  prepare_term(pending.measured, weights.on_measured_gpu, predictor, features, gpu);
}

void prepare_scaled(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                    const Features& features, const ReferenceFeatures& reference, const Features& common) {
  pending.base = features.base;
  pending.quantiles = &weights.same_generation;
  look_outside(pending, weights.on_other_gpu, predictor, features);
  prepare_term(pending.measured, weights.on_measured_gpu,
               reference.itself ? weights.on_measured_gpu.trees : weights.on_sibling, predictor, reference.machine,
               features.base, reference.gpu);
  if (reference.itself) return;
  pending.widening = widening_of(weights.on_other_gpu, predictor, features);
  if (!learned_elsewhere(weights)) return;
  pending.share = kNearestShare;
  prepare_elsewhere(pending, weights, common);
}

void prepare_other(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features, const Features& common, bool same_generation) {
  pending.base = features.base;
  pending.quantiles = same_generation ? &weights.same_generation : &weights.other_generation;
  look_outside(pending, weights.on_other_gpu, predictor, features);
  pending.widening = widening_of(weights.on_other_gpu, predictor, features);
  if (!learned_elsewhere(weights)) return;
  pending.trust = kind_of(predictor).capacity.trust;
  prepare_elsewhere(pending, weights, common);
}

void prepare_power(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features) {
  if (!weights.power.trees.empty()) prepare_term(pending.power, weights.power, predictor, features, std::nullopt);
}

void prepare_slowdown(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                      const Features& features) {
  if (!weights.slowdown.trees.empty()) {
    prepare_term(pending.slowdown, weights.slowdown, predictor, features, std::nullopt);
  }
}

void evaluate(std::span<PendingCorrection* const> all) {
  for (const auto member : {&PendingCorrection::measured, &PendingCorrection::other, &PendingCorrection::power,
                            &PendingCorrection::slowdown}) {
    evaluate(all, member);
  }
}

Correction PendingCorrection::finish() const {
  double learned = other.trees != nullptr ? logarithm_of(other) : 0;
  if (measured.trees != nullptr) learned += share * (carried_over(measured) - learned);
  return around(base * std::exp(trust * learned), *quantiles, widening, doubt, outside);
}

double PendingCorrection::slowdown_factor() const {
  return slowdown.trees == nullptr ? 1 : std::clamp(std::exp(logarithm_of(slowdown)), 1.0, kMostSlowdown);
}

double PendingCorrection::watts(double limit) const {
  return power.trees == nullptr ? 0 : limit * std::exp(std::min(0.0, logarithm_of(power)));
}

Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features, std::size_t gpu,
                   std::size_t kernel_class) {
  PendingCorrection pending;
  prepare_measured(pending, weights, predictor, features, gpu, kernel_class);
  return evaluated(pending);
}

Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features,
                   const std::optional<ReferenceFeatures>& reference, const Features& common, bool same_generation) {
  PendingCorrection pending;
  if (reference) {
    prepare_scaled(pending, weights, predictor, features, *reference, common);
  } else {
    prepare_other(pending, weights, predictor, features, common, same_generation);
  }
  return evaluated(pending);
}

}  // namespace ns_dist
