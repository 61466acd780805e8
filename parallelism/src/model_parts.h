// The parts of a model under a plan: their kernels, parameters and kept bytes. Plans that differ only in their pipeline
// or in the number of replicas have the same parts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "block.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// The parts of the model that a position holds. From kLayers on, six for each kind of layer: under the plan's
// recomputation, or keeping its activations where only some layers of a position are recomputed, or frozen; each with
// products in the format of the training, or in 16 bits where only the first or last layers have these.
enum class Part : std::uint32_t { kEmbedding, kLoss, kPrediction, kPredictionLoss, kLayers };
enum class LayerPart : std::uint8_t { kUsual, kKept, kFrozen };
constexpr Part layer_part(std::size_t kind, LayerPart which, bool in_16_bits) {
  return static_cast<Part>(static_cast<std::size_t>(Part::kLayers) + 6 * kind + 2 * static_cast<std::size_t>(which) +
                           (in_16_bits ? 1 : 0));
}
constexpr bool is_frozen(const ParallelPlan& plan, Part part) {
  if (frozen_layers_of(plan) == 0) return false;
  if (part < Part::kLayers) return part == Part::kEmbedding;
  const std::size_t place = static_cast<std::size_t>(part) - static_cast<std::size_t>(Part::kLayers);
  return place % 6 / 2 == static_cast<std::size_t>(LayerPart::kFrozen);
}

// `count` like parts on end, of layers from `layer` on. Prediction layers are numbered behind the model's.
struct PartRun {
  Part part = Part::kEmbedding;
  std::int64_t layer = -1, count = 1;
};

// Whether full recomputation leaves out some layers of a position.
constexpr bool keeps_some_layers(const ParallelPlan& plan) {
  return plan.recompute == Recompute::kFull && plan.recompute_layers > 0;
}

// Whether the products of some layers may run in another format than those of the others.
constexpr bool has_layers_in_16_bits(const ParallelPlan& plan) {
  return plan.bf16_first_layers > 0 || plan.bf16_last_layers > 0;
}
constexpr bool is_in_16_bits(const ParallelPlan& plan, std::int64_t layer, std::size_t layers) {
  return layer < plan.bf16_first_layers || layer >= static_cast<std::int64_t>(layers) - plan.bf16_last_layers;
}

// One part. Parts that the model does not have hold nothing.
struct ModelPart {
  RankParameters parameters;  // that are trained
  RankParameters frozen;      // by what they take: frozen_of
  Matrices matrices;          // of `parameters`: updated as wholes
  KeptBytes kept;             // under the plan's recomputation
  double whole = 0;           // what it would keep without recomputation
  // Bytes on top of what is kept: while its backward pass runs, or its input gradient where that is a pass of its own;
  // in forward passes alone, all. transient: while its forward pass runs, which keeps the rest; of a frozen part, all.
  double working = 0, working_of_split = 0, transient = 0;
  double cached = 0;                                             // Block::cached
  double logged = 0;                                             // Block::logged
  std::array<std::optional<FragmentId>, kPassKindCount> passes;  // those that the schedule and the part have
};

struct ModelParts {
  std::vector<ModelPart> parts;  // by Part
  LayerKinds layers;
  std::int64_t prediction_layers = 0;
  std::vector<Fragment> fragments;  // of all passes
  WorkTable works;                  // of the fragments

  const ModelPart& operator[](Part part) const { return parts[static_cast<std::size_t>(part)]; }
  std::size_t size() const { return 0; }  // in a cache: next to nothing
};

// What a position holds, from its first part to its last. `layers` by position.
template <class Visit>
void for_each_run(const ModelParts& parts, const ParallelPlan& plan, std::span<const LayerRange> layers,
                  std::size_t position, Visit visit) {
  const std::vector<std::uint16_t>& kinds = parts.layers.of_layer;
  if (position == 0) visit(PartRun{Part::kEmbedding, -1, 1});
  const LayerRange& range = layers[position];
  const std::int64_t again = keeps_some_layers(plan) ? plan.recompute_layers : range.count;
  const std::int64_t frozen = frozen_layers_of(plan, range);
  PartRun run{Part::kEmbedding, range.first, 0};
  for (std::int64_t i = 0; i < range.count; ++i, ++run.count) {
    const std::int64_t layer = range.first + i;
    const bool in_16_bits = is_in_16_bits(plan, layer, kinds.size());
    const LayerPart which = i < frozen            ? LayerPart::kFrozen
                            : i - frozen >= again ? LayerPart::kKept
                                                  : LayerPart::kUsual;
    const Part part = layer_part(kinds[static_cast<std::size_t>(layer)], which, in_16_bits);
    if (run.count > 0 && run.part != part) visit(std::exchange(run, {part, layer, 0}));
    run.part = part;
  }
  if (run.count > 0) visit(run);
  const std::int64_t predictions = parts.prediction_layers;
  if (predictions > 0 && range.predictions > 0) {
    visit(PartRun{Part::kPrediction, static_cast<std::int64_t>(kinds.size()), range.predictions});
  }
  if (position + 1 < layers.size()) return;
  visit(PartRun{Part::kLoss, -1, 1});
  if (predictions > 0) visit(PartRun{Part::kPredictionLoss, -1, predictions});
}
std::vector<PartRun> part_runs(const ModelParts& parts, const ParallelPlan& plan, std::span<const LayerRange> layers,
                               std::size_t position);

// Calls visit(part, block, shape) for each part that the model has under this plan; `shape` is what the block was made
// of: of frozen parts, that of a plan of forward passes alone. `layers`: the model's.
void each_part(const Model& model, const LayerKinds& layers, const ParallelPlan& plan, const Training& training,
               const std::function<void(Part, const Block&, const Shape&)>& visit);

// What parts depend on.
struct PartsKey {
  const Model* model = nullptr;
  ParallelPlan plan;
  Training training;
  bool splits_backward = false;

  struct Stored {
    Model model;
    ParallelPlan plan;
    Training training;
    bool splits_backward = false;
  };
  Stored store() const { return {*model, plan, training, splits_backward}; }
  std::uint64_t hash() const;
  friend bool operator==(const PartsKey& key, const Stored& stored) {
    return key.plan == stored.plan && key.training == stored.training &&
           key.splits_backward == stored.splits_backward && *key.model == stored.model;
  }
};

std::shared_ptr<const ModelParts> model_parts(const Model& model, const ParallelPlan& plan, const Training& training,
                                              PlanCache& cache);
// The same without fragments: parameters and kept bytes, which depend neither on which ranks are neighbors nor on how
// many replicas there are.
std::shared_ptr<const ModelParts> part_sizes(const Model& model, const ParallelPlan& plan, const Training& training,
                                             PlanCache& cache);

}  // namespace ns_dist
