#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "readers.h"

namespace ns_dist {
namespace {

LayerSet read_layers(JsonReader& reader, std::string_view key, LayerSet fallback = {}) {
  reader.object(
      key,
      [&](JsonReader& inner) {
        fallback = {};
        fallback.every = inner.integer("every", 1, kMostSize, Presence::kOptional, 0);
        if (!inner.has("every")) {
          fallback.listed = inner.integers("listed", 0, kMostSize);
          std::sort(fallback.listed.begin(), fallback.listed.end());
        }
      },
      Presence::kOptional);
  return fallback;
}

// A mistake is at one of our keys, or where `root` has it under another name, there.
void note_shape(const Model& model, const nlohmann::ordered_json& root, JsonReader& reader) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"hidden", "hidden_size"},
      {"ffn", "intermediate_size"},
      {"vocabulary", "vocab_size"},
      {"heads", "num_attention_heads"},
      {"moe/experts", "n_routed_experts"},
      {"moe/experts", "num_experts"},
      {"moe/experts", "num_local_experts"},
      {"kv_heads", "num_key_value_heads"},
      {"kv_heads", "num_kv_heads"},
      {"moe/top_k", "num_experts_per_tok"},
      {"moe/top_groups", "topk_group"},
      {"moe/first_dense_layers", "first_k_dense_replace"},
      {"layer_pattern", "hybrid_override_pattern"},
      {"layer_pattern", "layer_types"},
  };
  for (Error& mistake : check_shape(model)) {
    std::string key = mistake.where;
    for (const auto& [ours, theirs] : kNames) {
      if (mistake.where == ours && root.contains(theirs)) key = theirs;
    }
    reader.note(key, std::move(mistake.message), std::move(mistake.expected), std::move(mistake.hint));
  }
}

// `json` with null in place of the infinite numbers that Python's json writes; every other byte keeps its place.
std::string without_infinite_numbers(std::string_view json) {
  std::string text(json);
  constexpr std::pair<std::string_view, std::string_view> kInfinite[] = {
      {"-Infinity", "null     "}, {"Infinity", "null    "}, {"NaN", "\"\" "}};
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && quoted) {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      for (const auto& [name, instead] : kInfinite) {
        if (text.compare(i, name.size(), name) != 0) continue;
        text.replace(i, name.size(), instead);
        i += name.size() - 1;
        break;
      }
    }
  }
  return text;
}

}  // namespace

Result<Model> read_model(std::string_view json, const std::string& where) {
  auto parsed = parse_json(json, where);
  if (!parsed) {
    // Python writes infinite numbers, which are no JSON, into configurations of Hugging Face.
    const std::string finite = without_infinite_numbers(json);
    if (finite == json) return tl::unexpected(parsed.error());
    NS_TRY(auto again, parse_json(finite, where));
    if (!is_hugging_face(again)) return tl::unexpected(parsed.error());
    parsed = std::move(again);
  }
  const nlohmann::ordered_json& root = *parsed;
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  Model model;
  if (is_hugging_face(root)) {
    model = read_hugging_face(reader);
    if (model.id.empty()) {
      const std::filesystem::path path = std::filesystem::path(where).lexically_normal();
      model.id = path.stem() == "config" && path.has_parent_path() ? path.parent_path().filename().string()
                                                                   : path.stem().string();
    }
    if (model.name.empty()) model.name = model.id;
    if (errors.empty()) note_shape(model, root, reader);
    if (!errors.empty()) return fail(join(std::move(errors)));
    return model;
  }
  reader.schema("ns-dist/model/1");
  model.id = reader.text("id");
  model.name = reader.text("name");
  model.aliases = reader.texts("aliases");
  model.family = reader.text("family", Presence::kOptional);
  model.layers = reader.integer("layers", 1, kMostLayers);
  model.hidden = reader.integer("hidden", 1, kMostSize);
  model.heads = reader.integer("heads", 1, kMostSize);
  model.kv_heads = reader.integer("kv_heads", 1, kMostSize, Presence::kOptional, model.heads);
  model.head_dim =
      reader.integer("head_dim", 1, kMostSize, Presence::kOptional, model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = reader.integer("ffn", 1, kMostSize);
  model.gated_mlp = reader.boolean("gated_mlp", false);
  model.activation = reader.enumerator<Activation>("activation", Presence::kOptional);
  model.norm = reader.enumerator<NormalizationKind>("norm", Presence::kOptional);
  model.position = reader.enumerator<PositionKind>("position", Presence::kOptional);
  model.position_table = reader.integer("position_table", 0, kMostSize, Presence::kOptional, 0);
  model.bias = reader.boolean("bias", true);
  model.qkv_bias = reader.boolean("qkv_bias", false);
  model.dropout = reader.boolean("dropout", false);
  model.tied_embeddings = reader.boolean("tied_embeddings", true);
  model.labels = reader.integer("labels", 0, kMostSize, Presence::kOptional, 0);
  model.embedding_norm = reader.boolean("embedding_norm", false);
  model.attention_sinks = reader.boolean("attention_sinks", false);
  model.attention_gate = reader.boolean("attention_gate", false);
  model.vocabulary = reader.integer("vocabulary", 1, kMostSize);
  model.sequence = reader.integer("sequence", 1, 1'000'000'000);
  model.norm_placement = reader.enumerator<NormPlacement>("norm_placement", Presence::kOptional);
  model.qk_norm = reader.enumerator<QueryKeyNorm>("qk_norm", Presence::kOptional);
  model.branches = reader.enumerator<Branches>("branches", Presence::kOptional);
  model.rotary_dim = reader.integer("rotary_dim", 0, kMostSize, Presence::kOptional, 0);
  model.sliding_window = reader.integer("sliding_window", 0, 1'000'000'000, Presence::kOptional, 0);
  model.bidirectional = reader.boolean("bidirectional", false);
  model.chunked_attention = reader.boolean("chunked_attention", false);
  model.full_attention_layers = read_layers(reader, "full_attention_layers");
  model.no_rotary_layers = read_layers(reader, "no_rotary_layers");
  model.prediction_layers = reader.integer("prediction_layers", 0, kMostPredictions, Presence::kOptional, 0);
  model.layer_pattern = reader.text("layer_pattern", Presence::kOptional);
  reader.object(
      "moe",
      [&](JsonReader& inner) {
        Experts moe;
        moe.experts = inner.integer("experts", 1, kMostSize);
        moe.top_k = inner.integer("top_k", 1, kMostSize);
        moe.expert_ffn = inner.integer("expert_ffn", 1, kMostSize);
        moe.shared_experts = inner.integer("shared_experts", 0, kMostSize, Presence::kOptional, 0);
        moe.shared_expert_ffn = inner.integer("shared_expert_ffn", 0, kMostSize, Presence::kOptional, 0);
        moe.first_dense_layers = inner.integer("first_dense_layers", 0, kMostSize, Presence::kOptional, 0);
        moe.layers = read_layers(inner, "layers", moe.layers);
        moe.shared_gate = inner.boolean("shared_gate", false);
        moe.latent = inner.integer("latent", 0, kMostSize, Presence::kOptional, 0);
        moe.groups = inner.integer("groups", 1, kMostSize, Presence::kOptional, 1);
        moe.top_groups = inner.integer("top_groups", 1, kMostSize, Presence::kOptional, moe.groups);
        model.moe = moe;
      },
      Presence::kOptional);
  reader.object(
      "mla",
      [&](JsonReader& inner) {
        LatentAttention mla;
        mla.q_rank = inner.integer("q_rank", 0, kMostSize, Presence::kOptional, 0);
        mla.kv_rank = inner.integer("kv_rank", 1, kMostSize);
        mla.nope_head_dim = inner.integer("nope_head_dim", 1, kMostSize);
        mla.rope_head_dim = inner.integer("rope_head_dim", 1, kMostSize);
        mla.v_head_dim = inner.integer("v_head_dim", 1, kMostSize);
        model.mla = mla;
      },
      Presence::kOptional);
  reader.object(
      "state_space",
      [&](JsonReader& inner) {
        StateSpace space;
        space.heads = inner.integer("heads", 1, kMostSize);
        space.head_dim = inner.integer("head_dim", 1, kMostSize);
        space.groups = inner.integer("groups", 1, kMostSize);
        space.state = inner.integer("state", 1, kMostSize);
        space.convolution = inner.integer("convolution", 1, kMostSize, Presence::kOptional, space.convolution);
        model.state_space = space;
      },
      Presence::kOptional);
  reader.object(
      "delta_net",
      [&](JsonReader& inner) {
        DeltaNet net;
        net.key_heads = inner.integer("key_heads", 1, kMostSize);
        net.value_heads = inner.integer("value_heads", 1, kMostSize);
        net.key_dim = inner.integer("key_dim", 1, kMostSize);
        net.value_dim = inner.integer("value_dim", 1, kMostSize);
        net.convolution = inner.integer("convolution", 1, kMostSize, Presence::kOptional, net.convolution);
        model.delta_net = net;
      },
      Presence::kOptional);
  model.published_parameters = reader.number("published_parameters", 0, 1e18, Presence::kOptional);
  model.published_parameters_tolerance =
      reader.number("published_parameters_tolerance", 0, 1, Presence::kOptional, 0.005);
  model.published_active_parameters = reader.number("published_active_parameters", 0, 1e18, Presence::kOptional);
  check_sources(root, reader);
  note_shape(model, root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return model;
}

}  // namespace ns_dist
