#include <algorithm>

#include "block.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

// How many layers of each kind are trained: behind the first ones, which are frozen.
std::vector<std::int64_t> trained_layers(const ParallelPlan& plan, const LayerKinds& layers) {
  std::vector<std::int64_t> counts(layers.kinds.size());
  const auto frozen = static_cast<std::size_t>(frozen_layers_of(plan));
  for (std::size_t i = frozen; i < layers.of_layer.size(); ++i) ++counts[layers.of_layer[i]];
  return counts;
}

// How many layers of each kind full recomputation runs again: the first trained ones of each position. A plan without
// positions is an error of check_plan.
std::vector<std::int64_t> recomputed_layers(const Model& model, const ParallelPlan& plan, const LayerKinds& layers) {
  const auto ranges = divide_layers(model, plan);
  if (plan.recompute_layers == 0 || !ranges) return trained_layers(plan, layers);
  std::vector<std::int64_t> counts(layers.kinds.size());
  for (const LayerRange& range : *ranges) {
    const std::int64_t frozen = frozen_layers_of(plan, range);
    for (std::int64_t i = frozen; i < std::min(range.count, frozen + plan.recompute_layers); ++i) {
      ++counts[layers.of_layer[static_cast<std::size_t>(range.first + i)]];
    }
  }
  return counts;
}

// Of one sequence.
struct SequenceFlops {
  double model = 0, again = 0;    // of the passes, and of recomputation
  double masked = 0, losses = 0;  // of `model`: what a causal mask hides, what makes logits
  double masked_again = 0;        // of `again`
};

// `expert_rows`: of those that the router asks for.
SequenceFlops sequence_flops(const Model& model, const ParallelPlan& plan, const Training& training,
                             double expert_rows) {
  // Forward FLOPs of one sequence through the whole model.
  Training one = training;
  one.global_batch = one.micro_batch = 1;
  const Shape shape = Shape::whole(model, one);
  // With LoRA, weights of the model have no gradients, and their adapters' products come on top.
  const ParallelPlan lora = adapters_alone(plan);
  Shape adapted = shape;
  adapted.plan = &lora;
  const LayerKinds kinds = layer_kinds(model);
  const std::vector<std::int64_t> all = layers_of_kinds(kinds), counts = trained_layers(plan, kinds);
  const bool full = plan.recompute == Recompute::kFull, by_operators = plan.recompute == Recompute::kOperators;
  const std::vector<std::int64_t> repeats = full ? recomputed_layers(model, plan, kinds) : counts;
  BlockFlops frozen, embeddings, layers, predictions, repeated;
  double gradients_less = 0;  // than twice the forward pass
  const auto add = [&](auto block, std::int64_t count, std::int64_t again, BlockFlops& sum) {
    const BlockFlops each = flops_of(block(adapted), plan.recompute_modules, expert_rows);
    if (plan.lora_rank > 0) {
      gradients_less +=
          flops_of(block(shape), plan.recompute_modules, expert_rows).weights * static_cast<double>(count);
    }
    gradients_less += 2 * each.alone * static_cast<double>(count);
    sum.forward += each.forward * static_cast<double>(count);
    sum.recomputed += each.recomputed * static_cast<double>(count);
    sum.masked += each.masked * static_cast<double>(count);
    repeated.masked += each.masked * static_cast<double>(again);
    repeated.forward += each.forward * static_cast<double>(again);
    repeated.until_kept += each.until_kept * static_cast<double>(again);
    if (!by_operators) return;
    // Which operators run again depends on what ranks exchange, and on the format of the products.
    ParallelPlan balanced = plan;
    balanced.expert_imbalance = {};
    const double wide = std::min(
        1.0, static_cast<double>(plan.bf16_first_layers + plan.bf16_last_layers) / static_cast<double>(model.layers));
    for (const auto& [precise, share] : {std::pair(training, 1 - wide), std::pair(in_16_bits(training), wide)}) {
      if (!(share > 0)) continue;
      const BlockFlops of_rank = flops_of(block(Shape(model, balanced, precise)));
      if (!(of_rank.forward > 0)) continue;
      sum.repeated += share * each.forward * of_rank.repeated / of_rank.forward * static_cast<double>(count);
    }
  };
  // What is frozen runs forward alone.
  const auto add_frozen = [&](const Block& block, std::int64_t count) {
    const BlockFlops each = flops_of(block, plan.recompute_modules, expert_rows);
    frozen.forward += each.forward * static_cast<double>(count);
    frozen.masked += each.masked * static_cast<double>(count);
  };
  const bool freezes = frozen_layers_of(plan) > 0;
  // The projection of per-layer embeddings; never computed again.
  freezes ? add_frozen(embedding_block(shape), 1) : add(embedding_block, 1, 0, embeddings);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    const auto block = [&](const Shape& of) { return layer_block(of, kinds.kinds[kind]); };
    add(block, counts[kind], repeats[kind], layers);
    if (counts[kind] < all[kind]) add_frozen(block(shape), all[kind] - counts[kind]);
  }
  if (shape.prediction_layers > 0) add(prediction_block, shape.prediction_layers, shape.prediction_layers, predictions);
  const auto loss_count = static_cast<double>(1 + shape.prediction_layers);
  const double losses = loss_count * flops_of(loss_block(shape)).forward;
  const bool frozen_logits = plan.lora_rank > 0 || (freezes && model.ties_logits());
  if (frozen_logits) gradients_less += loss_count * flops_of(loss_block(shape)).weights;
  const bool backward = plan.passes != Passes::kForward;
  const double passes = backward ? 3 : 1;
  SequenceFlops flops;
  flops.model = passes * (embeddings.forward + layers.forward + predictions.forward + losses) -
                (backward ? gradients_less : 0) + frozen.forward;
  if (backward && full) flops.again = plan.recompute_early_stop ? repeated.until_kept : repeated.forward;
  if (backward && plan.recompute == Recompute::kSelective) flops.again = layers.recomputed + predictions.recomputed;
  if (backward && by_operators) flops.again = layers.repeated + predictions.repeated;
  const bool scores = plan.recompute == Recompute::kSelective &&
                      (plan.recompute_modules & set_of(RecomputeModule::kCoreAttention)) != 0;
  if (backward && full) flops.masked_again = repeated.masked;
  if (backward && (scores || (by_operators && !plan.flash_attention)))
    flops.masked_again = layers.masked + predictions.masked;
  flops.masked = passes * (layers.masked + predictions.masked) + frozen.masked;
  flops.losses = passes * losses;
  return flops;
}

}  // namespace

StepFlops step_flops(const Model& model, const ParallelPlan& plan, const Training& training) {
  const double sequences = static_cast<double>(training.global_batch);
  const double rows = model.moe && pads_experts(plan) ? expert_rows(Shape(model, plan, training)) : 1;
  const SequenceFlops executed = sequence_flops(model, plan, training, rows);
  // Padding is no row of the model; tokens beyond a capacity are not computed.
  const SequenceFlops useful = rows > 1 ? sequence_flops(model, plan, training, 1) : executed;
  return {sequences * useful.model * units::FLOP, sequences * (executed.model + executed.again) * units::FLOP,
          sequences * (useful.model - useful.masked) * units::FLOP,
          sequences * (executed.model + executed.again - executed.masked - executed.masked_again) * units::FLOP,
          sequences * useful.losses * units::FLOP};
}

}  // namespace ns_dist
