// Layers of a model, told by lists with an entry for each of them, by their numbers, or by texts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "keys.h"

namespace ns_dist::hugging_face {

// False for each layer.
std::vector<bool> none_of_layers(const Model& model);
// The layers that an array of layer numbers names, or all others.
LayerSet listed_layers(JsonReader& reader, std::string_view key, const Model& model, bool named);
// "3,4,5": the layers of a text.
LayerSet layers_in_text(JsonReader& reader, std::string_view key, const Model& model);
// The layers that an array of 0 and 1 gives `flag`.
LayerSet flagged_layers(JsonReader& reader, std::string_view key, const Model& model, double flag);
std::vector<std::string> types_of_layers(JsonReader& reader, std::string_view key, const Model& model);
// Layers whose queries choose some of all tokens: DeepSeek's ("index_topk"), as transformers 5 names them,
// MiniMax-M3's.
bool chooses_tokens(std::string_view type);
// "layer_types" names the attention of each layer. Returns those that see all tokens. `other`: what others are.
LayerSet read_layer_types(JsonReader& reader, const Model& model, Keys other);

// One entry for each layer. A list with fewer is a mistake; it may have more, of layers for multi-token prediction.
template <class Entry>
std::vector<Entry> one_for_each_layer(JsonReader& reader, std::string_view key, std::vector<Entry> entries,
                                      const Model& model) {
  const std::size_t layers = none_of_layers(model).size();
  if (entries.size() < layers) {
    reader.note(std::string(key), fmt::format("{} entries for {} layers", entries.size(), layers),
                "one entry for each layer");
  }
  entries.resize(layers, entries.empty() ? Entry() : entries.back());
  return entries;
}

// The layers whose entry is wanted.
template <class Entry, class Wanted>
LayerSet layers_where(const std::vector<Entry>& entries, const Wanted& wanted) {
  std::vector<bool> member(entries.size());
  std::transform(entries.begin(), entries.end(), member.begin(), wanted);
  return LayerSet::of(member);
}

}  // namespace ns_dist::hugging_face
