// What one rank sees of a model under a plan: local sizes and communicator groups.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/mesh.h"
#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/rank_group.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct Shape {
  Shape(const Model& model, const ParallelPlan& plan, const Training& training);
  // The whole model on one rank, the vocabulary not padded. Model-wide figures come from the blocks of this shape.
  static Shape whole(const Model& model, const Training& training);

  const Model* model;
  const ParallelPlan* plan;
  DType dtype;             // of activations and weights in memory
  Precision precision;     // of the layers' products
  double element;          // bytes of a stored activation or weight
  bool autocast;           // hidden states and norms are fp32, and weights are cast for the products
  DType hidden_dtype;      // of hidden states
  double hidden_element;   // bytes of an element of these
  double product_element;  // bytes of an operand of the layers' products, with the scale factors of its blocks
  double weight_element;   // the same of weights
  std::int64_t tp, cp, dp, ep, etp;
  bool sequence_parallel;  // false when tp is 1
  bool dropout;            // false in forward passes alone
  std::int64_t micro_batch, sequence, hidden;
  std::int64_t documents;        // of a sequence, among which attention stays
  std::int64_t document_tokens;  // of each; of all tokens, if there is one
  std::int64_t tokens;           // of a microbatch, on this context-parallel rank
  std::int64_t sharded_tokens;   // tokens / tp under sequence parallelism: norms, residuals, dropouts
  std::int64_t heads, kv_heads;  // of this rank; fewer key-value heads than ranks are replicated
  std::int64_t query_dim, value_dim;
  std::int64_t ffn;                // of the MLP, of all tensor-parallel ranks
  bool keys_are_values = false;    // as in AttentionHeads
  std::int64_t cp_inner;           // context-parallel ranks that exchange heads for tokens; the others form rings
  std::int64_t vocabulary;         // of this rank: padded, see ParallelPlan::vocabulary_multiple
  std::int64_t streams;            // Model::residual_streams
  std::int64_t prediction_layers;  // for multi-token prediction, that are trained
  std::int64_t microbatches;       // of a step
  LayerKind kind;                  // of the layer whose blocks are made: the model's first, unless layer_block says
                                   // otherwise

  // Makes it that of a layer of another kind, with its heads.
  void set_kind(const LayerKind& of);

  // Parameters of the embedding's table on this rank.
  double table() const { return static_cast<double>(vocabulary) * static_cast<double>(hidden); }
  // The same of the table of per-layer embeddings: its rows on this rank, and values of a row.
  std::int64_t layer_table_rows() const;
  std::int64_t layer_table_columns() const;
  double layer_table() const {
    return static_cast<double>(layer_table_rows()) * static_cast<double>(layer_table_columns());
  }
  // Whether the tensor-parallel ranks of an expert have tokens of their own, which come together before the expert.
  bool gathers_rows() const { return sequence_parallel || etp > tp; }
  // Whether attention and MLP of this layer are side by side.
  bool parallel_branches() const {
    return model->branches != Branches::kSequential && kind.mixer == Mixer::kAttention &&
           kind.feed_forward == FeedForward::kDense && kind.compressed_keys == CompressedKeys::kNone;
  }
  // Bytes of a microbatch's hidden states, all tokens of this context-parallel rank: of those that products read and
  // write, and of those between layers, which are fp32 under autocast.
  Bytes hidden_states() const { return static_cast<double>(tokens * hidden) * element * units::B; }
  Bytes residual_states() const { return static_cast<double>(tokens * hidden) * hidden_element * units::B; }
};

// Whether the first microbatch's gradients begin the sums that backward passes add up. Whole sums of FSDP always begin
// anew: the reduction at the end of a step or a round frees them (torch/distributed/fsdp/_fully_shard,
// _fsdp_collectives.py, foreach_reduce).
constexpr bool begins_sums(const ParallelPlan& plan) {
  return takes_first_gradients(plan) || (is_fsdp(plan) && plan.passes != Passes::kForward);
}

// The training of layers whose products stay in 16 bits under an 8-bit format.
inline Training in_16_bits(Training training) {
  if (quantizes(training.precision)) training.precision = Precision::kBf16;
  return training;
}

// Model parameters on one rank of a stage. Split over tp: matrices; whole on every rank: norms, routers, latent
// down-projections.
struct RankParameters {
  double dense = 0;              // reduced over all data- and context-parallel ranks
  double experts = 0;            // reduced over the ranks with the same experts
  double quantized = 0;          // of both: operands of products that run in another format than weights are stored in
  double quantized_experts = 0;  // of these, those of experts
  double matrices = 0;           // of `dense`: updated as whole matrices
  double expert_matrices = 0;    // of `experts`: the same
  double total() const { return dense + experts; }
  RankParameters& operator+=(const RankParameters& other) {
    dense += other.dense;
    experts += other.experts;
    quantized += other.quantized;
    quantized_experts += other.quantized_experts;
    matrices += other.matrices;
    expert_matrices += other.expert_matrices;
    return *this;
  }
  friend RankParameters operator*(const RankParameters& each, double count) {
    return {each.dense * count,    each.experts * count,        each.quantized * count, each.quantized_experts * count,
            each.matrices * count, each.expert_matrices * count};
  }
  friend bool operator==(const RankParameters&, const RankParameters&) = default;
};

// Bytes of an operand in the products' format for all products that read it: of 8 bits with one factor for each tensor,
// the transpose only where the GPU needs it; of block formats, a copy for each direction of the sum. Forward passes
// alone have one product that reads it (TransformerEngine, pytorch/module/linear.py: columnwise usage where gradients
// are needed).
inline bool has_both_layouts(const Shape& shape) {
  const bool one_product = shape.plan->passes == Passes::kForward;
  return !one_product && (shape.precision != Precision::kFp8 || !shape.plan->fp8_any_layout);
}
inline double operand_bytes(const Shape& shape) { return (has_both_layouts(shape) ? 2 : 1) * shape.product_element; }
inline double weight_bytes(const Shape& shape) { return (has_both_layouts(shape) ? 2 : 1) * shape.weight_element; }
// Whether each pass casts the weights that it gathered, and nothing keeps the casts.
inline bool casts_in_passes(const ParallelPlan& plan) { return shards_weights(plan) && !plan.fp8_params; }
// Format of a summed gradient, and its bytes.
DType gradient_type(const ParallelPlan& plan, DType dtype);
inline Bytes gradient_size(const ParallelPlan& plan, DType dtype) { return size_of(gradient_type(plan, dtype)); }
// Of a rank's parameters, its share of what ZeRO spreads over those that have the same.
double share_of_rank(const RankParameters& held, const ParallelPlan& plan);
// Of a rank's parameters, those that other ranks have, too.
RankParameters replicated(RankParameters held, const ParallelPlan& plan);

// Of replicas(plan, experts), ranks that share one copy of what ZeRO spreads.
std::int64_t sharing_replicas(const ParallelPlan& plan, bool experts);

// The kinds of layers that a model has, in the order of their first layers.
struct LayerKinds {
  std::vector<LayerKind> kinds;
  std::vector<std::uint16_t> of_layer;  // indexes of kinds
};
LayerKinds layer_kinds(const Model& model);
// How many layers are of each kind.
std::vector<std::int64_t> layers_of_kinds(const LayerKinds& layers);

// The groups of a representative.
RankGroup tensor_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative);
RankGroup context_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative);
// How many of these exchange heads for tokens; the others form rings.
std::int64_t context_inner_ranks(const Model& model, const ParallelPlan& plan);
// Of these, neighbors that exchange heads.
RankGroup context_inner_group(const Mesh& mesh, Rank representative, std::int64_t inner);
// Two neighbors of the ring of context-parallel ranks whose link is its slowest: in the halves of the group. `inner`
// ranks exchange heads; each has a ring of its own.
RankGroup context_pair(const ParallelPlan& plan, const Mesh& mesh, Rank representative, std::int64_t inner);
RankGroup expert_tensor_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative);
// Experts are spread over the ranks of a stage that are not tensor-parallel ranks of one expert: tp / etp, cp and dp.
// They take neighbors where ep is before dp in the order, the ranks farthest apart where it is behind (Megatron-Core,
// parallel_state.py, expert_decoder_rank_generator).
RankGroup expert_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative);
// Of the ranks that hold copies of the same parameters: neighbors that share one copy of what ZeRO spreads, and one
// rank of each such set.
struct ReplicaGroups {
  RankGroup sharing, copies;
};
ReplicaGroups replica_groups(const ParallelPlan& plan, const Mesh& mesh, Rank representative, bool experts);

}  // namespace ns_dist
