// Linear attention: the gated delta rule and Kimi Delta Attention.
#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

// Kimi Delta Attention in all layers but those that are listed, counted from 1 (KimiLinearConfig), or named. Attention
// has no positions.
void read_kimi_delta(JsonReader& reader, Model& model) {
  DeltaNet net;
  const auto read = [&](JsonReader& from, std::string_view heads, std::string_view dim, std::string_view taps) {
    net.key_heads = net.value_heads = from.integer(heads, 1, kMostSize);
    net.key_dim = net.value_dim = net.decay_rank = net.gate_rank = from.integer(dim, 1, kMostSize);
    net.convolution = from.integer(taps, 1, kMostSize, Presence::kOptional, net.convolution);
    if (from.boolean("use_full_rank_gate", false)) net.gate_rank = 0;
  };
  if (present(reader, "linear_attn_config")) {
    reader.object("linear_attn_config", [&](JsonReader& inner) {
      inner.accept_unknown_keys();
      read(inner, "num_heads", "head_dim", "short_conv_kernel_size");
      std::vector<bool> full = none_of_layers(model);
      for (const std::int64_t layer : inner.integers("full_attn_layers", 1, kMostSize)) {
        if (const auto at = static_cast<std::size_t>(layer - 1); at < full.size()) full[at] = true;
      }
      model.full_attention_layers = LayerSet::of(full);
    });
  } else {
    read(reader, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim");
    model.full_attention_layers = read_layer_types(reader, model, {"linear_attention"});
  }
  model.delta_net = net;
  if (reader.boolean("mla_use_nope", true)) model.position = PositionKind::kNone;
}

}  // namespace

void read_delta_net(JsonReader& reader, Model& model) {
  if (present(reader, "linear_attn_config") || present(reader, "linear_num_heads")) {
    return read_kimi_delta(reader, model);
  }
  DeltaNet net;
  const auto read = [&](std::string_view key, std::int64_t fallback) {
    return reader.integer(key, 1, kMostSize, Presence::kOptional, fallback);
  };
  net.key_heads = read("linear_num_key_heads", 16);
  net.value_heads = read("linear_num_value_heads", 32);
  net.key_dim = read("linear_key_head_dim", 128);
  net.value_dim = read("linear_value_head_dim", 128);
  net.convolution = read("linear_conv_kernel_dim", net.convolution);
  model.delta_net = net;
  model.full_attention_layers = present(reader, "layer_types")
                                    ? read_layer_types(reader, model, {"linear_attention"})
                                    : LayerSet{.every = read("full_attention_interval", 4), .listed = {}};
}

}  // namespace ns_dist::hugging_face
