// Which tokens the layers of a decoder see, and what heads they have.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

// Which tokens a layer sees, and whether it knows their positions, is told in one place; what its heads are, in others.
// Layers of a window and all others have the heads of the file's own numbers, but for what these keys say.
class LayerHeads {
 public:
  LayerHeads(JsonReader& reader, const Model& model) : reader_(reader), model_(model) {
    full_ = windowed_ = heads_of(model, false);
  }

  void read(const Family& family) {
    read_number("num_sliding_attention_heads", windowed_.heads);
    read_number("swa_num_attention_heads", windowed_.heads);
    read_number("swa_num_key_value_heads", windowed_.kv_heads);
    read_number("swa_head_dim", windowed_.head_dim);
    read_number("swa_v_head_dim", windowed_.v_head_dim);
    if (present(reader_, "attention_other_setting")) {  // Step-3.5: of the layers with a window
      reader_.object("attention_other_setting", [&](JsonReader& other) {
        other.accept_unknown_keys();
        windowed_.heads = other.integer("num_attention_heads", 1, kMostSize, Presence::kOptional, windowed_.heads);
        windowed_.kv_heads =
            other.integer("num_attention_groups", 1, kMostSize, Presence::kOptional, windowed_.kv_heads);
        windowed_.head_dim = other.integer("head_dim", 1, kMostSize, Presence::kOptional, windowed_.head_dim);
      });
    }
    if (present(reader_, "num_attention_heads_per_layer")) {
      const std::vector<std::int64_t> heads =
          one_for_each_layer(reader_, "num_attention_heads_per_layer",
                             reader_.integers("num_attention_heads_per_layer", 1, kMostSize), model_);
      for (std::size_t i = 0; i < heads.size(); ++i)
        set("num_attention_heads_per_layer", "heads", i, &AttentionHeads::heads, heads[i]);
    }
    // Gemma 4: of the layers that see all tokens.
    const bool by_layer = present(reader_, "per_layer_config");
    if (present(reader_, "global_head_dim") || (has_default(family, "global_head_dim") && !by_layer)) {
      full_.head_dim = size(reader_, family, {"global_head_dim"});
    }
    read_number("num_global_key_value_heads", full_.kv_heads);
    if (by_layer) read_by_layer();
    full_.keys_are_values = reader_.boolean("attention_k_eq_v", false);
  }

  void give_to(Model& model) const {
    model.heads = full_.heads, model.kv_heads = full_.kv_heads, model.head_dim = full_.head_dim;
    model.v_head_dim = full_.v_head_dim, model.keys_are_values = full_.keys_are_values;
    if (model.sliding_window > 0 && windowed_ != full_) model.windowed_heads = windowed_;
  }

 private:
  void read_number(std::string_view key, std::int64_t& number) {
    if (present(reader_, key)) number = reader_.integer(key, 1, kMostSize);
  }

  // {"05": {"head_dim": 512}}: the numbers of single layers, as transformers 5 writes them.
  void read_by_layer() {
    constexpr std::pair<std::string_view, std::int64_t AttentionHeads::*> kNumbers[] = {
        {"num_attention_heads", &AttentionHeads::heads},
        {"num_key_value_heads", &AttentionHeads::kv_heads},
        {"head_dim", &AttentionHeads::head_dim}};
    reader_.object("per_layer_config", [&](JsonReader& layers) {
      for (const std::string& name : layers.keys()) {
        std::int64_t layer = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
        if (error != std::errc() || end != name.data() + name.size() || layer < 0 || layer >= model_.layers) {
          layers.note(pointer_step(name), fmt::format("\"{}\" is no layer", shortened(name)),
                      fmt::format("a number below {}", model_.layers));
          layers.accept_unknown_keys();
          return;
        }
        layers.object(name, [&](JsonReader& own) {
          for (const auto& [key, member] : kNumbers) {
            if (own.has(key))
              set("per_layer_config", key, static_cast<std::size_t>(layer), member, own.integer(key, 1, kMostSize));
          }
        });
      }
    });
  }

  // All layers of a kind have the same. `what`: tells the numbers apart.
  void set(std::string_view key, std::string_view what, std::size_t layer, std::int64_t AttentionHeads::*member,
           std::int64_t value) {
    if (static_cast<std::int64_t>(layer) >= model_.layers) return;
    const bool of_window = layer_kind(model_, static_cast<std::int64_t>(layer)).windowed;
    AttentionHeads& heads = of_window ? windowed_ : full_;
    bool& told = told_[{of_window, what}];
    if (told && heads.*member != value) {
      return reader_.note(std::string(key), "layers of different sizes cannot be forecast",
                          "the same heads in all layers with a window, and in all others");
    }
    told = true;
    heads.*member = value;
  }

  JsonReader& reader_;
  const Model& model_;
  AttentionHeads full_, windowed_;
  std::map<std::pair<bool, std::string_view>, bool> told_;
};

// Which layers see all tokens: every k-th, or those with a G in a text that repeats ("LLLG").
LayerSet read_pattern(JsonReader& reader, std::string_view key, const Model& model) {
  if (!reader.is_text(key)) return {.every = reader.integer(key, 1, kMostSize), .listed = {}};
  const std::string letters = reader.text(key);
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
    reader.note(std::string(key), fmt::format("\"{}\" is no pattern of layers", shortened(letters)),
                "a number, or L (a window) and G (all tokens) for each layer that repeats");
    return {};
  }
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); ++i) full[i] = letters[i % letters.size()] == 'G';
  return LayerSet::of(full);
}

}  // namespace

void read_attention_layers(JsonReader& reader, const Family& family, Model& model) {
  if (family.full_is_unrotated || present(reader, "no_rope_layers")) {
    // 1 is a layer with positions, 0 is one without.
    const std::int64_t interval =
        reader.integer("no_rope_layer_interval", 1, kMostSize, Presence::kOptional, family.full_every);
    const bool listed = !reader.numbers("no_rope_layers", 0, 1, Presence::kOptional).empty();
    model.no_rotary_layers =
        listed ? flagged_layers(reader, "no_rope_layers", model, 0) : LayerSet{.every = interval, .listed = {}};
  }
  const bool has_types = present(reader, "layer_types") && !family.compressed;
  const LayerSet full =
      has_types ? read_layer_types(reader, model, {"sliding_attention", "chunked_attention"}) : LayerSet{};
  if (has_types && !present(reader, "index_topk") && !present(reader, "sparse_attention_config")) {
    const std::vector<std::string> types = reader.texts("layer_types");
    const auto chooses = std::find_if(types.begin(), types.end(), chooses_tokens);
    if (chooses != types.end()) {
      model.warnings.push_back(fmt::format("attention of \"{}\" is forecast as that of all tokens", *chooses));
    }
  }
  model.chunked_attention = present(reader, "attention_chunk_size") && !present(reader, "sliding_window");
  const std::string_view window = model.chunked_attention ? "attention_chunk_size" : "sliding_window";
  if (!reader.boolean("use_sliding_window", family.windowed) || !present(reader, window)) {
    // The layers without a window have no positions only beside others that have one.
    if (!present(reader, "no_rope_layers")) model.no_rotary_layers = {};
    return;
  }
  model.sliding_window = reader.integer(window, 0, kMostTokens);
  if (has_types) {
    model.full_attention_layers = full;
  } else if (present(reader, "hybrid_layer_pattern")) {  // MiMo-V2: 1 is a layer with a window
    model.full_attention_layers = flagged_layers(reader, "hybrid_layer_pattern", model, 0);
  } else if (model.chunked_attention) {
    model.full_attention_layers = model.no_rotary_layers;
  } else if (present(reader, "use_sliding_window") && present(reader, "max_window_layers")) {
    std::vector<bool> bottom = none_of_layers(model);
    const auto count = static_cast<std::size_t>(reader.integer("max_window_layers", 0, kMostSize));
    std::fill_n(bottom.begin(), std::min(count, bottom.size()), true);
    model.full_attention_layers = LayerSet::of(bottom);
  } else if (const std::string_view pattern = first_of(reader, {"_sliding_window_pattern", "sliding_window_pattern"});
             present(reader, pattern)) {
    model.full_attention_layers = read_pattern(reader, pattern, model);
  } else {
    model.full_attention_layers.every = family.full_every;
  }
}

void read_heads_of_layers(JsonReader& reader, const Family& family, Model& model) {
  LayerHeads heads(reader, model);
  heads.read(family);
  heads.give_to(model);
}

}  // namespace ns_dist::hugging_face
