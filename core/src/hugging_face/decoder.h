// The parts of which readers of decoders are made. `read_decoder` reads those that are like Llama, `read_moe` the same
// with experts.
#pragma once

#include <string>
#include <string_view>

#include "family.h"
#include "keys.h"

namespace ns_dist::hugging_face {

void read_decoder(JsonReader& reader, const Family& family, Model& model);
void read_moe(JsonReader& reader, const Family& family, Model& model);

// Layers, hidden size and heads.
void read_body(JsonReader& reader, const Family& family, Model& model,
               Keys hidden = {"n_embd", "n_embed", "d_model", "hidden_size"},
               Keys heads = {"n_head", "n_heads", "num_attention_heads"});
// Of a file without a size of heads: the hidden size over the heads, rounded down as in the classes. Latent attention
// has sizes of its own.
void share_hidden(Model& model, bool latent = false);
void read_experts(JsonReader& reader, const Family& family, Model& model);
// Which tokens a layer sees, and whether it knows their positions.
void read_attention_layers(JsonReader& reader, const Family& family, Model& model);
// The heads of layers with a window and of all others, where they differ.
void read_heads_of_layers(JsonReader& reader, const Family& family, Model& model);
void read_latent_attention(JsonReader& reader, const Family& family, Model& model);
// The sizes of an indexer (DeepseekV32Config, GlmMoeDsaConfig, DeepseekV4Config).
void read_indexer(JsonReader& reader, const Family& family, Model& model);
// The gated delta rule, in all layers but those with attention (Qwen3NextConfig), or Kimi Delta Attention.
void read_delta_net(JsonReader& reader, Model& model);

// The activation function's name in the file, or the family's.
std::string activation_of(JsonReader& reader, const Family& family);
// In types that no family names, an MLP with such an activation has no gate.
bool has_no_gate(std::string_view name);
// That of an MLP without a gate.
Activation plain_activation(const std::string& name);

}  // namespace ns_dist::hugging_face
