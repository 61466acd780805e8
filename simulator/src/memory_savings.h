// Plans that need less memory than a scenario's own, and what each usually costs.
#pragma once

#include <vector>

#include "ns_dist/scenario.h"

namespace ns_dist {

// A plan near the scenario's own that needs less memory.
struct SmallerPlan {
  ParallelPlan plan;
  Training training;
  double cost = 0;  // about the share of the step that the changes add; only the order matters
};

// The plan itself, and those that change it by doubling tp, cp, pp or ep, by sequence parallelism, and by whole
// experts. Data-parallel replicas are given up for the other degrees: as many as leave no GPU idle, or fewer. Or there
// are more of them, among which the optimizer, the weights or the experts are divided.
std::vector<SmallerPlan> other_degrees(const Scenario& scenario);

// The plan itself, and what any degrees may have: fused attention, a loss that does not store its logits, frozen
// weights in 4 bits, a smaller microbatch, more recomputation, 1F1B, which keeps few microbatches, the optimizer, the
// gradients or the weights shared among more replicas, and the optimizer on the host.
std::vector<SmallerPlan> savings_for(const Scenario& scenario);

// Whether chunks of a stage take turns, each with several backward passes on end: whole gradients of a round are those
// of a part of the stage, and are reduced less often than in each pass.
bool takes_turns(const ParallelPlan& plan);

// Whether weights are not shared in a pipeline, unless they were, and no rank has a part of the logits that are never
// stored.
bool go_together(const Scenario& scenario, const SmallerPlan& degrees, const SmallerPlan& saving);

// `saving` with the degrees of `degrees`.
SmallerPlan together(const Model& model, const SmallerPlan& degrees, const SmallerPlan& saving);

}  // namespace ns_dist
