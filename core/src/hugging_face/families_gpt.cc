// GPT-2, what derives from it, and other decoders before Llama.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "layers.h"

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

// xglm: XGLMConfig. Positions are sinusoids, which have no weights.
void read_xglm(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model, {"d_model"}, {"attention_heads"});
  model.ffn = reader.integer("ffn_dim", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.activation = plain_activation(reader.text("activation_function", Presence::kOptional));
  model.dropout = reader.number("dropout", 0, 1, Presence::kOptional, 0.1) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
}

// "attention_types" of gpt_neo: [[["global", "local"], 12]] is both in turn, 12 times. "attention_layers" names each.
std::vector<std::string> attention_of_gpt_neo(JsonReader& reader, const Model& model) {
  constexpr std::string_view kTypes = "attention_types", kNamed = "attention_layers";
  if (present(reader, kNamed)) return types_of_layers(reader, kNamed, model);
  std::vector<std::string> layers;
  const std::size_t most = none_of_layers(model).size();
  const std::string text = reader.json(kTypes);
  if (text.empty()) return std::vector<std::string>(most, "global");  // a missing key is noted
  const auto groups = nlohmann::json::parse(text, nullptr, false);
  bool is_fine = groups.is_array();
  for (const auto& group : groups) {
    is_fine = is_fine && group.is_array() && group.size() == 2 && group[0].is_array() && group[1].is_number_unsigned();
    if (!is_fine) break;
    const std::size_t before = layers.size();
    for (std::size_t i = 0; layers.size() < most && i < group[1].get<std::size_t>(); ++i) {
      for (const auto& type : group[0]) layers.push_back(type.is_string() ? type.get<std::string>() : "");
      if (layers.size() == before) break;  // no names
    }
  }
  if (!is_fine) {
    reader.note(std::string(kTypes), "kinds of attention cannot be read", R"(as in [[["global", "local"], 12]])");
    return std::vector<std::string>(most, "global");
  }
  return one_for_each_layer(reader, kTypes, std::move(layers), model);
}

// gpt_neo: GPTNeoConfig. Local layers see a window. intermediate_size null means 4 hidden_size.
void read_gpt_neo(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model, {"hidden_size"}, {"num_heads"});
  model.ffn = size_or(reader, family, {"intermediate_size"}, 4 * model.hidden);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 2048, kMostTokens);
  model.position_table = model.sequence;
  const std::vector<std::string> types = attention_of_gpt_neo(reader, model);
  model.full_attention_layers = layers_where(types, [](const std::string& type) { return type == "global"; });
  if (const auto other = std::find_if(types.begin(), types.end(),
                                      [](const std::string& type) { return type != "global" && type != "local"; });
      other != types.end()) {
    reader.note("attention_types", fmt::format("attention of \"{}\" cannot be forecast", shortened(*other)),
                "\"global\" or \"local\"");
  }
  if (std::find(types.begin(), types.end(), "local") != types.end()) {
    model.sliding_window = reader.integer("window_size", 1, kMostTokens, Presence::kOptional, 256);
  }
  const std::string activation = reader.text("activation_function", Presence::kOptional);
  model.activation = activation.empty() ? Activation::kGeluNew : plain_activation(activation);
  model.dropout = reader.number("resid_dropout", 0, 1, Presence::kOptional, 0) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
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
    {.model_type = "gpt_neo", .read = read_gpt_neo, .tied = true},
    {.model_type = "gpt_neox", .read = read_gpt_neox},
    {.model_type = "opt", .read = read_opt, .nested_defaults = {{"vocab_size", 50272}}},
    {.model_type = "xglm", .read = read_xglm, .tied = true},
    {.model_type = "bloom", .read = read_bloom},
    {.model_type = "mpt", .read = read_mpt},
    {.model_type = "falcon", .read = read_falcon},
};

}  // namespace

std::span<const Family> gpt_families() { return kGpt; }

}  // namespace ns_dist::hugging_face
