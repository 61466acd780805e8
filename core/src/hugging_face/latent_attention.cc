// Latent attention, and the indexers that choose its keys.
#include <algorithm>
#include <utility>

#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

// The layers that read the keys of the layer before them (GlmMoeDsaConfig): by names, by a letter for each layer, or
// all but every index_topk_freq-th of those from index_skip_topk_offset - 1 on.
LayerSet read_shared_choices(JsonReader& reader, const Model& model) {
  constexpr std::string_view kTypes = "indexer_types", kPattern = "index_topk_pattern", kEvery = "index_topk_freq";
  const auto named = [&](std::string_view key) {
    return layers_where(types_of_layers(reader, key, model),
                        [](const std::string& type) { return type == "shared" || type == "S"; });
  };
  if (present(reader, kTypes)) return named(kTypes);
  if (present(reader, kPattern) && reader.json(kPattern, Presence::kOptional).starts_with('[')) return named(kPattern);
  if (present(reader, kPattern)) {
    const std::string text = reader.text(kPattern);
    return layers_where(one_for_each_layer(reader, kPattern, std::vector<char>(text.begin(), text.end()), model),
                        [](char letter) { return letter == 'S'; });
  }
  std::vector<bool> shared = none_of_layers(model);
  if (present(reader, kEvery)) {
    const std::int64_t every = reader.integer(kEvery, 1, kMostSize);
    const std::int64_t offset = reader.integer("index_skip_topk_offset", 0, kMostSize, Presence::kOptional, 2);
    for (std::size_t i = 0; i < shared.size(); ++i) {
      shared[i] = std::max<std::int64_t>(static_cast<std::int64_t>(i) - offset + 1, 0) % every != 0;
    }
  }
  return LayerSet::of(shared);
}

}  // namespace

void read_indexer(JsonReader& reader, const Family& family, Model& model) {
  Indexer indexer;
  indexer.heads = size(reader, family, {"index_n_heads"});
  indexer.head_dim = size(reader, family, {"index_head_dim"});
  indexer.top_k = size(reader, family, {"index_topk"});
  model.indexer = std::move(indexer);
}

void read_latent_attention(JsonReader& reader, const Family& family, Model& model) {
  LatentAttention mla;
  constexpr std::string_view kQueries = "q_lora_rank";  // null: they are not compressed
  mla.q_rank = !reader.has(kQueries) && has_default(family, kQueries)
                   ? size(reader, family, {kQueries})
                   : reader.integer(kQueries, 0, kMostSize, Presence::kOptional, 0);
  mla.kv_rank = size(reader, family, {"kv_lora_rank"});
  mla.nope_head_dim = size(reader, family, {"qk_nope_head_dim"});
  mla.rope_head_dim = size(reader, family, {"qk_rope_head_dim"});
  mla.v_head_dim = size(reader, family, {"v_head_dim"});
  model.mla = mla;
  model.qkv_bias = false;
  model.head_dim = mla.nope_head_dim + mla.rope_head_dim;
  const bool chooses = present(reader, "index_topk") || has_default(family, "index_topk");
  if (!chooses || mla.q_rank == 0) return;
  read_indexer(reader, family, model);
  model.indexer->shared_layers = read_shared_choices(reader, model);
}

}  // namespace ns_dist::hugging_face
