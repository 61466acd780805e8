#include <algorithm>

#include "block.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

// Of the layers, those that full recomputation runs again.
double recomputed_share(const Model& model, const ParallelPlan& plan) {
  if (plan.recompute_layers == 0) return 1;
  const auto layers = static_cast<double>(model.layers);
  return std::min(layers, static_cast<double>(plan.recompute_layers * plan.pp * plan.vpp)) / layers;
}

}  // namespace

StepFlops step_flops(const Model& model, const ParallelPlan& plan, const Training& training) {
  // Forward FLOPs of one sequence through the whole model.
  const Shape shape = Shape::whole(model, {1, 1, training.sequence, training.precision});
  const std::int64_t dense = dense_layers(model);
  BlockFlops layers;
  const auto add = [&](bool moe, std::int64_t count) {
    if (count == 0) return;
    const BlockFlops each = flops_of(layer_block(shape, moe), plan.recompute_modules);
    layers.forward += each.forward * static_cast<double>(count);
    layers.recomputed += each.recomputed * static_cast<double>(count);
  };
  add(false, dense);
  add(true, model.layers - dense);
  const double sequences = static_cast<double>(training.global_batch);
  const double model_flops = 3 * (layers.forward + flops_of(loss_block(shape)).forward);
  double again = 0;
  if (plan.recompute == Recompute::kFull) again = layers.forward * recomputed_share(model, plan);
  if (plan.recompute == Recompute::kSelective) again = layers.recomputed;
  return {sequences * model_flops * units::FLOP, sequences * (model_flops + again) * units::FLOP};
}

}  // namespace ns_dist
