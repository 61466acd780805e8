// Which family reads a file: by its type, the name of its class, or its keys.
#include <algorithm>
#include <array>
#include <cctype>
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
    std::string_view type = family.model_type;
    if (type.ends_with("_text")) type.remove_suffix(5);
    const std::string of_type = folded(type);
    const bool begins = name.starts_with(of_type) && (!whole || name.substr(of_type.size()).starts_with("for"));
    if (begins && (longest == nullptr || family.model_type.size() > longest->model_type.size())) longest = &family;
  }
  return longest;
}

const Family& nearest_family(JsonReader& reader, std::string_view type) {
  const bool dense = has_no_experts(reader);
  for (const Nearest& nearest : kNearest) {
    if (dense && nearest.keys[0].find("experts") != std::string_view::npos) continue;
    if (present(reader, nearest.keys[0]) && present(reader, nearest.keys[1])) return *find_family(nearest.model_type);
  }
  return *find_family(type.starts_with("qwen2") ? "qwen2" : "llama");
}

}  // namespace ns_dist::hugging_face
