// GPT-2, what derives from it, and other decoders before Llama.
#include <algorithm>
#include <cmath>

#include "decoder.h"

namespace ns_dist::hugging_face {
namespace {

// gpt2: GPT2Config. n_inner null means 4 n_embd. Its descendants: gpt_bigcode has one key-value head for all, gptj has
// rotary positions and parallel branches.
void read_gpt2(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  if (family.model_type == "gpt_bigcode" && reader.boolean("multi_query", true)) model.kv_heads = 1;
  model.ffn = size_or(reader, family, {"n_inner"}, 4 * model.hidden);
  model.sequence = size_or(reader, family, {"n_positions", "n_ctx"}, 1024, kMostTokens);
  model.branches = family.branches;
  if (family.model_type == "gptj") {
    model.position = PositionKind::kRotary;
    model.rotary_dim = size_or(reader, family, {"rotary_dim"}, 64);
  } else {
    model.position_table = model.sequence;
  }
  const std::string activation = reader.text("activation_function", Presence::kOptional);
  model.gated_mlp = activation == "swiglu";
  model.activation = model.gated_mlp ? Activation::kSwiglu : plain_activation(activation);
  model.dropout = reader.number("resid_pdrop", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
}

// opt: OPTConfig. Its position table has two rows more than positions (an offset of the embedding).
void read_opt(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = reader.integer("ffn_dim", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.position_table = model.sequence + 2;
  model.activation = plain_activation(reader.text("activation_function", Presence::kOptional));
  model.dropout = reader.number("dropout", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  if (reader.integer("word_embed_proj_dim", 1, kMostSize, Presence::kOptional, model.hidden) != model.hidden) {
    model.warnings.emplace_back("\"word_embed_proj_dim\" is left out: embeddings are as wide as layers");
  }
}

// bloom: BloomConfig. ffn is always 4 hidden; positions are ALiBi.
void read_bloom(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = 4 * model.hidden;
  model.sequence = size_or(reader, family, {"seq_length"}, 2048, kMostTokens);
  model.position = PositionKind::kAlibi;
  model.embedding_norm = true;
  model.dropout = reader.number("hidden_dropout", 0, 1, Presence::kOptional, 0) > 0;
}

// mpt: MPTConfig.
void read_mpt(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = model.hidden * reader.integer("expansion_ratio", 1, 1'000, Presence::kOptional, 4);
  model.sequence = size_or(reader, family, {"max_seq_len"}, 2048, kMostTokens);
  model.position = PositionKind::kAlibi;
  model.bias = !reader.boolean("no_bias", true);
  if (!present(reader, "attn_config")) return;
  reader.object("attn_config", [&](JsonReader& attention) {
    attention.accept_unknown_keys();
    attention.treat_null_as_missing();
    model.kv_heads = attention.integer("kv_n_heads", 1, kMostSize, Presence::kOptional, model.heads);
    if (attention.boolean("rope", false)) {
      model.position = PositionKind::kRotary;
    } else if (!attention.boolean("alibi", true)) {
      model.position = PositionKind::kLearned;
      model.position_table = model.sequence;
    }
  });
}

// gpt_neox: GPTNeoXConfig.
void read_gpt_neox(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  share_hidden(model);
  model.ffn = reader.integer("intermediate_size", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.position = PositionKind::kRotary;
  const double rotated = reader.number("rotary_pct", 0, 1, Presence::kOptional, 0.25);
  model.rotary_dim = std::lround(rotated * static_cast<double>(model.head_dim));
  if (reader.boolean("use_parallel_residual", true)) model.branches = Branches::kParallelTwoNorms;
  model.activation = plain_activation(reader.text("hidden_act", Presence::kOptional));
  model.tied_embeddings = reader.boolean("tie_word_embeddings", false);
}

// falcon: FalconConfig.
void read_falcon(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  const bool grouped = reader.boolean("new_decoder_architecture", false);
  if (grouped) {
    model.kv_heads = size_or(reader, family, {"num_kv_heads"}, model.heads);
  } else if (reader.boolean("multi_query", true)) {
    model.kv_heads = 1;
  }
  model.ffn = size_or(reader, family, {"ffn_hidden_size"}, 4 * model.hidden);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.position = reader.boolean("alibi", false) ? PositionKind::kAlibi : PositionKind::kRotary;
  model.bias = reader.boolean("bias", false);
  if (grouped) {
    const bool one = reader.integer("num_ln_in_parallel_attn", 1, 2, Presence::kOptional, 2) == 1;
    model.branches = one ? Branches::kParallel : Branches::kParallelTwoNorms;
  } else if (reader.boolean("parallel_attn", true)) {
    model.branches = Branches::kParallel;
  }
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
}

constexpr Family kGpt[] = {
    {.model_type = "gpt2", .read = read_gpt2, .tied = true},
    {.model_type = "gpt_bigcode", .read = read_gpt2, .tied = true},
    {.model_type = "gptj", .read = read_gpt2, .branches = Branches::kParallel},
    {.model_type = "gpt_neox", .read = read_gpt_neox},
    {.model_type = "opt", .read = read_opt, .nested_defaults = {{"vocab_size", 50272}}},
    {.model_type = "bloom", .read = read_bloom},
    {.model_type = "mpt", .read = read_mpt},
    {.model_type = "falcon", .read = read_falcon},
};

}  // namespace

std::span<const Family> gpt_families() { return kGpt; }

}  // namespace ns_dist::hugging_face
