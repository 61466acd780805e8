// Hugging Face config.json files: the keys of transformers' configuration classes, with their documented defaults.
#include <fmt/format.h>

#include "readers.h"

namespace ns_dist {
namespace {

constexpr std::int64_t kMost = 10'000'000;
constexpr std::int64_t kMostTokens = 1'000'000'000;

Activation gated(const std::string& name) {
  return name.starts_with("gelu") ? Activation::kGeglu : Activation::kSwiglu;
}

Activation plain(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2" || name == "squared_relu") return Activation::kSquaredRelu;
  return Activation::kGelu;
}

// gpt2: GPT2Config. n_inner null means 4 n_embd.
void read_gpt2(JsonReader& reader, Model& model) {
  model.layers = reader.integer("n_layer", 1, kMost);
  model.hidden = reader.integer("n_embd", 1, kMost);
  model.heads = reader.integer("n_head", 1, kMost);
  model.kv_heads = model.heads;
  model.ffn = reader.is_null("n_inner") ? 4 * model.hidden
                                        : reader.integer("n_inner", 1, kMost, Presence::kOptional, 4 * model.hidden);
  model.sequence = reader.has("n_positions") ? reader.integer("n_positions", 1, kMostTokens)
                                             : reader.integer("n_ctx", 1, kMostTokens, Presence::kOptional, 1024);
  model.position_table = model.sequence;
  model.activation = plain(reader.text("activation_function", Presence::kOptional));
  model.dropout = reader.number("resid_pdrop", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
}

// opt: OPTConfig. Its position table has two rows more than positions (an offset of the embedding).
void read_opt(JsonReader& reader, Model& model) {
  model.layers = reader.integer("num_hidden_layers", 1, kMost);
  model.hidden = reader.integer("hidden_size", 1, kMost);
  model.heads = reader.integer("num_attention_heads", 1, kMost);
  model.kv_heads = model.heads;
  model.ffn = reader.integer("ffn_dim", 1, kMost);
  model.sequence = reader.integer("max_position_embeddings", 1, kMostTokens, Presence::kOptional, 2048);
  model.position_table = model.sequence + 2;
  model.activation = plain(reader.text("activation_function", Presence::kOptional));
  model.dropout = reader.number("dropout", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
}

void read_bert(JsonReader& reader, Model& model) {
  model.layers = reader.integer("num_hidden_layers", 1, kMost);
  model.hidden = reader.integer("hidden_size", 1, kMost);
  model.heads = reader.integer("num_attention_heads", 1, kMost);
  model.kv_heads = model.heads;
  model.ffn = reader.integer("intermediate_size", 1, kMost);
  model.sequence = reader.integer("max_position_embeddings", 1, kMostTokens, Presence::kOptional, 512);
  model.position_table = model.sequence;
  model.activation = plain(reader.text("hidden_act", Presence::kOptional));
  model.dropout = reader.number("hidden_dropout_prob", 0, 1, Presence::kOptional, 0.1) > 0;
  model.embedding_norm = true;
}

// bloom: BloomConfig. ffn is always 4 hidden; positions are ALiBi.
void read_bloom(JsonReader& reader, Model& model) {
  model.layers =
      reader.has("n_layer") ? reader.integer("n_layer", 1, kMost) : reader.integer("num_hidden_layers", 1, kMost);
  model.hidden =
      reader.has("hidden_size") ? reader.integer("hidden_size", 1, kMost) : reader.integer("n_embed", 1, kMost);
  model.heads =
      reader.has("n_head") ? reader.integer("n_head", 1, kMost) : reader.integer("num_attention_heads", 1, kMost);
  model.kv_heads = model.heads;
  model.ffn = 4 * model.hidden;
  model.sequence = reader.integer("seq_length", 1, kMostTokens, Presence::kOptional, 2048);
  model.position = PositionKind::kAlibi;
  model.embedding_norm = true;
  model.dropout = reader.number("hidden_dropout", 0, 1, Presence::kOptional, 0) > 0;
}

// gpt_neox: GPTNeoXConfig.
void read_gpt_neox(JsonReader& reader, Model& model) {
  model.layers = reader.integer("num_hidden_layers", 1, kMost);
  model.hidden = reader.integer("hidden_size", 1, kMost);
  model.heads = reader.integer("num_attention_heads", 1, kMost);
  model.kv_heads = model.heads;
  model.ffn = reader.integer("intermediate_size", 1, kMost);
  model.sequence = reader.integer("max_position_embeddings", 1, kMostTokens, Presence::kOptional, 2048);
  model.position = PositionKind::kRotary;
  model.activation = plain(reader.text("hidden_act", Presence::kOptional));
  model.tied_embeddings = reader.boolean("tie_word_embeddings", false);
}

// llama, mistral, qwen2 and what derives from them.
void read_llama(JsonReader& reader, Model& model) {
  model.layers = reader.integer("num_hidden_layers", 1, kMost);
  model.hidden = reader.integer("hidden_size", 1, kMost);
  model.heads = reader.integer("num_attention_heads", 1, kMost);
  model.kv_heads = reader.integer("num_key_value_heads", 1, kMost, Presence::kOptional, model.heads);
  if (reader.has("head_dim") && !reader.is_null("head_dim")) model.head_dim = reader.integer("head_dim", 1, kMost);
  model.ffn = reader.integer("intermediate_size", 1, kMost);
  model.sequence = reader.integer("max_position_embeddings", 1, kMostTokens, Presence::kOptional, 2048);
  model.gated_mlp = true;
  model.activation = gated(reader.text("hidden_act", Presence::kOptional));
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRotary;
  model.bias = false;
  model.qkv_bias = model.family == "qwen2" || model.family == "qwen2_moe" ||
                   reader.boolean("attention_bias", false, Presence::kOptional);
  model.tied_embeddings = reader.boolean("tie_word_embeddings", false);
  const bool windowed = reader.boolean("use_sliding_window", model.family == "mistral" || model.family == "mixtral");
  if (windowed && reader.has("sliding_window") && !reader.is_null("sliding_window")) {
    model.sliding_window = reader.integer("sliding_window", 1, kMostTokens);
  }
}

void read_mixtral(JsonReader& reader, Model& model) {
  read_llama(reader, model);
  Experts moe;
  moe.experts = reader.integer("num_local_experts", 1, kMost, Presence::kOptional, 8);
  moe.top_k = reader.integer("num_experts_per_tok", 1, kMost, Presence::kOptional, 2);
  moe.expert_ffn = model.ffn;
  model.moe = moe;
}

// deepseek_v2, deepseek_v3.
void read_deepseek(JsonReader& reader, Model& model) {
  read_llama(reader, model);
  model.qkv_bias = false;
  Experts moe;
  moe.experts = reader.integer("n_routed_experts", 1, kMost);
  moe.top_k = reader.integer("num_experts_per_tok", 1, kMost);
  moe.expert_ffn = reader.integer("moe_intermediate_size", 1, kMost);
  moe.shared_experts = reader.integer("n_shared_experts", 0, kMost, Presence::kOptional, 0);
  moe.shared_expert_ffn = moe.shared_experts > 0 ? moe.expert_ffn : 0;
  moe.first_dense_layers = reader.integer("first_k_dense_replace", 0, kMost, Presence::kOptional, 0);
  model.moe = moe;
  LatentAttention mla;
  mla.q_rank = reader.is_null("q_lora_rank") ? 0 : reader.integer("q_lora_rank", 0, kMost, Presence::kOptional, 0);
  mla.kv_rank = reader.integer("kv_lora_rank", 1, kMost);
  mla.nope_head_dim = reader.integer("qk_nope_head_dim", 1, kMost);
  mla.rope_head_dim = reader.integer("qk_rope_head_dim", 1, kMost);
  mla.v_head_dim = reader.integer("v_head_dim", 1, kMost);
  model.mla = mla;
  model.head_dim = mla.nope_head_dim + mla.rope_head_dim;
}

struct Family {
  std::string_view model_type;
  void (*read)(JsonReader&, Model&);
};

constexpr Family kFamilies[] = {
    {"gpt2", read_gpt2},
    {"opt", read_opt},
    {"bert", read_bert},
    {"bloom", read_bloom},
    {"gpt_neox", read_gpt_neox},
    {"llama", read_llama},
    {"mistral", read_llama},
    {"qwen2", read_llama},
    {"mixtral", read_mixtral},
    {"deepseek_v2", read_deepseek},
    {"deepseek_v3", read_deepseek},
};

}  // namespace

bool is_hugging_face(const nlohmann::ordered_json& root) {
  return root.is_object() && !root.contains("schema") &&
         (root.contains("model_type") || root.contains("architectures"));
}

Model read_hugging_face(JsonReader& reader) {
  reader.accept_unknown_keys();
  Model model;
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  const std::size_t errors_before = reader.error_count();
  const Family& family = kFamilies[reader.choice("model_type", names)];
  if (reader.error_count() > errors_before) return model;
  model.family = std::string(family.model_type);
  model.name = reader.text("_name_or_path", Presence::kOptional);
  model.vocabulary = reader.integer("vocab_size", 1, kMost);
  family.read(reader, model);
  if (model.head_dim == 0 && model.heads > 0) {
    if (model.hidden % model.heads != 0) {
      reader.note("", fmt::format("{} heads do not divide a hidden size of {}", model.heads, model.hidden));
    }
    model.head_dim = model.hidden / model.heads;
  }
  return model;
}

}  // namespace ns_dist
