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
  const Shape shape = Shape::whole(model, {1, 1, training.sequence, training.precision, training.mtp});
  // With LoRA, weights of the model have no gradients, and their adapters' products come on top.
  const ParallelPlan lora{.lora_rank = plan.lora_rank};
  Shape adapted = shape;
  adapted.plan = &lora;
  const LayerKinds kinds = layer_kinds(model);
  const std::vector<std::int64_t> counts = layers_of_kinds(kinds);
  BlockFlops layers, predictions;
  double gradients_less = 0;  // than twice the forward pass
  const auto add = [&](auto block, std::int64_t count, BlockFlops& sum) {
    const BlockFlops each = flops_of(block(adapted), plan.recompute_modules);
    if (plan.lora_rank > 0) gradients_less += flops_of(block(shape)).weights * static_cast<double>(count);
    sum.forward += each.forward * static_cast<double>(count);
    sum.recomputed += each.recomputed * static_cast<double>(count);
    sum.until_kept += each.until_kept * static_cast<double>(count);
    sum.masked += each.masked * static_cast<double>(count);
  };
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    add([&](const Shape& of) { return layer_block(of, kinds.kinds[kind]); }, counts[kind], layers);
  }
  if (shape.prediction_layers > 0) add(prediction_block, shape.prediction_layers, predictions);
  const double sequences = static_cast<double>(training.global_batch);
  const auto loss_count = static_cast<double>(1 + shape.prediction_layers);
  const double losses = loss_count * flops_of(loss_block(shape)).forward;
  if (plan.lora_rank > 0) gradients_less += loss_count * flops_of(loss_block(shape)).weights;
  const bool backward = plan.passes != Passes::kForward;
  const double forward = layers.forward + predictions.forward + losses;
  const double passes = backward ? 3 : 1;
  const double model_flops = passes * forward - (backward ? gradients_less : 0);
  double again = 0;
  if (backward && plan.recompute == Recompute::kFull) {
    const double share = recomputed_share(model, plan);
    again = plan.recompute_early_stop ? layers.until_kept * share + predictions.until_kept
                                      : layers.forward * share + predictions.forward;
  }
  if (backward && plan.recompute == Recompute::kSelective) again = layers.recomputed + predictions.recomputed;
  return {sequences * model_flops * units::FLOP, sequences * (model_flops + again) * units::FLOP,
          sequences * (model_flops - passes * (layers.masked + predictions.masked)) * units::FLOP};
}

}  // namespace ns_dist
