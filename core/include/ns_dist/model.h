// A transformer as its configuration describes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/names.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"
#include "ns_dist/routing.h"

namespace ns_dist {

// kGeluNew: a GELU by tanh that its class writes out operation by operation (transformers, NewGELUActivation).
enum class Activation { kGelu, kRelu, kSwiglu, kGeglu, kSquaredRelu, kGeluNew };
enum class PositionKind { kLearned, kRotary, kAlibi, kNone };
template <>
inline constexpr auto kEnumeratorNames<Activation> = std::to_array<std::string_view>({"gelu", "relu", "swiglu", "geglu",
                                                                                      "squared_relu", "gelu_new"});
template <>
inline constexpr auto kEnumeratorNames<PositionKind> = std::to_array<std::string_view>({"learned", "rotary", "alibi",
                                                                                        "none"});

// Where a branch is normalized: before it, before and behind it (Gemma 2 and 3, GLM-4), or behind it alone (OLMo 2).
enum class NormPlacement { kPre, kSandwich, kPost };
template <>
inline constexpr auto kEnumeratorNames<NormPlacement> = std::to_array<std::string_view>({"pre", "sandwich", "post"});

// Normalization of queries and keys: of each head (Qwen3, Gemma 3), of all heads of a token together (OLMo 2), or of
// each head without weights (Llama 4).
enum class QueryKeyNorm { kNone, kHead, kToken, kPlain };
template <>
inline constexpr auto kEnumeratorNames<QueryKeyNorm> = std::to_array<std::string_view>({"none", "head", "token",
                                                                                        "plain"});

// How attention and MLP follow each other. kParallel: both read the same normalized input and are added once (GPT-J,
// Falcon 7B, Cohere); kParallelTwoNorms: each has a norm of its own (GPT-NeoX, Falcon 40B).
enum class Branches { kSequential, kParallel, kParallelTwoNorms };
template <>
inline constexpr auto kEnumeratorNames<Branches> = std::to_array<std::string_view>({"sequential", "parallel",
                                                                                    "parallel_two_norms"});

// Layers of a model, counted from 0: every k-th, of which the first is layer k - 1, or those that are listed.
struct LayerSet {
  std::int64_t every = 0;            // 0: none but those listed
  std::vector<std::int64_t> listed;  // ascending
  bool contains(std::int64_t layer) const;
  // The set of layers with `member[layer]`; as `every`, if they are periodic.
  static LayerSet of(const std::vector<bool>& member);
  friend bool operator==(const LayerSet&, const LayerSet&) = default;
};

// Mixture of experts: `top_k` of `experts` process each token.
struct Experts {
  std::int64_t experts = 0, top_k = 0;
  std::int64_t expert_ffn = 0;
  std::int64_t shared_experts = 0, shared_expert_ffn = 0;  // always active; ffn of one shared expert
  std::int64_t first_dense_layers = 0;           // layers at the bottom with an ordinary MLP of width Model::ffn
  LayerSet layers = {.every = 1, .listed = {}};  // layers with experts, among those above first_dense_layers
  bool shared_gate = false;                      // a sigmoid gate weights the output of the shared experts (Qwen2-MoE)
  std::int64_t latent = 0;  // width of what experts read and write, by a projection each way; 0: the hidden size
  std::int64_t groups = 1, top_groups = 1;  // the experts of a token lie in top_groups of groups (Routing)
  Routing routing() const { return {experts, top_k, groups, top_groups}; }
  friend bool operator==(const Experts&, const Experts&) = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, s.2.1). q_rank 0: queries are not compressed.
struct LatentAttention {
  std::int64_t q_rank = 0, kv_rank = 0, nope_head_dim = 0, rope_head_dim = 0, v_head_dim = 0;
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

// Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): `heads` of `head_dim` channels, each with a state of `state` values a
// channel; `groups` of heads share their input and output maps.
struct StateSpace {
  std::int64_t heads = 0, head_dim = 0, groups = 0, state = 0, convolution = 4;
  friend bool operator==(const StateSpace&, const StateSpace&) = default;
};

// Gated delta rule, a linear attention (Yang et al. 2024, arXiv 2412.06464; Qwen3-Next): `value_heads`, each with a
// state of key_dim x value_dim; groups of them share the queries and keys of one of `key_heads`.
struct DeltaNet {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, convolution = 4;
  // Kimi Delta Attention (arXiv 2510.26692): a state decays by each channel of its keys, not as a whole. Two matrices
  // of rank decay_rank make the decays; 0: one for each head. So do two of rank gate_rank the output's gates; 0: one.
  std::int64_t decay_rank = 0, gate_rank = 0;
  friend bool operator==(const DeltaNet&, const DeltaNet&) = default;
};

// The choice of keys (DeepSeek-V3.2, arXiv 2512.02556, s. 2.1): `heads` of an indexer, with one head of keys, score the
// keys before each query, which reads the top_k of the highest scores. It is for latent attention, which then reads its
// latents themselves (multi-query attention), and for compressed attention.
struct Indexer {
  std::int64_t heads = 0, head_dim = 0, top_k = 0;
  LayerSet shared_layers;  // without an indexer: they read the keys that the layer before them reads (GLM-5.2)
  friend bool operator==(const Indexer&, const Indexer&) = default;
};

// Compressed attention (DeepSeek-V4, arXiv 2606.19348). One head holds keys and values of all heads. A query reads the
// tokens of Model::sliding_window and, in one softmax with them, compressed keys: of dense_ratio tokens each all
// (heavily compressed attention), or of sparse_ratio tokens each those that Model::indexer chooses (compressed sparse
// attention). Sparse keys overlap: each is a mean of twice as many tokens. output_groups of heads are projected to
// output_rank each, and from there to the hidden size.
struct CompressedAttention {
  std::int64_t q_rank = 0, rope_head_dim = 0, output_groups = 1, output_rank = 0;
  std::int64_t sparse_ratio = 4, dense_ratio = 128;
  LayerSet sparse_layers, window_layers;  // that read sparse keys, or the window alone
  friend bool operator==(const CompressedAttention&, const CompressedAttention&) = default;
};

// Per-layer embeddings (Gemma 4; modeling_gemma4.py, project_per_layer_inputs): of each token, each layer reads `width`
// values of its own, the sum of a row of a second table and of a projection of the token's embedding. Behind its MLP it
// adds a projection of them, weighted by a gate.
struct PerLayerEmbeddings {
  std::int64_t width = 0, vocabulary = 0;  // values of a layer; rows of the table
  friend bool operator==(const PerLayerEmbeddings&, const PerLayerEmbeddings&) = default;
};

// The heads of attention in a layer.
struct AttentionHeads {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t v_head_dim = 0;   // of values; 0: head_dim
  bool keys_are_values = false;  // one projection makes both (Gemma 4)
  std::int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  friend bool operator==(const AttentionHeads&, const AttentionHeads&) = default;
};

// Of a model: lists are made of them.
inline constexpr std::int64_t kMostLayers = 100'000, kMostPredictions = 1'000;

struct Model {
  std::string id, name, family;
  std::vector<std::string> aliases;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  std::int64_t v_head_dim = 0;                   // as in AttentionHeads
  bool keys_are_values = false;                  // the same
  std::optional<AttentionHeads> windowed_heads;  // of layers with a sliding window, where the others' are different
  bool gated_mlp = false;
  Activation activation = Activation::kGelu;
  NormalizationKind norm = NormalizationKind::kLayerNorm;
  PositionKind position = PositionKind::kLearned;
  std::int64_t position_table = 0;  // rows of a learned position embedding
  bool bias = true;                 // on every linear layer
  bool qkv_bias = false;            // on the QKV projection alone, when bias is false
  bool dropout = false;             // masks are kept for the backward pass
  bool tied_embeddings = true;
  // Classes of a sequence classifier, whose last layer reads one token of each sequence (reward models, too); 0: the
  // model ends with the logits of all tokens.
  std::int64_t labels = 0;
  bool embedding_norm = false;                        // a normalization after the embedding (BLOOM)
  bool capped_logits = false, capped_scores = false;  // c tanh(x / c) of logits, and of scores (Gemma 2)
  // A learned score of each head takes its part of the softmax, as if of one token more (gpt-oss).
  bool attention_sinks = false;
  bool attention_gate = false;  // its output is weighted by a sigmoid gate, projected beside the queries (Qwen3-Next)
  bool gate_of_head = false;    // one gate for each head, not for each element of it (Step-3.5)
  NormPlacement norm_placement = NormPlacement::kPre;
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  Branches branches = Branches::kSequential;
  std::int64_t rotary_dim = 0;  // of head_dim, those that are rotated; 0: all
  std::int64_t vocabulary = 0, sequence = 0;
  bool bidirectional = false;       // tokens see later ones, too (encoders)
  std::int64_t sliding_window = 0;  // tokens; 0: full attention
  bool chunked_attention = false;   // tokens see their own chunk of sliding_window tokens (Llama 4)
  LayerSet full_attention_layers;   // without the window, and with attention where others have something else
  LayerSet no_rotary_layers;        // that have no positions
  // So many layers at the end have no keys and values of their own: they read those of the last layer before them that
  // has the same window (Gemma 4).
  std::int64_t shared_keys_layers = 0;
  LayerSet no_attention_layers;             // that have an MLP alone (Nemotron's searched architectures)
  std::vector<std::int64_t> ffn_of_layers;  // one width for each layer, where MLPs differ, 0 of layers without one;
                                            // empty: all are `ffn` wide
  std::int64_t prediction_layers = 0;       // for multi-token prediction (DeepSeek-V3, arXiv 2412.19437, s.2.2)
  std::optional<Experts> moe;
  std::optional<LatentAttention> mla;
  std::optional<StateSpace> state_space;
  std::optional<DeltaNet> delta_net;  // in place of attention outside full_attention_layers
  // The same of a gated convolution over so many tokens (LFM2); 0: none.
  std::int64_t short_convolution = 0;
  std::optional<CompressedAttention> compressed;
  std::optional<Indexer> indexer;  // of latent or compressed attention
  std::optional<PerLayerEmbeddings> per_layer_embeddings;
  // Hyper-connections (Xie et al. 2025, arXiv 2512.24880): hidden states between branches are so many streams, which
  // each branch reads as a weighted sum and which are mixed behind it; 1: one, which the branch is added to.
  std::int64_t residual_streams = 1;
  // One letter for each layer, if layers are not attention and MLP each: M Mamba-2, * attention, - MLP, E experts, as
  // in Nemotron-H. Empty otherwise.
  std::string layer_pattern;
  double published_parameters = 0;            // 0: nothing published
  double published_parameters_tolerance = 0;  // relative; how many digits were published
  double published_active_parameters = 0;     // mixture of experts
  bool longest_sequence = false;  // `sequence` is the longest that its file allows: most train with shorter ones
  // What rotary positions were made for, as a file of Hugging Face tells: the longest sequence; 0: not told.
  std::int64_t most_positions = 0;
  std::vector<std::string> warnings;  // keys of its file that were ignored or read in another way
  // Whether the logits are made with the embedding's table. A classifier has none.
  bool ties_logits() const { return tied_embeddings && labels == 0; }
  friend bool operator==(const Model&, const Model&) = default;
};

// What of the model was not read as its file says it, or should be doubted.
std::vector<std::string> warnings_of(const Model& model);

enum class Mixer { kNone, kAttention, kStateSpace, kDeltaNet, kConvolution, kCompressedAttention };
// Which compressed keys a layer reads beside its window.
enum class CompressedKeys { kNone, kSparse, kDense };
enum class FeedForward { kNone, kDense, kExperts };

// The properties in which layers of one model may differ.
struct LayerKind {
  Mixer mixer = Mixer::kAttention;
  FeedForward feed_forward = FeedForward::kDense;
  bool windowed = false;  // attention sees sliding_window tokens
  bool rotary = true;     // where the model's positions are rotary
  CompressedKeys compressed_keys = CompressedKeys::kNone;
  bool chooses_keys = false;  // it has an indexer of its own
  bool shares_keys = false;   // it is one of Model::shared_keys_layers
  std::int64_t ffn = 0;       // of its MLP, if it is not Model::ffn; 0: that
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

// `model` with its first layers alone, as models are shortened to fit on few GPUs: all else stays, but for
// experts and further prediction layers where no layer has experts any more, and nothing is published of it. Errors: it
// has fewer layers.
Result<Model> first_layers(Model model, std::int64_t layers);

// The heads of layers with a window, or of the others.
AttentionHeads heads_of(const Model& model, bool windowed);
// Both, where they differ: what is divided among ranks is divided in all layers.
std::vector<AttentionHeads> all_heads(const Model& model);

// The kind of one layer, counted from 0. The model's layer_pattern must be one that check_pattern accepts.
LayerKind layer_kind(const Model& model, std::int64_t layer);
// That of a layer for multi-token prediction: the last one's, without compressed keys (DeepSeek-V4,
// inference/model.py); queries of latent attention read keys that its own indexer chooses.
LayerKind prediction_kind(const Model& model);
// Whether queries read keys that are chosen or compressed: context-parallel ranks gather these, whatever
// ParallelPlan::cp_comm says, and no kernel stores scores.
inline bool has_sparse_attention(const Model& model) { return model.compressed || model.indexer; }
// Whether some layer has this value, as in has_layers(model, &LayerKind::feed_forward, FeedForward::kDense).
template <class Value>
bool has_layers(const Model& model, Value LayerKind::*member, Value value) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (layer_kind(model, layer).*member == value) return true;
  }
  return false;
}
// Errors: a layer_pattern that has not one letter for each layer, or letters for what the model does not have.
Result<void> check_pattern(const Model& model);
// Mistakes that no single number tells, each with a key of models as its place ("moe/top_k"); a wrong pattern, too.
std::vector<Error> check_shape(const Model& model);

}  // namespace ns_dist
