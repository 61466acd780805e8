#include "ns_dist/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/internal/with_commas.h"

namespace ns_dist {

bool LayerSet::contains(std::int64_t layer) const {
  return (every > 0 && (layer + 1) % every == 0) || std::binary_search(listed.begin(), listed.end(), layer);
}

LayerSet LayerSet::of(const std::vector<bool>& member) {
  const auto first = std::find(member.begin(), member.end(), true);
  LayerSet set;
  if (first == member.end()) return set;
  const LayerSet periodic{.every = first - member.begin() + 1, .listed = {}};
  bool is_periodic = true;
  for (std::size_t i = 0; i < member.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    is_periodic = is_periodic && periodic.contains(layer) == member[i];
    if (member[i]) set.listed.push_back(layer);
  }
  return is_periodic ? periodic : set;
}

std::vector<std::string> warnings_of(const Model& model) {
  std::vector<std::string> all = model.warnings;
  if (model.longest_sequence) {
    all.push_back(fmt::format(
        "sequences have {} tokens, the longest that the file allows: training/sequence sets others", model.sequence));
  }
  if (model.indexer) all.emplace_back("the loss of the indexer is left out: its weights have no gradients here");
  return all;
}

Result<Model> first_layers(Model model, std::int64_t layers) {
  if (layers > model.layers) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} has {} layers", model.name, model.layers), "",
                 fmt::format("from 1 to {}, or 0 for all", model.layers)});
  }
  if (layers == model.layers) return model;
  model.shared_keys_layers = std::max<std::int64_t>(0, model.shared_keys_layers - (model.layers - layers));
  model.layers = layers;
  model.name += fmt::format(", {}", counted(layers, "layer"));
  model.layer_pattern = model.layer_pattern.substr(0, static_cast<std::size_t>(layers));
  model.ffn_of_layers.resize(std::min(model.ffn_of_layers.size(), static_cast<std::size_t>(layers)));
  std::vector<LayerSet*> sets{&model.full_attention_layers, &model.no_rotary_layers, &model.no_attention_layers};
  if (model.compressed) {
    sets.insert(sets.end(), {&model.compressed->sparse_layers, &model.compressed->window_layers});
  }
  if (model.indexer) sets.push_back(&model.indexer->shared_layers);
  if (model.moe) sets.push_back(&model.moe->layers);
  for (LayerSet* set : sets) std::erase_if(set->listed, [&](std::int64_t layer) { return layer >= layers; });
  // What predicts further tokens is like the last layer, which has none either.
  if (model.moe && !has_layers(model, &LayerKind::feed_forward, FeedForward::kExperts)) {
    model.moe.reset(), model.prediction_layers = 0;
  }
  model.published_parameters = model.published_active_parameters = 0;
  return model;
}

AttentionHeads heads_of(const Model& model, bool windowed) {
  if (windowed && model.windowed_heads) return *model.windowed_heads;
  return {model.heads, model.kv_heads, model.head_dim, model.v_head_dim, model.keys_are_values};
}

std::vector<AttentionHeads> all_heads(const Model& model) {
  std::vector<AttentionHeads> all{heads_of(model, false)};
  if (model.windowed_heads) all.push_back(*model.windowed_heads);
  return all;
}

LayerKind layer_kind(const Model& model, std::int64_t layer) {
  LayerKind kind;
  if (model.layer_pattern.empty()) {
    const bool experts = model.moe && layer >= model.moe->first_dense_layers && model.moe->layers.contains(layer);
    kind.feed_forward = experts ? FeedForward::kExperts : FeedForward::kDense;
    if (model.compressed) {
      const CompressedAttention& compressed = *model.compressed;
      kind.mixer = Mixer::kCompressedAttention;
      kind.compressed_keys = compressed.window_layers.contains(layer)   ? CompressedKeys::kNone
                             : compressed.sparse_layers.contains(layer) ? CompressedKeys::kSparse
                                                                        : CompressedKeys::kDense;
    } else if (!model.full_attention_layers.contains(layer)) {
      if (model.delta_net) kind.mixer = Mixer::kDeltaNet;
      if (model.short_convolution > 0) kind.mixer = Mixer::kConvolution;
    }
    if (model.no_attention_layers.contains(layer)) kind.mixer = Mixer::kNone;
  } else {
    NS_EXPECTS(layer >= 0 && layer < static_cast<std::int64_t>(model.layer_pattern.size()));
    const char letter = model.layer_pattern[static_cast<std::size_t>(layer)];
    kind.mixer = letter == 'M' ? Mixer::kStateSpace : letter == '*' ? Mixer::kAttention : Mixer::kNone;
    kind.feed_forward = letter == '-'   ? FeedForward::kDense
                        : letter == 'E' ? FeedForward::kExperts
                                        : FeedForward::kNone;
  }
  if (!model.ffn_of_layers.empty() && kind.feed_forward == FeedForward::kDense) {
    const std::int64_t own = model.ffn_of_layers[static_cast<std::size_t>(layer)];
    kind.ffn = own == model.ffn ? 0 : own;
    if (own == 0) kind.feed_forward = FeedForward::kNone;
  }
  if (model.indexer && !model.indexer->shared_layers.contains(layer)) {
    kind.chooses_keys = kind.mixer == Mixer::kAttention || kind.compressed_keys == CompressedKeys::kSparse;
  }
  if (kind.mixer != Mixer::kAttention) return kind;
  kind.shares_keys = layer >= model.layers - model.shared_keys_layers;
  kind.windowed = model.sliding_window > 0 && !model.full_attention_layers.contains(layer);
  kind.rotary = !model.no_rotary_layers.contains(layer);
  return kind;
}

LayerKind prediction_kind(const Model& model) {
  LayerKind kind = layer_kind(model, model.layers - 1);
  if (model.compressed) kind.compressed_keys = CompressedKeys::kNone;
  kind.chooses_keys = model.indexer && !model.compressed;
  kind.shares_keys = false;
  return kind;
}

}  // namespace ns_dist
