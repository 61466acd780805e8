// The parts of a model under a plan: their kernels, parameters and kept bytes. Plans that differ only in their pipeline
// or in the number of replicas have the same parts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "block.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/plan_memory.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// The parts of the model that a position holds. The last two keep their activations where only some layers of a
// position are recomputed.
enum class Part : std::uint8_t { kEmbedding, kDenseLayer, kMoeLayer, kLoss, kKeptDenseLayer, kKeptMoeLayer };
inline constexpr std::size_t kPartCount = 6;

// `count` like parts on end, of layers from `layer` on.
struct LayerRun {
  Part part = Part::kDenseLayer;
  std::int64_t layer = -1, count = 1;
};
// Layers of one position.
std::vector<LayerRun> layer_runs(const Model& model, const ParallelPlan& plan, const LayerRange& range);

// Whether full recomputation leaves out some layers of a position.
constexpr bool keeps_some_layers(const ParallelPlan& plan) {
  return plan.recompute == Recompute::kFull && plan.recompute_layers > 0;
}

// One part. A model without such layers has none of their parameters, bytes and passes.
struct ModelPart {
  RankParameters parameters;
  KeptBytes kept;                                                // under the plan's recomputation
  double kept_without_recompute = 0;                             // bytes after the forward pass
  std::array<std::optional<FragmentId>, kPassKindCount> passes;  // those that the schedule has
};

struct ModelParts {
  std::array<ModelPart, kPartCount> parts;
  std::vector<Fragment> fragments;  // of all passes
  WorkTable works;                  // of the fragments

  const ModelPart& operator[](Part part) const { return parts[static_cast<std::size_t>(part)]; }
  bool too_large() const { return false; }
};

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
                                              PlanMemory& memory);

}  // namespace ns_dist
