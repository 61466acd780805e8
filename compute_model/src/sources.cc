#include "sources.h"

#include <algorithm>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

// Whether the nearest GPU's measurements of this kernel can be compared with this GPU's.
bool is_comparable(const Case& c) {
  return c.reference.nearest && predictor_of(c.op, c.reference.nearest->machine.gpu, c.mode) == c.predictor &&
         (c.only_bursts || was_measured(c.weights, c.reference.nearest->neighbor.index, c.kernel_class));
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

// Where only bursts were measured, they are forecast; the slowdown of long runs is applied to that. A burst may have
// found its operands in L2, where a long run does not.
Features features_here(const Case& c) {
  return c.only_bursts ? features_of(c.predictor, c.machine, c.op, Mode::kBurst) : c.features;
}

constexpr Source kBurstsSlowed = {"bursts slowed", [](const Case& c) { return c.reference.measured && c.only_bursts; },
                                  [](const Case& c, PendingCorrection& pending) {
                                    prepare_measured(pending, c.weights, c.predictor, features_here(c),
                                                     *c.reference.measured,
                                                     kernel_class(c.predictor, c.op, Mode::kBurst));
                                  },
                                  [](const Case&) -> std::string_view {
                                    return "trees over measured bursts of this GPU, slowed as long runs of others are";
                                  }};

constexpr Source kNearestScaled = {
    "nearest scaled",
    [](const Case& c) {
      return is_comparable(c) && carries_over(c.weights, c.predictor, c.reference.nearest->itself,
                                              c.reference.nearest->neighbor.same_generation);
    },
    [](const Case& c, PendingCorrection& pending) {
      const ReferenceGpu::Nearest& nearest = *c.reference.nearest;
      const Mode mode = c.only_bursts ? Mode::kBurst : c.mode;
      prepare_scaled(pending, c.weights, c.predictor, features_here(c),
                     {features_of(c.predictor, nearest.machine, c.op, mode), nearest.neighbor.index,
                      nearest.neighbor.share, nearest.neighbor.same_generation, nearest.itself, nearest.pace});
    },
    [](const Case& c) -> std::string_view {
      return c.reference.nearest->neighbor.share == 1 || !learned_elsewhere(c.weights)
                 ? "measured kernels of the nearest GPU, scaled"
                 : "measured kernels of the nearest GPU scaled, and a network over others";
    }};

constexpr Source kNetwork = {
    "network", [](const Case& c) { return learned_elsewhere(c.weights); },
    [](const Case& c, PendingCorrection& pending) {
      prepare_other(pending, c.weights, c.predictor, c.features, false);
    },
    [](const Case&) -> std::string_view { return "network over measured kernels of other GPUs"; }};

// The base, with the interval that measured GPUs gave it.
constexpr Source kPhysics = {"physics", [](const Case&) { return true; },
                             [](const Case& c, PendingCorrection& pending) {
                               prepare_other(pending, c.weights, c.predictor, c.features,
                                             is_comparable(c) && c.reference.nearest->neighbor.same_generation);
                             },
                             [](const Case& c) -> std::string_view { return kind_of(c.predictor).physics; }};

constexpr std::array<Source, 5> kSources = {kMeasuredHere, kBurstsSlowed, kNearestScaled, kNetwork, kPhysics};

}  // namespace

std::span<const Source> correction_sources() { return kSources; }

const Source& source_for(const Case& one) {
  return *std::find_if(kSources.begin(), kSources.end(), [&](const Source& source) { return source.applies(one); });
}

}  // namespace ns_dist
