// Layers told by lists and texts.
#include "layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace ns_dist::hugging_face {

std::vector<bool> none_of_layers(const Model& model) {
  return std::vector<bool>(static_cast<std::size_t>(std::max<std::int64_t>(0, model.layers)));
}

LayerSet listed_layers(JsonReader& reader, std::string_view key, const Model& model, bool named) {
  std::vector<bool> member = none_of_layers(model);
  member.assign(member.size(), !named);
  for (const double layer : reader.numbers(key, 0, static_cast<double>(kMostSize), Presence::kOptional)) {
    if (const auto at = static_cast<std::size_t>(layer); at < member.size()) member[at] = named;
  }
  return LayerSet::of(member);
}

LayerSet flagged_layers(JsonReader& reader, std::string_view key, const Model& model, double flag) {
  return layers_where(one_for_each_layer(reader, key, reader.numbers(key, 0, 1), model),
                      [flag](double each) { return each == flag; });
}

std::vector<std::string> types_of_layers(JsonReader& reader, std::string_view key, const Model& model) {
  return one_for_each_layer(reader, key, reader.texts(key), model);
}

bool chooses_tokens(std::string_view type) {
  return type == "deepseek_sparse_attention" || type == "indexed_attention" || type == "minimax_m3_sparse";
}

LayerSet read_layer_types(JsonReader& reader, const Model& model, Keys other) {
  const std::vector<std::string> types = types_of_layers(reader, "layer_types", model);
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); ++i) {
    full[i] = types[i] == "full_attention" || types[i] == "attention" || chooses_tokens(types[i]);
    if (full[i] || types[i].empty() || std::find(other.begin(), other.end(), types[i]) != other.end()) continue;
    reader.note(fmt::format("layer_types/{}", i),
                fmt::format("layers of \"{}\" cannot be forecast", shortened(types[i])),
                fmt::format("\"full_attention\" or \"{}\"", fmt::join(other.begin(), other.end(), "\" or \"")));
    return {};
  }
  return LayerSet::of(full);
}

LayerSet layers_in_text(JsonReader& reader, std::string_view key, const Model& model) {
  std::vector<bool> member = none_of_layers(model);
  const std::string text = reader.text(key);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), layer);
    if (error != std::errc()) {
      reader.note(std::string(key), fmt::format("\"{}\" is no list of layers", shortened(text)), "as in \"3,4,5\"");
      return {};
    }
    if (layer < member.size()) member[layer] = true;
    at = static_cast<std::size_t>(end - text.data()) + 1;  // behind the comma
  }
  return LayerSet::of(member);
}

}  // namespace ns_dist::hugging_face
