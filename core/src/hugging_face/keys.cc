#include "keys.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace ns_dist::hugging_face {
namespace {

// Null where the class has none.
const std::int64_t* default_of(const Family& family, std::string_view key) {
  const std::int64_t* const always = family.defaults.find(key);
  return always != nullptr || !family.sparse ? always : family.nested_defaults.find(key);
}

}  // namespace

const std::int64_t* Defaults::find(std::string_view key) const {
  const auto* const end = entries_.begin() + count_;
  const auto* const found = std::find_if(entries_.begin(), end, [&](const Entry& entry) { return entry.key == key; });
  return found == end ? nullptr : &found->value;
}

bool present(const JsonReader& reader, std::string_view key) { return reader.has(key) && !reader.is_null(key); }

bool active(JsonReader& reader, std::string_view key) {
  if (!present(reader, key)) return false;
  const std::string value = reader.json(key, Presence::kOptional);
  constexpr std::array<std::string_view, 7> kNothing = {"0", "1", "false", "[]", "{}", "\"\"", "0.0"};
  return std::find(kNothing.begin(), kNothing.end(), value) == kNothing.end();
}

std::string_view first_of(const JsonReader& reader, Keys keys) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](std::string_view key) { return present(reader, key); });
  return found == keys.end() ? *(keys.end() - 1) : *found;
}

bool has_default(const Family& family, std::string_view key) { return default_of(family, key) != nullptr; }

std::int64_t number_of_layers(JsonReader& reader, std::string_view key, std::int64_t least, std::int64_t most) {
  if (!reader.json(key, Presence::kOptional).starts_with('[')) return reader.integer(key, least, most);
  const std::vector<std::int64_t> values = reader.integers(key, least, most);
  if (values.empty()) return least;
  if (std::any_of(values.begin(), values.end(), [&](std::int64_t value) { return value != values.front(); })) {
    reader.note(std::string(key), "layers of different sizes cannot be forecast", "a number, or equal numbers");
  }
  return values.front();
}

std::int64_t size(JsonReader& reader, const Family& family, Keys keys, std::int64_t most) {
  const std::string_view key = first_of(reader, keys);
  if (const std::int64_t* known = default_of(family, key); known != nullptr && !present(reader, key)) return *known;
  return number_of_layers(reader, key, 1, most);
}

std::int64_t size_or(JsonReader& reader, const Family& family, Keys keys, std::int64_t fallback, std::int64_t most) {
  const std::string_view key = first_of(reader, keys);
  return present(reader, key) || has_default(family, key) ? size(reader, family, keys, most) : fallback;
}

}  // namespace ns_dist::hugging_face
