// A transformer as its configuration describes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/names.h"

namespace ns_dist {

enum class Activation { kGelu, kRelu, kSwiglu, kGeglu, kSquaredRelu };
enum class NormKind { kLayerNorm, kRmsNorm };
enum class PositionKind { kLearned, kRotary, kAlibi, kNone };
template <>
inline constexpr std::array<std::string_view, 5> kEnumeratorNames<Activation> = {"gelu", "relu", "swiglu", "geglu",
                                                                                 "squared_relu"};
template <>
inline constexpr std::array<std::string_view, 2> kEnumeratorNames<NormKind> = {"layernorm", "rmsnorm"};
template <>
inline constexpr std::array<std::string_view, 4> kEnumeratorNames<PositionKind> = {"learned", "rotary", "alibi",
                                                                                   "none"};

// Mixture of experts: `top_k` of `experts` process each token.
struct Experts {
  std::int64_t experts = 0, top_k = 0;
  std::int64_t expert_ffn = 0;
  std::int64_t shared_experts = 0, shared_expert_ffn = 0;  // always active; ffn of one shared expert
  std::int64_t first_dense_layers = 0;  // layers at the bottom with an ordinary MLP of width Model::ffn
  friend bool operator==(const Experts&, const Experts&) = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, s.2.1). q_rank 0: queries are not compressed.
struct LatentAttention {
  std::int64_t q_rank = 0, kv_rank = 0, nope_head_dim = 0, rope_head_dim = 0, v_head_dim = 0;
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

struct Model {
  std::string id, name, family;
  std::vector<std::string> aliases;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  bool gated_mlp = false;
  Activation activation = Activation::kGelu;
  NormKind norm = NormKind::kLayerNorm;
  PositionKind position = PositionKind::kLearned;
  std::int64_t position_table = 0;  // rows of a learned position embedding
  bool bias = true;                 // on every linear layer
  bool qkv_bias = false;            // on the QKV projection alone, when bias is false
  bool dropout = false;             // masks are kept for the backward pass
  bool tied_embeddings = true;
  bool embedding_norm = false;  // a normalization after the embedding (BLOOM)
  std::int64_t vocabulary = 0, sequence = 0;
  std::int64_t sliding_window = 0;  // 0: full attention
  std::optional<Experts> moe;
  std::optional<LatentAttention> mla;
  double published_parameters = 0;            // 0: nothing published
  double published_parameters_tolerance = 0;  // relative; how many digits were published
  double published_active_parameters = 0;     // mixture of experts
  friend bool operator==(const Model&, const Model&) = default;
};

}  // namespace ns_dist
