#include "step_interval.h"

#include <algorithm>
#include <cmath>

#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

// So that the whole interval holds 85 to 95 % of published steps, each publication with one vote: dense models, 352
// configurations of eight publications (A100, H100, B200; Megatron-LM, Megatron-DeepSpeed, NeMo, FSDP), as
// `ns-dist validate --suite runs` prints them. Steps with experts differ most. Of 39 (Grok-1, DeepSeek-V2 and -V3,
// Qwen3, gpt-oss; the plans of 33 are told in part) 36 are held: they are up to 21 % shorter and up to 39 % longer. The
// other three took 0.54 (with capacities), 1.95 and 2.19 times as long as forecast. The differences of 191 pairs of
// plans (BigScience, zero bubble, Korthikanti, SimuMax; one vote each) are held likewise; of models with experts there
// are too few pairs, so theirs grow as their steps' intervals do. Of other frameworks (Framework::compared_with is
// empty) there are only steps whose plan is told in part, 57 of four frameworks (`--rows other`): 44 are held, 6
// are not (of ml-engineering), and neither are those of DeepSpeed's ZeRO-3 of 2021 and of BloombergGPT, which took 1.5
// to 4.3 times as long. Differences of plans grow as the steps' intervals do.
constexpr Unexplained kCompared[] = {
    {"dense models", 0.05, 0.13, 0.09},
    {"mixture of experts", 0.20, 0.40, 0.27},
};
constexpr Unexplained kNotCompared[] = {
    {"dense models, of frameworks without comparable steps", 0.15, 0.30, 0.22},
    {"mixture of experts, of frameworks without comparable steps", 0.25, 0.40, 0.27},
};
// Of GPUs of other vendors, and of generations that nobody here measured, no step was compared at all: as of frameworks
// without any.
constexpr std::string_view kOtherVendor[] = {"dense models, on GPUs of a vendor without comparable steps",
                                             "mixture of experts, on GPUs of a vendor without comparable steps"};
constexpr std::string_view kNewGeneration[] = {"dense models, on GPUs of a generation without comparable steps",
                                               "mixture of experts, on GPUs of a generation without comparable steps"};
// Steps on up to 6,144 GPUs were compared (Nemotron-4 340B, Megatron-LM's README: -4 to +4 %), and errors do not grow
// with the number of GPUs up to there. Beyond it nobody told what networks of more tiers and more slow GPUs cost: each
// doubling takes a fourth of the way to steps that were not compared. Chosen, not fitted.
constexpr double kMostCompared = 6144;
constexpr double kDoublings = 4;
constexpr std::string_view kLargerClusters[] = {
    "dense models, on more than 6,144 GPUs, without comparable steps",
    "mixture of experts, on more than 6,144 GPUs, without comparable steps"};

}  // namespace

Unexplained unexplained(const Scenario& scenario) {
  const std::size_t kind = scenario.model.moe ? 1 : 0;
  const Gpu& gpu = scenario.cluster.gpu;
  if (gpu.vendor != "nvidia" || !is_known_architecture(gpu.architecture)) {
    Unexplained rest = kNotCompared[kind];
    rest.situation = (gpu.vendor != "nvidia" ? kOtherVendor : kNewGeneration)[kind];
    return rest;
  }
  if (scenario.compared_with.empty()) return kNotCompared[kind];
  const double gpus = static_cast<double>(rank_count(scenario.plan).value_or(0));
  if (gpus <= kMostCompared) return kCompared[kind];
  const double way = std::min(1.0, std::log2(gpus / kMostCompared) / kDoublings);
  const Unexplained &near = kCompared[kind], &far = kNotCompared[kind];
  return {kLargerClusters[kind], std::lerp(near.below, far.below, way), std::lerp(near.above, far.above, way),
          std::lerp(near.between, far.between, way)};
}

IntervalParts interval_parts(const Scenario& scenario, Seconds step, const Interval& path) {
  const Unexplained rest = unexplained(scenario);
  IntervalParts parts{(step - path.low) / step, (path.high - step) / step, rest.situation, rest.below, rest.above};
  if (!scenario.kernel_calibration && !knows_training_clock(scenario.cluster.gpu)) {
    // The slowdown under load may be none, or as much again: at most, because only products have it.
    constexpr double kOnH100 = 1.15;
    const double load = training_slowdown(scenario.cluster.gpu, scenario.constants.exponent);
    parts.clock_below = 1 - 1 / load, parts.clock_above = std::max(load, kOnH100) - 1;
  }
  return parts;
}

Interval step_interval(Seconds step, const IntervalParts& parts) {
  const double below = std::hypot(parts.forecasts_below, parts.rest_below, parts.clock_below);
  const double above = std::hypot(parts.forecasts_above, parts.rest_above, parts.clock_above);
  return {max((1 - below) * step, 0.01 * step), (1 + above) * step};
}

}  // namespace ns_dist
