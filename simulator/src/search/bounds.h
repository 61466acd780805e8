// What a step takes at least, from the passes of one microbatch: a search forecasts them once for all plans that run
// the same kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ns_dist/forecast.h"
#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Bounds are sums in another order than the clock's.
inline constexpr double kRounding = 1e-9;

// What passes take at least, in seconds. Of two passes beside each other one may hide the collectives of the other, but
// not its own; and each stream runs one thing at a time.
struct PassBounds {
  double any = 0;    // whatever runs beside what
  double apart = 0;  // no pass beside another: with the collectives that block
};

// What one microbatch takes at least through a model that one stage holds, and through each part of it: the embedding,
// each layer, those for multi-token prediction together, and the loss.
struct PassesOfOne {
  struct Part {
    double forward = 0, backward = 0;                  // with the collectives that block
    double forward_kernels = 0, backward_kernels = 0;  // without any collective

    Part& operator+=(const Part& other) {
      forward += other.forward;
      backward += other.backward;
      forward_kernels += other.forward_kernels;
      backward_kernels += other.backward_kernels;
      return *this;
    }
    double kernels() const { return forward_kernels + backward_kernels; }
    double apart() const { return forward + backward; }
    double beside() const { return std::max({forward, backward, kernels()}); }
  };
  PassBounds all;
  std::vector<Part> parts;

  static std::size_t part_count(const Model& model) { return static_cast<std::size_t>(model.layers) + 3; }
  const Part& embedding() const { return parts.front(); }
  const Part& layer(std::int64_t layer) const { return parts[static_cast<std::size_t>(layer) + 1]; }
  const Part& predictions() const { return parts[parts.size() - 2]; }
  const Part& loss() const { return parts.back(); }
};

// Whether passes run beside each other. Where gradients are shared, the planner runs one after the other.
bool pairs_passes(const ParallelPlan& plan);

// `program` holds the model on one stage and has one microbatch; `forecasts` are of its works.
PassesOfOne passes_of_one(const StepProgram& program, const std::vector<Forecast>& forecasts, const Model& model);

// The same of a scenario's own passes, without what ZeRO 2 and 3 add for weights and gradients, whose ranks are others
// on one stage. Of a plan that cannot be built, all is zero.
PassesOfOne passes_on_one_stage(const Scenario& scenario, const Session& session);

// Where the stages of a plan lie in the period of its cluster: at multiples of this number of ranks. The period itself
// where all lie like the first one. 0 where a plan with one stage (on_one_stage) has other tensor-, context- or
// expert-parallel groups.
std::int64_t distance_of_places(const Scenario& scenario);
// Whether they lie in several ways at this distance. Else passes_on_each_stage are the least_passes.
bool has_several_places(const Cluster& cluster, std::int64_t distance);

// The same, each collective at the place where it takes least, and none where distance_of_places is 0: no stage takes
// less. Plans that differ in stages, replicas and ZeRO, but not in distance_of_places, have the same.
PassesOfOne least_passes(const Scenario& scenario, const Session& session);

// The same for each stage, with its collectives where they lie. Stages that lie alike share one element.
struct PassesOfStages {
  std::vector<PassesOfOne> places;      // at least one
  std::vector<std::size_t> of_stage{};  // empty: places[0] for all
  const PassesOfOne& stage(std::int32_t stage) const {
    return of_stage.empty() ? places[0] : places[of_stage[static_cast<std::size_t>(stage)]];
  }
  std::size_t size() const { return places.size() * places[0].parts.size(); }
};
PassesOfStages passes_on_each_stage(const Scenario& scenario, const Session& session);

// Seconds in which the weights and gradients of each layer are exchanged beside the passes of one microbatch, on the
// first stage. Empty where layer_exchanges are.
struct ExchangeTime {
  double forward = 0, backward = 0;
};
std::vector<ExchangeTime> exchange_times(const Scenario& scenario, const Session& session);

// What a step takes at least that has `microbatches` of these passes: some stage runs its part of all of them, behind
// the first microbatch's passes through what lies before this stage. `exchanges`: by layer, or none; no pass of the
// first stage is shorter than what runs beside it. `kept`: the passes of the layers that a plan with some
// recompute_layers does not recompute; `passes` are then those of all layers recomputed.
double pipeline_bound(const PassesOfStages& passes, const Scenario& scenario, std::int64_t microbatches,
                      std::span<const ExchangeTime> exchanges = {}, const PassesOfOne* kept = nullptr);

}  // namespace ns_dist
