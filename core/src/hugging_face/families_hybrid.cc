// Models with something else than attention in most layers: linear attention, Mamba-2, convolutions.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

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

constexpr Family kHybrid[] = {
    {.model_type = "qwen3_next",
     .read = read_moe,
     .qk_norm = kHead,
     .rotary = 0.25,
     .delta = true,
     .attention_gate = true,
     .defaults = {{"max_position_embeddings", 32768}}},
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
    {.model_type = "lfm2", .read = read_lfm2, .tied = true, .qk_norm = kHead, .convolution = true},
    {.model_type = "lfm2_moe", .read = read_lfm2_moe, .tied = true, .qk_norm = kHead, .convolution = true},
    {.model_type = "kimi_linear", .read = read_moe, .delta = true},
    {.model_type = "nemotron_h", .read = read_nemotron_h, .gated = false},
    {.model_type = "granitemoehybrid", .read = read_hybrid, .hybrid = true},
    {.model_type = "bamba", .read = read_hybrid, .rotary = 0.5, .hybrid = true},
    {.model_type = "falcon_h1", .read = read_falcon_h1, .hybrid = true},
};

}  // namespace

std::span<const Family> hybrid_families() { return kHybrid; }

}  // namespace ns_dist::hugging_face
