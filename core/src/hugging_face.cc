// Hugging Face config.json files: which class a file is of, and what is refused. Each class is read in
// hugging_face_families.cc.
#include "hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <utility>

namespace ns_dist {
namespace {

using hugging_face::activation_of;
using hugging_face::active;
using hugging_face::families;
using hugging_face::Family;
using hugging_face::first_of;
using hugging_face::has_no_gate;
using hugging_face::kBlockTypes;
using hugging_face::kLayerPattern;
using hugging_face::present;
using hugging_face::size;

// Types that no row names are read as the first family of which the file has all these keys.
struct Nearest {
  std::string_view model_type;
  std::array<std::string_view, 2> keys;
};
constexpr Nearest kNearest[] = {
    {"nemotron_h", {kLayerPattern, "mamba_num_heads"}},
    {"nemotron_h", {kBlockTypes, "mamba_num_heads"}},
    {"qwen3_next", {"linear_num_value_heads", "num_experts"}},
    {"qwen3_5_text", {"linear_num_value_heads", "linear_key_head_dim"}},
    {"deepseek_v3", {"kv_lora_rank", "n_routed_experts"}},
    {"glm4_moe", {"n_routed_experts", "first_k_dense_replace"}},
    {"qwen3_moe", {"num_experts", "moe_intermediate_size"}},
    {"qwen3_moe", {"moe_num_experts", "moe_intermediate_size"}},
    {"qwen3_moe", {"n_routed_experts", "moe_intermediate_size"}},
    {"olmoe", {"num_experts", "num_experts_per_tok"}},
    {"mixtral", {"num_local_experts", "num_experts_per_tok"}},
    {"gptj", {"n_embd", "rotary_dim"}},
    {"gpt2", {"n_embd", "n_layer"}},
    {"opt", {"ffn_dim", "word_embed_proj_dim"}},
    {"bert", {"type_vocab_size", "intermediate_size"}},
    {"bert", {"layer_norm_eps", "hidden_dropout_prob"}},
};

// Null where no row has this type.
const Family* find_family(std::string_view model_type) {
  const auto found = std::find_if(families().begin(), families().end(),
                                  [&](const Family& family) { return family.model_type == model_type; });
  return found == families().end() ? nullptr : &*found;
}

// Of a type or a class, to be compared.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != '_' && c != '-') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// The longest type that the name of a class begins with: "GPT2LMHeadModel" is a gpt2. `whole`: and nothing but what the
// model is for follows it, as in "MistralForCausalLM".
const Family* family_of_class(JsonReader& reader, bool whole) {
  const std::vector<std::string> classes = reader.texts("architectures");
  if (classes.empty()) return nullptr;
  const std::string name = plain(classes.front());
  const Family* longest = nullptr;
  for (const Family& family : families()) {
    std::string_view type = family.model_type;
    if (type.ends_with("_text")) type.remove_suffix(5);
    const std::string of_type = plain(type);
    const bool begins = name.starts_with(of_type) && (!whole || name.substr(of_type.size()).starts_with("for"));
    if (begins && (longest == nullptr || family.model_type.size() > longest->model_type.size())) longest = &family;
  }
  return longest;
}

// Whether a class that can have experts says that it has none (DogeConfig, GraniteMoeHybridConfig).
bool has_no_experts(JsonReader& reader) {
  if (present(reader, "is_moe")) return !reader.boolean("is_moe", true);
  return present(reader, "num_local_experts") && !active(reader, "num_local_experts");
}

const Family& nearest_family(JsonReader& reader, std::string_view type) {
  const bool dense = has_no_experts(reader);
  for (const Nearest& nearest : kNearest) {
    if (dense && nearest.keys[0].find("experts") != std::string_view::npos) continue;
    if (present(reader, nearest.keys[0]) && present(reader, nearest.keys[1])) return *find_family(nearest.model_type);
  }
  return *find_family(type.starts_with("qwen2") ? "qwen2" : "llama");
}

// Keys that make another model of a file than its other keys tell, unless their value is nothing.
struct Foreign {
  std::string_view key, what;
  bool of_mixers = false;       // what stands in the place of attention, unless other keys name the layers
  bool Family::*own = nullptr;  // families that read it
};
constexpr Foreign kForeign[] = {
    {"linear_attn_config", "linear attention", true},
    {"layer_group_size", "linear attention", true},
    {"mamba_n_heads", "Mamba layers of this type", true},
    {"n_mamba_heads", "Mamba layers of this type", true},
    {"mamba_d_state", "Mamba layers of this type", true},
    {"mb_per_layer", "Mamba layers of this type", true},
    {"attn_layer_period", "Mamba layers", true},
    {kBlockTypes, "Mamba layers of this type", true},
    {"ssm_cfg", "Mamba layers of this type", true},
    {"state_size", "Mamba layers of this type", true},
    {"lru_width", "linear recurrent layers", true},
    {"attention_hidden_size", "RWKV layers", true},
    {"conv_L_cache", "convolutions in the place of attention", true},
    {"full_attn_idxs", "convolutions in the place of attention", true},
    {"compress_ratios", "attention to compressed keys", false, &Family::compressed},
    {"pos_att_type", "attention to positions by products of their own"},
    {"share_q_dim", "factorized attention"},
    {"use_cla", "layers that share keys and values"},
    {"num_kv_shared_layers", "layers that share keys and values", false, &Family::shares_keys},
    {"block_configs", "layers of different sizes", false, &Family::blocks},
    {"num_key_value_heads_per_layer", "layers of different sizes"},
    {"conv_dim", "convolutions before the layers", false, &Family::convolution},
    {"hidden_size_per_layer_input", "an embedding for each layer", false, &Family::shares_keys},
    {"altup_num_inputs", "several hidden states for each token"},
    {"hc_mult", "several hidden states for each token", false, &Family::compressed},
    {"hc_count", "several hidden states for each token"},
    {"ple_layer_ids", "tables of several tokens"},
    {"engram_layer_ids", "tables of several tokens"},
    {"total_ut_steps", "layers that run several times"},
    {"loop_num", "layers that run several times"},
    {"zero_expert_num", "experts without weights"},
    {"num_decoder_layers", "an encoder with a decoder"},
    {"is_encoder_decoder", "an encoder with a decoder"},
    {"decoder_layers", "an encoder with a decoder"},
};

// Whether the file says of each layer that it has attention, or what it has in its place as nemotron_h does.
bool tells_layers(JsonReader& reader) {
  if (present(reader, kLayerPattern) || (present(reader, kBlockTypes) && present(reader, "mamba_num_heads")))
    return true;
  if (!present(reader, "layer_types")) return false;
  const std::vector<std::string> types = reader.texts("layer_types");
  return std::all_of(types.begin(), types.end(),
                     [](const std::string& type) { return type.ends_with("attention") && type != "linear_attention"; });
}

// Notes the first key of another model; whether there is one.
bool note_foreign(JsonReader& reader, std::string_view type) {
  const Family* const known = find_family(type);
  const Family own = known == nullptr ? Family() : *known;
  const bool told = tells_layers(reader) || own.hybrid || own.delta || own.convolution;
  for (const Foreign& foreign : kForeign) {
    if (!active(reader, foreign.key) || (told && foreign.of_mixers)) continue;
    if (foreign.own != nullptr && own.*foreign.own) continue;
    reader.note(std::string(foreign.key), fmt::format("{} cannot be forecast", foreign.what),
                "a stack of layers of attention and MLP");
    return true;
  }
  if (type != "dbrx" && reader.json("ffn_config", Presence::kOptional).find("experts") != std::string::npos) {
    reader.note("ffn_config", "experts in an object of their own cannot be read", "keys of experts beside all others");
    return true;
  }
  if (present(reader, "num_hidden_groups")) {  // AlbertConfig: 1 if all layers have the same weights
    reader.note("num_hidden_groups", "layers that share weights cannot be forecast", "a file without this key");
    return true;
  }
  // MiniMax-01: 0 is a layer of linear attention.
  const std::vector<double> kinds = reader.numbers("attn_type_list", 0, 1, Presence::kOptional);
  if (std::find(kinds.begin(), kinds.end(), 0) == kinds.end()) return false;
  reader.note("attn_type_list", "linear attention cannot be forecast", "1 for each layer");
  return true;
}

// A type that is not known may count its experts under keys that are not known either.
void refuse_unread_experts(JsonReader& reader, const Model& model) {
  if (model.moe || has_no_experts(reader)) return;
  for (const std::string& key : reader.keys()) {
    if (key.find("experts") == std::string::npos) continue;
    const std::string value = reader.json(key, Presence::kOptional);
    if (value.empty() || value == "0" || value == "1" || value == "false") continue;
    return reader.note(pointer_step(key), "experts, but not all keys that describe them",
                       "\"num_experts\", \"num_experts_per_tok\" and \"moe_intermediate_size\"");
  }
}

// What of a file, or of the part of it that is read, changes nothing here.
void warn_of_left_out(JsonReader& reader, Model& model) {
  constexpr std::pair<std::string_view, std::string_view> kUnused[] = {
      {"quantization_config", "training/dtype is the format of products"},
      {"index_topk", "attention is that of all tokens"},
      {"sparse_attention_config", "attention is that of all tokens"},
      {"attn_res_block_size", "residuals are those of the layer before"},
  };
  for (const auto& [key, instead] : kUnused) {
    if (!present(reader, key) || (key == "index_topk" && model.indexer)) continue;
    std::string warning = fmt::format("\"{}\" is left out: {}", key, instead);
    if (std::find(model.warnings.begin(), model.warnings.end(), warning) == model.warnings.end()) {
      model.warnings.push_back(std::move(warning));
    }
  }
}

// `outer_type`: of the file of which this is a part, or that this is.
void read_text_model(JsonReader& reader, const std::string& outer_type, bool nested, Model& model) {
  reader.accept_unknown_keys();
  reader.treat_null_as_missing();
  std::string type = reader.text("model_type", Presence::kOptional);
  if (type.empty()) type = outer_type;
  if (find_family(type) == nullptr) {
    if (const Family* of_class = family_of_class(reader, !type.empty())) {
      if (!type.empty()) {
        model.warnings.push_back(
            fmt::format("model_type \"{}\" is not known: read as {}, whose class \"architectures\" names",
                        shortened(type), of_class->model_type));
      }
      type = of_class->model_type;
    }
  }
  if (note_foreign(reader, type)) return;
  const Family* const named = find_family(type);
  const bool known = named != nullptr;
  if (type.starts_with("clip") || type.starts_with("siglip")) {
    return reader.note("model_type", fmt::format("\"{}\" is no language model", shortened(type)),
                       "a type of configs/README.md");
  }
  const Family* const family = known ? named : &nearest_family(reader, type);
  const std::size_t errors_before = reader.error_count();
  model.family = std::string(known ? type : family->model_type);
  Family as_read = *family;
  as_read.sparse = nested && known;
  as_read.windowed = !type.starts_with("qwen") && type != "llama";  // LlamaConfig has no window
  model.vocabulary = size(reader, as_read, {"vocab_size"});
  const std::string activation = activation_of(reader, *family);
  if (!known) {
    // Of what a class does without saying so, another one has what its keys ask for.
    as_read.attention_gate = false;
    if (!as_read.delta) as_read.rotary = 1, as_read.qk_norm = QueryKeyNorm::kNone;
  }
  if (type.find("gemma") != std::string::npos) as_read.tied = true;
  if (!known && has_no_gate(activation)) as_read.gated = false;
  family->read(reader, as_read, model);
  if (active(reader, "cross_attention_layers")) {
    model.warnings.emplace_back("\"cross_attention_layers\" is left out: these layers attend to tokens of the text");
  }
  if (known) return;
  refuse_unread_experts(reader, model);
  const std::string unknown =
      type.empty() ? "no \"model_type\"" : fmt::format("model_type \"{}\" is not known", shortened(type));
  if (reader.error_count() == errors_before) {
    std::string told = fmt::format("{}: read as {}, by its keys", unknown, family->model_type);
    if (as_read.gated != family->gated) told += fmt::format("; an MLP with \"{}\" has no gate", activation);
    if (!present(reader, "tie_word_embeddings")) {
      told += fmt::format("; without \"tie_word_embeddings\" logits have {}",
                          model.tied_embeddings ? "the embedding's weights" : "weights of their own");
    }
    model.warnings.push_back(std::move(told));
    return;
  }
  if (!reader.misses_keys(errors_before)) return;  // what is wrong is said
  std::vector<std::string> names;
  for (const Family& each : families()) names.emplace_back(each.model_type);
  const std::string near = nearest_name(type, names);
  reader.note("model_type", fmt::format("{}, and the keys are not those of {} either", unknown, family->model_type),
              "a type of configs/README.md",
              did_you_mean(near, "add the keys that are missing, or write the model as our JSON (configs/README.md)"));
}

// PretrainedConfig: two labels, unless id2label or num_labels tells others; one of a reward model.
void read_classifier(JsonReader& reader, Model& model) {
  const std::vector<std::string> classes = reader.texts("architectures");
  const auto names = [&](std::string_view end) {
    return std::any_of(classes.begin(), classes.end(), [&](const std::string& name) { return name.ends_with(end); });
  };
  if (names("TextModel") || names("EncoderModel") ||
      (!classes.empty() && plain(classes.front()) == plain(model.family) + "model")) {
    model.warnings.push_back(
        fmt::format("\"{}\" has no logits: those of a language model are forecast", shortened(classes.front())));
  }
  if (!names("ForSequenceClassification") && !names("ForTokenClassification") && !names("RewardModel")) return;
  const std::int64_t usual = names("RewardModel") && !names("ProcessRewardModel") ? 1 : 2;
  model.labels = reader.integer("num_labels", 1, kMostSize, Presence::kOptional, usual);
  reader.object(
      "id2label",
      [&](JsonReader& labels) {
        labels.accept_unknown_keys();
        model.labels = std::max<std::int64_t>(1, static_cast<std::int64_t>(labels.keys().size()));
      },
      Presence::kOptional);
  model.prediction_layers = 0;
}

constexpr std::int64_t kLongSequence = 32'768;

}  // namespace

bool is_hugging_face(const nlohmann::ordered_json& root) {
  return root.is_object() && !root.contains("schema") &&
         (root.contains("model_type") || root.contains("architectures") || root.contains("num_hidden_layers"));
}

Model read_hugging_face(JsonReader& reader) {
  reader.accept_unknown_keys();
  Model model;
  model.name = reader.text("_name_or_path", Presence::kOptional);
  const std::string type = reader.text("model_type", Presence::kOptional);
  // Multimodal models keep their language model under a key of its own.
  const auto read_part = [&](JsonReader& part) {
    read_text_model(part, type, true, model);
    warn_of_left_out(part, model);
  };
  const std::string_view inner = first_of(reader, {"llm_config", "language_config", "thinker_config", "text_config"});
  if (present(reader, inner) && !present(reader, "num_hidden_layers")) {
    reader.object(inner, [&](JsonReader& text) {
      constexpr std::string_view kText = "text_config";
      if (inner == kText || !present(text, kText)) return read_part(text);
      text.accept_unknown_keys();
      text.object(kText, read_part);
    });
    model.tied_embeddings = reader.boolean("tie_word_embeddings", model.tied_embeddings);
    model.warnings.push_back(fmt::format("only \"{}\" is read: encoders of images and sound are left out", inner));
  } else {
    read_text_model(reader, type, false, model);
    const std::string_view encoder = first_of(reader, {"vision_config", "audio_config"});
    if (present(reader, encoder)) {
      model.warnings.push_back(
          fmt::format("\"{}\" is left out: encoders of images and sound are not forecast", encoder));
    }
  }
  read_classifier(reader, model);
  warn_of_left_out(reader, model);
  model.longest_sequence = model.sequence > kLongSequence;
  if (model.head_dim == 0 && model.heads > 0) {
    if (model.hidden % model.heads != 0) {
      reader.note("", fmt::format("{} heads do not divide a hidden size of {}", model.heads, model.hidden));
    }
    model.head_dim = model.hidden / model.heads;
  }
  return model;
}

}  // namespace ns_dist
