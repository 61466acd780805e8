// The properties of a model, once for files, reports and whoever writes them. For all modules while they are built;
// never installed.
#pragma once

#include "ns_dist/internal/json_reader.h"
#include "ns_dist/model.h"

namespace ns_dist {

// Of a model's dimensions and counts: far above any model. Products of them: check_shape.
inline constexpr std::int64_t kMostSize = 10'000'000;
inline constexpr std::int64_t kLongestSequence = 1'000'000'000;  // tokens

// Calls for each property
//   io.required(key, field) or io.required(key, field, least, most)
//   io.optional(key, field), the same with bounds: a field that is missing keeps its value
//   io.layers(key, set)
//   io.object(key, optional_field, [](auto& io, auto& value) { ... })
// Where Io::kReads, properties that follow from others when they are missing have these values before they are asked.
template <class Io>
void model_fields(Io& io, Model& model) {
  io.required("id", model.id);
  io.required("name", model.name);
  io.optional("family", model.family);
  io.optional("aliases", model.aliases);
  io.required("layers", model.layers, 1, kMostLayers);
  io.required("hidden", model.hidden, 1, kMostSize);
  io.required("heads", model.heads, 1, kMostSize);
  if constexpr (Io::kReads) {
    model.kv_heads = model.heads;
    model.head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
    model.published_parameters_tolerance = 0.005;
  }
  io.optional("kv_heads", model.kv_heads, 1, kMostSize);
  io.optional("head_dim", model.head_dim, 1, kMostSize);
  io.optional("v_head_dim", model.v_head_dim, 0, kMostSize);
  io.optional("keys_are_values", model.keys_are_values);
  io.object("windowed_heads", model.windowed_heads, [&model](auto& inner, AttentionHeads& heads) {
    if constexpr (Io::kReads) heads = heads_of(model, false);
    inner.optional("heads", heads.heads, 1, kMostSize);
    inner.optional("kv_heads", heads.kv_heads, 1, kMostSize);
    inner.optional("head_dim", heads.head_dim, 1, kMostSize);
    inner.optional("v_head_dim", heads.v_head_dim, 0, kMostSize);
    inner.optional("keys_are_values", heads.keys_are_values);
  });
  io.required("ffn", model.ffn, 1, kMostSize);
  io.optional("gated_mlp", model.gated_mlp);
  io.optional("activation", model.activation);
  io.optional("norm", model.norm);
  io.optional("position", model.position);
  io.optional("position_table", model.position_table, 0, kMostSize);
  io.optional("bias", model.bias);
  io.optional("qkv_bias", model.qkv_bias);
  io.optional("dropout", model.dropout);
  io.optional("tied_embeddings", model.tied_embeddings);
  io.optional("labels", model.labels, 0, kMostSize);
  io.optional("embedding_norm", model.embedding_norm);
  io.optional("capped_logits", model.capped_logits);
  io.optional("capped_scores", model.capped_scores);
  io.optional("attention_sinks", model.attention_sinks);
  io.optional("attention_gate", model.attention_gate);
  io.optional("gate_of_head", model.gate_of_head);
  io.required("vocabulary", model.vocabulary, 1, kMostSize);
  io.required("sequence", model.sequence, 1, kLongestSequence);
  io.optional("norm_placement", model.norm_placement);
  io.optional("qk_norm", model.qk_norm);
  io.optional("branches", model.branches);
  io.optional("rotary_dim", model.rotary_dim, 0, kMostSize);
  io.optional("sliding_window", model.sliding_window, 0, kLongestSequence);
  io.optional("bidirectional", model.bidirectional);
  io.optional("chunked_attention", model.chunked_attention);
  io.layers("full_attention_layers", model.full_attention_layers);
  io.layers("no_rotary_layers", model.no_rotary_layers);
  io.optional("shared_keys_layers", model.shared_keys_layers, 0, kMostLayers);
  io.layers("no_attention_layers", model.no_attention_layers);
  io.optional("ffn_of_layers", model.ffn_of_layers, 0, kMostSize);
  io.optional("prediction_layers", model.prediction_layers, 0, kMostPredictions);
  io.optional("layer_pattern", model.layer_pattern);
  io.object("moe", model.moe, [](auto& inner, Experts& moe) {
    inner.required("experts", moe.experts, 1, kMostSize);
    inner.required("top_k", moe.top_k, 1, kMostSize);
    inner.required("expert_ffn", moe.expert_ffn, 1, kMostSize);
    inner.optional("shared_experts", moe.shared_experts, 0, kMostSize);
    inner.optional("shared_expert_ffn", moe.shared_expert_ffn, 0, kMostSize);
    inner.optional("first_dense_layers", moe.first_dense_layers, 0, kMostSize);
    inner.layers("layers", moe.layers);
    inner.optional("shared_gate", moe.shared_gate);
    inner.optional("latent", moe.latent, 0, kMostSize);
    inner.optional("groups", moe.groups, 1, kMostSize);
    if constexpr (Io::kReads) moe.top_groups = moe.groups;
    inner.optional("top_groups", moe.top_groups, 1, kMostSize);
  });
  io.object("mla", model.mla, [](auto& inner, LatentAttention& mla) {
    inner.optional("q_rank", mla.q_rank, 0, kMostSize);
    inner.required("kv_rank", mla.kv_rank, 1, kMostSize);
    inner.required("nope_head_dim", mla.nope_head_dim, 1, kMostSize);
    inner.required("rope_head_dim", mla.rope_head_dim, 1, kMostSize);
    inner.required("v_head_dim", mla.v_head_dim, 1, kMostSize);
  });
  io.object("state_space", model.state_space, [](auto& inner, StateSpace& space) {
    inner.required("heads", space.heads, 1, kMostSize);
    inner.required("head_dim", space.head_dim, 1, kMostSize);
    inner.required("groups", space.groups, 1, kMostSize);
    inner.required("state", space.state, 1, kMostSize);
    inner.optional("convolution", space.convolution, 1, kMostSize);
  });
  io.object("delta_net", model.delta_net, [](auto& inner, DeltaNet& net) {
    inner.required("key_heads", net.key_heads, 1, kMostSize);
    inner.required("value_heads", net.value_heads, 1, kMostSize);
    inner.required("key_dim", net.key_dim, 1, kMostSize);
    inner.required("value_dim", net.value_dim, 1, kMostSize);
    inner.optional("convolution", net.convolution, 1, kMostSize);
    inner.optional("decay_rank", net.decay_rank, 0, kMostSize);
    inner.optional("gate_rank", net.gate_rank, 0, kMostSize);
  });
  io.optional("short_convolution", model.short_convolution, 0, kMostSize);
  io.object("compressed", model.compressed, [](auto& inner, CompressedAttention& compressed) {
    inner.required("q_rank", compressed.q_rank, 1, kMostSize);
    inner.required("rope_head_dim", compressed.rope_head_dim, 1, kMostSize);
    inner.required("output_groups", compressed.output_groups, 1, kMostSize);
    inner.required("output_rank", compressed.output_rank, 1, kMostSize);
    inner.optional("sparse_ratio", compressed.sparse_ratio, 2, kMostSize);
    inner.optional("dense_ratio", compressed.dense_ratio, 2, kMostSize);
    inner.layers("sparse_layers", compressed.sparse_layers);
    inner.layers("window_layers", compressed.window_layers);
  });
  io.object("indexer", model.indexer, [](auto& inner, Indexer& indexer) {
    inner.required("heads", indexer.heads, 1, kMostSize);
    inner.required("head_dim", indexer.head_dim, 1, kMostSize);
    inner.required("top_k", indexer.top_k, 1, kMostSize);
    inner.layers("shared_layers", indexer.shared_layers);
  });
  io.object("per_layer_embeddings", model.per_layer_embeddings, [](auto& inner, PerLayerEmbeddings& each) {
    inner.required("width", each.width, 1, kMostSize);
    inner.required("vocabulary", each.vocabulary, 1, kMostSize);
  });
  io.optional("residual_streams", model.residual_streams, 1, 64);
  io.optional("published_parameters", model.published_parameters, 0, 1e18);
  io.optional("published_parameters_tolerance", model.published_parameters_tolerance, 0, 1);
  io.optional("published_active_parameters", model.published_active_parameters, 0, 1e18);
}

// Reads them, and notes every mistake.
void read_model_fields(JsonReader& reader, Model& model);

}  // namespace ns_dist
