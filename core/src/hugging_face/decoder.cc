// What most decoders share.
#include "decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ns_dist::hugging_face {
namespace {

bool is_activation(std::string_view name) {
  return name.empty() || name == "silu" || name == "swish" || name == "swiglu" || name == "quick_gelu" ||
         name.starts_with("gelu") || name.starts_with("relu") || has_no_gate(name);
}

Activation gated_activation(const std::string& name) {
  return name.starts_with("gelu") ? Activation::kGeglu : Activation::kSwiglu;
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

// What positions were stretched from, and by which factor, where a file says that.
struct Stretching {
  std::int64_t original = 0;
  double factor = 1;
};

Stretching read_stretching(JsonReader& reader) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings", kFactor = "factor";
  Stretching found;
  found.original = reader.integer(kOriginal, 1, kMostTokens, Presence::kOptional, 0);
  const auto read = [&](JsonReader& rope) {
    if (present(rope, kOriginal)) found.original = rope.integer(kOriginal, 1, kMostTokens);
    if (!rope.is_text(kFactor)) found.factor = rope.number(kFactor, 0, 1e9, Presence::kOptional, found.factor);
  };
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    read_rope(reader, key, [&](JsonReader& rope) {
      read(rope);
      read_rope(rope, "full_attention", read);  // by kind of layer (transformers 5)
    });
  }
  return found;
}

// Tokens of a pre-training sequence are those from which positions were stretched. What these were stretched to, the
// file says, or the factor.
void read_sequence(JsonReader& reader, const Family& family, Model& model) {
  constexpr std::string_view kMost = "max_position_embeddings";
  const Stretching stretching = read_stretching(reader);
  const std::string_view key = first_of(reader, {"seq_length", kMost});
  const std::string_view other = first_of(reader, {"model_max_length", "max_seq_len", "max_sequence_length"});
  const bool is_other = !present(reader, key) && present(reader, other);
  const std::int64_t told =
      is_other ? reader.integer(other, 1, kMostTokens) : size_or(reader, family, {key}, 0, kMostTokens);
  constexpr std::int64_t kUsual = 2048;
  model.sequence = stretching.original > 0 ? stretching.original : told > 0 ? told : kUsual;
  const std::int64_t most = key != kMost && present(reader, kMost) ? size(reader, family, {kMost}, kMostTokens) : told;
  const double stretched =
      stretching.factor * static_cast<double>(stretching.original > 0 ? stretching.original : most);
  model.most_positions =
      std::max<std::int64_t>(most, std::llround(std::min(stretched, static_cast<double>(kMostTokens))));
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

}  // namespace

bool has_no_gate(std::string_view name) { return name == "relu2" || name == "squared_relu" || name == "xielu"; }

std::string activation_of(JsonReader& reader, const Family& family) {
  const std::string name =
      reader.text(first_of(reader, {"hidden_activation", "mlp_hidden_act", "hidden_act"}), Presence::kOptional);
  return name.empty() ? std::string(family.activation) : name;
}

Activation plain_activation(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2" || name == "squared_relu") return Activation::kSquaredRelu;
  return name == "gelu_new" || name == "gelu_fast" ? Activation::kGeluNew : Activation::kGelu;
}

void read_body(JsonReader& reader, const Family& family, Model& model, Keys hidden, Keys heads) {
  // Files that name each layer may not count them.
  const auto named = present(reader, kBlockTypes) ? std::ssize(reader.texts(kBlockTypes)) : 0;
  const Keys layers = {"n_layer", "n_layers", "num_layers", "num_hidden_layers"};
  model.layers =
      named > 0 ? size_or(reader, family, layers, named, kMostLayers) : size(reader, family, layers, kMostLayers);
  model.hidden = size(reader, family, hidden);
  model.heads = size(reader, family, heads);
  model.kv_heads = model.heads;
}

void share_hidden(Model& model, bool latent) {
  if (model.heads == 0) return;
  model.head_dim = model.hidden / model.heads;
  if (latent || model.hidden % model.heads == 0) return;
  model.warnings.push_back(
      fmt::format("no \"head_dim\", and {} heads do not divide the hidden size {}: heads of {} are taken", model.heads,
                  model.hidden, model.head_dim));
}

void read_decoder(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.kv_heads =
      size_or(reader, family, {"num_kv_heads", "num_attention_groups", "num_key_value_heads"}, model.heads);
  model.head_dim = size_or(reader, family, {"attention_head_dim", "kv_channels", "head_dim"}, 0);
  constexpr std::string_view kLatents = "kv_lora_rank";  // null: there are none
  const bool latent = reader.boolean("use_mla", true) &&
                      (present(reader, kLatents) || (!reader.has(kLatents) && has_default(family, kLatents)));
  if (model.head_dim == 0) share_hidden(model, latent);
  // Files without a dense layer may have no width of one.
  const bool all_experts = !present(reader, "intermediate_size") && !has_default(family, "intermediate_size") &&
                           present(reader, "moe_intermediate_size");
  if (!family.blocks) {
    model.ffn = all_experts ? size(reader, family, {"moe_intermediate_size"})
                            : size(reader, family, {"block_ff_dim", "intermediate_size"});
  }
  read_sequence(reader, family, model);
  const std::string activation = activation_of(reader, family);
  if (!is_activation(activation)) {
    model.warnings.push_back(fmt::format("activation \"{}\" is not known: read as {}", shortened(activation),
                                         family.gated ? "SwiGLU" : "GELU"));
  }
  model.gated_mlp = family.gated;
  model.activation = family.gated ? gated_activation(activation) : plain_activation(activation);
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
      read_heads_of_layers(reader, family, model);
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

}  // namespace ns_dist::hugging_face
