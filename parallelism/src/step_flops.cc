#include "block.h"
#include "ns_dist/planner.h"

namespace ns_dist {

StepFlops step_flops(const Model& model, const ParallelPlan& plan, const Training& training) {
  // Forward FLOPs of one sequence through the whole model.
  const Shape shape = Shape::whole(model, {1, 1, training.sequence, training.dtype});
  const std::int64_t dense = dense_layers(model);
  BlockFlops layers;
  const auto add = [&](bool moe, std::int64_t count) {
    if (count == 0) return;
    const BlockFlops each = flops_of(layer_block(shape, moe));
    layers.forward += each.forward * static_cast<double>(count);
    layers.recomputed += each.recomputed * static_cast<double>(count);
  };
  add(false, dense);
  add(true, model.layers - dense);
  const double sequences = static_cast<double>(training.global_batch);
  const double model_flops = 3 * (layers.forward + flops_of(loss_block(shape)).forward);
  double again = 0;
  if (plan.recompute == Recompute::kFull) again = layers.forward;
  if (plan.recompute == Recompute::kSelective) again = layers.recomputed;
  return {sequences * model_flops * units::FLOP, sequences * (model_flops + again) * units::FLOP};
}

}  // namespace ns_dist
