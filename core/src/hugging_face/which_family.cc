// Which family reads a file: by its type, the name of its class, or its keys.
#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <vector>

#include "config_file.h"
#include "keys.h"

namespace ns_dist::hugging_face {
namespace {

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

// Null where the file has no keys of any row.
const Family* family_of_keys(JsonReader& reader) {
  const bool dense = has_no_experts(reader);
  for (const Nearest& nearest : kNearest) {
    if (dense && nearest.keys[0].find("experts") != std::string_view::npos) continue;
    if (present(reader, nearest.keys[0]) && present(reader, nearest.keys[1])) return find_family(nearest.model_type);
  }
  return nullptr;
}

// Types of the language models in multimodal ones end in "_text", which others leave out.
std::string_view stem_of(const Family& family) {
  std::string_view stem = family.model_type;
  if (stem.ends_with("_text")) stem.remove_suffix(5);
  return stem;
}

// Whether a type goes on from a stem: "glm4v" and "glm4_new" from "glm4". "glm45" and "glm4_5" are other versions,
// other letters make another word.
bool goes_on(std::string_view type, std::string_view stem) {
  if (!type.starts_with(stem)) return false;
  std::string_view rest = type.substr(stem.size());
  if (!rest.empty() && std::isalpha(static_cast<unsigned char>(rest.front())) != 0) rest.remove_prefix(1);
  if (rest.empty()) return true;
  const bool separate = rest.front() == '_' || rest.front() == '-';
  return separate && rest.size() > 1 && std::isdigit(static_cast<unsigned char>(rest[1])) == 0;
}

bool is_one_of(std::span<const Family> group, const Family& family) {
  return std::any_of(group.begin(), group.end(),
                     [&](const Family& each) { return each.model_type == family.model_type; });
}

// Whether both lie in one file, or have experts.
bool same_kind(const Family& one, const Family& other) {
  const auto both_in = [&](std::span<const Family> group) { return is_one_of(group, one) && is_one_of(group, other); };
  const auto has_experts = [](const Family& family) {
    return is_one_of(expert_families(), family) || is_one_of(latent_attention_families(), family);
  };
  return both_in(gpt_families()) || both_in(encoder_families()) || both_in(hybrid_families()) ||
         (has_experts(one) && has_experts(other));
}

}  // namespace

bool has_no_experts(JsonReader& reader) {
  if (present(reader, "is_moe")) return !reader.boolean("is_moe", true);
  return present(reader, "num_local_experts") && !active(reader, "num_local_experts");
}

std::string folded(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != '_' && c != '-') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

const Family* find_family(std::string_view model_type) {
  const auto found = std::find_if(families().begin(), families().end(),
                                  [&](const Family& family) { return family.model_type == model_type; });
  return found == families().end() ? nullptr : &*found;
}

const Family* family_of_class(JsonReader& reader, bool whole) {
  const std::vector<std::string> classes = reader.texts("architectures");
  if (classes.empty()) return nullptr;
  const std::string name = folded(classes.front());
  const Family* longest = nullptr;
  for (const Family& family : families()) {
    const std::string of_type = folded(stem_of(family));
    const bool begins = name.starts_with(of_type) && (!whole || name.substr(of_type.size()).starts_with("for"));
    if (begins && (longest == nullptr || family.model_type.size() > longest->model_type.size())) longest = &family;
  }
  return longest;
}

const Family* family_of_beginning(JsonReader& reader, std::string_view type) {
  const Family* longest = nullptr;
  for (const Family& family : families()) {
    const std::string_view stem = stem_of(family);
    if (goes_on(type, stem) && (longest == nullptr || stem.size() > stem_of(*longest).size())) longest = &family;
  }
  if (longest == nullptr) return nullptr;
  const Family* const of_keys = family_of_keys(reader);
  if (of_keys == nullptr) return is_one_of(expert_families(), *longest) ? nullptr : longest;
  if (same_kind(*longest, *of_keys)) return longest;
  if (goes_on(of_keys->model_type, stem_of(*longest))) return of_keys;  // qwen3_moe of "qwen3_omni_moe"
  const Family* const with_experts = find_family(std::string(stem_of(*longest)) + "_moe");
  return with_experts != nullptr && same_kind(*with_experts, *of_keys) ? with_experts : nullptr;
}

const Family& nearest_family(JsonReader& reader, std::string_view type) {
  if (const Family* of_keys = family_of_keys(reader)) return *of_keys;
  return *find_family(type.starts_with("qwen2") ? "qwen2" : "llama");
}

}  // namespace ns_dist::hugging_face
