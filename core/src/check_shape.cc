#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/model.h"

namespace ns_dist {
namespace {

// Beside as many tokens as a microbatch may have, still far from overflow.
constexpr double kMostWidth = 1e9, kMostParameters = 1e13;

// Collects the mistakes of a model; `key` is the place of one.
struct ShapeChecker {
  std::vector<Error> errors;

  void note(const char* key, std::string message, std::string expected = "") {
    errors.push_back({ErrorCode::kInvalidInput, std::move(message), key, std::move(expected)});
  }
  void refuse_if(bool wrong, const char* key, std::string message, std::string expected = "") {
    if (wrong) note(key, std::move(message), std::move(expected));
  }
  // The product of `sizes` is at most `most`. `what`: "the hidden size is".
  void limit(const char* key, const char* what, double most, std::initializer_list<std::int64_t> sizes) {
    double all = 1;
    for (const std::int64_t size : sizes) all *= static_cast<double>(size);
    if (all > most) note(key, fmt::format("{} {:.3g}", what, all), fmt::format("at most {:.0e}", most));
  }
};

void check_predictions(const Model& model, ShapeChecker& check) {
  check.refuse_if(model.prediction_layers > kMostPredictions, "prediction_layers",
                  fmt::format("{} layers for multi-token prediction are too many", model.prediction_layers),
                  fmt::format("at most {}", kMostPredictions));
}

void check_heads(const Model& model, ShapeChecker& check) {
  for (const AttentionHeads& of : all_heads(model)) {
    if (of.heads < 1 || of.kv_heads < 1 || of.heads % of.kv_heads == 0) continue;
    check.note(of == model.windowed_heads ? "windowed_heads/kv_heads" : "kv_heads",
               fmt::format("{} does not divide {} heads", of.kv_heads, of.heads),
               fmt::format("a divisor of {}", of.heads));
  }
  check.refuse_if(model.windowed_heads && (model.sliding_window == 0 || model.mla), "windowed_heads",
                  model.mla ? "latent attention has the same heads in all layers" : "no layer has a window",
                  model.mla ? "\"mla\" alone" : "\"sliding_window\"");
}

void check_experts(const Model& model, ShapeChecker& check) {
  if (!model.moe) return;
  const Experts& moe = *model.moe;
  if (moe.top_k > moe.experts) {
    check.note("moe/top_k", fmt::format("{} of {} experts cannot be chosen", moe.top_k, moe.experts));
  } else if (!is_possible(moe.routing())) {
    check.note("moe/top_groups",
               fmt::format("{} experts of a token in {} of {} groups of {} experts", moe.top_k, moe.top_groups,
                           moe.groups, moe.experts),
               "groups that divide the experts, and top groups that hold those of a token");
  }
  check.refuse_if(moe.shared_experts > 0 && moe.shared_expert_ffn < 1, "moe/shared_expert_ffn",
                  fmt::format("{} shared experts have no width", moe.shared_experts), "a whole number from 1");
  check.refuse_if(moe.first_dense_layers > model.layers, "moe/first_dense_layers",
                  fmt::format("{} is more than the {} layers", moe.first_dense_layers, model.layers));
}

void limit_dense_layers(const Model& model, ShapeChecker& check) {
  check.limit("hidden", "the hidden size is", kMostWidth, {model.hidden});
  check.limit("ffn", "the parameters of an MLP's matrix are", kMostParameters, {model.hidden, model.ffn});
  if (const std::vector<std::int64_t>& widths = model.ffn_of_layers; !widths.empty()) {
    const std::int64_t widest = *std::max_element(widths.begin(), widths.end());
    check.limit("ffn_of_layers", "the parameters of an MLP's matrix are", kMostParameters, {model.hidden, widest});
  }
  check.limit("vocabulary", "the parameters of the embedding are", kMostParameters, {model.hidden, model.vocabulary});
  for (const AttentionHeads& of : all_heads(model)) {
    const bool windowed = of == model.windowed_heads;
    check.limit(windowed ? "windowed_heads/heads" : "heads", "all heads together have a width of", kMostWidth,
                {of.heads, std::max(of.head_dim, of.v_head_dim)});
  }
}

void limit_experts(const Model& model, ShapeChecker& check) {
  if (!model.moe) return;
  const Experts& moe = *model.moe;
  check.limit("moe/experts", "the experts are", 1e5, {moe.experts});
  check.limit("moe/experts", "the parameters of all experts' matrices of a kind are", kMostParameters,
              {moe.experts, model.hidden, moe.expert_ffn});
  check.limit("moe/top_k", "all experts of a token together have a width of", kMostWidth,
              {moe.top_k, std::max(model.hidden, moe.expert_ffn)});
  check.limit("moe/shared_experts", "all shared experts together have a width of", kMostWidth,
              {moe.shared_experts, moe.shared_expert_ffn});
}

void check_latent_attention(const Model& model, ShapeChecker& check) {
  if (!model.mla) return;
  check.limit("mla/q_rank", "queries have a rank of", kMostWidth, {model.mla->q_rank});
  check.limit("mla/kv_rank", "keys and values have a rank of", kMostWidth, {model.mla->kv_rank});
  check.limit("mla/nope_head_dim", "all heads together have a width of", kMostWidth,
              {model.heads, model.mla->nope_head_dim + model.mla->rope_head_dim + model.mla->v_head_dim});
}

void check_state_space(const Model& model, ShapeChecker& check) {
  if (!model.state_space) return;
  const StateSpace& space = *model.state_space;
  check.limit("state_space/heads", "all heads together have a width of", kMostWidth, {space.heads, space.head_dim});
  check.limit("state_space/state", "all states together have a width of", kMostWidth,
              {space.groups + space.heads, space.state});
  check.limit("state_space/convolution", "a convolution reads", kMostWidth, {space.convolution});
}

void check_delta_net(const Model& model, ShapeChecker& check) {
  if (!model.delta_net) return;
  const DeltaNet& net = *model.delta_net;
  check.refuse_if(net.key_heads > 0 && net.value_heads % net.key_heads != 0, "delta_net/value_heads",
                  fmt::format("{} heads of values for {} of keys", net.value_heads, net.key_heads),
                  fmt::format("a multiple of {}", net.key_heads));
  check.limit("delta_net/value_heads", "all heads together have a width of", kMostWidth,
              {net.value_heads, net.key_dim + net.value_dim});
  check.limit("delta_net/key_dim", "the state of a head has a size of", kMostWidth, {net.key_dim, net.value_dim});
  check.limit("delta_net/convolution", "a convolution reads", kMostWidth, {net.convolution});
  check.limit("delta_net/decay_rank", "decays have a rank of", kMostWidth, {net.decay_rank});
  check.limit("delta_net/gate_rank", "gates have a rank of", kMostWidth, {net.gate_rank});
  check.refuse_if(!model.layer_pattern.empty(), "delta_net",
                  "layers are told by \"layer_pattern\", which has no letter for the delta rule",
                  "\"full_attention_layers\" in its place");
}

void check_convolution(const Model& model, ShapeChecker& check) {
  check.limit("short_convolution", "a convolution reads", kMostWidth, {model.short_convolution});
  check.refuse_if(model.short_convolution > 0 && (model.delta_net || !model.layer_pattern.empty()), "short_convolution",
                  "other layers stand in the place of attention already",
                  "neither \"delta_net\" nor \"layer_pattern\"");
}

void check_compressed_attention(const Model& model, ShapeChecker& check) {
  if (!model.compressed) return;
  const CompressedAttention& of = *model.compressed;
  check.refuse_if(model.kv_heads != 1, "kv_heads", "compressed attention has one head of keys", "1");
  check.refuse_if(model.mla || model.delta_net || model.short_convolution > 0 || !model.layer_pattern.empty(),
                  "compressed", "layers have another attention already",
                  "neither \"mla\", \"delta_net\", \"short_convolution\" nor \"layer_pattern\"");
  check.refuse_if(of.rope_head_dim > model.head_dim, "compressed/rope_head_dim",
                  fmt::format("{} of {} dimensions cannot be rotated", of.rope_head_dim, model.head_dim));
  check.refuse_if(model.v_head_dim > 0 && model.v_head_dim != model.head_dim, "v_head_dim",
                  "keys are values in compressed attention", "0");
  check.refuse_if(model.bias || model.qkv_bias || model.attention_gate || model.qk_norm != QueryKeyNorm::kNone,
                  "compressed", "compressed attention has no bias, no gate and norms of its own",
                  "neither \"bias\", \"qkv_bias\", \"attention_gate\" nor \"qk_norm\"");
  for (const std::int64_t layer : of.window_layers.listed) {
    if (!of.sparse_layers.contains(layer)) continue;
    check.note("compressed/window_layers", fmt::format("layer {} is in sparse_layers, too", layer), "in one of both");
    break;
  }
  check.refuse_if(model.sliding_window < 1, "sliding_window", "compressed attention reads a window, too",
                  "a number above 0");
  check.refuse_if(model.bidirectional, "bidirectional", "compressed attention sees earlier tokens alone", "false");
  check.refuse_if(of.output_groups > 0 && model.heads % of.output_groups != 0, "compressed/output_groups",
                  fmt::format("{} groups do not divide {} heads", of.output_groups, model.heads),
                  fmt::format("a divisor of {}", model.heads));
  check.limit("compressed/q_rank", "queries have a rank of", kMostWidth, {of.q_rank});
  check.limit("compressed/output_rank", "outputs have a rank of", kMostWidth, {of.output_rank, of.output_groups});
  check.refuse_if(!model.indexer && has_layers(model, &LayerKind::compressed_keys, CompressedKeys::kSparse),
                  "compressed/sparse_layers", "sparse keys are chosen by an indexer, which the model does not have",
                  "\"indexer\", or no layers");
}

void check_indexer(const Model& model, ShapeChecker& check) {
  if (!model.indexer) return;
  check.refuse_if(!model.compressed && !(model.mla && model.mla->q_rank > 0), "indexer",
                  "an indexer reads the latents of queries", "\"mla\" with a \"q_rank\" above 0, or \"compressed\"");
  check.refuse_if(model.bidirectional || model.attention_gate || (model.mla && model.sliding_window > 0), "indexer",
                  "keys are chosen of all earlier tokens, for attention without gates",
                  "neither \"bidirectional\", \"attention_gate\" nor, with \"mla\", \"sliding_window\"");
  check.refuse_if(model.indexer->shared_layers.contains(0), "indexer/shared_layers",
                  "no layer stands before layer 0, whose keys it could read", "layers from 1 on");
  check.limit("indexer/heads", "all heads of an indexer have a width of", kMostWidth,
              {model.indexer->heads, model.indexer->head_dim});
}

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

void check_shared_keys(const Model& model, ShapeChecker& check) {
  if (model.shared_keys_layers <= 0) return;
  if (model.mla || model.compressed || model.delta_net || model.short_convolution > 0 || !model.layer_pattern.empty()) {
    check.note("shared_keys_layers", "layers share the keys of grouped-query attention alone",
               "neither \"mla\", \"compressed\", \"delta_net\", \"short_convolution\" nor \"layer_pattern\"");
  } else if (!has_keys_to_share(model)) {
    check.note(
        "shared_keys_layers",
        fmt::format("before the last {} layers no layer has keys of each of their windows", model.shared_keys_layers),
        "fewer layers");
  }
}

void check_per_layer_embeddings(const Model& model, ShapeChecker& check) {
  if (!model.per_layer_embeddings) return;
  check.limit("per_layer_embeddings/width", "the embeddings of all layers together have a width of", kMostWidth,
              {model.per_layer_embeddings->width, model.layers});
  check.limit("per_layer_embeddings/vocabulary", "the parameters of the embedding are", kMostParameters,
              {model.per_layer_embeddings->width, model.per_layer_embeddings->vocabulary, model.layers});
  check.refuse_if(model.residual_streams > 1 || model.prediction_layers > 0 || !model.layer_pattern.empty(),
                  "per_layer_embeddings", "a layer adds them behind its MLP to one hidden state",
                  "neither \"residual_streams\", \"prediction_layers\" nor \"layer_pattern\"");
}

void check_single_options(const Model& model, ShapeChecker& check) {
  check.refuse_if(model.labels > 0 && model.prediction_layers > 0, "labels",
                  "a classifier has no layers for multi-token prediction", "\"prediction_layers\": 0");
  check.refuse_if(model.residual_streams > 1 && model.branches != Branches::kSequential, "residual_streams",
                  "branches that are side by side read one hidden state", "1");
  check.refuse_if(model.gate_of_head && !model.attention_gate, "gate_of_head", "attention has no gate",
                  "\"attention_gate\": true");
  check.refuse_if(model.rotary_dim > model.head_dim, "rotary_dim",
                  fmt::format("{} of {} dimensions cannot be rotated", model.rotary_dim, model.head_dim));
}

// The widths of single layers, one for each.
void check_widths(const Model& model, ShapeChecker& check) {
  const std::vector<std::int64_t>& widths = model.ffn_of_layers;
  if (widths.empty()) return;
  constexpr std::size_t kMostWidths = 16;  // each makes kinds of layers
  if (const std::size_t different = std::set(widths.begin(), widths.end()).size(); different > kMostWidths) {
    check.note("ffn_of_layers", fmt::format("{} different widths", different), fmt::format("at most {}", kMostWidths));
    return;
  }
  for (std::int64_t layer = 0; layer < model.layers && model.layer_pattern.empty(); ++layer) {
    const LayerKind kind = layer_kind(model, layer);
    if (kind.mixer != Mixer::kNone || kind.feed_forward != FeedForward::kNone) continue;
    check.note("ffn_of_layers", fmt::format("layer {} has neither attention nor an MLP", layer), "a width above 0");
    return;
  }
}

void check_letters(const Model& model, ShapeChecker& check) {
  if (const auto pattern = check_pattern(model); !pattern) {
    check.note("layer_pattern", pattern.error().message, pattern.error().expected);
  }
}

// Mistakes come in this order.
constexpr void (*kShapeRules[])(const Model&, ShapeChecker&) = {check_predictions,
                                                                check_heads,
                                                                check_experts,
                                                                limit_dense_layers,
                                                                limit_experts,
                                                                check_latent_attention,
                                                                check_state_space,
                                                                check_delta_net,
                                                                check_convolution,
                                                                check_compressed_attention,
                                                                check_indexer,
                                                                check_shared_keys,
                                                                check_per_layer_embeddings,
                                                                check_single_options,
                                                                check_widths,
                                                                check_letters};

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

std::vector<Error> check_shape(const Model& model) {
  ShapeChecker check;
  const std::vector<std::int64_t>& widths = model.ffn_of_layers;
  if (!widths.empty() && static_cast<std::int64_t>(widths.size()) != model.layers) {
    check.note("ffn_of_layers", fmt::format("{} widths for {} layers", widths.size(), model.layers),
               "one width for each layer");
    return check.errors;  // rules ask layers for theirs
  }
  for (const auto& rule : kShapeRules) rule(model, check);
  return check.errors;
}

}  // namespace ns_dist
