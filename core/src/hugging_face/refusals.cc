// What of a file cannot be forecast, or is left out.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "config_file.h"
#include "keys.h"

namespace ns_dist::hugging_face {
namespace {

// Types whose layers have no counterpart here, whatever their keys; "rwkv7" and "rwkv6hybrid" begin with "rwkv".
struct Unmodeled {
  std::string_view beginning, what;
};
constexpr Unmodeled kUnmodeled[] = {
    {"rwkv", "time mixing of RWKV, a recurrence over a matrix of each head, and its channel mixing"},
    {"xlstm", "cells of xLSTM (mLSTM, sLSTM), recurrences over a state of each head,"},
};

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
    {"position_encoding_2d", "positions in two dimensions"},  // the first ChatGLM
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

}  // namespace

bool note_foreign(JsonReader& reader, std::string_view type) {
  for (const Unmodeled& unmodeled : kUnmodeled) {
    if (!type.starts_with(unmodeled.beginning)) continue;
    reader.note("model_type", fmt::format("\"{}\": {} cannot be forecast", shortened(type), unmodeled.what),
                "layers of attention, Mamba-2, the gated delta rule or short convolutions, and MLPs");
    return true;
  }
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

}  // namespace ns_dist::hugging_face
