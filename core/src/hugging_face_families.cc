// Hugging Face config.json files: the keys of transformers' configuration classes, with their documented defaults.
//
// Keys tell most of a model. What its class does without saying so is a row of kFamilies.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "hugging_face.h"

namespace ns_dist::hugging_face {
namespace {

constexpr std::int64_t kMostTokens = 1'000'000'000;

// What a class takes for keys that published files leave out. `nested`: only in a part of another file (LLaVA's and
// Pixtral's "text_config"); a file of its own that lacks such a key is a mistake.
struct Default {
  std::string_view model_type, key;
  std::int64_t value;
  bool nested = false;
};
constexpr Default kDefaults[] = {
    {"llama", "hidden_size", 4096, true},
    {"llama", "intermediate_size", 11008, true},
    {"llama", "num_hidden_layers", 32, true},
    {"llama", "num_attention_heads", 32, true},
    {"llama", "vocab_size", 32000, true},
    {"mistral", "hidden_size", 4096, true},
    {"mistral", "intermediate_size", 14336, true},
    {"mistral", "num_hidden_layers", 32, true},
    {"mistral", "num_attention_heads", 32, true},
    {"mistral", "vocab_size", 32000, true},
    {"mistral", "num_key_value_heads", 8},
    {"mixtral", "num_key_value_heads", 8},
    {"mixtral", "num_local_experts", 8},
    {"mixtral", "num_experts_per_tok", 2},
    {"qwen2", "hidden_size", 4096, true},
    {"qwen2", "intermediate_size", 22016, true},
    {"qwen2", "num_hidden_layers", 32, true},
    {"qwen2", "num_attention_heads", 32, true},
    {"qwen2", "vocab_size", 151936, true},
    {"qwen3", "hidden_size", 4096, true},
    {"qwen3", "intermediate_size", 22016, true},
    {"qwen3", "num_hidden_layers", 32, true},
    {"qwen3", "num_attention_heads", 32, true},
    {"qwen3", "vocab_size", 151936, true},
    {"granite", "hidden_size", 4096, true},
    {"granite", "intermediate_size", 11008, true},
    {"granite", "num_hidden_layers", 32, true},
    {"granite", "num_attention_heads", 32, true},
    {"granite", "vocab_size", 32000, true},
    {"gemma", "hidden_size", 3072, true},
    {"gemma", "intermediate_size", 24576, true},
    {"gemma", "num_hidden_layers", 28, true},
    {"gemma", "num_attention_heads", 16, true},
    {"gemma", "vocab_size", 256000, true},
    {"gemma2", "hidden_size", 2304, true},
    {"gemma2", "intermediate_size", 9216, true},
    {"gemma2", "num_hidden_layers", 26, true},
    {"gemma2", "num_attention_heads", 8, true},
    {"gemma2", "vocab_size", 256000, true},
    {"cohere2", "hidden_size", 8192, true},
    {"cohere2", "intermediate_size", 22528, true},
    {"cohere2", "num_hidden_layers", 40, true},
    {"cohere2", "num_attention_heads", 64, true},
    {"cohere2", "vocab_size", 256000, true},
    {"phi3", "hidden_size", 3072, true},
    {"phi3", "intermediate_size", 8192, true},
    {"phi3", "num_hidden_layers", 32, true},
    {"phi3", "num_attention_heads", 32, true},
    {"phi3", "vocab_size", 32064, true},
    {"opt", "vocab_size", 50272, true},
    {"qwen2", "max_position_embeddings", 32768},
    {"qwen2_moe", "max_position_embeddings", 32768},
    {"qwen3", "max_position_embeddings", 32768},
    {"qwen3_moe", "max_position_embeddings", 32768},
    {"qwen3_next", "max_position_embeddings", 32768},
    {"smollm3", "max_position_embeddings", 32768},
    {"mistral", "max_position_embeddings", 131072},
    {"mixtral", "max_position_embeddings", 131072},
    {"gpt_oss", "max_position_embeddings", 131072},
    {"glm4", "max_position_embeddings", 131072},
    {"cohere", "max_position_embeddings", 8192},
    {"phi3", "max_position_embeddings", 4096},
    {"deepseek_v3", "max_position_embeddings", 4096},
    {"smollm3", "num_key_value_heads", 4},
    {"gpt_oss", "num_key_value_heads", 8},
    {"glm4", "num_key_value_heads", 2},
    {"glm", "num_key_value_heads", 2},
    {"starcoder2", "num_key_value_heads", 2},
    {"minimax_m2", "num_key_value_heads", 8},
    {"gemma", "head_dim", 256},
    {"gemma", "max_position_embeddings", 8192},
    {"gemma2", "head_dim", 256},
    {"gemma2", "num_key_value_heads", 4},
    {"gemma2", "max_position_embeddings", 8192},
    {"gemma4_text", "global_head_dim", 512},
    {"gemma3_text", "num_attention_heads", 8},
    {"gemma3_text", "num_key_value_heads", 4},
    {"gemma3_text", "head_dim", 256},
    {"gemma3_text", "vocab_size", 262208},
    {"gemma3_text", "max_position_embeddings", 131072},
    {"minicpm3", "v_head_dim", 64},
    {"qwen3", "head_dim", 128},
    {"qwen3_moe", "num_key_value_heads", 4},
    {"gpt_oss", "num_experts_per_tok", 4},
    {"deepseek_v3", "n_group", 8},
    {"deepseek_v3", "topk_group", 4},
    {"deepseek_v4", "index_n_heads", 64},
    {"deepseek_v4", "index_head_dim", 128},
    {"deepseek_v4", "index_topk", 512},
    {"deepseek_v32", "n_group", 8},
    {"deepseek_v32", "topk_group", 4},
    {"deepseek_v32", "index_n_heads", 64},
    {"deepseek_v32", "index_head_dim", 128},
    {"deepseek_v32", "index_topk", 2048},
    {"glm_moe_dsa", "index_n_heads", 32},
    {"glm_moe_dsa", "index_head_dim", 128},
    {"glm_moe_dsa", "index_topk", 2048},
};

const Default* default_of(const Family& family, std::string_view key) {
  const auto* const found = std::find_if(std::begin(kDefaults), std::end(kDefaults), [&](const Default& known) {
    return known.model_type == family.model_type && known.key == key && (!known.nested || family.sparse);
  });
  return found == std::end(kDefaults) ? nullptr : found;
}

// A list of one number for each layer is that number, if all are equal.
std::int64_t integer(JsonReader& reader, std::string_view key, std::int64_t least, std::int64_t most) {
  if (!reader.json(key, Presence::kOptional).starts_with('[')) return reader.integer(key, least, most);
  const std::vector<std::int64_t> values = reader.integers(key, least, most);
  if (values.empty()) return least;
  if (std::any_of(values.begin(), values.end(), [&](std::int64_t value) { return value != values.front(); })) {
    reader.note(std::string(key), "layers of different sizes cannot be forecast", "a number, or equal numbers");
  }
  return values.front();
}

}  // namespace

bool present(const JsonReader& reader, std::string_view key) { return reader.has(key) && !reader.is_null(key); }

bool active(JsonReader& reader, std::string_view key) {
  if (!present(reader, key)) return false;
  const std::string value = reader.json(key, Presence::kOptional);
  constexpr std::array<std::string_view, 7> kNothing = {"0", "1", "false", "[]", "{}", "\"\"", "0.0"};
  return std::find(kNothing.begin(), kNothing.end(), value) == kNothing.end();
}

std::string_view first_of(const JsonReader& reader, Keys keys) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](std::string_view key) { return present(reader, key); });
  return found == keys.end() ? *(keys.end() - 1) : *found;
}

std::int64_t size(JsonReader& reader, const Family& family, Keys keys, std::int64_t most) {
  const std::string_view key = first_of(reader, keys);
  if (const Default* known = default_of(family, key); known != nullptr && !present(reader, key)) return known->value;
  return integer(reader, key, 1, most);
}

bool has_no_gate(std::string_view name) { return name == "relu2" || name == "squared_relu" || name == "xielu"; }

std::string activation_of(JsonReader& reader, const Family& family) {
  const std::string name =
      reader.text(first_of(reader, {"hidden_activation", "mlp_hidden_act", "hidden_act"}), Presence::kOptional);
  return name.empty() ? std::string(family.activation) : name;
}

namespace {

// As `size`, where a file may leave it out.
std::int64_t size_or(JsonReader& reader, const Family& family, Keys keys, std::int64_t fallback,
                     std::int64_t most = kMostSize) {
  const std::string_view key = first_of(reader, keys);
  const bool told = present(reader, key) || default_of(family, key) != nullptr;
  return told ? size(reader, family, keys, most) : fallback;
}

bool is_activation(std::string_view name) {
  return name.empty() || name == "silu" || name == "swish" || name == "swiglu" || name == "quick_gelu" ||
         name.starts_with("gelu") || name.starts_with("relu") || has_no_gate(name);
}

Activation gated(const std::string& name) {
  return name.starts_with("gelu") ? Activation::kGeglu : Activation::kSwiglu;
}

Activation plain(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2" || name == "squared_relu") return Activation::kSquaredRelu;
  return name == "gelu_new" || name == "gelu_fast" ? Activation::kGeluNew : Activation::kGelu;
}

// Layers, hidden size and heads.
void read_body(JsonReader& reader, const Family& family, Model& model) {
  // Files that name each layer may not count them.
  const auto named = present(reader, kBlockTypes) ? std::ssize(reader.texts(kBlockTypes)) : 0;
  const Keys layers = {"n_layer", "n_layers", "num_layers", "num_hidden_layers"};
  model.layers =
      named > 0 ? size_or(reader, family, layers, named, kMostLayers) : size(reader, family, layers, kMostLayers);
  model.hidden = size(reader, family, {"n_embd", "n_embed", "d_model", "hidden_size"});
  model.heads = size(reader, family, {"n_head", "n_heads", "num_attention_heads"});
  model.kv_heads = model.heads;
}

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
  model.activation = model.gated_mlp ? Activation::kSwiglu : plain(activation);
  model.dropout = reader.number("resid_pdrop", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
}

// opt: OPTConfig. Its position table has two rows more than positions (an offset of the embedding).
void read_opt(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = reader.integer("ffn_dim", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.position_table = model.sequence + 2;
  model.activation = plain(reader.text("activation_function", Presence::kOptional));
  model.dropout = reader.number("dropout", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  if (reader.integer("word_embed_proj_dim", 1, kMostSize, Presence::kOptional, model.hidden) != model.hidden) {
    model.warnings.emplace_back("\"word_embed_proj_dim\" is left out: embeddings are as wide as layers");
  }
}

void read_bert(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = reader.integer("intermediate_size", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 512, kMostTokens);
  model.position_table = model.sequence;
  // RobertaModel counts positions from behind the padding token's.
  if (family.model_type.ends_with("roberta")) model.sequence = std::max<std::int64_t>(1, model.sequence - 2);
  model.activation = plain(reader.text("hidden_act", Presence::kOptional));
  model.dropout = reader.number("hidden_dropout_prob", 0, 1, Presence::kOptional, 0.1) > 0;
  model.embedding_norm = true;
  model.bidirectional = !reader.boolean("is_decoder", false);
  if (reader.integer("embedding_size", 1, kMostSize, Presence::kOptional, model.hidden) != model.hidden) {
    model.warnings.emplace_back("\"embedding_size\" is left out: embeddings are as wide as layers");
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

// Of a file without a size of heads: the hidden size over the heads, rounded down as in the classes. Latent attention
// has sizes of its own.
void share_hidden(Model& model, bool latent = false) {
  if (model.heads == 0) return;
  model.head_dim = model.hidden / model.heads;
  if (latent || model.hidden % model.heads == 0) return;
  model.warnings.push_back(
      fmt::format("no \"head_dim\", and {} heads do not divide the hidden size {}: heads of {} are taken", model.heads,
                  model.hidden, model.head_dim));
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
  model.activation = plain(reader.text("hidden_act", Presence::kOptional));
  model.tied_embeddings = reader.boolean("tie_word_embeddings", false);
}

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

std::vector<bool> none_of_layers(const Model& model) {
  return std::vector<bool>(static_cast<std::size_t>(std::max<std::int64_t>(0, model.layers)));
}

// modernbert: ModernBertConfig. Every third layer sees all tokens, beginning with the first one.
void read_modernbert(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = size(reader, family, {"intermediate_size"});
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 8192, kMostTokens);
  model.position = PositionKind::kRotary;
  model.embedding_norm = true;
  model.bidirectional = true;
  model.bias = reader.boolean("attention_bias", false);
  model.gated_mlp = true;
  model.activation = Activation::kGeglu;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  model.sliding_window = reader.integer("local_attention", 0, kMostTokens, Presence::kOptional, 128);
  const std::int64_t every = reader.integer("global_attn_every_n_layers", 1, kMostSize, Presence::kOptional, 3);
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); i += static_cast<std::size_t>(every)) full[i] = true;
  model.full_attention_layers = LayerSet::of(full);
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

// ---- Llama and what derives from it ----

// The layers that an array of layer numbers names.
LayerSet listed_layers(JsonReader& reader, std::string_view key, const Model& model, bool named) {
  std::vector<bool> member = none_of_layers(model);
  member.assign(member.size(), !named);
  for (const double layer : reader.numbers(key, 0, static_cast<double>(kMostSize), Presence::kOptional)) {
    if (const auto at = static_cast<std::size_t>(layer); at < member.size()) member[at] = named;
  }
  return LayerSet::of(member);
}

// One entry for each layer. A list with fewer is a mistake; it may have more, of layers for multi-token prediction.
template <class Entry>
std::vector<Entry> one_for_each_layer(JsonReader& reader, std::string_view key, std::vector<Entry> entries,
                                      const Model& model) {
  const std::size_t layers = none_of_layers(model).size();
  if (entries.size() < layers) {
    reader.note(std::string(key), fmt::format("{} entries for {} layers", entries.size(), layers),
                "one entry for each layer");
  }
  entries.resize(layers, entries.empty() ? Entry() : entries.back());
  return entries;
}

// The layers whose entry is wanted.
template <class Entry, class Wanted>
LayerSet layers_where(const std::vector<Entry>& entries, const Wanted& wanted) {
  std::vector<bool> member(entries.size());
  std::transform(entries.begin(), entries.end(), member.begin(), wanted);
  return LayerSet::of(member);
}

// The layers that an array of 0 and 1 gives `flag`.
LayerSet flagged_layers(JsonReader& reader, std::string_view key, const Model& model, double flag) {
  return layers_where(one_for_each_layer(reader, key, reader.numbers(key, 0, 1), model),
                      [flag](double each) { return each == flag; });
}

std::vector<std::string> types_of_layers(JsonReader& reader, std::string_view key, const Model& model) {
  return one_for_each_layer(reader, key, reader.texts(key), model);
}

// Layers whose queries choose some of all tokens: DeepSeek's ("index_topk"), as transformers 5 names them,
// MiniMax-M3's.
bool chooses_tokens(std::string_view type) {
  return type == "deepseek_sparse_attention" || type == "indexed_attention" || type == "minimax_m3_sparse";
}

// "layer_types" names the attention of each layer. Returns those that see all tokens. `other`: what others are.
LayerSet read_layer_types(JsonReader& reader, const Model& model, Keys other) {
  const std::vector<std::string> types = types_of_layers(reader, "layer_types", model);
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); ++i) {
    full[i] = types[i] == "full_attention" || types[i] == "attention" || chooses_tokens(types[i]);
    if (full[i] || types[i].empty() || std::find(other.begin(), other.end(), types[i]) != other.end()) continue;
    reader.note(fmt::format("layer_types/{}", i),
                fmt::format("layers of \"{}\" cannot be forecast", shortened(types[i])),
                fmt::format("\"full_attention\" or \"{}\"", fmt::join(other, "\" or \"")));
    return {};
  }
  return LayerSet::of(full);
}

// Which tokens a layer sees, and whether it knows their positions, is told in one place; what its heads are, in others.
// Layers of a window and all others have the heads of the file's own numbers, but for what these keys say.
class LayerHeads {
 public:
  LayerHeads(JsonReader& reader, const Model& model) : reader_(reader), model_(model) {
    full_ = windowed_ = heads_of(model, false);
  }

  void read(const Family& family) {
    read_number("num_sliding_attention_heads", windowed_.heads);
    read_number("swa_num_attention_heads", windowed_.heads);
    read_number("swa_num_key_value_heads", windowed_.kv_heads);
    read_number("swa_head_dim", windowed_.head_dim);
    read_number("swa_v_head_dim", windowed_.v_head_dim);
    if (present(reader_, "attention_other_setting")) {  // Step-3.5: of the layers with a window
      reader_.object("attention_other_setting", [&](JsonReader& other) {
        other.accept_unknown_keys();
        windowed_.heads = other.integer("num_attention_heads", 1, kMostSize, Presence::kOptional, windowed_.heads);
        windowed_.kv_heads =
            other.integer("num_attention_groups", 1, kMostSize, Presence::kOptional, windowed_.kv_heads);
        windowed_.head_dim = other.integer("head_dim", 1, kMostSize, Presence::kOptional, windowed_.head_dim);
      });
    }
    if (present(reader_, "num_attention_heads_per_layer")) {
      const std::vector<std::int64_t> heads =
          one_for_each_layer(reader_, "num_attention_heads_per_layer",
                             reader_.integers("num_attention_heads_per_layer", 1, kMostSize), model_);
      for (std::size_t i = 0; i < heads.size(); ++i)
        set("num_attention_heads_per_layer", "heads", i, &AttentionHeads::heads, heads[i]);
    }
    // Gemma 4: of the layers that see all tokens.
    const bool by_layer = present(reader_, "per_layer_config");
    if (present(reader_, "global_head_dim") || (default_of(family, "global_head_dim") != nullptr && !by_layer)) {
      full_.head_dim = size(reader_, family, {"global_head_dim"});
    }
    read_number("num_global_key_value_heads", full_.kv_heads);
    if (by_layer) read_by_layer();
    full_.keys_are_values = reader_.boolean("attention_k_eq_v", false);
  }

  void give_to(Model& model) const {
    model.heads = full_.heads, model.kv_heads = full_.kv_heads, model.head_dim = full_.head_dim;
    model.v_head_dim = full_.v_head_dim, model.keys_are_values = full_.keys_are_values;
    if (model.sliding_window > 0 && windowed_ != full_) model.windowed_heads = windowed_;
  }

 private:
  void read_number(std::string_view key, std::int64_t& number) {
    if (present(reader_, key)) number = reader_.integer(key, 1, kMostSize);
  }

  // {"05": {"head_dim": 512}}: the numbers of single layers, as transformers 5 writes them.
  void read_by_layer() {
    constexpr std::pair<std::string_view, std::int64_t AttentionHeads::*> kNumbers[] = {
        {"num_attention_heads", &AttentionHeads::heads},
        {"num_key_value_heads", &AttentionHeads::kv_heads},
        {"head_dim", &AttentionHeads::head_dim}};
    reader_.object("per_layer_config", [&](JsonReader& layers) {
      for (const std::string& name : layers.keys()) {
        std::int64_t layer = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
        if (error != std::errc() || end != name.data() + name.size() || layer < 0 || layer >= model_.layers) {
          layers.note(pointer_step(name), fmt::format("\"{}\" is no layer", shortened(name)),
                      fmt::format("a number below {}", model_.layers));
          layers.accept_unknown_keys();
          return;
        }
        layers.object(name, [&](JsonReader& own) {
          for (const auto& [key, member] : kNumbers) {
            if (own.has(key))
              set("per_layer_config", key, static_cast<std::size_t>(layer), member, own.integer(key, 1, kMostSize));
          }
        });
      }
    });
  }

  // All layers of a kind have the same. `what`: tells the numbers apart.
  void set(std::string_view key, std::string_view what, std::size_t layer, std::int64_t AttentionHeads::*member,
           std::int64_t value) {
    if (static_cast<std::int64_t>(layer) >= model_.layers) return;
    const bool of_window = layer_kind(model_, static_cast<std::int64_t>(layer)).windowed;
    AttentionHeads& heads = of_window ? windowed_ : full_;
    bool& told = told_[{of_window, what}];
    if (told && heads.*member != value) {
      return reader_.note(std::string(key), "layers of different sizes cannot be forecast",
                          "the same heads in all layers with a window, and in all others");
    }
    told = true;
    heads.*member = value;
  }

  JsonReader& reader_;
  const Model& model_;
  AttentionHeads full_, windowed_;
  std::map<std::pair<bool, std::string_view>, bool> told_;
};

// Which layers see all tokens: every k-th, or those with a G in a text that repeats ("LLLG").
LayerSet read_pattern(JsonReader& reader, std::string_view key, const Model& model) {
  if (!reader.is_text(key)) return {.every = reader.integer(key, 1, kMostSize), .listed = {}};
  const std::string letters = reader.text(key);
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
    reader.note(std::string(key), fmt::format("\"{}\" is no pattern of layers", shortened(letters)),
                "a number, or L (a window) and G (all tokens) for each layer that repeats");
    return {};
  }
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); ++i) full[i] = letters[i % letters.size()] == 'G';
  return LayerSet::of(full);
}

// Which tokens a layer sees, and whether it knows their positions.
void read_attention_layers(JsonReader& reader, const Family& family, Model& model) {
  if (family.full_is_unrotated || present(reader, "no_rope_layers")) {
    // 1 is a layer with positions, 0 is one without.
    const std::int64_t interval =
        reader.integer("no_rope_layer_interval", 1, kMostSize, Presence::kOptional, family.full_every);
    const bool listed = !reader.numbers("no_rope_layers", 0, 1, Presence::kOptional).empty();
    model.no_rotary_layers =
        listed ? flagged_layers(reader, "no_rope_layers", model, 0) : LayerSet{.every = interval, .listed = {}};
  }
  const bool has_types = present(reader, "layer_types") && !family.compressed;
  const LayerSet full =
      has_types ? read_layer_types(reader, model, {"sliding_attention", "chunked_attention"}) : LayerSet{};
  if (has_types && !present(reader, "index_topk") && !present(reader, "sparse_attention_config")) {
    const std::vector<std::string> types = reader.texts("layer_types");
    const auto chooses = std::find_if(types.begin(), types.end(), chooses_tokens);
    if (chooses != types.end()) {
      model.warnings.push_back(fmt::format("attention of \"{}\" is forecast as that of all tokens", *chooses));
    }
  }
  model.chunked_attention = present(reader, "attention_chunk_size") && !present(reader, "sliding_window");
  const std::string_view window = model.chunked_attention ? "attention_chunk_size" : "sliding_window";
  if (!reader.boolean("use_sliding_window", family.windowed) || !present(reader, window)) {
    // The layers without a window have no positions only beside others that have one.
    if (!present(reader, "no_rope_layers")) model.no_rotary_layers = {};
    return;
  }
  model.sliding_window = reader.integer(window, 0, kMostTokens);
  if (has_types) {
    model.full_attention_layers = full;
  } else if (present(reader, "hybrid_layer_pattern")) {  // MiMo-V2: 1 is a layer with a window
    model.full_attention_layers = flagged_layers(reader, "hybrid_layer_pattern", model, 0);
  } else if (model.chunked_attention) {
    model.full_attention_layers = model.no_rotary_layers;
  } else if (present(reader, "use_sliding_window") && present(reader, "max_window_layers")) {
    std::vector<bool> bottom = none_of_layers(model);
    const auto count = static_cast<std::size_t>(reader.integer("max_window_layers", 0, kMostSize));
    std::fill_n(bottom.begin(), std::min(count, bottom.size()), true);
    model.full_attention_layers = LayerSet::of(bottom);
  } else if (const std::string_view pattern = first_of(reader, {"_sliding_window_pattern", "sliding_window_pattern"});
             present(reader, pattern)) {
    model.full_attention_layers = read_pattern(reader, pattern, model);
  } else {
    model.full_attention_layers.every = family.full_every;
  }
}

// What an object of a file says of rotary positions, where the file has it.
template <class Read>
void read_rope(JsonReader& reader, std::string_view key, const Read& read) {
  if (!present(reader, key)) return;
  reader.object(key, [&](JsonReader& rope) {
    rope.accept_unknown_keys();
    rope.treat_null_as_missing();
    read(rope);
  });
}

// Tokens of a pre-training sequence: what positions were stretched from, where a file says that.
std::int64_t read_sequence(JsonReader& reader, const Family& family) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  std::int64_t original = reader.integer(kOriginal, 1, kMostTokens, Presence::kOptional, 0);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    read_rope(reader, key, [&](JsonReader& rope) {
      if (present(rope, kOriginal)) original = rope.integer(kOriginal, 1, kMostTokens);
      // By kind of layer (transformers 5).
      read_rope(rope, "full_attention", [&](JsonReader& whole) {
        if (present(whole, kOriginal)) original = whole.integer(kOriginal, 1, kMostTokens);
      });
    });
  }
  if (original > 0) return original;
  if (!present(reader, "seq_length") && !present(reader, "max_position_embeddings")) {
    for (const std::string_view key : {"model_max_length", "max_seq_len", "max_sequence_length"}) {
      if (present(reader, key)) return reader.integer(key, 1, kMostTokens);
    }
  }
  return size_or(reader, family, {"seq_length", "max_position_embeddings"}, 2048, kMostTokens);
}

// The layers that read the keys of the layer before them (GlmMoeDsaConfig): by names, by a letter for each layer, or
// all but every index_topk_freq-th of those from index_skip_topk_offset - 1 on.
LayerSet read_shared_choices(JsonReader& reader, const Model& model) {
  constexpr std::string_view kTypes = "indexer_types", kPattern = "index_topk_pattern", kEvery = "index_topk_freq";
  const auto named = [&](std::string_view key) {
    return layers_where(types_of_layers(reader, key, model),
                        [](const std::string& type) { return type == "shared" || type == "S"; });
  };
  if (present(reader, kTypes)) return named(kTypes);
  if (present(reader, kPattern) && reader.json(kPattern, Presence::kOptional).starts_with('[')) return named(kPattern);
  if (present(reader, kPattern)) {
    const std::string text = reader.text(kPattern);
    return layers_where(one_for_each_layer(reader, kPattern, std::vector<char>(text.begin(), text.end()), model),
                        [](char letter) { return letter == 'S'; });
  }
  std::vector<bool> shared = none_of_layers(model);
  if (present(reader, kEvery)) {
    const std::int64_t every = reader.integer(kEvery, 1, kMostSize);
    const std::int64_t offset = reader.integer("index_skip_topk_offset", 0, kMostSize, Presence::kOptional, 2);
    for (std::size_t i = 0; i < shared.size(); ++i) {
      shared[i] = std::max<std::int64_t>(static_cast<std::int64_t>(i) - offset + 1, 0) % every != 0;
    }
  }
  return LayerSet::of(shared);
}

// The sizes of an indexer (DeepseekV32Config, GlmMoeDsaConfig, DeepseekV4Config).
void read_indexer(JsonReader& reader, const Family& family, Model& model) {
  Indexer indexer;
  indexer.heads = size(reader, family, {"index_n_heads"});
  indexer.head_dim = size(reader, family, {"index_head_dim"});
  indexer.top_k = size(reader, family, {"index_topk"});
  model.indexer = std::move(indexer);
}

void read_latent_attention(JsonReader& reader, const Family& family, Model& model) {
  LatentAttention mla;
  mla.q_rank = reader.integer("q_lora_rank", 0, kMostSize, Presence::kOptional, 0);
  mla.kv_rank = reader.integer("kv_lora_rank", 1, kMostSize);
  mla.nope_head_dim = reader.integer("qk_nope_head_dim", 1, kMostSize);
  mla.rope_head_dim = reader.integer("qk_rope_head_dim", 1, kMostSize);
  mla.v_head_dim = size(reader, family, {"v_head_dim"});
  model.mla = mla;
  model.qkv_bias = false;
  model.head_dim = mla.nope_head_dim + mla.rope_head_dim;
  const bool chooses = present(reader, "index_topk") || default_of(family, "index_topk") != nullptr;
  if (!chooses || mla.q_rank == 0) return;
  read_indexer(reader, family, model);
  model.indexer->shared_layers = read_shared_choices(reader, model);
}

// Kimi Delta Attention in all layers but those that are listed, counted from 1 (KimiLinearConfig), or named. Attention
// has no positions.
void read_kimi_delta(JsonReader& reader, Model& model) {
  DeltaNet net;
  const auto read = [&](JsonReader& from, std::string_view heads, std::string_view dim, std::string_view taps) {
    net.key_heads = net.value_heads = from.integer(heads, 1, kMostSize);
    net.key_dim = net.value_dim = net.decay_rank = net.gate_rank = from.integer(dim, 1, kMostSize);
    net.convolution = from.integer(taps, 1, kMostSize, Presence::kOptional, net.convolution);
    if (from.boolean("use_full_rank_gate", false)) net.gate_rank = 0;
  };
  if (present(reader, "linear_attn_config")) {
    reader.object("linear_attn_config", [&](JsonReader& inner) {
      inner.accept_unknown_keys();
      read(inner, "num_heads", "head_dim", "short_conv_kernel_size");
      std::vector<bool> full = none_of_layers(model);
      for (const std::int64_t layer : inner.integers("full_attn_layers", 1, kMostSize)) {
        if (const auto at = static_cast<std::size_t>(layer - 1); at < full.size()) full[at] = true;
      }
      model.full_attention_layers = LayerSet::of(full);
    });
  } else {
    read(reader, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim");
    model.full_attention_layers = read_layer_types(reader, model, {"linear_attention"});
  }
  model.delta_net = net;
  if (reader.boolean("mla_use_nope", true)) model.position = PositionKind::kNone;
}

// The gated delta rule, in all layers but those with attention (Qwen3NextConfig).
void read_delta_net(JsonReader& reader, Model& model) {
  if (present(reader, "linear_attn_config") || present(reader, "linear_num_heads")) {
    return read_kimi_delta(reader, model);
  }
  DeltaNet net;
  const auto read = [&](std::string_view key, std::int64_t fallback) {
    return reader.integer(key, 1, kMostSize, Presence::kOptional, fallback);
  };
  net.key_heads = read("linear_num_key_heads", 16);
  net.value_heads = read("linear_num_value_heads", 32);
  net.key_dim = read("linear_key_head_dim", 128);
  net.value_dim = read("linear_value_head_dim", 128);
  net.convolution = read("linear_conv_kernel_dim", net.convolution);
  model.delta_net = net;
  model.full_attention_layers = present(reader, "layer_types")
                                    ? read_layer_types(reader, model, {"linear_attention"})
                                    : LayerSet{.every = read("full_attention_interval", 4), .listed = {}};
}

// "3,4,5": the layers of a text.
LayerSet layers_in_text(JsonReader& reader, std::string_view key, const Model& model) {
  std::vector<bool> member = none_of_layers(model);
  const std::string text = reader.text(key);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), layer);
    if (error != std::errc()) {
      reader.note(std::string(key), fmt::format("\"{}\" is no list of layers", shortened(text)), "as in \"3,4,5\"");
      return {};
    }
    if (layer < member.size()) member[layer] = true;
    at = static_cast<std::size_t>(end - text.data()) + 1;  // behind the comma
  }
  return LayerSet::of(member);
}

void read_experts(JsonReader& reader, const Family& family, Model& model) {
  Experts moe;
  moe.experts = size(reader, family, {"n_routed_experts", "moe_num_experts", "num_experts", "num_local_experts"});
  moe.top_k = size(reader, family,
                   {"experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts",
                    "num_experts_per_tok"});
  moe.expert_ffn = size_or(reader, family, {"moe_intermediate_size", "expert_ffn_hidden_size"}, model.ffn);
  model.ffn = size_or(reader, family, {"intermediate_size_mlp", "dense_intermediate_size"}, model.ffn);
  const std::string_view width = first_of(reader, {"shared_expert_intermediate_size", "shared_intermediate_size",
                                                   "share_expert_dim", "moe_shared_expert_intermediate_size"});
  // Of files that give a width alone; of width 0 there is none.
  const bool has_width = present(reader, width) && reader.integer(width, 0, kMostSize) > 0;
  const std::int64_t fallback = family.shared_expert || has_width ? 1 : 0;
  const std::string_view shared =
      first_of(reader, {"num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "n_shared_experts"});
  moe.shared_experts = present(reader, shared) ? integer(reader, shared, 0, kMostSize) : fallback;
  if (moe.shared_experts > 0) moe.shared_expert_ffn = size_or(reader, family, {width}, moe.expert_ffn);
  moe.shared_gate = present(reader, "shared_expert_intermediate_size");
  // An MLP for all tokens beside the experts: of the layers' width (Grok-2, Gemma 4), or as wide as the hidden states
  // (Arctic).
  const bool beside = reader.boolean("use_residual", false) || reader.boolean("parallel_attn_mlp_res", false);
  const bool as_wide = reader.boolean("residual_moe", false) || reader.boolean("enable_moe_block", false);
  if (moe.shared_experts == 0 && (beside || as_wide)) {
    moe.shared_experts = 1;
    moe.shared_expert_ffn = beside ? model.hidden : model.ffn;
  }
  moe.latent = reader.integer(first_of(reader, {"routed_expert_hidden_size", "moe_latent_size"}), 0, kMostSize,
                              Presence::kOptional, 0);
  // DeepSeek-V2 names its limited routing "group_limited_greedy"; "greedy" has none.
  if (!present(reader, "topk_method") || reader.text("topk_method") != "greedy") {
    // Hunyuan-A13B says "false" where there are none.
    const auto is_false = [&](std::string_view key) { return reader.json(key, Presence::kOptional) == "false"; };
    moe.groups = is_false("n_group") ? 1 : size_or(reader, family, {"n_group"}, 1);
    moe.top_groups = is_false("topk_group") ? moe.groups : size_or(reader, family, {"topk_group"}, moe.groups);
  }
  moe.first_dense_layers =
      reader.integer(first_of(reader, {"num_dense_layers", "moe_layer_start_index", "first_k_dense_replace"}), 0,
                     kMostSize, Presence::kOptional, 0);
  if (present(reader, "mlp_layer_types")) {
    moe.layers = layers_where(types_of_layers(reader, "mlp_layer_types", model),
                              [](const std::string& type) { return type == "sparse"; });
    moe.first_dense_layers = 0;
  } else if (reader.json("moe_layer_freq", Presence::kOptional).starts_with('[')) {
    moe.layers = flagged_layers(reader, "moe_layer_freq", model, 1);  // with experts
    moe.first_dense_layers = 0;
  } else if (present(reader, "moe_layers_enum")) {
    moe.layers = layers_in_text(reader, "moe_layers_enum", model);
  } else if (present(reader, "moe_layers")) {
    moe.layers = listed_layers(reader, "moe_layers", model, true);
  } else if (const std::int64_t every = size_or(reader, family, {"moe_layer_freq"}, 1); every > 1) {
    std::vector<bool> member = none_of_layers(model);  // counted from layer 0 (modeling_deepseek.py)
    for (std::size_t i = 0; i < member.size(); i += static_cast<std::size_t>(every)) member[i] = true;
    moe.layers = LayerSet::of(member);
  } else {
    moe.layers.every = size_or(reader, family, {"interleave_moe_layer_step", "decoder_sparse_step"}, 1);
    if (const LayerSet experts = listed_layers(reader, "mlp_only_layers", model, false); experts.every != 1) {
      std::vector<bool> member = none_of_layers(model);
      for (std::size_t i = 0; i < member.size(); ++i) {
        const auto layer = static_cast<std::int64_t>(i);
        member[i] = moe.layers.contains(layer) && experts.contains(layer);
      }
      moe.layers = LayerSet::of(member);
    }
  }
  model.moe = std::move(moe);
}

// kBlockTypes names each layer as kLayerPattern does by a letter.
std::string pattern_of_blocks(JsonReader& reader) {
  constexpr std::pair<std::string_view, char> kLetters[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                                                            {"attention", '*'}, {"full_attention", '*'},
                                                            {"mlp", '-'},       {"moe", 'E'}};
  std::string pattern;
  for (const std::string& type : reader.texts(kBlockTypes)) {
    const auto letter =
        std::find_if(std::begin(kLetters), std::end(kLetters), [&](const auto& each) { return each.first == type; });
    if (letter == std::end(kLetters)) {
      reader.note(fmt::format("{}/{}", kBlockTypes, pattern.size()),
                  fmt::format("layers of \"{}\" cannot be forecast", shortened(type)),
                  "\"mamba\", \"attention\", \"mlp\" or \"moe\"");
      return pattern;
    }
    pattern += letter->second;
  }
  return pattern;
}

// Gates of attention's outputs: for each element, or for each head (Step-3.5; Laguna tells which).
void read_gate(JsonReader& reader, const Family& family, Model& model) {
  model.attention_gate = reader.boolean("attn_output_gate", family.attention_gate);
  model.gate_of_head = model.attention_gate && family.gate_of_head;
  if (present(reader, "mla_use_output_gate")) model.attention_gate = reader.boolean("mla_use_output_gate", false);
  if (present(reader, "use_head_wise_attn_gate")) {
    model.attention_gate = model.gate_of_head = reader.boolean("use_head_wise_attn_gate", true);
  }
  if (!present(reader, "gating")) return;
  const std::string gating = reader.json("gating", Presence::kOptional);
  model.attention_gate = gating != "false";
  model.gate_of_head = model.attention_gate && gating != "\"per-element\"";
}

void read_decoder(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.kv_heads =
      size_or(reader, family, {"num_kv_heads", "num_attention_groups", "num_key_value_heads"}, model.heads);
  model.head_dim = size_or(reader, family, {"attention_head_dim", "kv_channels", "head_dim"}, 0);
  const bool latent = present(reader, "kv_lora_rank");
  if (model.head_dim == 0) share_hidden(model, latent);
  // Files without a dense layer may have no width of one.
  const bool all_experts = !present(reader, "intermediate_size") && present(reader, "moe_intermediate_size");
  if (!family.blocks) {
    model.ffn = all_experts ? size(reader, family, {"moe_intermediate_size"})
                            : size(reader, family, {"block_ff_dim", "intermediate_size"});
  }
  model.sequence = read_sequence(reader, family);
  const std::string activation = activation_of(reader, family);
  if (!is_activation(activation)) {
    model.warnings.push_back(fmt::format("activation \"{}\" is not known: read as {}", shortened(activation),
                                         family.gated ? "SwiGLU" : "GELU"));
  }
  model.gated_mlp = family.gated;
  model.activation = family.gated ? gated(activation) : plain(activation);
  model.norm = family.norm;
  model.norm_placement = family.placement;
  model.branches = family.branches;
  if (family.branches == Branches::kParallelTwoNorms && !reader.boolean("use_parallel_residual", false)) {
    model.branches = Branches::kSequential;
  }
  model.position = PositionKind::kRotary;
  model.bias = reader.boolean("use_bias", family.bias);
  model.qkv_bias = reader.boolean(first_of(reader, {"attention_bias", "use_qkv_bias", "qkv_bias"}), family.qkv_bias);
  const std::string_view norms = first_of(reader, {"qk_norm", "qk_layernorm", "use_qk_norm"});
  const bool is_flag = reader.is_boolean(norms) || norms == "use_qk_norm";
  if (is_flag ? reader.boolean(norms, family.qk_norm != QueryKeyNorm::kNone) : family.qk_norm != QueryKeyNorm::kNone) {
    model.qk_norm = family.qk_norm == QueryKeyNorm::kNone ? QueryKeyNorm::kHead : family.qk_norm;
    if (present(reader, "qk_norm_type") && reader.text("qk_norm_type") == "per_head") {  // MiniMax-M3
      model.qk_norm = QueryKeyNorm::kHead;
    }
  }
  double rotated = reader.number("partial_rotary_factor", 0, 1, Presence::kOptional, family.rotary);
  read_rope(reader, "rope_parameters", [&](JsonReader& rope) {
    rotated = rope.number("partial_rotary_factor", 0, 1, Presence::kOptional, rotated);
  });
  if (rotated > 0 && rotated < 1) {
    model.rotary_dim = std::max(1L, std::lround(rotated * static_cast<double>(model.head_dim)));
  }
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
  if (present(reader, "rotary_dim")) model.rotary_dim = reader.integer("rotary_dim", 1, kMostSize);
  model.capped_logits = reader.number("final_logit_softcapping", 0, 1e9, Presence::kOptional, 0) > 0;
  model.capped_scores = reader.number("attn_logit_softcapping", 0, 1e9, Presence::kOptional, 0) > 0;
  model.attention_sinks = family.sinks || reader.boolean("add_full_attention_sink_bias", false) ||
                          reader.boolean("add_swa_attention_sink_bias", false);  // MiMo-V2-Flash
  read_gate(reader, family, model);
  if (present(reader, "is_causal")) model.bidirectional = !reader.boolean("is_causal", true);
  if (present(reader, "use_bidirectional_attention")) {
    model.bidirectional = reader.json("use_bidirectional_attention", Presence::kOptional) == "true";
  }
  if (reader.boolean("mlp_bias", model.bias) && !model.bias) {
    model.warnings.emplace_back("\"mlp_bias\" is left out: no linear layer but those before attention has biases");
  }
  if (family.delta) {
    read_delta_net(reader, model);
  } else if (!family.hybrid && !family.convolution) {
    read_attention_layers(reader, family, model);
    if (!latent) {
      if (active(reader, "v_head_dim")) model.v_head_dim = reader.integer("v_head_dim", 1, kMostSize);
      if (model.v_head_dim == model.head_dim) model.v_head_dim = 0;
      LayerHeads heads(reader, model);
      heads.read(family);
      heads.give_to(model);
    }
  }
  model.prediction_layers =
      reader.integer(first_of(reader, {"mtp_num_hidden_layers", "num_mtp_modules", "num_nextn_predict_layers"}), 0,
                     1'000, Presence::kOptional, 0);
  if (latent) read_latent_attention(reader, family, model);
}

void read_moe(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  if (present(reader, "num_local_experts") && !active(reader, "num_local_experts")) {  // a dense one of Llama 4
    model.ffn = size_or(reader, family, {"intermediate_size_mlp"}, model.ffn);
    return;
  }
  read_experts(reader, family, model);
}

// deepseek_v4: DeepseekV4Config. Tokens of a compressed key by layer: as DeepSeek's files list them, or by names
// (transformers 5). Layers for multi-token prediction have none.
void read_deepseek_v4(JsonReader& reader, const Family& family, Model& model) {
  read_moe(reader, family, model);
  CompressedAttention compressed;
  const auto read = [&](std::string_view key, std::int64_t fallback) {
    return reader.integer(key, 1, kMostSize, Presence::kOptional, fallback);
  };
  compressed.q_rank = read("q_lora_rank", 1024);
  constexpr double kRotated = 1.0 / 8;
  const double rotated = reader.number("partial_rotary_factor", 0, 1, Presence::kOptional, kRotated);
  compressed.rope_head_dim = model.rotary_dim =
      read("qk_rope_head_dim", std::max<std::int64_t>(1, std::llround(rotated * static_cast<double>(model.head_dim))));
  compressed.output_groups = read("o_groups", 8);
  compressed.output_rank = read("o_lora_rank", 1024);
  read_indexer(reader, family, model);
  std::vector<bool> chosen = none_of_layers(model), window = chosen;
  if (present(reader, "compress_ratios")) {
    const std::vector<std::int64_t> ratios = reader.integers("compress_ratios", 0, kMostSize);
    if (ratios.size() < chosen.size()) {
      reader.note("compress_ratios", fmt::format("{} numbers for {} layers", ratios.size(), chosen.size()),
                  "one for each layer");
    }
    for (std::size_t i = 0; i < std::min(ratios.size(), chosen.size()); ++i) {
      window[i] = ratios[i] == 0;
      chosen[i] = ratios[i] == compressed.sparse_ratio;
      if (window[i] || chosen[i] || ratios[i] == compressed.dense_ratio) continue;
      reader.note(fmt::format("compress_ratios/{}", i), fmt::format("compressed keys of {} tokens", ratios[i]),
                  fmt::format("0, {} or {}", compressed.sparse_ratio, compressed.dense_ratio));
    }
  } else {
    reader.object(
        "compress_rates",
        [&](JsonReader& rates) {
          rates.accept_unknown_keys();
          const auto rate = [&](std::string_view key, std::int64_t& ratio) {
            ratio = rates.integer(key, 2, kMostSize, Presence::kOptional, ratio);
          };
          rate("compressed_sparse_attention", compressed.sparse_ratio);
          rate("heavily_compressed_attention", compressed.dense_ratio);
        },
        Presence::kOptional);
    const std::vector<std::string> types = types_of_layers(reader, "layer_types", model);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      window[i] = types[i] == "sliding_attention";
      chosen[i] = types[i] == "compressed_sparse_attention";
      if (window[i] || chosen[i] || types[i].empty() || types[i] == "heavily_compressed_attention") continue;
      reader.note(fmt::format("layer_types/{}", i),
                  fmt::format("layers of \"{}\" cannot be forecast", shortened(types[i])),
                  "\"sliding_attention\", \"compressed_sparse_attention\" or \"heavily_compressed_attention\"");
    }
  }
  compressed.sparse_layers = LayerSet::of(chosen), compressed.window_layers = LayerSet::of(window);
  model.compressed = std::move(compressed);
  model.residual_streams = reader.integer("hc_mult", 1, 64, Presence::kOptional, 4);
  if (model.moe) model.moe->layers = {.every = 1, .listed = {}};
  model.full_attention_layers = {};
}

// qwen: QWenConfig. Each half of the gated MLP has half the width (modeling_qwen.py, QWenMLP). So has molmo's.
void read_qwen(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  model.ffn /= 2;
}

// The layers with attention, where others have `others`: by names, or by their numbers.
LayerSet attention_of_layers(JsonReader& reader, const Model& model, Keys others, std::string_view numbers) {
  return present(reader, "layer_types") ? read_layer_types(reader, model, others)
                                        : listed_layers(reader, numbers, model, true);
}

// Mamba-2 under the keys that begin with "mamba_". `sizes`: whether a file must have them (FalconH1Config has 128 heads
// and 256 states). The size of a head may be left to the channels that all have: "auto".
void read_mamba(JsonReader& reader, Presence sizes, Model& model) {
  StateSpace space;
  space.heads = reader.integer("mamba_n_heads", 1, kMostSize, sizes, 128);
  const bool is_left =
      reader.is_text("mamba_d_head") || (sizes == Presence::kOptional && !present(reader, "mamba_d_head"));
  std::int64_t channels = 0;
  if (present(reader, "mamba_d_ssm")) {
    channels = reader.integer("mamba_d_ssm", 1, kMostSize);
  } else if (is_left) {
    channels = reader.integer("mamba_expand", 1, kMostSize, Presence::kOptional, 2) * model.hidden;
  }
  space.head_dim = is_left ? std::max<std::int64_t>(1, channels / std::max<std::int64_t>(1, space.heads))
                           : reader.integer("mamba_d_head", 1, kMostSize);
  space.groups = reader.integer("mamba_n_groups", 1, kMostSize, Presence::kOptional, 1);
  space.state = reader.integer("mamba_d_state", 1, kMostSize, sizes, 256);
  space.convolution = reader.integer("mamba_d_conv", 1, kMostSize, Presence::kOptional, space.convolution);
  model.state_space = space;
}

// granitemoehybrid: GraniteMoeHybridConfig (Granite 4). bamba: BambaConfig. A layer is two of ours: what mixes tokens,
// and its MLP or experts.
void read_hybrid(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  const bool has_experts = active(reader, "num_local_experts");
  if (has_experts) {
    read_experts(reader, family, model);
  } else {
    model.ffn = size_or(reader, family, {"shared_intermediate_size"}, model.ffn);
  }
  if (reader.text("position_embedding_type", Presence::kOptional) == "nope") model.position = PositionKind::kNone;
  // transformers 5 renames them.
  const LayerSet attention = attention_of_layers(reader, model, {"mamba", "linear_attention"}, "attn_layer_indices");
  if (attention.every == 1) return;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    model.layer_pattern += attention.contains(layer) ? '*' : 'M';
    model.layer_pattern += has_experts ? 'E' : '-';
  }
  model.warnings.push_back(
      fmt::format("each of the {} layers counts as two: attention or Mamba-2, and what follows it", model.layers));
  model.layers = static_cast<std::int64_t>(model.layer_pattern.size());
  read_mamba(reader, Presence::kRequired, model);
}

// Convolutions in most layers.
void read_convolutions(JsonReader& reader, Model& model) {
  model.short_convolution = reader.integer("conv_L_cache", 1, kMostSize, Presence::kOptional, 3);
  model.full_attention_layers = attention_of_layers(reader, model, {"conv", "short_convolution"}, "full_attn_idxs");
}

// lfm2: Lfm2Config. Its MLPs are narrower than told (modeling_lfm2.py, Lfm2MLP).
void read_lfm2(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  if (reader.integer("conv_dim", 1, kMostSize, Presence::kOptional, model.hidden) != model.hidden) {
    reader.note("conv_dim", "convolutions of another width than the hidden size cannot be forecast",
                std::to_string(model.hidden));
  }
  if (reader.boolean("block_auto_adjust_ff_dim", true)) {
    const double multiplier = reader.number("block_ffn_dim_multiplier", 0, 1e3, Presence::kOptional, 1);
    const std::int64_t multiple = reader.integer("block_multiple_of", 1, kMostSize, Presence::kOptional, 256);
    const auto wide = static_cast<std::int64_t>(multiplier * static_cast<double>(2 * model.ffn / 3));
    model.ffn = std::max<std::int64_t>(1, (wide + multiple - 1) / multiple) * multiple;
  }
  read_convolutions(reader, model);
}

// lfm2_moe: Lfm2MoeConfig.
void read_lfm2_moe(JsonReader& reader, const Family& family, Model& model) {
  read_moe(reader, family, model);
  read_convolutions(reader, model);
}

// nemotron_h: NemotronHConfig. Attention has no positions.
void read_nemotron_h(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  model.position = PositionKind::kNone;
  model.layer_pattern = present(reader, kBlockTypes) ? pattern_of_blocks(reader) : reader.text(kLayerPattern);
  if (model.layer_pattern.find('E') != std::string::npos) read_experts(reader, family, model);
  StateSpace space;
  space.heads = reader.integer("mamba_num_heads", 1, kMostSize);
  space.head_dim = reader.integer("mamba_head_dim", 1, kMostSize);
  space.groups = reader.integer("n_groups", 1, kMostSize);
  space.state = reader.integer("ssm_state_size", 1, kMostSize);
  space.convolution = reader.integer("conv_kernel", 1, kMostSize, Presence::kOptional, space.convolution);
  model.state_space = space;
}

// falcon_h1: FalconH1Config. A layer is three of ours; its attention and its Mamba-2 read one norm.
void read_falcon_h1(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  read_mamba(reader, Presence::kOptional, model);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) model.layer_pattern += "*M-";
  model.warnings.push_back(
      fmt::format("each of the {} layers counts as three: attention, Mamba-2, of which both read one norm, and an MLP",
                  model.layers));
  model.layers = static_cast<std::int64_t>(model.layer_pattern.size());
}

// nemotron-nas: DeciLMConfig (Llama-Nemotron Super and Ultra; configuration_decilm.py, block_config.py). Layers may
// lack attention or an MLP; the width of an MLP is two thirds of a multiple of the hidden size, in steps of 256.
void read_nemotron_nas(JsonReader& reader, const Family& family, Model& model) {
  std::vector<bool> without_attention;
  std::int64_t group = 0;
  const double hidden = static_cast<double>(size(reader, family, {"hidden_size"}));
  const auto is_left_out = [](JsonReader& part, std::size_t layer, std::string_view what) {
    if (part.boolean("replace_with_linear", false)) {
      part.note("replace_with_linear",
                fmt::format("a matrix in the place of the {} of layer {} cannot be forecast", what, layer), "false");
    }
    return part.boolean("no_op", false);
  };
  reader.objects("block_configs", [&](JsonReader& block) {
    const std::size_t layer = without_attention.size();
    block.accept_unknown_keys();
    block.object("attention", [&](JsonReader& attention) {
      attention.accept_unknown_keys();
      attention.treat_null_as_missing();
      without_attention.push_back(is_left_out(attention, layer, "attention"));
      if (without_attention.back()) return;
      const std::int64_t own = attention.integer("n_heads_in_group", 1, kMostSize);
      if (group > 0 && own != group) {
        attention.note("n_heads_in_group", fmt::format("groups of {} and of {} heads cannot be forecast", group, own),
                       "the same number in all layers");
      }
      group = own;
    });
    block.object("ffn", [&](JsonReader& ffn) {
      ffn.accept_unknown_keys();
      ffn.treat_null_as_missing();
      constexpr double kStep = 256, kLargest = 1e4;
      const bool none = is_left_out(ffn, layer, "MLP");
      const double width = none ? 0 : std::floor(2 * ffn.number("ffn_mult", 0, kLargest) * hidden / 3);
      model.ffn_of_layers.push_back(std::llround(std::ceil(width / kStep) * kStep));
    });
  });
  for (const std::int64_t width : model.ffn_of_layers) model.ffn = std::max(model.ffn, width);
  read_decoder(reader, family, model);
  if (group > 0) model.kv_heads = std::max<std::int64_t>(1, model.heads / group);
  without_attention.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, model.layers)));
  model.no_attention_layers = LayerSet::of(without_attention);
}

// gemma4_text: Gemma4TextConfig. Some models have experts in each layer, beside its MLP. Small ones share keys, where
// MLPs may be twice as wide, and have embeddings of each layer.
void read_gemma4(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  if (reader.boolean("enable_moe_block", false)) read_experts(reader, family, model);
  model.shared_keys_layers = reader.integer("num_kv_shared_layers", 0, kMostLayers, Presence::kOptional, 0);
  if (model.shared_keys_layers > 0 && reader.boolean("use_double_wide_mlp", false)) {
    model.ffn_of_layers.assign(static_cast<std::size_t>(std::max<std::int64_t>(0, model.layers)), model.ffn);
    const std::int64_t shared = std::min(model.shared_keys_layers, model.layers);
    std::fill_n(model.ffn_of_layers.rbegin(), shared, 2 * model.ffn);
  }
  const std::int64_t width = reader.integer("hidden_size_per_layer_input", 0, kMostSize, Presence::kOptional, 0);
  if (width == 0) return;
  model.per_layer_embeddings = {width, size_or(reader, family, {"vocab_size_per_layer_input"}, model.vocabulary)};
}

constexpr NormalizationKind kLayerNorm = NormalizationKind::kLayerNorm;
constexpr QueryKeyNorm kHead = QueryKeyNorm::kHead;

constexpr Family kFamilies[] = {
    {.model_type = "gpt2", .read = read_gpt2, .tied = true},
    {.model_type = "gpt_bigcode", .read = read_gpt2, .tied = true},
    {.model_type = "gptj", .read = read_gpt2, .branches = Branches::kParallel},
    {.model_type = "opt", .read = read_opt},
    {.model_type = "bert", .read = read_bert},
    {.model_type = "roberta", .read = read_bert},
    {.model_type = "xlm-roberta", .read = read_bert},
    {.model_type = "bloom", .read = read_bloom},
    {.model_type = "mpt", .read = read_mpt},
    {.model_type = "gpt_neox", .read = read_gpt_neox},
    {.model_type = "falcon", .read = read_falcon},
    {.model_type = "dbrx", .read = read_dbrx},
    {.model_type = "modernbert", .read = read_modernbert},
    {.model_type = "llama", .read = read_decoder},
    {.model_type = "llama4_text",
     .read = read_moe,
     .qk_norm = QueryKeyNorm::kPlain,
     .full_every = 4,
     .full_is_unrotated = true,
     .shared_expert = true},
    {.model_type = "mistral", .read = read_decoder},
    {.model_type = "ministral", .read = read_decoder},
    {.model_type = "ministral3", .read = read_decoder},
    {.model_type = "mixtral", .read = read_moe},
    {.model_type = "bitnet", .read = read_decoder, .tied = true},
    {.model_type = "minicpm", .read = read_decoder, .tied = true},
    {.model_type = "minicpm3", .read = read_decoder, .tied = true},
    {.model_type = "molmo", .read = read_qwen},
    {.model_type = "apertus", .read = read_decoder, .gated = false, .activation = "xielu", .qk_norm = kHead},
    {.model_type = "exaone4",
     .read = read_decoder,
     .qk_norm = kHead,
     .placement = NormPlacement::kPost,
     .full_every = 4,
     .full_is_unrotated = true},
    {.model_type = "exaone_moe", .read = read_moe, .qk_norm = kHead, .full_every = 4, .full_is_unrotated = true},
    {.model_type = "afmoe",
     .read = read_moe,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 4,
     .full_is_unrotated = true,
     .attention_gate = true},
    {.model_type = "qwen", .read = read_qwen, .qkv_bias = true},
    {.model_type = "qwen2", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_vl", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_vl_text", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_5_vl", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_5_vl_text", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_moe", .read = read_moe, .qkv_bias = true},
    {.model_type = "qwen3", .read = read_decoder, .qk_norm = kHead},
    {.model_type = "qwen3_vl_text", .read = read_decoder, .qk_norm = kHead},
    {.model_type = "qwen3_moe", .read = read_moe, .qk_norm = kHead},
    {.model_type = "qwen3_vl_moe_text", .read = read_moe, .qk_norm = kHead},
    {.model_type = "qwen3_next",
     .read = read_moe,
     .qk_norm = kHead,
     .rotary = 0.25,
     .delta = true,
     .attention_gate = true},
    {.model_type = "qwen3_5_text",
     .read = read_decoder,
     .qk_norm = kHead,
     .rotary = 0.25,
     .delta = true,
     .attention_gate = true},
    {.model_type = "qwen3_5_moe_text",
     .read = read_moe,
     .qk_norm = kHead,
     .rotary = 0.25,
     .delta = true,
     .attention_gate = true},
    {.model_type = "gemma", .read = read_decoder, .activation = "gelu", .tied = true},
    {.model_type = "gemma2",
     .read = read_decoder,
     .activation = "gelu",
     .tied = true,
     .placement = NormPlacement::kSandwich,
     .full_every = 2},
    {.model_type = "gemma3_text",
     .read = read_decoder,
     .activation = "gelu",
     .tied = true,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 6},
    {.model_type = "gemma4_text",
     .read = read_gemma4,
     .activation = "gelu",
     .tied = true,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 6,
     .shares_keys = true},
    {.model_type = "laguna", .read = read_moe, .qk_norm = kHead, .attention_gate = true, .gate_of_head = true},
    {.model_type = "step3p5", .read = read_moe, .qk_norm = kHead, .attention_gate = true, .gate_of_head = true},
    {.model_type = "mimo_v2_flash", .read = read_moe},
    {.model_type = "lfm2", .read = read_lfm2, .tied = true, .qk_norm = kHead, .convolution = true},
    {.model_type = "lfm2_moe", .read = read_lfm2_moe, .tied = true, .qk_norm = kHead, .convolution = true},
    {.model_type = "minimax_m2", .read = read_moe, .qk_norm = QueryKeyNorm::kToken},
    {.model_type = "phi",
     .read = read_decoder,
     .gated = false,
     .norm = kLayerNorm,
     .bias = true,
     .branches = Branches::kParallel,
     .rotary = 0.5},
    {.model_type = "phi3", .read = read_decoder},
    {.model_type = "phimoe", .read = read_moe, .norm = kLayerNorm, .qkv_bias = true},
    {.model_type = "gpt_oss", .read = read_moe, .bias = true, .qkv_bias = true, .full_every = 2, .sinks = true},
    {.model_type = "glm", .read = read_decoder, .qkv_bias = true, .rotary = 0.5},
    {.model_type = "glm4", .read = read_decoder, .placement = NormPlacement::kSandwich, .rotary = 0.5},
    {.model_type = "glm4v_text", .read = read_decoder, .placement = NormPlacement::kSandwich, .rotary = 0.5},
    {.model_type = "glm4_moe", .read = read_moe, .rotary = 0.5},
    {.model_type = "glm4v_moe_text", .read = read_moe, .rotary = 0.5},
    {.model_type = "glm4_moe_lite", .read = read_moe},
    {.model_type = "seed_oss", .read = read_decoder, .qkv_bias = true},
    {.model_type = "ernie4_5", .read = read_decoder, .tied = true},
    {.model_type = "ernie4_5_moe", .read = read_moe, .tied = true},
    {.model_type = "hunyuan_v1_dense", .read = read_decoder, .qk_norm = kHead},
    {.model_type = "hunyuan_v1_moe", .read = read_moe, .qk_norm = kHead},
    {.model_type = "bailing_moe_v2", .read = read_moe, .qk_norm = kHead, .rotary = 0.5},
    {.model_type = "internlm3", .read = read_decoder},
    {.model_type = "deepseek", .read = read_moe},
    {.model_type = "dots1", .read = read_moe, .qk_norm = kHead},
    {.model_type = "deepseek_v2", .read = read_moe},
    {.model_type = "deepseek_v3", .read = read_moe},
    {.model_type = "deepseek_v32", .read = read_moe},
    {.model_type = "glm_moe_dsa", .read = read_moe},
    {.model_type = "deepseek_v4", .read = read_deepseek_v4, .sinks = true, .compressed = true},
    {.model_type = "kimi_k2", .read = read_moe},
    {.model_type = "kimi_linear", .read = read_moe, .delta = true},
    {.model_type = "nemotron", .read = read_decoder, .gated = false, .norm = kLayerNorm, .rotary = 0.5},
    {.model_type = "nemotron_h", .read = read_nemotron_h, .gated = false},
    {.model_type = "starcoder2", .read = read_decoder, .gated = false, .norm = kLayerNorm, .bias = true, .tied = true},
    {.model_type = "stablelm",
     .read = read_decoder,
     .norm = kLayerNorm,
     .branches = Branches::kParallelTwoNorms,
     .rotary = 0.25},
    {.model_type = "olmo2", .read = read_decoder, .qk_norm = QueryKeyNorm::kToken, .placement = NormPlacement::kPost},
    {.model_type = "olmo3",
     .read = read_decoder,
     .qk_norm = QueryKeyNorm::kToken,
     .placement = NormPlacement::kPost,
     .full_every = 4},
    {.model_type = "olmoe", .read = read_moe, .qk_norm = QueryKeyNorm::kToken},
    {.model_type = "granite", .read = read_decoder},
    {.model_type = "granitemoe", .read = read_moe},
    {.model_type = "granitemoehybrid", .read = read_hybrid, .hybrid = true},
    {.model_type = "bamba", .read = read_hybrid, .rotary = 0.5, .hybrid = true},
    {.model_type = "falcon_h1", .read = read_falcon_h1, .hybrid = true},
    {.model_type = "nemotron-nas", .read = read_nemotron_nas, .blocks = true},
    {.model_type = "smollm3", .read = read_decoder, .tied = true, .full_every = 4},
    {.model_type = "cohere", .read = read_decoder, .norm = kLayerNorm, .tied = true, .branches = Branches::kParallel},
    {.model_type = "cohere2",
     .read = read_decoder,
     .norm = kLayerNorm,
     .tied = true,
     .branches = Branches::kParallel,
     .full_every = 4,
     .full_is_unrotated = true},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace ns_dist::hugging_face
