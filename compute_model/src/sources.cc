#include "sources.h"

#include <algorithm>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

// Whether the nearest GPU's measurements of this kernel are those of this GPU's generation, or its own.
bool is_comparable(const Case& c) {
  const auto& nearest = c.reference.nearest;
  return nearest && carries_over(c.predictor, nearest->itself, nearest->neighbor.same_generation) &&
         predictor_of(c.op, nearest->machine.gpu, c.mode) == c.predictor &&
         (c.only_bursts || was_measured(c.weights, nearest->neighbor.index, c.kernel_class));
}

// What trees over all GPUs see: the operator alone, or this GPU as the catalog has it. Where somebody changed its data
// sheet, what is better is never slower for a question that the trees answer in another way.
Features common_features(const Case& c, Mode mode) {
  const bool alone = kind_of(c.predictor).capacity.elsewhere == Elsewhere::kOperatorAlone;
  const bool as_sold = c.reference.sold && c.reference.sold->machine.peak(c.op.dtype) > 0;
  if (!learned_elsewhere(c.weights) || (!alone && !as_sold)) return c.features;
  return alone ? features_alone(c.predictor, c.op, mode)
               : features_of(c.predictor, c.reference.sold->machine, c.op, mode, c.weights.sums);
}

constexpr Source kMeasuredHere = {
    "measured here",
    [](const Case& c) {
      return c.reference.measured && was_measured(c.weights, *c.reference.measured, c.kernel_class);
    },
    [](const Case& c, PendingCorrection& pending) {
      prepare_measured(pending, c.weights, c.predictor, c.features, *c.reference.measured, c.kernel_class);
    },
    [](const Case&) -> std::string_view { return "trees over measured kernels of this GPU"; }};

constexpr Source kBurstsSlowed = {"bursts slowed", [](const Case& c) { return c.reference.measured && c.only_bursts; },
                                  [](const Case& c, PendingCorrection& pending) {
                                    prepare_measured(pending, c.weights, c.predictor, c.features, *c.reference.measured,
                                                     kernel_class(c.predictor, c.op, Mode::kBurst));
                                  },
                                  [](const Case&) -> std::string_view {
                                    return "trees over measured bursts of this GPU, slowed as long runs of others are";
                                  }};

constexpr Source kNearestScaled = {
    "nearest scaled", is_comparable,
    [](const Case& c, PendingCorrection& pending) {
      const ReferenceGpu::Nearest& nearest = *c.reference.nearest;
      const Mode mode = c.only_bursts ? Mode::kBurst : c.mode;
      const OtherMachine machine{features_of(c.predictor, nearest.machine, c.op, mode, c.weights.sums), nearest.pace};
      prepare_scaled(pending, c.weights, c.predictor, c.features, {machine, nearest.neighbor.index, nearest.itself},
                     common_features(c, mode));
    },
    [](const Case& c) -> std::string_view {
      return c.reference.nearest->itself || !learned_elsewhere(c.weights)
                 ? "measured kernels of the nearest GPU, scaled"
                 : "measured kernels of the nearest GPU, scaled, and a share of all GPUs";
    }};

constexpr Source kAllGpus = {
    "all GPUs", [](const Case& c) { return learned_elsewhere(c.weights); },
    [](const Case& c, PendingCorrection& pending) {
      prepare_other(pending, c.weights, c.predictor, c.features, common_features(c, c.mode), false);
    },
    [](const Case&) -> std::string_view { return "trees over measured kernels of other GPUs"; }};

// The base, with the interval that measured GPUs gave it: all of them, where it learned nothing from a generation.
constexpr Source kPhysics = {"physics", [](const Case&) { return true; },
                             [](const Case& c, PendingCorrection& pending) {
                               const auto& nearest = c.reference.nearest;
                               prepare_other(
                                   pending, c.weights, c.predictor, c.features, c.features,
                                   nearest && nearest->neighbor.same_generation && !by_data_sheet_alone(c.predictor));
                             },
                             [](const Case& c) -> std::string_view { return kind_of(c.predictor).physics; }};

// In the order in which they are tried; the last one always applies.
constexpr std::array<Source, 5> kSources = {kMeasuredHere, kBurstsSlowed, kNearestScaled, kAllGpus, kPhysics};

}  // namespace

bool only_in_bursts(const PredictorWeights& weights, Predictor predictor, const ReferenceGpu& reference,
                    std::size_t kernel_class) {
  if (predictor != Predictor::kGemm) return false;
  if (reference.measured) return !was_measured(weights, *reference.measured, kernel_class);
  const auto& nearest = reference.nearest;
  return nearest && carries_over(predictor, nearest->itself, nearest->neighbor.same_generation) &&
         !was_measured(weights, nearest->neighbor.index, kernel_class);
}

const Source& source_for(const Case& one) {
  return *std::find_if(kSources.begin(), kSources.end(), [&](const Source& source) { return source.applies(one); });
}

}  // namespace ns_dist
