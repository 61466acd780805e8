// How a step is divided over ranks (ParallelPlan), and its batch, sequence and number format (Training).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "ns_dist/dtype.h"
#include "ns_dist/fields.h"
#include "ns_dist/library.h"
#include "ns_dist/precision.h"

namespace ns_dist {

struct Model;

// What is kept of a layer's activations for the backward pass (Korthikanti et al. 2022, s.5): everything; everything
// but some modules; the layer's input and what some operators return, attention, products and what ranks exchanged
// (torchtitan, distributed/activation_checkpoint.py); or only the layer's input.
enum class Recompute { kNone, kSelective, kOperators, kFull };
template <>
inline constexpr auto kEnumeratorNames<Recompute> = std::to_array<std::string_view>({"none", "selective", "operators",
                                                                                     "full"});
// Modules that selective recomputation runs again, with Megatron-Core's names (transformer_config.py,
// recompute_modules).
enum class RecomputeModule { kCoreAttention, kNorm, kMlp, kMoeActivation, kMoe, kSharedExperts, kLatentUpProjection };
template <>
inline constexpr auto kEnumeratorNames<RecomputeModule> = std::to_array<std::string_view>(
    {"core_attn", "layernorm", "mlp", "moe_act", "moe", "shared_experts", "mla_up_proj"});
using ModuleSet = EnumSet;  // of RecomputeModule
// Products whose outputs recomputation by operators keeps: the first, third, fifth, ... of a layer (torchtitan until
// 2026, _apply_op_sac), or each (its SelectiveAC).
enum class KeptProducts { kEverySecond, kAll };

// Members of ParallelPlan that one text (one flag) sets: "none", "selective", "selective:core_attn,mlp", "operators",
// "operators:all", "full", "full:4", "full:uniform:2".
struct Recomputation {
  Recompute recompute = Recompute::kNone;
  ModuleSet modules = set_of(RecomputeModule::kCoreAttention);
  std::int64_t layers = 0;
  std::int64_t together = 1;
  KeptProducts products = KeptProducts::kEverySecond;
  friend bool operator==(const Recomputation&, const Recomputation&) = default;
};
Result<void> read_field(const Field& field, std::string_view text, Recomputation& value);
std::string field_text(const Recomputation& value);

// What each model chunk holds, in Megatron-Core's notation (parallelism: read_pipeline_layout). Written "even" where
// there is no such text: layers are divided evenly.
struct PipelineLayout {
  std::string text = {};
  bool is_even() const { return text.empty(); }
  friend bool operator==(const PipelineLayout&, const PipelineLayout&) = default;
};
Result<void> read_field(const Field& field, std::string_view text, PipelineLayout& value);
std::string field_text(const PipelineLayout& value);

template <>
inline constexpr bool kHasOwnText<Recomputation> = true;
template <>
inline constexpr bool kHasOwnText<PipelineLayout> = true;

// How context-parallel ranks bring queries and keys together: keys and values travel around a ring, each part beside
// the attention of the part before it (Liu et al. 2023, arXiv 2310.01889); all keys and values are gathered first
// (Llama 3, arXiv 2407.21783, s.3.3.2); heads and tokens are exchanged, so that each rank has all tokens of some
// heads (Jacobs et al. 2023, arXiv 2309.14509, DeepSpeed-Ulysses); or they are exchanged among neighbors, and keys and
// values travel around rings of ranks with the same heads (TransformerEngine's and Megatron-Core's hierarchical context
// parallelism).
enum class ContextExchange { kRing, kAllGather, kAllToAll, kHierarchical };
template <>
inline constexpr auto kEnumeratorNames<ContextExchange> = std::to_array<std::string_view>({"p2p", "all-gather", "a2a",
                                                                                           "a2a+p2p"});
// How tokens go to the ranks of their experts and back: a copy for each expert, by an all-to-all of all ranks
// (Megatron-Core's all-to-all dispatcher); a copy for each node, which its GPUs copy for each other, one for each rank
// (DeepEP, Megatron-Core's flex dispatcher); or all tokens to all ranks, by an all-gather (Megatron-Core's allgather
// dispatcher).
enum class ExpertDispatch { kAllToAll, kDeepEp, kAllGather };
template <>
inline constexpr auto kEnumeratorNames<ExpertDispatch> = std::to_array<std::string_view>({"a2a", "deepep",
                                                                                          "all-gather"});
// The products of a rank's experts: launched one after the other (TransformerEngine's GroupedLinear, DeepSpeed), or one
// kernel for all (torch._grouped_mm, megablox).
enum class ExpertProducts { kLoop, kKernel };
template <>
inline constexpr auto kEnumeratorNames<ExpertProducts> = std::to_array<std::string_view>({"loop", "kernel"});
// What updates the weights: Adam each element by itself, Muon the matrices of linear layers as wholes, by their
// orthogonalized momentum (Liu et al. 2025, arXiv 2502.16982). Embeddings, logits, norms and biases stay with Adam.
enum class OptimizerKind { kAdam, kMuon };
template <>
inline constexpr auto kEnumeratorNames<OptimizerKind> = std::to_array<std::string_view>({"adam", "muon"});
// A matrix that tensor-parallel ranks share, under Muon: each rank gathers all of it and orthogonalizes it by itself,
// or the ranks share the products, or each orthogonalizes its own part alone (Megatron-Core, --muon-tp-mode).
enum class MuonSplit { kDuplicated, kDistributed, kBlockwise };
template <>
inline constexpr auto kEnumeratorNames<MuonSplit> = std::to_array<std::string_view>({"duplicated", "distributed",
                                                                                     "blockwise"});
// Of Muon under ZeRO 1, the buffers of matrices, each of which one rank updates: they are reduced to and gathered from
// parts of one size, so each part is as large as the largest; or gradients are summed on all ranks, weights come in
// parts of their own sizes, and each table of the embedding belongs to one rank as well (Megatron-Core's default, and
// its --no-use-layer-wise-param-layout).
enum class MuonBuffers { kPadded, kWhole };
template <>
inline constexpr auto kEnumeratorNames<MuonBuffers> = std::to_array<std::string_view>({"padded", "whole"});
// Format of the optimizer's moments: two of Adam, one of Muon. 8 bits: one factor a block (Dettmers et al. 2021, arXiv
// 2110.02861).
enum class MomentType { kFp32, kBf16, k8Bit };
template <>
inline constexpr auto kEnumeratorNames<MomentType> = std::to_array<std::string_view>({"fp32", "bf16", "8bit"});
// What weights of a plan in 16 or fewer bits are kept in: in its storage format, with a master copy in fp32 that the
// optimizer updates (Megatron-LM, DeepSpeed); in fp32, of which torch.autocast makes copies for the products (Trainer
// of Hugging Face with bf16=True, Lightning's bf16-mixed): then hidden states, norms and gradients are fp32, too; or in
// the storage format alone, as are gradients and moments (a model loaded with torch_dtype=bfloat16). What LoRA freezes
// is in the storage format, as are hidden states: fp32 is the format of the adapters (PEFT, autocast_adapter_dtype).
enum class WeightStorage { kMaster, kFp32, kLow };
template <>
inline constexpr auto kEnumeratorNames<WeightStorage> = std::to_array<std::string_view>({"master", "fp32", "low"});
// What frozen weights of linear layers are kept in under LoRA: as all others are; or in 4 bits, from which a kernel
// makes the storage format before each product: with double quantization (QLoRA, Dettmers et al. 2023, arXiv
// 2305.14314), or with an fp32 constant for each block of 64 (transformers, BitsAndBytesConfig:
// bnb_4bit_use_double_quant is off unless it is set).
enum class FrozenWeights { kPlain, kNf4, kNf4Single };
template <>
inline constexpr auto kEnumeratorNames<FrozenWeights> = std::to_array<std::string_view>({"plain", "nf4", "nf4-single"});
// How microbatches' weight gradients are summed: fp32 in the epilogue of the weight gradient's product (Megatron-LM's
// gradient_accumulation_fusion), fp32 by a cast and an addition when a microbatch's backward pass is over (DeepSpeed's
// BF16 optimizer), or in the weights' own format: by a kernel of its own (DeepSpeed's FP16 optimizer), or in the
// epilogue (Megatron-LM's with grad_reduce_in_fp32 off).
enum class GradAccumulation { kFused, kFp32, kLow, kFusedLow };
template <>
inline constexpr auto kEnumeratorNames<GradAccumulation> = std::to_array<std::string_view>({"fused", "fp32", "low",
                                                                                            "fused-low"});
constexpr bool is_fused(GradAccumulation how) {
  return how == GradAccumulation::kFused || how == GradAccumulation::kFusedLow;
}
constexpr bool sums_in_fp32(GradAccumulation how) {
  return how == GradAccumulation::kFused || how == GradAccumulation::kFp32;
}
// Which tensor-parallel collectives of the backward pass do not run beside products: none of them; those that reduce,
// which a product that is launched at the same time keeps from the multiprocessors; or all.
enum class TensorBlocking { kOff, kReductions, kOn };
template <>
inline constexpr auto kEnumeratorNames<TensorBlocking> = std::to_array<std::string_view>({"off", "reductions", "on"});
// What gradients that are reduced beside passes, and weights that are gathered so, travel in: layers, or
// Megatron-Core's buckets (distributed_data_parallel.py): on the first stage, of the first chunk at least 40 million
// parameters, and a million for each replica, so that rings do not wait for latency; else all of a chunk. Experts have
// buckets of their own. A layer is not divided.
enum class GradBuckets { kLayers, kMegatron };
template <>
inline constexpr auto kEnumeratorNames<GradBuckets> = std::to_array<std::string_view>({"layers", "megatron"});
enum class ZeroStage { kNone = 0, kOptimizer = 1, kGradients = 2, kParameters = 3 };
template <>
inline constexpr auto kEnumeratorNames<ZeroStage> = std::to_array<std::string_view>({"0", "1", "2", "3"});
// Whose ZeRO-3 runs. Default: shards have the weights' format, beside master weights in fp32 (DeepSpeed). PyTorch's
// FSDP and FSDP2 keep fp32 shards alone and gather them in low precision; FSDP gathers the weights of a layer as one
// buffer, which the products read; FSDP2 copies each weight out of it (_fsdp_collectives.py,
// foreach_all_gather_copy_out), and in a pipeline it gathers and reduces once a step (pipelining/stage.py,
// backward_maybe_with_nosync).
enum class ZeroLibrary { kDefault, kFsdp, kFsdp2 };
template <>
inline constexpr auto kEnumeratorNames<ZeroLibrary> = std::to_array<std::string_view>({"default", "fsdp", "fsdp2"});
// How ZeRO-1 and 2 reduce gradients: each rank gets the sums of its share; or all ranks get all sums, and each keeps
// its share (DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py, allreduce_and_scatter).
enum class GradientExchange { kReduceScatter, kAllReduce };
template <>
inline constexpr auto kEnumeratorNames<GradientExchange> = std::to_array<std::string_view>({"reduce-scatter",
                                                                                            "all-reduce"});
// When ZeRO-2 and 3 reduce gradients: in each microbatch's backward pass (DeepSpeed), or once a round, which is the
// backward passes of a model chunk that a stage runs with none of another chunk between them: they add their gradients
// up in a whole buffer, which the last one reduces (Llama 3, arXiv 2407.21783, s.3.3.2; Chu et al., ISCA 2025, ZeRO-2
// with rounds of consecutive microbatches of a virtual stage; PyTorch, no_sync of FSDP).
enum class ReduceEach { kMicrobatch, kRound };
template <>
inline constexpr auto kEnumeratorNames<ReduceEach> = std::to_array<std::string_view>({"microbatch", "round"});

// What a step runs: forward and backward passes and the optimizer; both passes without an update, so that gradients
// grow from step to step and weights stay; or forward passes alone, as an evaluation does, whose activations nothing
// keeps and which drops nothing out.
enum class Passes { kTraining, kGradients, kForward };
template <>
inline constexpr auto kEnumeratorNames<Passes> = std::to_array<std::string_view>({"training", "gradients", "forward"});

inline constexpr std::int64_t kMostRanks = 10'000'000;  // of a plan; a hundred times the largest machine built so far

struct ParallelPlan {
  Passes passes = Passes::kTraining;
  std::int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  std::int64_t vpp = 1;                  // model chunks of a pipeline stage
  std::string schedule = "1f1b";         // a name of pipeline_schedules()
  std::int64_t first_stage_layers = 0;   // layers of the stage with the embedding; 0: as many as the others
  std::int64_t last_stage_layers = 0;    // layers of the stage with the loss; 0: as many as the others
  bool account_embedding = false;        // the embedding counts as a layer when layers are divided over stages
  bool account_loss = false;             // the loss counts as a layer when layers are divided over stages
  PipelineLayout pipeline_layout = {};   // in place of the four before, or of an even division
  std::string order = "tp-cp-ep-dp-pp";  // which ranks are neighbors: dimensions, innermost first (rank_order)
  std::int64_t etp = 0;                  // tensor-parallel ranks of an expert; 0: as many as tp
  ContextExchange cp_comm = ContextExchange::kRing;
  // Of a2a+p2p: ranks that exchange heads; 0: as many as lie in a node and divide the key-value heads.
  std::int64_t cp_inner = 0;
  ExpertDispatch expert_dispatch = ExpertDispatch::kAllToAll;
  Imbalance expert_imbalance = {};  // tokens of the busiest of the ranks that share a layer's experts, over the mean
  CapacityFactor expert_capacity = {};  // rows of each expert, padded, over its even share; 0: as many as are routed
  ZeroStage zero = ZeroStage::kOptimizer;
  ZeroLibrary zero_library = ZeroLibrary::kDefault;
  std::int64_t shard = 0;  // replicas that share one copy of what ZeRO spreads; 0: all of dp x cp
  ReduceEach reduce_each = ReduceEach::kMicrobatch;                       // ZeRO 2 and 3: when gradients are reduced
  GradientExchange gradient_exchange = GradientExchange::kReduceScatter;  // ZeRO 1 and 2
  bool reshard = true;        // ZeRO 3: the backward pass gathers weights again
  std::int64_t prefetch = 1;  // ZeRO 3: layers whose weights are gathered ahead
  Recompute recompute = Recompute::kNone;
  ModuleSet recompute_modules = set_of(RecomputeModule::kCoreAttention);  // of selective recomputation
  std::int64_t recompute_layers = 0;                                      // of each chunk, under full; 0: all
  // Under full, layers that keep one input, that of their first, and are recomputed at one time (Megatron-Core,
  // recompute_method uniform). A chunk's last ones may be fewer.
  std::int64_t recompute_together = 1;
  KeptProducts recompute_products = KeptProducts::kEverySecond;  // under operators
  bool recompute_early_stop = false;     // full recomputation ends with the last value that the backward pass reads
  std::int64_t offload_activations = 0;  // layers of each chunk: what they keep goes to the host until it is read
  std::int64_t vocabulary_multiple = 0;  // of the vocabulary on each rank, which is padded; 0: 128, as Megatron-LM does
  bool sequence_parallel = false;
  bool flash_attention = true;
  Library attention_library = Library::kDefault;  // of the fused kernel
  Library norm_library = Library::kDefault;
  Library loss_library = Library::kDefault;  // of cross-entropy; see loss_library_of
  // Of a microbatch's tokens, whose logits are made one after the other; 0: as Liger divides them, else all at once.
  std::int64_t loss_parts = 0;
  std::int64_t loss_metrics = 0;   // cross-entropies in eager mode beside the loss, of each microbatch, for the log
  bool kv_cache = false;           // keys and values of all layers stay, under forward passes alone
  bool fused_kernels = true;       // elementwise operations of a layer are fused; off: a kernel for each
  bool split_softmax = false;      // of scores that are stored: scale, mask and softmax are a kernel each
  bool written_out = false;        // a kernel for each operation that the model's class writes out
  bool fused_permutation = false;  // of tokens to experts and back: one kernel each way
  ExpertProducts expert_products = ExpertProducts::kLoop;
  bool weighted_activation = false;  // of experts: has the routing weights, so their outputs are summed up as they are
  std::int64_t lora_rank = 0;        // of adapters on the linear layers, all else is frozen; 0: the model is trained
  bool separate_adapters = false;    // one for each layer that is one here with others (queries, keys, values)
  FrozenWeights frozen_weights = FrozenWeights::kPlain;
  std::int64_t frozen_layers = 0;  // of the model, its first: they and the embedding are frozen; see frozen_layers_of
  bool fp8_params = false;         // weights are gathered and kept in the format of products
  bool fp8_any_layout = false;     // of fp8: products read either layout, so no operand is kept transposed, too
  bool fp8_dispatch = false;       // tokens go to experts, and gradients of their outputs, in the format of products
  bool fp8_activations = false;    // inputs of activation functions are kept so, too, and attention's output in 12 bits
  bool fp8_original_inputs = false;  // products' inputs are kept as they come, and cast again in the backward pass
  bool delayed_scaling = false;      // of fp8: factors follow the largest values of earlier passes
  std::int64_t bf16_first_layers = 0, bf16_last_layers = 0;  // whose products stay in 16 bits under an 8-bit format
  WeightStorage weights = WeightStorage::kMaster;
  OptimizerKind optimizer = OptimizerKind::kAdam;
  MuonSplit muon_tp = MuonSplit::kDuplicated;  // of matrices that tensor-parallel ranks share
  std::int64_t muon_steps = 5;                 // Newton-Schulz iterations
  MuonBuffers muon_buffers = MuonBuffers::kPadded;
  MomentType optimizer_state = MomentType::kFp32;
  Fraction offload_optimizer = {};     // of the states that this rank updates: they and their update are the host's
  bool offload_gradients = false;      // with these states, the summed gradients; see offloads_gradients
  bool offload_weights = false;        // ZeRO 3: a rank's part lies in the host's memory, and is loaded for each pass
  bool copy_gradients = false;         // a rank's share of them goes into one fp32 tensor; see copies_gradients
  std::int64_t reduce_bucket = 0;      // elements of a buffer for gradients on their way, under ZeRO
  bool average_in_collective = false;  // gradients that are reduced once a step need no kernel that divides them before
  GradAccumulation grad_accumulation = GradAccumulation::kFused;
  TensorBlocking blocking_tp = TensorBlocking::kOff;
  bool overlap_grad_reduce = false;                 // data-parallel gradient reduction beside the last backward passes
  bool overlap_param_gather = false;                // data-parallel parameter gathering beside the first forward passes
  GradBuckets grad_buckets = GradBuckets::kLayers;  // under the two overlaps above
  bool overlap_p2p = false;                         // a stage goes on computing while it sends
  bool scatter_p2p = false;                         // of what tensor-parallel ranks have alike, each sends a part
  bool overlap_tp = false;                          // tensor-parallel collectives run in parts beside their products
  bool overlap_ep = false;                          // shared experts compute while tokens travel
  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;
};

// Eager where the plan's kernels are not fused and names no library.
constexpr Library loss_library_of(const ParallelPlan& plan) {
  const Library unnamed = plan.fused_kernels ? Library::kDefault : Library::kEager;
  return plan.loss_library == Library::kDefault ? unnamed : plan.loss_library;
}

// Whether products in 8 bits scale their operands by the largest values of earlier steps.
constexpr bool delays_scaling(const ParallelPlan& plan, Precision precision) {
  return precision == Precision::kFp8 && plan.delayed_scaling;
}
// Whether frozen linear layers are kept in 4 bits.
constexpr bool freezes_in_4_bits(const ParallelPlan& plan) {
  return plan.lora_rank > 0 && plan.frozen_weights != FrozenWeights::kPlain;
}
// One rank's plan with these adapters and nothing else.
inline ParallelPlan adapters_alone(const ParallelPlan& plan) {
  return {.lora_rank = plan.lora_rank, .separate_adapters = plan.separate_adapters};
}
// Layers from the first on that have no gradients, as has the embedding before them; 0: all is trained. Forward passes
// alone have no gradients anyway.
constexpr std::int64_t frozen_layers_of(const ParallelPlan& plan) {
  return plan.passes == Passes::kForward ? 0 : plan.frozen_layers;
}
// Whether the embedding's table is frozen: by these, or by LoRA.
constexpr bool freezes_tables(const ParallelPlan& plan) { return plan.lora_rank > 0 || frozen_layers_of(plan) > 0; }
// Tensor-parallel ranks of one expert.
constexpr std::int64_t expert_tp(const ParallelPlan& plan) { return plan.etp == 0 ? plan.tp : plan.etp; }
// Ranks that hold the same weights, of experts or of all else. Of plans whose degrees are positive.
constexpr std::int64_t replicas(const ParallelPlan& plan, bool experts) {
  const std::int64_t all = plan.dp * plan.cp;
  return experts ? all * plan.tp / expert_tp(plan) / plan.ep : all;
}
// Whether several ranks hold the same weights. Context-parallel ranks do, too. Experts may have replicas where layers
// without experts have none: ranks of their tensor-parallel group, where an expert is split over fewer. Of plans whose
// degrees are positive.
constexpr bool has_replicas(const ParallelPlan& plan) { return replicas(plan, false) > 1 || replicas(plan, true) > 1; }

// Whether replicas share what they update, and each has all weights.
constexpr bool is_zero_1_or_2(const ParallelPlan& plan) {
  return plan.zero == ZeroStage::kOptimizer || plan.zero == ZeroStage::kGradients;
}
// ZeRO-3 that holds whole weights and sums of gradients from the first to the last pass of a step, as ZeRO-1 does.
constexpr bool is_whole_in_passes(const ParallelPlan& plan) {
  return plan.zero == ZeroStage::kParameters && plan.zero_library == ZeroLibrary::kFsdp2 && plan.pp > 1;
}
// PyTorch's ZeRO-3, whose shards are what the optimizer updates.
constexpr bool is_fsdp(const ParallelPlan& plan) {
  return plan.zero == ZeroStage::kParameters && plan.zero_library != ZeroLibrary::kDefault;
}
// Its shards are master weights in fp32, with gradients in fp32, unless the model is in low precision alone.
constexpr bool has_fp32_shards(const ParallelPlan& plan) {
  return is_fsdp(plan) && plan.weights != WeightStorage::kLow;
}
// Megatron-LM's --make-vocab-size-divisible-by.
constexpr std::int64_t vocabulary_multiple_of(const ParallelPlan& plan) {
  return plan.vocabulary_multiple > 0 ? plan.vocabulary_multiple : 128;
}
// Rows of the table of all tensor-parallel ranks together, which have the same number each.
constexpr std::int64_t padded_vocabulary(std::int64_t vocabulary, const ParallelPlan& plan) {
  const std::int64_t multiple = vocabulary_multiple_of(plan) * plan.tp;
  return (vocabulary + multiple - 1) / multiple * multiple;
}
// Whether the model's weights of this storage format are kept in fp32 and cast for each pass.
constexpr bool autocasts(const ParallelPlan& plan, DType storage) {
  return plan.weights == WeightStorage::kFp32 && plan.lora_rank == 0 && !is_single_precision(storage);
}
// Whether weights of this storage format have a copy in fp32 beside them.
constexpr bool has_master_weights(const ParallelPlan& plan, DType storage) {
  return plan.weights == WeightStorage::kMaster && !has_fp32_shards(plan) && !is_single_precision(storage);
}
// Whether the first microbatch's gradients are the sums, because none is there when it comes: PyTorch's optimizers drop
// them (zero_grad, set_to_none).
constexpr bool takes_first_gradients(const ParallelPlan& plan) {
  return (is_fsdp(plan) || plan.weights != WeightStorage::kMaster) && plan.passes == Passes::kTraining;
}
// Whether ZeRO-2 or 3 runs layer by layer. One replica shares nothing, so that nothing is gathered or reduced, as under
// ZeRO-1 (DeepSpeed, partition_parameters.py, NoGatherCoalescedHandle). Shards in fp32 are still cast, and those of the
// host loaded.
constexpr bool runs_by_layer(const ParallelPlan& plan) {
  return (has_fp32_shards(plan) || has_replicas(plan) || plan.offload_weights) && !is_whole_in_passes(plan);
}
// ZeRO-2 and 3: each replica keeps a part of the summed gradients, so backward passes reduce their gradients: each, or
// the last one of a round.
constexpr bool shards_gradients(const ParallelPlan& plan) {
  return plan.zero >= ZeroStage::kGradients && runs_by_layer(plan);
}
constexpr bool reduces_each_round(const ParallelPlan& plan) {
  return shards_gradients(plan) && plan.reduce_each == ReduceEach::kRound;
}
// Whether a backward pass adds its weight gradients to those of the passes before it. Where it reduces them itself,
// each rank adds up its share of what comes.
constexpr bool adds_up_gradients(const ParallelPlan& plan) {
  return !shards_gradients(plan) || reduces_each_round(plan);
}
// DeepSpeed's ZeRO-2 and 3 move gradients to the host as soon as they are reduced, where the optimizer is there; one
// replica's, too (deepspeed/runtime/zero/stage_1_and_2.py, copy_grads_in_partition; stage3.py, partition_grads). So
// does PyTorch's FSDP with weights on the host (CPUOffload). Elsewhere they stay, and a copy travels.
constexpr bool offloads_gradients(const ParallelPlan& plan) {
  return plan.offload_gradients && plan.zero >= ZeroStage::kGradients && plan.offload_optimizer.value > 0 &&
         (plan.zero_library == ZeroLibrary::kDefault || plan.offload_weights);
}
// DeepSpeed's ZeRO-1 and 2 flatten a rank's share of the summed gradients and cast that to fp32 before they update
// (deepspeed/runtime/zero/stage_1_and_2.py, step: single_grad_partition).
constexpr bool copies_gradients(const ParallelPlan& plan) {
  return plan.copy_gradients && plan.passes == Passes::kTraining && plan.zero_library == ZeroLibrary::kDefault &&
         is_zero_1_or_2(plan);
}
// ZeRO-3: each replica keeps a part of the weights, so every pass gathers them layer by layer.
constexpr bool shards_weights(const ParallelPlan& plan) {
  return plan.zero == ZeroStage::kParameters && runs_by_layer(plan);
}
// Whether their parts lie in the host's memory.
constexpr bool offloads_weights(const ParallelPlan& plan) { return plan.offload_weights && shards_weights(plan); }
// Whether layers run beside the exchange of weights, or of gradients, of the layers next to them.
constexpr bool exchanges_by_layer(const ParallelPlan& plan) { return shards_weights(plan) || !adds_up_gradients(plan); }
// Whether nothing but the number of positions says which layers they hold; and the plan made so.
inline bool divides_evenly(const ParallelPlan& plan) {
  return plan.first_stage_layers == 0 && plan.last_stage_layers == 0 && !plan.account_embedding && !plan.account_loss &&
         plan.pipeline_layout.is_even();
}
inline void divide_evenly(ParallelPlan& plan) {
  plan.first_stage_layers = plan.last_stage_layers = 0;
  plan.account_embedding = plan.account_loss = false;
  plan.pipeline_layout = {};
}
// Whether gradients of the distributed optimizer are summed on all ranks that share it.
constexpr bool sums_whole_gradients(const ParallelPlan& plan) {
  return plan.optimizer == OptimizerKind::kMuon && plan.zero == ZeroStage::kOptimizer &&
         plan.muon_buffers == MuonBuffers::kWhole;
}
// Whether the reductions of ZeRO-1 and 2 are all-reduces.
constexpr bool all_reduces_gradients(const ParallelPlan& plan) {
  return sums_whole_gradients(plan) || (is_zero_1_or_2(plan) && plan.gradient_exchange == GradientExchange::kAllReduce);
}
// Whether the backward passes of ZeRO-2 stop for the reduction of each layer's gradients unless
// plan/overlap_grad_reduce lets them go on: DeepSpeed reduces on the stream of the kernels where overlap_comm is off,
// as by default below stage 3 (deepspeed/runtime/zero/config.py, overlap_comm_valid; stage_1_and_2.py, average_tensor).
constexpr bool may_stop_for_reductions(const ParallelPlan& plan) {
  return plan.zero == ZeroStage::kGradients && !adds_up_gradients(plan) && all_reduces_gradients(plan);
}
// Whether the optimizer gets what it updates. Muon needs whole matrices. ZeRO-3 splits them, and FSDP2 alone has an
// optimizer that brings them together again (torchtitan, distributed/flex_shard/dist_muon.py, August 2026).
constexpr bool can_update(const ParallelPlan& plan) {
  return plan.optimizer != OptimizerKind::kMuon || plan.zero != ZeroStage::kParameters ||
         plan.zero_library == ZeroLibrary::kFsdp2;
}
constexpr bool pads_experts(const ParallelPlan& plan) { return plan.expert_capacity.value > 0; }
// Tokens of the busiest of the ranks that share a layer's experts over the mean: at most all copies of all tokens, or a
// copy of each token for each of its experts. Padded experts are even.
double most_over_mean(const Model& model, const ParallelPlan& plan);
double busiest_over_mean(const Model& model, const ParallelPlan& plan);

inline void set_recomputation(ParallelPlan& plan, const Recomputation& again) {
  plan.recompute = again.recompute;
  plan.recompute_modules = again.modules;
  plan.recompute_layers = again.layers;
  plan.recompute_together = again.together;
  plan.recompute_products = again.products;
}

template <class Visitor, OrConst<ParallelPlan> Plan>
void visit_fields(Visitor&& visit, Plan& plan) {
  visit({.name = "plan/passes", .help = "of a step: all, all but the optimizer's update, or forward passes alone"},
        plan.passes);
  visit({.name = "plan/tp", .help = "tensor-parallel ranks", .in_every_report = true}, plan.tp);
  visit({.name = "plan/pp", .help = "pipeline stages", .in_every_report = true}, plan.pp);
  visit({.name = "plan/dp",
         .help = "data-parallel replicas",
         .default_text = "1; with machine/nodes or machine/gpus, as many as fill them",
         .in_every_report = true},
        plan.dp);
  visit({.name = "plan/cp", .help = "context-parallel ranks", .in_every_report = true}, plan.cp);
  visit({.name = "plan/cp_comm",
         .help = "keys and values around a ring, gathered, exchanged for heads, or both: heads among neighbors",
         .default_text = "p2p; all-gather with sliding windows"},
        plan.cp_comm);
  visit({.name = "plan/cp_inner",
         .help = "ranks of one a2a group under --cp-comm a2a+p2p",
         .default_text = "as many as lie in a node and divide the key-value heads",
         .least = 0},
        plan.cp_inner);
  visit({.name = "plan/ep", .help = "expert-parallel ranks, a part of dp x cp (x tp / etp)", .in_every_report = true},
        plan.ep);
  visit({.name = "plan/etp",
         .help = "tensor-parallel ranks of an expert, of several replicas if above tp; 0: as many as tp",
         .default_text = "tp",
         .least = 0},
        plan.etp);
  visit({.name = "plan/expert_dispatch",
         .help = "a token travels once for each of its experts (a2a), once to each node (deepep), or to all ranks"},
        plan.expert_dispatch);
  visit({.name = "plan/expert_imbalance",
         .help = "tokens of the busiest rank, divided by the mean of the ranks that share a layer's experts",
         .values = "X"},
        plan.expert_imbalance);
  visit({.name = "plan/expert_capacity",
         .help = "tokens beyond this many times an expert's even share are dropped, others padded; 0: none",
         .values = "X",
         .default_text = "0"},
        plan.expert_capacity);
  visit({.name = "plan/vpp",
         .help = "model chunks of a stage",
         .default_text = "the fewest of the schedule",
         .in_every_report = true},
        plan.vpp);
  visit({.name = "plan/schedule",
         .help = "ns-dist list schedules",
         .values = "NAME",
         .default_text = "1f1b; interleaved with plan/vpp",
         .in_every_report = true},
        plan.schedule);
  visit({.name = "plan/first_stage_layers",
         .help = "layers of the stage with the embedding; 0: as many as the others",
         .least = 0},
        plan.first_stage_layers);
  visit({.name = "plan/last_stage_layers",
         .help = "layers of the stage with the loss; 0: as many as the others",
         .least = 0},
        plan.last_stage_layers);
  visit({.name = "plan/account_embedding", .help = "the embedding counts as a layer of its stage"},
        plan.account_embedding);
  visit({.name = "plan/account_loss", .help = "the loss counts as a layer of its stage"}, plan.account_loss);
  visit(
      {.name = "plan/pipeline_layout",
       .help = "what each model chunk holds, as Megatron-Core writes it: E embedding, t a layer, m a layer of --mtp, L "
               "loss, as in \"Et*3|(tt|)*29m|L\"",
       .values = "even|TEXT"},
      plan.pipeline_layout);
  visit({.name = "plan/order",
         .help = "order of the ranks, innermost dimension first; ep stands beside dp",
         .values = "DIMS"},
        plan.order);
  visit({.name = "plan/zero",
         .help = "replicas share the optimizer state (1), gradients (2), weights (3, FSDP)",
         .in_every_report = true},
        plan.zero);
  visit({.name = "plan/zero_library", .help = "whose ZeRO 3 runs"}, plan.zero_library);
  visit({.name = "plan/shard",
         .help = "ranks of dp x cp that share one copy of what ZeRO spreads (HSDP); 0: all",
         .least = 0},
        plan.shard);
  visit({.name = "plan/reduce_each",
         .help = "ZeRO 2 and 3: gradients are reduced in each backward pass, or in the last one of a round: of those "
                 "that a model chunk runs with no other chunk's between them"},
        plan.reduce_each);
  visit({.name = "plan/gradient_exchange",
         .help = "ZeRO 1 and 2: each replica gets the sums of its share of the gradients, or all sums (DeepSpeed)"},
        plan.gradient_exchange);
  visit({.name = "plan/reshard", .help = "ZeRO 3: weights are freed after the forward pass"}, plan.reshard);
  visit({.name = "plan/prefetch",
         .help = "ZeRO 3: layers whose weights are gathered ahead; more than 1 take memory, not time",
         .least = 0},
        plan.prefetch);
  Recomputation again{plan.recompute, plan.recompute_modules, plan.recompute_layers, plan.recompute_together,
                      plan.recompute_products};
  visit({.name = "plan/recompute",
         .help = "activations that the backward pass computes again: of modules; all but what attention, every second "
                 "product (or all) and exchanges return; of so many layers a chunk; of all layers, so many at one time",
         .values = "none|selective[:MODULES]|operators[:all]|full[:LAYERS|:uniform:LAYERS]",
         .in_every_report = true},
        again);
  if constexpr (!std::is_const_v<Plan>) set_recomputation(plan, again);
  visit({.name = "plan/recompute_early_stop",
         .help = "full recomputation of a layer stops at the last value that the backward pass reads"},
        plan.recompute_early_stop);
  visit({.name = "plan/offload_activations",
         .help = "first layers of each chunk whose activations wait in the host's memory",
         .default_text = "0",
         .least = 0},
        plan.offload_activations);
  visit({.name = "plan/sequence_parallel",
         .help = "activations between products are split over the tensor-parallel ranks",
         .default_text = "on with plan/tp",
         .in_every_report = true},
        plan.sequence_parallel);
  visit({.name = "plan/flash_attention",
         .help = "fused attention, which does not store the scores",
         .in_every_report = true},
        plan.flash_attention);
  visit({.name = "plan/attention_library",
         .help = "whose fused attention runs",
         .default_text = "cudnn on Hopper and Blackwell, else flash-2",
         .names = kFusedAttentionLibraries},
        plan.attention_library);
  visit({.name = "plan/norm_library",
         .help = "whose normalization kernels run",
         .default_text = "cudnn, if kernels are fused",
         .names = normalization_libraries()},
        plan.norm_library);
  visit({.name = "plan/loss_library",
         .help = "whose cross-entropy runs",
         .default_text = "a fused one; eager without plan/fused_kernels",
         .names = kLossLibraries},
        plan.loss_library);
  visit({.name = "plan/loss_parts",
         .help = "parts of a microbatch's tokens whose logits PyTorch makes one after the other",
         .default_text = "1; with plan/loss_library=liger as many as its kernel",
         .least = 0},
        plan.loss_parts);
  visit({.name = "plan/loss_metrics",
         .help = "cross-entropies that are computed for the log after each microbatch, in eager mode",
         .least = 0},
        plan.loss_metrics);
  visit({.name = "plan/kv_cache",
         .help = "forward passes alone keep the keys and values of all layers, as with use_cache in transformers"},
        plan.kv_cache);
  visit({.name = "plan/fused_kernels", .help = "elementwise operations of a layer are fused; off: a kernel for each"},
        plan.fused_kernels);
  visit({.name = "plan/split_softmax",
         .help = "without flash attention, scale, mask and softmax are a kernel each, and heads are copied"},
        plan.split_softmax);
  visit({.name = "plan/written_out",
         .help = "each operation of gelu_new, RMSNorm, rotary embeddings and experts is a kernel of its own"},
        plan.written_out);
  visit({.name = "plan/fused_permutation", .help = "tokens go to experts and back in one kernel each way"},
        plan.fused_permutation);
  visit({.name = "plan/expert_products",
         .help = "the products of a rank's experts are launched one by one, or are one kernel"},
        plan.expert_products);
  visit({.name = "plan/weighted_activation",
         .help = "experts' activation is multiplied by the routing weights, and their outputs are not kept"},
        plan.weighted_activation);
  visit({.name = "plan/lora_rank",
         .help = "rank of the adapters on linear layers (LoRA); all other weights are frozen; 0: all are trained",
         .default_text = "0",
         .least = 0},
        plan.lora_rank);
  visit({.name = "plan/separate_adapters",
         .help = "queries, keys and values have an adapter each, and so have gate and up (LoRA)"},
        plan.separate_adapters);
  visit({.name = "plan/frozen_weights",
         .help = "LoRA's frozen linear layers are kept as all weights are, or in 4 bits: with double quantization "
                 "(QLoRA), or without (load_in_4bit)"},
        plan.frozen_weights);
  visit({.name = "plan/frozen_layers",
         .help = "first layers of the model that are frozen, and the embedding with them; 0: all are trained",
         .default_text = "0",
         .least = 0},
        plan.frozen_layers);
  visit({.name = "plan/fp8_params", .help = "weights are gathered and kept in the format of products"},
        plan.fp8_params);
  visit({.name = "plan/fp8_any_layout",
         .help = "fp8: products read operands of either layout, so that none is kept transposed",
         .default_text = "on for Blackwell with HBM, else off"},
        plan.fp8_any_layout);
  visit({.name = "plan/fp8_dispatch",
         .help = "tokens go to experts, and gradients of what these return, in the format of products"},
        plan.fp8_dispatch);
  visit({.name = "plan/fp8_activations",
         .help = "inputs of activation functions are kept in the format of products, attention's output in 12 bits"},
        plan.fp8_activations);
  visit({.name = "plan/fp8_original_inputs",
         .help = "products' inputs are kept as they come, not as their casts, and cast again in the backward pass"},
        plan.fp8_original_inputs);
  visit({.name = "plan/delayed_scaling",
         .help = "fp8: factors follow earlier passes' largest values, on which a stage's ranks agree after each pass"},
        plan.delayed_scaling);
  visit({.name = "plan/bf16_first_layers",
         .help = "first layers of the model whose products run in bf16 where those of others run in 8 or 4 bits",
         .default_text = "0",
         .least = 0},
        plan.bf16_first_layers);
  visit({.name = "plan/bf16_last_layers",
         .help = "last layers of the model whose products run in bf16",
         .default_text = "0",
         .least = 0},
        plan.bf16_last_layers);
  visit({.name = "plan/vocabulary_multiple",
         .help = "the embedding's table and the logits are padded to a multiple of this and of tp",
         .default_text = "128",
         .least = 0},
        plan.vocabulary_multiple);
  visit({.name = "plan/weights",
         .help = "low precision with a master copy, fp32 that autocast casts for products, or low precision alone"},
        plan.weights);
  visit({.name = "plan/optimizer", .help = "Adam, or Muon for the matrices of linear layers and Adam for all else"},
        plan.optimizer);
  visit({.name = "plan/muon_tp",
         .help = "under Muon, tensor-parallel ranks gather a matrix and each orthogonalizes all of it, share its "
                 "products, or each orthogonalizes its own part"},
        plan.muon_tp);
  visit({.name = "plan/muon_steps", .help = "under Muon, Newton-Schulz iterations"}, plan.muon_steps);
  visit({.name = "plan/muon_buffers",
         .help = "under Muon and ZeRO 1, gradients are reduced to parts that are padded to one size, or summed on all "
                 "ranks"},
        plan.muon_buffers);
  visit({.name = "plan/optimizer_state", .help = "format of the optimizer's moments"}, plan.optimizer_state);
  visit({.name = "plan/offload_optimizer",
         .help = "part of the optimizer's states that lies in the host's memory and is updated there",
         .values = "FRACTION"},
        plan.offload_optimizer);
  visit({.name = "plan/offload_gradients",
         .help = "ZeRO-2 and 3 move summed gradients to the host, where the optimizer's states are"},
        plan.offload_gradients);
  visit({.name = "plan/offload_weights",
         .help = "ZeRO-3 keeps a rank's part of the weights in the host's memory, and loads it before each pass that "
                 "gathers it; needs plan/offload_optimizer=1"},
        plan.offload_weights);
  visit({.name = "plan/copy_gradients",
         .help = "ZeRO-1 and 2 copy a rank's share of the gradients into one tensor in fp32 before the update"},
        plan.copy_gradients);
  visit({.name = "plan/reduce_bucket",
         .help = "elements of the buffer in which ZeRO gathers gradients before it reduces them",
         .least = 0},
        plan.reduce_bucket);
  visit({.name = "plan/average_in_collective",
         .help =
             "gradients that are reduced once a step are divided by the number of replicas in their reduction, not by "
             "a kernel before it"},
        plan.average_in_collective);
  visit({.name = "plan/grad_accumulation",
         .help = "microbatches' weight gradients are added up by their products, in fp32 (fused) or in the weights' "
                 "format (fused-low), or by kernels of their own (fp32, low)"},
        plan.grad_accumulation);
  visit(
      {.name = "plan/blocking_tp",
       .help =
           "tensor-parallel collectives of the backward pass during which products wait: none, those that reduce, all"},
      plan.blocking_tp);
  visit({.name = "plan/overlap_grad_reduce",
         .help = "gradients are reduced beside the last backward passes",
         .in_every_report = true},
        plan.overlap_grad_reduce);
  visit({.name = "plan/overlap_param_gather",
         .help = "parameters are gathered beside the first forward passes",
         .in_every_report = true},
        plan.overlap_param_gather);
  visit(
      {.name = "plan/grad_buckets", .help = "what travels together beside passes: a layer, or Megatron-Core's buckets"},
      plan.grad_buckets);
  visit({.name = "plan/overlap_p2p",
         .help = "a stage goes on computing while it sends",
         .default_text = "as the schedule does",
         .in_every_report = true},
        plan.overlap_p2p);
  visit({.name = "plan/scatter_p2p",
         .help = "without sequence parallelism, each tensor-parallel rank sends a part of a pipeline message, and the "
                 "receivers gather it"},
        plan.scatter_p2p);
  visit({.name = "plan/overlap_tp", .help = "tensor-parallel collectives run in parts beside their products"},
        plan.overlap_tp);
  visit({.name = "plan/overlap_ep", .help = "shared experts run beside the all-to-all of tokens"}, plan.overlap_ep);
}

struct Training {
  std::int64_t global_batch = 1536, micro_batch = 1;  // sequences
  std::int64_t sequence = 2048;                       // tokens
  Precision precision = Precision::kBf16;
  bool mtp = false;                  // with the model's prediction_layers
  std::int64_t layers = 0;           // of the model, its first; 0: all
  std::int64_t document_tokens = 0;  // mean length of the documents that the tokens of a sequence see; 0: one document
  friend bool operator==(const Training&, const Training&) = default;
};

// Of all replicas together.
inline double tokens_of_step(const Training& training) {
  return static_cast<double>(training.global_batch) * static_cast<double>(training.sequence);
}

// Sequences, or tokens of one: more than any training has; products of the largest dimensions stay below 2^63.
inline constexpr std::int64_t kMostOfTraining = 100'000'000;

template <class Visitor, OrConst<Training> T>
void visit_fields(Visitor&& visit, T& training) {
  visit({.name = "training/global_batch", .help = "sequences a step", .most = kMostOfTraining, .in_every_report = true},
        training.global_batch);
  visit({.name = "training/micro_batch", .help = "sequences a pass", .most = kMostOfTraining, .in_every_report = true},
        training.micro_batch);
  visit({.name = "training/sequence",
         .help = "tokens a sequence",
         .default_text = "the model's own",
         .flag = "--seq",
         .most = kMostOfTraining,
         .in_every_report = true},
        training.sequence);
  visit({.name = "training/document_tokens",
         .help = "tokens of a document, where several are packed into a sequence and attention stays inside each; "
                 "unequal documents: sum of squared lengths / sum of lengths; 0: one document",
         .default_text = "0",
         .least = 0,
         .most = kMostOfTraining},
        training.document_tokens);
  visit({.name = "training/dtype",
         .help = "number format of products; from fp8 on, all else stays in bf16",
         .in_every_report = true},
        training.precision);
  visit({.name = "training/mtp", .help = "multi-token prediction: the layers that the model has for it are trained"},
        training.mtp);
  visit({.name = "training/layers",
         .help = "the model has its first N layers alone, as if it were shortened; 0: all",
         .least = 0},
        training.layers);
}

}  // namespace ns_dist
