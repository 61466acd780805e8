// Mixtures of experts with attention as of dense models.
#include <fmt/format.h>

#include "decoder.h"

namespace ns_dist::hugging_face {
namespace {

// dbrx: DbrxConfig. Attention and experts have objects of their own.
void read_dbrx(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  share_hidden(model);
  model.sequence = size_or(reader, family, {"max_seq_len"}, 2048, kMostTokens);
  model.position = PositionKind::kRotary;
  model.bias = false;
  model.gated_mlp = true;
  model.activation = Activation::kSwiglu;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", false);
  reader.object("attn_config", [&](JsonReader& attention) {
    attention.accept_unknown_keys();
    attention.treat_null_as_missing();
    model.kv_heads = attention.integer("kv_n_heads", 1, kMostSize, Presence::kOptional, 1);
  });
  reader.object("ffn_config", [&](JsonReader& ffn) {
    ffn.accept_unknown_keys();
    ffn.treat_null_as_missing();
    Experts moe;
    moe.experts = ffn.integer("moe_num_experts", 1, kMostSize, Presence::kOptional, 4);
    moe.top_k = ffn.integer("moe_top_k", 1, kMostSize, Presence::kOptional, 1);
    moe.expert_ffn = model.ffn = ffn.integer("ffn_hidden_size", 1, kMostSize, Presence::kOptional, 3584);
    model.moe = moe;
  });
}

// jetmoe: JetMoeConfig. Attention has experts, too: each has projections of queries and outputs of its own for one
// group of heads, and all share keys and values (modeling_jetmoe.py, JetMoeMoA). Those of a token are forecast as its
// heads.
void read_jetmoe(JsonReader& reader, const Family& family, Model& model) {
  Experts moe;
  moe.experts = size(reader, family, {"moe_num_experts", "num_local_experts"});
  moe.top_k = size(reader, family, {"moe_top_k", "num_experts_per_tok"});
  model.layers = size(reader, family, {"num_layers", "num_hidden_layers"}, kMostLayers);
  model.hidden = size(reader, family, {"hidden_size"});
  model.kv_heads = size(reader, family, {"num_key_value_heads"});
  model.heads = model.kv_heads * moe.top_k;
  model.head_dim = size(reader, family, {"kv_channels"});
  model.ffn = moe.expert_ffn = size(reader, family, {"ffn_hidden_size", "intermediate_size"});
  model.sequence = size_or(reader, family, {"n_positions", "max_position_embeddings"}, 4096, kMostTokens);
  model.position = PositionKind::kRotary;
  model.norm = NormalizationKind::kRmsNorm;
  model.bias = false;
  model.gated_mlp = true;
  model.activation = Activation::kSwiglu;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double left_out = number(model.layers) * number(moe.experts - moe.top_k) * 2 * number(model.hidden) *
                          number(model.kv_heads) * number(model.head_dim);
  model.warnings.push_back(fmt::format(
      "attention has experts: a token's {} are forecast as {} heads, and the other {} with the router, {:.2f}B "
      "parameters, are left out",
      moe.top_k, model.heads, moe.experts - moe.top_k, left_out / 1e9));
  model.moe = moe;
}

constexpr Family kExperts[] = {
    {.model_type = "dbrx", .read = read_dbrx},
    {.model_type = "llama4_text",
     .read = read_moe,
     .qk_norm = QueryKeyNorm::kPlain,
     .full_every = 4,
     .full_is_unrotated = true,
     .shared_expert = true},
    {.model_type = "jetmoe",
     .read = read_jetmoe,
     .tied = true,
     .defaults =
         {{"num_key_value_heads", 16}, {"kv_channels", 128}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}}},
    {.model_type = "mixtral",
     .read = read_moe,
     .defaults = {{"num_key_value_heads", 8},
                  {"num_local_experts", 8},
                  {"num_experts_per_tok", 2},
                  {"max_position_embeddings", 131072}}},
    {.model_type = "exaone_moe", .read = read_moe, .qk_norm = kHead, .full_every = 4, .full_is_unrotated = true},
    {.model_type = "afmoe",
     .read = read_moe,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 4,
     .full_is_unrotated = true,
     .attention_gate = true},
    {.model_type = "qwen2_moe",
     .read = read_moe,
     .qkv_bias = true,
     .defaults = {{"max_position_embeddings", 32768}, {"moe_intermediate_size", 1408}}},
    {.model_type = "qwen3_moe",
     .read = read_moe,
     .qk_norm = kHead,
     .defaults = {{"max_position_embeddings", 32768},
                  {"num_key_value_heads", 4},
                  {"num_local_experts", 128},
                  {"num_experts_per_tok", 8},
                  {"moe_intermediate_size", 768}}},
    {.model_type = "qwen3_vl_moe_text", .read = read_moe, .qk_norm = kHead},
    {.model_type = "laguna", .read = read_moe, .qk_norm = kHead, .attention_gate = true, .gate_of_head = true},
    {.model_type = "step3p5", .read = read_moe, .qk_norm = kHead, .attention_gate = true, .gate_of_head = true},
    {.model_type = "mimo_v2_flash", .read = read_moe},
    {.model_type = "minimax_m2",
     .read = read_moe,
     .qk_norm = QueryKeyNorm::kToken,
     .defaults = {{"num_key_value_heads", 8}}},
    {.model_type = "phimoe", .read = read_moe, .norm = kLayerNorm, .qkv_bias = true},
    {.model_type = "gpt_oss",
     .read = read_moe,
     .bias = true,
     .qkv_bias = true,
     .full_every = 2,
     .sinks = true,
     .defaults = {{"max_position_embeddings", 131072}, {"num_key_value_heads", 8}, {"num_experts_per_tok", 4}}},
    {.model_type = "glm4_moe", .read = read_moe, .rotary = 0.5, .defaults = {{"moe_intermediate_size", 1408}}},
    {.model_type = "glm4v_moe_text", .read = read_moe, .rotary = 0.5},
    {.model_type = "ernie4_5_moe", .read = read_moe, .tied = true},
    {.model_type = "hunyuan_v1_moe", .read = read_moe, .qk_norm = kHead},
    {.model_type = "bailing_moe_v2", .read = read_moe, .qk_norm = kHead, .rotary = 0.5},
    {.model_type = "deepseek", .read = read_moe},
    {.model_type = "dots1", .read = read_moe, .qk_norm = kHead},
    {.model_type = "olmoe", .read = read_moe, .qk_norm = QueryKeyNorm::kToken},
    {.model_type = "granitemoe", .read = read_moe},
};

}  // namespace

std::span<const Family> expert_families() { return kExperts; }

}  // namespace ns_dist::hugging_face
