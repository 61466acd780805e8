// Llama, and dense models that are like it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decoder.h"

namespace ns_dist::hugging_face {
namespace {

// qwen: QWenConfig. Each half of the gated MLP has half the width (modeling_qwen.py, QWenMLP). So has molmo's.
void read_qwen(JsonReader& reader, const Family& family, Model& model) {
  read_decoder(reader, family, model);
  model.ffn /= 2;
}

// chatglm: ChatGLMConfig of ChatGLM2, ChatGLM3 and GLM-4 (configuration_chatglm.py). Half of each head is rotated.
void read_chatglm(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model, {"hidden_size"}, {"num_attention_heads"});
  if (reader.boolean("multi_query_attention", false)) {
    model.kv_heads = reader.integer("multi_query_group_num", 1, kMostSize, Presence::kOptional, 1);
  }
  model.head_dim = size(reader, family, {"kv_channels"});
  model.ffn = reader.integer("ffn_hidden_size", 1, kMostSize);
  model.sequence = size_or(reader, family, {"seq_length"}, 2048, kMostTokens);
  model.position = PositionKind::kRotary;
  model.rotary_dim = std::max<std::int64_t>(1, model.head_dim / 2);
  model.norm = reader.boolean("rmsnorm", true) ? NormalizationKind::kRmsNorm : kLayerNorm;
  model.bias = reader.boolean("add_bias_linear", false);
  model.qkv_bias = reader.boolean("add_qkv_bias", false);
  model.gated_mlp = true;
  model.activation = Activation::kSwiglu;
  model.dropout = reader.number("hidden_dropout", 0, 1, Presence::kOptional, 0) > 0;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", family.tied);
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

constexpr Family kDense[] = {
    {.model_type = "llama",
     .read = read_decoder,
     .nested_defaults = {{"hidden_size", 4096},
                         {"intermediate_size", 11008},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 32000}}},
    {.model_type = "mistral",
     .read = read_decoder,
     .defaults = {{"num_key_value_heads", 8}, {"max_position_embeddings", 131072}},
     .nested_defaults = {{"hidden_size", 4096},
                         {"intermediate_size", 14336},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 32000}}},
    {.model_type = "ministral", .read = read_decoder},
    {.model_type = "ministral3", .read = read_decoder},
    {.model_type = "bitnet", .read = read_decoder, .tied = true},
    {.model_type = "minicpm", .read = read_decoder, .tied = true},
    {.model_type = "molmo", .read = read_qwen},
    {.model_type = "apertus", .read = read_decoder, .gated = false, .activation = "xielu", .qk_norm = kHead},
    {.model_type = "exaone4",
     .read = read_decoder,
     .qk_norm = kHead,
     .placement = NormPlacement::kPost,
     .full_every = 4,
     .full_is_unrotated = true},
    {.model_type = "qwen", .read = read_qwen, .qkv_bias = true},
    {.model_type = "qwen2",
     .read = read_decoder,
     .qkv_bias = true,
     .defaults = {{"max_position_embeddings", 32768}},
     .nested_defaults = {{"hidden_size", 4096},
                         {"intermediate_size", 22016},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 151936}}},
    {.model_type = "qwen2_vl", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_vl_text", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_5_vl", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen2_5_vl_text", .read = read_decoder, .qkv_bias = true},
    {.model_type = "qwen3",
     .read = read_decoder,
     .qk_norm = kHead,
     .defaults = {{"max_position_embeddings", 32768}, {"head_dim", 128}},
     .nested_defaults = {{"hidden_size", 4096},
                         {"intermediate_size", 22016},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 151936}}},
    {.model_type = "qwen3_vl_text", .read = read_decoder, .qk_norm = kHead},
    {.model_type = "phi",
     .read = read_decoder,
     .gated = false,
     .norm = kLayerNorm,
     .bias = true,
     .branches = Branches::kParallel,
     .rotary = 0.5},
    {.model_type = "phi3",
     .read = read_decoder,
     .defaults = {{"max_position_embeddings", 4096}},
     .nested_defaults = {{"hidden_size", 3072},
                         {"intermediate_size", 8192},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 32064}}},
    {.model_type = "glm",
     .read = read_decoder,
     .qkv_bias = true,
     .rotary = 0.5,
     .defaults = {{"num_key_value_heads", 2}}},
    {.model_type = "glm4",
     .read = read_decoder,
     .placement = NormPlacement::kSandwich,
     .rotary = 0.5,
     .defaults = {{"max_position_embeddings", 131072}, {"num_key_value_heads", 2}}},
    {.model_type = "glm4v_text", .read = read_decoder, .placement = NormPlacement::kSandwich, .rotary = 0.5},
    {.model_type = "chatglm", .read = read_chatglm, .defaults = {{"kv_channels", 128}}},
    {.model_type = "seed_oss", .read = read_decoder, .qkv_bias = true},
    {.model_type = "ernie4_5", .read = read_decoder, .tied = true},
    {.model_type = "hunyuan_v1_dense", .read = read_decoder, .qk_norm = kHead},
    {.model_type = "internlm3", .read = read_decoder},
    {.model_type = "nemotron", .read = read_decoder, .gated = false, .norm = kLayerNorm, .rotary = 0.5},
    {.model_type = "starcoder2",
     .read = read_decoder,
     .gated = false,
     .norm = kLayerNorm,
     .bias = true,
     .tied = true,
     .defaults = {{"num_key_value_heads", 2}}},
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
    {.model_type = "granite",
     .read = read_decoder,
     .nested_defaults = {{"hidden_size", 4096},
                         {"intermediate_size", 11008},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"vocab_size", 32000}}},
    {.model_type = "nemotron-nas", .read = read_nemotron_nas, .blocks = true},
    {.model_type = "smollm3",
     .read = read_decoder,
     .tied = true,
     .full_every = 4,
     .defaults = {{"max_position_embeddings", 32768}, {"num_key_value_heads", 4}}},
    {.model_type = "cohere",
     .read = read_decoder,
     .norm = kLayerNorm,
     .tied = true,
     .branches = Branches::kParallel,
     .defaults = {{"max_position_embeddings", 8192}}},
    {.model_type = "cohere2",
     .read = read_decoder,
     .norm = kLayerNorm,
     .tied = true,
     .branches = Branches::kParallel,
     .full_every = 4,
     .full_is_unrotated = true,
     .nested_defaults = {{"hidden_size", 8192},
                         {"intermediate_size", 22528},
                         {"num_hidden_layers", 40},
                         {"num_attention_heads", 64},
                         {"vocab_size", 256000}}},
};

}  // namespace

std::span<const Family> dense_families() { return kDense; }

}  // namespace ns_dist::hugging_face
