
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "readers.h"

namespace ns_dist {
namespace {

// Files and reports: what `model_fields` asks for.
class FieldReader {
 public:
  static constexpr bool kReads = true;
  explicit FieldReader(JsonReader& reader) : reader_(reader) {}

  template <class T, class... Bounds>
  void required(std::string_view key, T& value, Bounds... bounds) {
    read(key, value, Presence::kRequired, bounds...);
  }
  template <class T, class... Bounds>
  void optional(std::string_view key, T& value, Bounds... bounds) {
    read(key, value, Presence::kOptional, bounds...);
  }
  void layers(std::string_view key, LayerSet& set) {
    reader_.object(
        key,
        [&set](JsonReader& inner) {
          set = {};
          const bool listed = inner.has("listed") || !inner.has("every");
          set.every = inner.integer("every", listed ? 0 : 1, kMostSize, Presence::kOptional, 0);
          if (!listed) return;
          set.listed = inner.integers("listed", 0, kMostSize);
          std::sort(set.listed.begin(), set.listed.end());
        },
        Presence::kOptional);
  }
  // null, as reports write it: there is none.
  template <class T, class Fields>
  void object(std::string_view key, std::optional<T>& value, const Fields& fields) {
    reader_.ignore(key);
    if (reader_.is_null(key)) return;
    reader_.object(
        key,
        [&](JsonReader& inner) {
          FieldReader io(inner);
          fields(io, value.emplace());
        },
        Presence::kOptional);
  }

 private:
  void read(std::string_view key, std::string& value, Presence presence) { value = reader_.text(key, presence); }
  void read(std::string_view key, std::vector<std::string>& values, Presence presence) {
    values = reader_.texts(key, presence);
  }
  void read(std::string_view key, std::vector<std::int64_t>& values, Presence presence, std::int64_t least,
            std::int64_t most) {
    if (presence == Presence::kRequired || reader_.has(key)) values = reader_.integers(key, least, most);
  }
  void read(std::string_view key, bool& value, Presence presence) { value = reader_.boolean(key, value, presence); }
  void read(std::string_view key, std::int64_t& value, Presence presence, std::int64_t least, std::int64_t most) {
    value = reader_.integer(key, least, most, presence, value);
  }
  void read(std::string_view key, double& value, Presence presence, double least, double most) {
    value = reader_.number(key, least, most, presence, value);
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void read(std::string_view key, Enum& value, Presence presence) {
    value = reader_.enumerator<Enum>(key, presence, value);
  }

  JsonReader& reader_;
};

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
      {"kv_heads", "multi_query_group_num"},
      {"moe/top_k", "num_experts_per_tok"},
      {"moe/top_groups", "topk_group"},
      {"moe/first_dense_layers", "first_k_dense_replace"},
      {"layer_pattern", "hybrid_override_pattern"},
      {"layer_pattern", "layer_types"},
      {"ffn_of_layers", "block_configs"},
      {"shared_keys_layers", "num_kv_shared_layers"},
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

void read_model_fields(JsonReader& reader, Model& model) {
  FieldReader io(reader);
  model_fields(io, model);
}

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
      std::error_code none;  // "." and ".." have a name, too
      const std::filesystem::path path = std::filesystem::absolute(where, none).lexically_normal();
      model.id = path.stem() == "config" && path.has_parent_path() ? path.parent_path().filename().string()
                                                                   : path.stem().string();
    }
    if (model.name.empty()) model.name = model.id;
    if (errors.empty()) note_shape(model, root, reader);
    if (!errors.empty()) return fail(join(std::move(errors)));
    return model;
  }
  if (root.is_object() && root.contains("peft_type")) {
    return fail({ErrorCode::kInvalidInput, "an adapter is no model", where, "a model's configuration",
                 std::string(kOfAdapter)});
  }
  reader.schema("ns-dist/model/1");
  read_model_fields(reader, model);
  check_sources(root, reader);
  note_shape(model, root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return model;
}

}  // namespace ns_dist
