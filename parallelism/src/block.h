// A block is one description of a part of the model: what its kernels and collectives are, which bytes it keeps for the
// backward pass, and which parameters a rank holds. Kernels of any pass, memory, parameters and FLOPs are derived from
// it. It is plain data and knows neither graphs nor ranks.
//
// The steps stand in forward order. The backward pass runs them in reverse.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ns_dist/collective.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/memory.h"
#include "ns_dist/operator.h"
#include "shape.h"
#include "weight_matrices.h"

namespace ns_dist {

// Over which ranks a communication runs.
enum class Axis : std::uint8_t { kTensor, kExpert, kExpertTensor, kContext, kContextInner, kContextPair };

// What follows a communication and runs beside it: nothing, the next kernel, or the calls of the steps that follow and
// hide communication (BlockStep::hides). What comes behind waits for it.
enum class Beside : std::uint8_t { kNothing, kKernel, kSteps };

struct Communication {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes size;
  Axis axis = Axis::kTensor;
  Beside beside = Beside::kNothing;
  Routing routing = {};  // Collective::routing
  double imbalance = 1;  // Collective::imbalance
  friend bool operator==(const Communication&, const Communication&) = default;
};

// A kernel or a collective, in launch order. A communication waits for the call before it, and the call after it waits
// for the communication unless it runs beside it, with one more exception in the backward pass (see BlockStep).
struct Call {
  std::string name;  // "mlp.fc1.dgrad"
  std::variant<Operator, Communication> what;
  bool after_read = false;  // WorkItem::after_read
  friend bool operator==(const Call&, const Call&) = default;
};

// One differentiable operation: "attention.qkv".
//
// When a backward pass computes both gradients of a step, the communications at the beginning of `weight_gradient`
// start before the first call of `input_gradient` and run beside its kernels, and those at the end of `input_gradient`
// run beside the kernels of `weight_gradient` (Korthikanti et al. 2022, arXiv 2205.05198, s.4.2.2). With
// ParallelPlan::blocking_tp the end of `input_gradient` comes last (kReductions), or nothing runs beside anything
// (kOn).
struct BlockStep {
  std::string name;
  std::vector<Call> forward, input_gradient, weight_gradient;
  double kept_for_input_gradient = 0;     // bytes on this rank, kept by the forward pass until the input gradient
  double kept_for_weight_gradient = 0;    // kept by the forward pass until the weight gradient
  double cast_for_weight_gradient = 0;    // what the input gradient makes of that, in its place; 0: nothing
  std::optional<ActivationKind> kept_as;  // what these are; steps that keep something have it
  // Calls at the end of `forward` that run after all that the step keeps is there. A linear layer keeps its input: its
  // product is such a call.
  std::size_t calls_after_kept = 0;
  double output_gradient = 0;  // kept from the input gradient until the weight gradient, where these are separate
  // What the step needs beside what is kept, while its forward pass or its backward pass runs: bytes that a collective
  // brings together, or that it will reduce; backward, the gradients of its outputs and inputs, without Block::around.
  double transient_forward = 0, transient_backward = 0;
  std::optional<LayerModule> module;  // WorkItem::module
  RankParameters parameters;
  bool frozen = false;       // no gradients of `parameters`, where other steps of the block have them
  RankParameters adapters;   // of LoRA: all that is trained, where there are any in the model
  RankParameters in_4_bits;  // of `parameters`, which are frozen then
  Matrices matrices;         // of what is trained, those that Muon updates; none under Adam
  bool hides = false;        // runs beside what was started with Beside::kSteps
  std::size_t reader = 1;    // so many steps on is the one that reads its output
  // Outputs of the layers that are one product here, one after the other: recomputation by operators counts them.
  std::vector<std::int64_t> products = {};
  // Under recomputation by operators (keep_operators): the calls that run again, and bytes of outputs that are kept.
  std::vector<Call> repeated = {};
  double kept_outputs = 0;
  // Selective recomputation of any of these modules runs `forward` again, drops what is kept for the input gradient, or
  // drops what is kept for the weight gradient (the step before computes it again).
  ModuleSet again = 0, drops_for_input_gradient = 0, drops_for_weight_gradient = 0;
};

struct Block {
  std::vector<BlockStep> steps;
  double input = 0;   // bytes of the input, all that full recomputation keeps; 0: recomputation leaves the block alone
  double around = 0;  // bytes of the hidden states' gradient, which goes around a residual branch while that runs
  double cached = 0;  // bytes of its keys and values
  double logged = 0;  // bytes that ParallelPlan::loss_metrics take when the microbatch's backward pass is over
};

// The parts of a transformer, one file each in blocks/.
Block attention_block(const Shape& shape);    // norm, attention, projection, residual
Block state_space_block(const Shape& shape);  // norm, Mamba-2 mixer, residual
Block delta_net_block(const Shape& shape);    // norm, gated delta rule, residual
Block short_convolution_block(const Shape& shape);
Block compressed_attention_block(const Shape& shape);
Block mlp_block(const Shape& shape);        // norm, dense MLP, residual
Block moe_block(const Shape& shape);        // norm, router, experts, shared experts, residual
Block per_layer_block(const Shape& shape);  // what a layer adds of its per-layer embeddings
// Rows that experts compute of those that the router asks for: above one where they are padded to a capacity beyond
// their even share, below one where tokens are dropped.
double expert_rows(const Shape& shape);
Block embedding_block(const Shape& shape);
// A layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437, s.2.2): norms of the hidden states and of the next
// token's embedding, their projection to the hidden size, a layer of the model's last kind. Its table is the model's;
// where the pipeline has several stages, prediction layers have a copy of it together, unless the loss has one.
Block prediction_block(const Shape& shape);
// Final norm, logits (of tokens, or of the classes of a sequence classifier), cross-entropy. A tied projection has
// parameters of its own where the pipeline has several stages: it is a copy of the embedding's table (a stage that
// holds both shares one).
Block loss_block(const Shape& shape);
// The norm, logits and cross-entropy of a prediction layer; the projection is the model's.
Block prediction_loss_block(const Shape& shape);

// The mixer and the feed-forward part of a layer, in a row or side by side.
Block layer_block(const Shape& shape, const LayerKind& kind);

RankParameters parameters_of(const Block& block);
RankParameters adapters_of(const Block& block);
// Those of frozen steps, or of all steps.
enum class Freezes : std::uint8_t { kSteps, kAll };
// Frozen ones, by what they take in memory, in the storage format or in 4 bits: as many in the format of trained ones.
// No update reads them, so none is of a matrix that is updated as a whole.
RankParameters frozen_of(const Block& block, const Shape& shape, Freezes which);
// Parameters that have gradients, where some steps are frozen.
RankParameters trained_of(const Block& block);
Matrices matrices_of(const Block& block);

// Bytes that a rank keeps for one microbatch under this recomputation.
struct KeptBytes {
  double after_forward = 0;         // until the input gradient; the whole backward pass, where it is one
  double after_input_gradient = 0;  // inputs and output gradients, until the weight gradient
  KeptBytes& operator+=(const KeptBytes& other) {
    after_forward += other.after_forward;
    after_input_gradient += other.after_input_gradient;
    return *this;
  }
  friend bool operator==(const KeptBytes&, const KeptBytes&) = default;
};
KeptBytes kept_bytes(const Block& block, Recompute recompute,
                     ModuleSet modules = set_of(RecomputeModule::kCoreAttention));
// The same by kind.
using KeptByKind = std::array<KeptBytes, kActivationKindCount>;
KeptByKind kept_by_kind(const Block& block, Recompute recompute,
                        ModuleSet modules = set_of(RecomputeModule::kCoreAttention));

// The calls of the forward pass that make all that the block keeps, without those that only its output needs: how many
// of each step's `forward`, from the first on. Recomputation that stops early repeats these (PyTorch 2.1,
// torch.utils.checkpoint.set_checkpoint_early_stop).
std::vector<std::size_t> calls_until_kept(const Block& block);

// Steps from `first` to `end` - 1 that are recomputed at one time, forward, before the backward pass of the last of
// them (Megatron-Core, tensor_parallel/random.py, CheckpointFunction). Full recomputation and that by operators: all.
// Of modules: neighbors of which one runs again or keeps less, so that a step that runs again finds its input.
struct StepRange {
  std::size_t first = 0, end = 0;
};
// From the last to the first.
std::vector<StepRange> recomputed_steps(const Block& block, Recompute recompute, ModuleSet modules);
// The most that a backward pass has at one time beyond what is kept of the block when it begins: what the step needs
// that runs (BlockStep, transient_backward), and what the forward pass did not keep of the steps of one range, less
// what the steps behind it have freed. `splits`: the pass computes input gradients alone, so that what weight gradients
// need stays.
double working_bytes(const Block& block, Recompute recompute, ModuleSet modules, bool splits);
// The same of a forward pass that keeps what a backward pass needs: what its last steps need on top.
double forward_transient(const Block& block);
// The same of a forward pass alone, which keeps nothing: all that the block would keep, and what the step needs.
double forward_working_bytes(const Block& block);

// FLOPs of the matrix products and attention of the forward pass: 2 a multiply-add, attention scores in full.
// `recomputed`: of the steps that selective recomputation of `modules` runs again. `until_kept`: of calls_until_kept.
// `repeated`: of BlockStep::repeated.
struct BlockFlops {
  double forward = 0, recomputed = 0, until_kept = 0, repeated = 0;
  double weights = 0;  // of `forward`: products with weights that have a gradient
  double masked = 0;   // of `forward`: attention scores that a causal mask hides
  double alone = 0;    // of `forward`: of steps without gradients
};
// `expert_rows`: the products of experts count so many times.
BlockFlops flops_of(const Block& block, ModuleSet modules = set_of(RecomputeModule::kCoreAttention),
                    double expert_rows = 1);

}  // namespace ns_dist
