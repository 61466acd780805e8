// The memory that a plan needs on a GPU of each pipeline stage.
//
// Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), eq. 1-6. They are counted tensor by tensor, so grouped
// queries, gated MLPs, experts and flash attention are covered.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/names.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// What activations are kept for. The blocks (src/blocks) say it where they count their bytes.
enum class ActivationKind : std::uint8_t {
  kEmbedding,             // the mask of its dropout
  kNorms,                 // inputs
  kAttentionProjections,  // inputs of the linear layers around attention
  kAttentionCore,         // queries, keys, values
  kAttentionScores,       // of attention that is not fused: the softmax's output, mask and output of the dropout
  kSoftmaxStatistics,     // of flash attention: the log-sum-exp of each row
  kStateSpace,            // the mixers of Mamba and of the gated delta rule
  kMlp,                   // inputs of its linear layers and of its activation function
  kRouter,                // its input, and the probabilities
  kExperts,
  kSharedExperts,
  kDropoutMasks,     // of the hidden states
  kResidualStreams,  // of hyper-connections: before a branch all, and the norm's input; behind it what the branch adds
  kPrediction,       // the projection of multi-token prediction
  kLogits,           // the final norm's input, the logits' input, the logits in fp32
  kOutputGradients,  // of linear layers that wait for their weight gradient, where the schedule splits backward passes
  kCheckpoints,      // inputs of layers that are computed again
  kWorkingLayer,     // of the layer that is computed again, what is not kept; in forward passes alone, of one layer
  kOffloadedLayers,  // of layers that the host keeps: on their way, or in use
  kKvCache,          // keys and values of all layers, in forward passes alone
};
template <>
inline constexpr auto kEnumeratorNames<ActivationKind> = std::to_array<std::string_view>({"embedding",
                                                                                          "norms",
                                                                                          "attention_projections",
                                                                                          "attention_core",
                                                                                          "attention_scores",
                                                                                          "softmax_statistics",
                                                                                          "state_space",
                                                                                          "mlp",
                                                                                          "router",
                                                                                          "experts",
                                                                                          "shared_experts",
                                                                                          "dropout_masks",
                                                                                          "residual_streams",
                                                                                          "multi_token_prediction",
                                                                                          "logits",
                                                                                          "output_gradients",
                                                                                          "checkpoints",
                                                                                          "working_layer",
                                                                                          "offloaded_layers",
                                                                                          "kv_cache"});
inline constexpr std::size_t kActivationKindCount = names_of<ActivationKind>().size();

// Bytes of a trained parameter beside its gradient: Megatron-LM's mixed precision keeps low-precision weights, and for
// the optimizer an fp32 master weight with two Adam moments (docs/source/api-guide/dist_optimizer, "18 bytes" with 4 of
// gradients; the distributed optimizer spreads the 12 of the optimizer over the data-parallel ranks). Weights in fp32
// are their own master weights.
struct BytesPerParameter {
  double weight = 0, optimizer = 0;  // of Adam, which has two moments
  double moment = 0;                 // of these, one; Muon has one less
};
// `dtype`: of the weights.
BytesPerParameter bytes_per_parameter(DType dtype, MomentType moments, WeightStorage weights = WeightStorage::kMaster);

struct StageMemory {
  // other: workspaces, a bucket of gradients, and what the update copies beyond the place of activations
  Bytes weights, gradients, optimizer, activations, other;
  Bytes communicators;  // NCCL's own buffers, which PyTorch does not count
  // What the update copies in the place of activations: blocks of the allocator that are smaller do not hold it, so
  // that PyTorch reserves both.
  Bytes in_place_of_activations;
  Bytes padding;  // of weights and gradients: their buffers beside what is in them (ParallelPlan::muon_buffers)
  // What tools show. total() is what tensors take: PyTorch's max_memory_allocated.
  Bytes total() const { return weights + gradients + optimizer + activations + other; }
  // What the GPU must hold: PyTorch's tensors, and beside them the CUDA context and NCCL's buffers.
  Bytes needed() const { return total() + kContext + communicators; }
  // max_memory_reserved: blocks that the caching allocator cannot give back, too.
  Bytes reserved() const { return kReservedShare * total() + in_place_of_activations; }
  // nvidia-smi: with the CUDA context and NCCL's buffers.
  Bytes device() const { return reserved() + kContext + communicators; }
  // 3 to 8 % more, the middle of 22 plans of which both figures are published (SimuMax v1.2, B200 release table).
  static constexpr double kReservedShare = 1.05;
  // Of a process on H100 before its first all-to-all, PyTorch's memory not counted: 1.06 GB (NVIDIA/nccl, issue 1685).
  static constexpr Bytes kContext = 1.0 * units::GiB;
};

// Memory of a GPU of each stage; peak() and reserved() are of the fullest one.
struct MemoryBudget {
  std::vector<StageMemory> stages;
  std::int64_t peak_stage = 0;
  Bytes peak() const { return stages.empty() ? Bytes() : fullest().total(); }
  Bytes reserved() const { return stages.empty() ? Bytes() : fullest().reserved(); }
  // Each of the stage that takes most of this, which may be another one.
  Bytes needed() const { return most(&StageMemory::needed); }
  Bytes device() const { return most(&StageMemory::device); }
  // A plan fits where no stage needs more than a GPU of `capacity` has.
  bool fits(Bytes capacity) const { return needed() <= capacity; }
  const StageMemory& fullest() const { return stages[static_cast<std::size_t>(peak_stage)]; }

 private:
  Bytes most(Bytes (StageMemory::*of)() const) const;
};

// Errors: those of check_plan and divide_layers, or a schedule that cannot run this shape.
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training);
Result<MemoryBudget> memory_budget(const Model& model, const ParallelPlan& plan, const Training& training,
                                   PlanCache& cache);

// What the host keeps of the GPU whose stage it keeps most of: what that GPU has more of where nothing is offloaded.
// Errors: as memory_budget.
Result<Bytes> offloaded_bytes(const Model& model, const ParallelPlan& plan, const Training& training);

// What makes up the budget of a stage, and when it is reached.
struct StageMemoryDetail {
  std::array<Bytes, kActivationKindCount> activations;  // at the peak, by kind; sum to StageMemory::activations
  Bytes of(ActivationKind kind) const { return activations[static_cast<std::size_t>(kind)]; }
  Bytes transient;  // of `activations`, what is counted at every time: offloaded layers; the rest is that of the peak

  Bytes gathered_weights;  // of StageMemory::weights: whole layers of ZeRO-3, the one that computes and the prefetched
  Bytes cast_weights;      // of StageMemory::weights: operands of products, in 8 or 4 bits
  Bytes whole_gradients;   // of StageMemory::gradients: whole layers of ZeRO-2 and ZeRO-3, before they are reduced
  Bytes unsummed_gradients;  // of StageMemory::gradients: of one microbatch, until they are added to the fp32 sums

  // Activations behind each pass and within it, without `transient`; nothing under forward passes alone. As
  // held_over_time; of lists of more than kMostHeldPoints points, the lowest and the highest of neighbors.
  std::vector<HeldPoint> over_time;
  std::size_t peak = 0;                   // of over_time: the first with the largest `most`
  std::int64_t passes = 0;                // of a step
  std::int64_t live = 0;                  // forward passes of which something is kept at the peak; each of one chunk
  std::int64_t weight_gradients_due = 0;  // of these, those that wait for their weight gradient alone
};
inline constexpr std::size_t kMostHeldPoints = 200;

// By stage. For reports: slower than memory_budget. Errors: as memory_budget.
Result<std::vector<StageMemoryDetail>> memory_detail(const Model& model, const ParallelPlan& plan,
                                                     const Training& training, PlanCache& cache);

// A lower bound of memory_budget(...).peak(), whatever the schedule, the number of chunks and of microbatches: when the
// first microbatch reaches the end of the model, the stages together hold all of its activations, and every parameter
// at least once. For plans that pass check_plan.
Bytes least_memory(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache);

}  // namespace ns_dist
