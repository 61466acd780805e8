// DeepSeek, and others whose attention is latent or compressed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

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

// DeepseekV2Config in DeepSeek-VL2's "language_config". Its versions differ in the vocabulary and in the number of
// layers and of experts, which a file must have.
constexpr Defaults kDeepseekV2 = {
    {"hidden_size", 4096},       {"intermediate_size", 11008}, {"moe_intermediate_size", 1407},
    {"num_attention_heads", 32}, {"q_lora_rank", 1536},        {"kv_lora_rank", 512},
    {"qk_nope_head_dim", 128},   {"qk_rope_head_dim", 64},     {"v_head_dim", 128}};

constexpr Family kLatent[] = {
    {.model_type = "minicpm3", .read = read_decoder, .tied = true, .defaults = {{"v_head_dim", 64}}},
    {.model_type = "glm4_moe_lite", .read = read_moe},
    {.model_type = "deepseek_v2", .read = read_moe, .nested_defaults = kDeepseekV2},
    {.model_type = "deepseek_vl_v2", .read = read_moe, .nested_defaults = kDeepseekV2},
    {.model_type = "deepseek_v3",
     .read = read_moe,
     .defaults = {{"max_position_embeddings", 4096}, {"n_group", 8}, {"topk_group", 4}}},
    {.model_type = "deepseek_v32",
     .read = read_moe,
     .defaults =
         {{"n_group", 8}, {"topk_group", 4}, {"index_n_heads", 64}, {"index_head_dim", 128}, {"index_topk", 2048}}},
    {.model_type = "glm_moe_dsa",
     .read = read_moe,
     .defaults = {{"index_n_heads", 32}, {"index_head_dim", 128}, {"index_topk", 2048}}},
    {.model_type = "deepseek_v4",
     .read = read_deepseek_v4,
     .sinks = true,
     .compressed = true,
     .defaults = {{"index_n_heads", 64}, {"index_head_dim", 128}, {"index_topk", 512}}},
    {.model_type = "kimi_k2", .read = read_moe},
};

}  // namespace

std::span<const Family> latent_attention_families() { return kLatent; }

}  // namespace ns_dist::hugging_face
