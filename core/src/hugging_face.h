// What the readers of Hugging Face's config.json share: the classes that are known, and how a file's keys are found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "readers.h"

namespace ns_dist::hugging_face {

using Keys = std::initializer_list<std::string_view>;
inline constexpr std::string_view kBlockTypes = "layers_block_type", kLayerPattern = "hybrid_override_pattern";

// A class of transformers: how its file is read, and what it does without saying so.
struct Family {
  std::string_view model_type;
  void (*read)(JsonReader&, const Family&, Model&);
  // Of what read_decoder reads.
  bool gated = true;
  std::string_view activation = {};  // where the file names none
  NormalizationKind norm = NormalizationKind::kRmsNorm;
  bool bias = false, qkv_bias = false, tied = false;
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  NormPlacement placement = NormPlacement::kPre;
  Branches branches = Branches::kSequential;
  double rotary = 1;               // part of a head
  std::int64_t full_every = 0;     // of layers with a window, every how many have none; 0: none
  bool full_is_unrotated = false;  // the layers without a window have no positions
  bool shared_expert = false;      // one, of an expert's width
  bool sinks = false;
  bool delta = false;           // the gated delta rule in most layers
  bool attention_gate = false;  // attention's outputs have a gate
  bool gate_of_head = false;    // one for each head
  bool convolution = false;     // short convolutions in most layers
  bool compressed = false;      // compressed attention and hyper-connections
  bool blocks = false;          // an object for each layer tells what it has
  bool shares_keys = false;     // layers may share keys, and read embeddings of their own
  bool hybrid = false;          // Mamba-2 in most layers, and a feed-forward behind it as behind attention
  // Of one file.
  bool windowed = true;  // a window in the file is used, unless the file says otherwise
  bool sparse = false;   // the file is a part of another one, which may leave out what the class has anyway
};

// All that are known (hugging_face_families.cc).
std::span<const Family> families();

bool present(const JsonReader& reader, std::string_view key);
// Whether the value of a key makes something of the model: it is there, and not none of it, or one.
bool active(JsonReader& reader, std::string_view key);
// The first of `keys` that is there. Without any, the last is reported as missing.
std::string_view first_of(const JsonReader& reader, Keys keys);
// A number from 1, under any of its names; the class's own where the file leaves it out. A list of one number for each
// layer is that number, if all are equal.
std::int64_t size(JsonReader& reader, const Family& family, Keys keys, std::int64_t most = kMostSize);

// The activation function's name in the file, or the family's.
std::string activation_of(JsonReader& reader, const Family& family);
// In types that no family names, an MLP with such an activation has no gate.
bool has_no_gate(std::string_view name);

}  // namespace ns_dist::hugging_face
