#include "weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "predictors/predictor.h"

namespace ns_dist {

std::size_t error_group(double seconds) { return seconds < 20e-6 ? 0 : seconds < 200e-6 ? 1 : 2; }

double Corrector::evaluate(const double* features) const {
  double sum = 0;
  if (!network.layers.empty()) sum += network.evaluate(features);
  return sum + trees.evaluate(features);
}

std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu) {
  const auto found = std::find_if(weights.gpus.begin(), weights.gpus.end(), [&](const Gpu& g) { return g.id == gpu; });
  if (found == weights.gpus.end()) return std::nullopt;
  return static_cast<std::size_t>(found - weights.gpus.begin());
}

bool learned_elsewhere(const PredictorWeights& weights) { return !weights.on_other_gpu.network.layers.empty(); }

bool carries_over(const PredictorWeights& weights, Predictor predictor, bool itself, bool same_generation) {
  if (itself || learned_elsewhere(weights)) return true;
  return same_generation && kind_of(predictor).capacity.elsewhere == Elsewhere::kSibling;
}

bool was_measured(const PredictorWeights& weights, std::size_t gpu, std::size_t kernel_class) {
  return (weights.kernel_classes[gpu] >> kernel_class & 1U) != 0;
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

bool is_outside(const Corrector& corrector, Predictor predictor, const Features& features) {
  constexpr double kMargin = 1e-3;  // rounding to float, and digits of data sheets
  bool outside = false;
  const std::size_t shared = shared_features(predictor);
  for (std::size_t f = 0; f < shared; ++f) {
    const double value = features.values[f], slack = kMargin * (1 + std::abs(value));
    outside |= value < static_cast<double>(corrector.low[f]) - slack;
    outside |= value > static_cast<double>(corrector.high[f]) + slack;
  }
  return outside;
}

// One and the octaves by which this GPU's ratios lie outside those of the fitted GPUs: a GPU like none of them is
// missed by more than the next one of a kind. Where nothing was learned the base does not extrapolate.
double widening_of(const Corrector& corrector, Predictor predictor, const Features& features) {
  double octaves = 0;
  if (corrector.network.layers.empty()) return 1;
  const std::size_t shared = shared_features(predictor);
  for (std::size_t f = shape_features(predictor).size(); f < shared; ++f) {
    const double value = features.values[f];
    octaves +=
        std::max({0.0, static_cast<double>(corrector.low[f]) - value, value - static_cast<double>(corrector.high[f])});
  }
  return 1 + std::min(octaves, 2.0);
}

// Features are clamped to the range of the fitted rows. `gpu` sets that GPU's indicator feature.
void prepare_term(Term& term, const Corrector& corrector, Predictor predictor, const Features& features,
                  std::optional<std::size_t> gpu) {
  const std::size_t shared = shared_features(predictor);
  std::array<double, 2 * kMaxFeatures> input{};
  for (std::size_t f = 0; f < shared; ++f) {
    const double low = static_cast<double>(corrector.low[f]), high = static_cast<double>(corrector.high[f]);
    input[f] = std::clamp(features.values[f], low, high);
  }
  if (gpu) input[shared + *gpu] = 1;
  term.network = corrector.network.layers.empty() ? 0 : corrector.network.evaluate(input.data());
  term.trees = &corrector.trees;
  term.sum = 0;
  corrector.trees.find_bins(input.data(), term.bins);
}

double logarithm_of(const Term& term) { return std::clamp(term.network + term.sum, -4.0, 4.0); }

Correction around(double seconds, const Quantiles& quantiles, double widening, bool extrapolated) {
  Correction correction;
  correction.widening = widening;
  correction.seconds = seconds;
  correction.extrapolated = extrapolated;
  const std::size_t group = error_group(seconds);
  correction.low = seconds * std::exp(widening * static_cast<double>(quantiles[2 * group]));
  correction.high = seconds * std::exp(widening * static_cast<double>(quantiles[2 * group + 1]));
  if (extrapolated) {  // nothing was measured there: the interval is widened by half of itself
    correction.low /= std::sqrt(seconds / correction.low);
    correction.high *= std::sqrt(correction.high / seconds);
  }
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
  pending.outside = is_outside(weights.on_measured_gpu, predictor, features);
  prepare_term(pending.measured, weights.on_measured_gpu, predictor, features, gpu);
}

void prepare_scaled(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                    const Features& features, const ReferenceFeatures& reference) {
  // With a share of one, the corrector of other GPUs would have no weight. It costs as much as all the rest.
  const double share = learned_elsewhere(weights) ? reference.share : 1;
  if (share != 1) {
    prepare_term(pending.other, weights.on_other_gpu, predictor, features, std::nullopt);
  }
  pending.base = features.base;
  pending.quantiles = reference.same_generation ? &weights.same_generation : &weights.other_generation;
  pending.outside = is_outside(weights.on_other_gpu, predictor, features);
  if (!reference.itself) pending.widening = widening_of(weights.on_other_gpu, predictor, features);
  prepare_term(pending.measured, weights.on_measured_gpu, predictor, reference.features, reference.gpu);
  pending.share = share;
  if (share != 1) pending.trust = kind_of(predictor).capacity.trust;
  pending.scaled = true;
  pending.ratio = std::log(reference.features.base / features.base);
  pending.log_least_pace = std::log(reference.pace.least);
  pending.log_most_pace = std::log(reference.pace.most);
}

void prepare_other(PendingCorrection& pending, const PredictorWeights& weights, Predictor predictor,
                   const Features& features, bool same_generation) {
  pending.base = features.base;
  pending.quantiles = same_generation ? &weights.same_generation : &weights.other_generation;
  pending.outside = is_outside(weights.on_other_gpu, predictor, features);
  pending.widening = widening_of(weights.on_other_gpu, predictor, features);
  prepare_term(pending.other, weights.on_other_gpu, predictor, features, std::nullopt);
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
  if (measured.trees != nullptr) {
    double logarithm = logarithm_of(measured);
    if (scaled) {
      logarithm = std::clamp(logarithm, logarithm + ratio + log_least_pace, logarithm + ratio + log_most_pace);
    }
    learned += share * (logarithm - learned);
  }
  learned *= trust;
  return around(base * std::exp(learned), *quantiles, widening, outside);
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
                   const std::optional<ReferenceFeatures>& reference) {
  PendingCorrection pending;
  if (reference && carries_over(weights, predictor, reference->itself, reference->same_generation)) {
    prepare_scaled(pending, weights, predictor, features, *reference);
  } else {
    prepare_other(pending, weights, predictor, features, reference && reference->same_generation);
  }
  return evaluated(pending);
}

}  // namespace ns_dist
