// What is known of a class of transformers. Most of a model stands in its file; what the class does without saying so
// is a row of one of the families_*.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "readers.h"

namespace ns_dist::hugging_face {

// What a class takes for keys that a file leaves out.
class Defaults {
 public:
  struct Entry {
    std::string_view key;
    std::int64_t value = 0;
  };
  constexpr Defaults() = default;
  constexpr Defaults(std::initializer_list<Entry> entries) : count_(entries.size()) {
    std::copy(entries.begin(), entries.end(), entries_.begin());
  }
  // Null where the class has none.
  const std::int64_t* find(std::string_view key) const;

 private:
  std::array<Entry, 10> entries_ = {};
  std::size_t count_ = 0;
};

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
  // Of keys that published files leave out. The nested ones count only in a part of another file (LLaVA's and Pixtral's
  // "text_config"): a file of its own that lacks such a key is a mistake.
  Defaults defaults = {}, nested_defaults = {};
  // Of one file.
  bool windowed = true;  // a window in the file is used, unless the file says otherwise
  bool sparse = false;   // the file is a part of another one, which may leave out what the class has anyway
};

inline constexpr NormalizationKind kLayerNorm = NormalizationKind::kLayerNorm;
inline constexpr QueryKeyNorm kHead = QueryKeyNorm::kHead;

// Those of each file of families.
std::span<const Family> gpt_families();
std::span<const Family> encoder_families();
std::span<const Family> dense_families();
std::span<const Family> gemma_families();
std::span<const Family> expert_families();
std::span<const Family> latent_attention_families();
std::span<const Family> hybrid_families();

// All that are known.
std::span<const Family> families();
// Null where none has this type.
const Family* find_family(std::string_view model_type);
// The longest type that the name of a class in "architectures" begins with: "GPT2LMHeadModel" is a gpt2. `whole`: and
// nothing but what the model is for follows it, as in "MistralForCausalLM". Null where there is none.
const Family* family_of_class(JsonReader& reader, bool whole);
// Of types that are not known: the one that has the keys of the file, and the one with which the type begins, as
// "qwen3_asr_text" does with qwen3. Null where there is none, or where the keys are those of another kind of models.
const Family& nearest_family(JsonReader& reader, std::string_view type);
const Family* family_of_beginning(JsonReader& reader, std::string_view type);

}  // namespace ns_dist::hugging_face
