#include "ns_dist/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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
  model.name += fmt::format(", {} layer{}", layers, layers == 1 ? "" : "s");
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

namespace {

// Whether, before the layers that share keys, some layer has keys for each of them.
bool has_keys_to_share(const Model& model) {
  const auto has = [&](bool windowed, std::int64_t first, std::int64_t end) {
    for (std::int64_t layer = first; layer < end; ++layer) {
      if (layer_kind(model, layer).windowed == windowed) return true;
    }
    return false;
  };
  const std::int64_t first = model.layers - model.shared_keys_layers;
  const auto shares = [&](bool windowed) { return has(windowed, std::max<std::int64_t>(0, first), model.layers); };
  return (!shares(false) || has(false, 0, first)) && (!shares(true) || has(true, 0, first));
}

}  // namespace

Result<void> check_pattern(const Model& model) {
  const std::string& pattern = model.layer_pattern;
  const auto refuse = [](std::string message, std::string expected) {
    return fail({ErrorCode::kInvalidInput, std::move(message), "layer_pattern", std::move(expected)});
  };
  if (pattern.empty()) return {};
  if (static_cast<std::int64_t>(pattern.size()) != model.layers) {
    return refuse(fmt::format("{} letters for {} layers", pattern.size(), model.layers), "one letter for each layer");
  }
  if (const std::size_t wrong = pattern.find_first_not_of("M*-E"); wrong != std::string::npos) {
    return refuse(fmt::format("letter {} is none of a layer", wrong + 1),
                  "M (Mamba-2), * (attention), - (MLP) or E (experts)");
  }
  if (pattern.find('M') != std::string::npos && !model.state_space) {
    return refuse("Mamba-2 layers without their sizes", "\"state_space\"");
  }
  if (pattern.find('E') != std::string::npos && !model.moe) {
    return refuse("layers of experts without their sizes", "\"moe\"");
  }
  return {};
}

namespace {

// The widths of single layers, one for each.
template <class Note>
void check_widths(const Model& model, const Note& note) {
  const std::vector<std::int64_t>& widths = model.ffn_of_layers;
  if (widths.empty()) return;
  constexpr std::size_t kMostWidths = 16;  // each makes kinds of layers
  if (const std::size_t different = std::set(widths.begin(), widths.end()).size(); different > kMostWidths) {
    return note("ffn_of_layers", fmt::format("{} different widths", different), fmt::format("at most {}", kMostWidths));
  }
  for (std::int64_t layer = 0; layer < model.layers && model.layer_pattern.empty(); ++layer) {
    const LayerKind kind = layer_kind(model, layer);
    if (kind.mixer != Mixer::kNone || kind.feed_forward != FeedForward::kNone) continue;
    return note("ffn_of_layers", fmt::format("layer {} has neither attention nor an MLP", layer), "a width above 0");
  }
}

}  // namespace

std::vector<Error> check_shape(const Model& model) {
  std::vector<Error> errors;
  const auto note = [&](const char* key, std::string message, std::string expected = "") {
    errors.push_back({ErrorCode::kInvalidInput, std::move(message), key, std::move(expected)});
  };
  const std::vector<std::int64_t>& widths = model.ffn_of_layers;
  if (!widths.empty() && static_cast<std::int64_t>(widths.size()) != model.layers) {
    note("ffn_of_layers", fmt::format("{} widths for {} layers", widths.size(), model.layers),
         "one width for each layer");
    return errors;  // what follows asks layers for theirs
  }
  if (model.prediction_layers > kMostPredictions) {
    note("prediction_layers", fmt::format("{} layers for multi-token prediction are too many", model.prediction_layers),
         fmt::format("at most {}", kMostPredictions));
  }
  for (const AttentionHeads& of : all_heads(model)) {
    if (of.heads < 1 || of.kv_heads < 1 || of.heads % of.kv_heads == 0) continue;
    note(of == model.windowed_heads ? "windowed_heads/kv_heads" : "kv_heads",
         fmt::format("{} does not divide {} heads", of.kv_heads, of.heads), fmt::format("a divisor of {}", of.heads));
  }
  if (model.windowed_heads && (model.sliding_window == 0 || model.mla)) {
    note("windowed_heads", model.mla ? "latent attention has the same heads in all layers" : "no layer has a window",
         model.mla ? "\"mla\" alone" : "\"sliding_window\"");
  }
  if (model.moe) {
    const Experts& moe = *model.moe;
    if (moe.top_k > moe.experts) {
      note("moe/top_k", fmt::format("{} of {} experts cannot be chosen", moe.top_k, moe.experts));
    } else if (!is_possible(moe.routing())) {
      note("moe/top_groups",
           fmt::format("{} experts of a token in {} of {} groups of {} experts", moe.top_k, moe.top_groups, moe.groups,
                       moe.experts),
           "groups that divide the experts, and top groups that hold those of a token");
    }
    if (moe.shared_experts > 0 && moe.shared_expert_ffn < 1) {
      note("moe/shared_expert_ffn", fmt::format("{} shared experts have no width", moe.shared_experts),
           "a whole number from 1");
    }
    if (moe.first_dense_layers > model.layers) {
      note("moe/first_dense_layers",
           fmt::format("{} is more than the {} layers", moe.first_dense_layers, model.layers));
    }
  }
  // Beside as many tokens as a microbatch may have, still far from overflow.
  constexpr double kMostWidth = 1e9, kMostParameters = 1e13;
  const auto limit = [&](const char* key, const char* what, double most, std::initializer_list<std::int64_t> sizes) {
    double all = 1;
    for (const std::int64_t size : sizes) all *= static_cast<double>(size);
    if (all > most) note(key, fmt::format("{} {:.3g}", what, all), fmt::format("at most {:.0e}", most));
  };
  limit("hidden", "the hidden size is", kMostWidth, {model.hidden});
  limit("ffn", "the parameters of an MLP's matrix are", kMostParameters, {model.hidden, model.ffn});
  if (!widths.empty()) {
    const std::int64_t widest = *std::max_element(widths.begin(), widths.end());
    limit("ffn_of_layers", "the parameters of an MLP's matrix are", kMostParameters, {model.hidden, widest});
  }
  limit("vocabulary", "the parameters of the embedding are", kMostParameters, {model.hidden, model.vocabulary});
  for (const AttentionHeads& of : all_heads(model)) {
    const bool windowed = of == model.windowed_heads;
    limit(windowed ? "windowed_heads/heads" : "heads", "all heads together have a width of", kMostWidth,
          {of.heads, std::max(of.head_dim, of.v_head_dim)});
  }
  if (model.moe) {
    const Experts& moe = *model.moe;
    limit("moe/experts", "the experts are", 1e5, {moe.experts});
    limit("moe/experts", "the parameters of all experts' matrices of a kind are", kMostParameters,
          {moe.experts, model.hidden, moe.expert_ffn});
    limit("moe/top_k", "all experts of a token together have a width of", kMostWidth,
          {moe.top_k, std::max(model.hidden, moe.expert_ffn)});
    limit("moe/shared_experts", "all shared experts together have a width of", kMostWidth,
          {moe.shared_experts, moe.shared_expert_ffn});
  }
  if (model.mla) {
    limit("mla/q_rank", "queries have a rank of", kMostWidth, {model.mla->q_rank});
    limit("mla/kv_rank", "keys and values have a rank of", kMostWidth, {model.mla->kv_rank});
    limit("mla/nope_head_dim", "all heads together have a width of", kMostWidth,
          {model.heads, model.mla->nope_head_dim + model.mla->rope_head_dim + model.mla->v_head_dim});
  }
  if (model.state_space) {
    const StateSpace& space = *model.state_space;
    limit("state_space/heads", "all heads together have a width of", kMostWidth, {space.heads, space.head_dim});
    limit("state_space/state", "all states together have a width of", kMostWidth,
          {space.groups + space.heads, space.state});
    limit("state_space/convolution", "a convolution reads", kMostWidth, {space.convolution});
  }
  if (model.delta_net) {
    const DeltaNet& net = *model.delta_net;
    if (net.key_heads > 0 && net.value_heads % net.key_heads != 0) {
      note("delta_net/value_heads", fmt::format("{} heads of values for {} of keys", net.value_heads, net.key_heads),
           fmt::format("a multiple of {}", net.key_heads));
    }
    limit("delta_net/value_heads", "all heads together have a width of", kMostWidth,
          {net.value_heads, net.key_dim + net.value_dim});
    limit("delta_net/key_dim", "the state of a head has a size of", kMostWidth, {net.key_dim, net.value_dim});
    limit("delta_net/convolution", "a convolution reads", kMostWidth, {net.convolution});
    limit("delta_net/decay_rank", "decays have a rank of", kMostWidth, {net.decay_rank});
    limit("delta_net/gate_rank", "gates have a rank of", kMostWidth, {net.gate_rank});
    if (!model.layer_pattern.empty()) {
      note("delta_net", "layers are told by \"layer_pattern\", which has no letter for the delta rule",
           "\"full_attention_layers\" in its place");
    }
  }
  limit("short_convolution", "a convolution reads", kMostWidth, {model.short_convolution});
  if (model.short_convolution > 0 && (model.delta_net || !model.layer_pattern.empty())) {
    note("short_convolution", "other layers stand in the place of attention already",
         "neither \"delta_net\" nor \"layer_pattern\"");
  }
  if (model.compressed) {
    const CompressedAttention& of = *model.compressed;
    if (model.kv_heads != 1) note("kv_heads", "compressed attention has one head of keys", "1");
    if (model.mla || model.delta_net || model.short_convolution > 0 || !model.layer_pattern.empty()) {
      note("compressed", "layers have another attention already",
           "neither \"mla\", \"delta_net\", \"short_convolution\" nor \"layer_pattern\"");
    }
    if (of.rope_head_dim > model.head_dim) {
      note("compressed/rope_head_dim",
           fmt::format("{} of {} dimensions cannot be rotated", of.rope_head_dim, model.head_dim));
    }
    if (model.v_head_dim > 0 && model.v_head_dim != model.head_dim) {
      note("v_head_dim", "keys are values in compressed attention", "0");
    }
    if (model.bias || model.qkv_bias || model.attention_gate || model.qk_norm != QueryKeyNorm::kNone) {
      note("compressed", "compressed attention has no bias, no gate and norms of its own",
           "neither \"bias\", \"qkv_bias\", \"attention_gate\" nor \"qk_norm\"");
    }
    for (const std::int64_t layer : of.window_layers.listed) {
      if (!of.sparse_layers.contains(layer)) continue;
      note("compressed/window_layers", fmt::format("layer {} is in sparse_layers, too", layer), "in one of both");
      break;
    }
    if (model.sliding_window < 1)
      note("sliding_window", "compressed attention reads a window, too", "a number above 0");
    if (model.bidirectional) note("bidirectional", "compressed attention sees earlier tokens alone", "false");
    if (of.output_groups > 0 && model.heads % of.output_groups != 0) {
      note("compressed/output_groups", fmt::format("{} groups do not divide {} heads", of.output_groups, model.heads),
           fmt::format("a divisor of {}", model.heads));
    }
    limit("compressed/q_rank", "queries have a rank of", kMostWidth, {of.q_rank});
    limit("compressed/output_rank", "outputs have a rank of", kMostWidth, {of.output_rank, of.output_groups});
    if (!model.indexer && has_layers(model, &LayerKind::compressed_keys, CompressedKeys::kSparse)) {
      note("compressed/sparse_layers", "sparse keys are chosen by an indexer, which the model does not have",
           "\"indexer\", or no layers");
    }
  }
  if (model.indexer) {
    if (!model.compressed && !(model.mla && model.mla->q_rank > 0)) {
      note("indexer", "an indexer reads the latents of queries",
           "\"mla\" with a \"q_rank\" above 0, or \"compressed\"");
    }
    if (model.bidirectional || model.attention_gate || (model.mla && model.sliding_window > 0)) {
      note("indexer", "keys are chosen of all earlier tokens, for attention without gates",
           "neither \"bidirectional\", \"attention_gate\" nor, with \"mla\", \"sliding_window\"");
    }
    if (model.indexer->shared_layers.contains(0)) {
      note("indexer/shared_layers", "no layer stands before layer 0, whose keys it could read", "layers from 1 on");
    }
    limit("indexer/heads", "all heads of an indexer have a width of", kMostWidth,
          {model.indexer->heads, model.indexer->head_dim});
  }
  if (model.shared_keys_layers > 0) {
    if (model.mla || model.compressed || model.delta_net || model.short_convolution > 0 ||
        !model.layer_pattern.empty()) {
      note("shared_keys_layers", "layers share the keys of grouped-query attention alone",
           "neither \"mla\", \"compressed\", \"delta_net\", \"short_convolution\" nor \"layer_pattern\"");
    } else if (!has_keys_to_share(model)) {
      note(
          "shared_keys_layers",
          fmt::format("before the last {} layers no layer has keys of each of their windows", model.shared_keys_layers),
          "fewer layers");
    }
  }
  if (model.per_layer_embeddings) {
    limit("per_layer_embeddings/width", "the embeddings of all layers together have a width of", kMostWidth,
          {model.per_layer_embeddings->width, model.layers});
    limit("per_layer_embeddings/vocabulary", "the parameters of the embedding are", kMostParameters,
          {model.per_layer_embeddings->width, model.per_layer_embeddings->vocabulary, model.layers});
    if (model.residual_streams > 1 || model.prediction_layers > 0 || !model.layer_pattern.empty()) {
      note("per_layer_embeddings", "a layer adds them behind its MLP to one hidden state",
           "neither \"residual_streams\", \"prediction_layers\" nor \"layer_pattern\"");
    }
  }
  if (model.labels > 0 && model.prediction_layers > 0) {
    note("labels", "a classifier has no layers for multi-token prediction", "\"prediction_layers\": 0");
  }
  if (model.residual_streams > 1 && model.branches != Branches::kSequential) {
    note("residual_streams", "branches that are side by side read one hidden state", "1");
  }
  if (model.gate_of_head && !model.attention_gate) {
    note("gate_of_head", "attention has no gate", "\"attention_gate\": true");
  }
  if (model.rotary_dim > model.head_dim) {
    note("rotary_dim", fmt::format("{} of {} dimensions cannot be rotated", model.rotary_dim, model.head_dim));
  }
  check_widths(model, note);
  if (auto pattern = check_pattern(model); !pattern) {
    note("layer_pattern", std::move(pattern.error().message), std::move(pattern.error().expected));
  }
  return errors;
}

}  // namespace ns_dist
