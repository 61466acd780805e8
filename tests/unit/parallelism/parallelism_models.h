// Models for the tests of this module, by their shape alone.
#pragma once

#include "ns_dist/model.h"

namespace ns_dist {

inline Model gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  Model model;
  model.id = model.name = "gpt";
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.ffn = 4 * hidden;
  model.dropout = true;
  model.position_table = 2048;
  model.vocabulary = 50257;
  model.sequence = 2048;
  return model;
}

inline Model llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                   std::int64_t ffn) {
  Model model = gpt(layers, hidden, heads);
  model.kv_heads = kv_heads;
  model.ffn = ffn;
  model.gated_mlp = true;
  model.activation = Activation::kSwiglu;
  model.norm = NormalizationKind::kRmsNorm;
  model.position = PositionKind::kRotary;
  model.position_table = 0;
  model.bias = model.dropout = model.tied_embeddings = false;
  model.vocabulary = 32000;
  return model;
}

}  // namespace ns_dist
