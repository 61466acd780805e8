// Gemma.
#include <algorithm>

#include "decoder.h"

namespace ns_dist::hugging_face {
namespace {

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

constexpr Family kGemma[] = {
    {.model_type = "gemma",
     .read = read_decoder,
     .activation = "gelu",
     .tied = true,
     .defaults = {{"head_dim", 256}, {"max_position_embeddings", 8192}},
     .nested_defaults = {{"hidden_size", 3072},
                         {"intermediate_size", 24576},
                         {"num_hidden_layers", 28},
                         {"num_attention_heads", 16},
                         {"vocab_size", 256000}}},
    {.model_type = "gemma2",
     .read = read_decoder,
     .activation = "gelu",
     .tied = true,
     .placement = NormPlacement::kSandwich,
     .full_every = 2,
     .defaults = {{"head_dim", 256}, {"num_key_value_heads", 4}, {"max_position_embeddings", 8192}},
     .nested_defaults = {{"hidden_size", 2304},
                         {"intermediate_size", 9216},
                         {"num_hidden_layers", 26},
                         {"num_attention_heads", 8},
                         {"vocab_size", 256000}}},
    {.model_type = "gemma3_text",
     .read = read_decoder,
     .activation = "gelu",
     .tied = true,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 6,
     .defaults = {{"num_attention_heads", 8},
                  {"num_key_value_heads", 4},
                  {"head_dim", 256},
                  {"vocab_size", 262208},
                  {"max_position_embeddings", 131072}}},
    {.model_type = "gemma4_text",
     .read = read_gemma4,
     .activation = "gelu",
     .tied = true,
     .qk_norm = kHead,
     .placement = NormPlacement::kSandwich,
     .full_every = 6,
     .shares_keys = true,
     .defaults = {{"global_head_dim", 512}}},
};

}  // namespace

std::span<const Family> gemma_families() { return kGemma; }

}  // namespace ns_dist::hugging_face
