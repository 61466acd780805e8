// Strict reading of JSON: every mistake of a file is noted with file and JSON pointer, and reading goes on, so that
// all of them are reported at once. For all modules while they are built; never installed.
//
//   NS_TRY(const nlohmann::ordered_json root, parse_json(text, "gpu.json"));
//   JsonReader reader(root, "gpu.json", errors);
//   gpu.sm_count = reader.integer("sm_count", 1, 4096);
//   reader.object("memory", [&](JsonReader& memory) { gpu.memory = memory.quantity<Bytes>("capacity"); });
//   reader.reject_unknown_keys();
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/names.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// Limits of every JSON text that is read. What is nested deeper, or is longer, is refused before a tree of it is built:
// printing and freeing a tree recurse. Numbers beyond a double's range are refused by the parser.
inline constexpr int kDeepestJson = 64;
inline constexpr std::size_t kLongestJson = std::size_t{256} << 20;  // bytes

// Errors: not JSON, or a byte 0 (with line and column); a key given twice, nesting deeper than kDeepestJson (with a
// pointer); longer than kLongestJson.
Result<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& where);

// `value` as a line of JSON, or as several with so many spaces before each level, ending in a newline. Never throws:
// bytes that are no UTF-8 become U+FFFD.
template <class Json>
std::string dump_json(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The beginning of `value` as JSON text, for messages: at most some 40 bytes, whatever the value's size and depth.
std::string json_excerpt(const nlohmann::ordered_json& value);

// `text` itself where it is short, else its beginning: for messages that repeat a text of a file.
std::string shortened(std::string_view text);

// `key` as a step of a JSON pointer: shortened, with ~ and / written ~0 and ~1 (RFC 6901, s.3).
std::string pointer_step(std::string_view key);

struct NumberRange {
  double least = 0, most = 0;
};

// What files may say of a machine: far beyond any that there is, and far within what a forecast can compute with.
inline constexpr NumberRange kPortsOfAGpu = {1e-9, 1e3}, kOversubscription = {1, 1e3};
template <class Q>
inline constexpr NumberRange kPlausible;  // in base units: s, B, FLOP, J
template <>
inline constexpr NumberRange kPlausible<Seconds> = {1e-12, 1e6};
template <>
inline constexpr NumberRange kPlausible<Bytes> = {1, 1e18};
template <>
inline constexpr NumberRange kPlausible<BytesPerSecond> = {1e6, 1e18};
template <>
inline constexpr NumberRange kPlausible<FlopsPerSecond> = {1e6, 1e21};
template <>
inline constexpr NumberRange kPlausible<Hertz> = {1e3, 1e13};
template <>
inline constexpr NumberRange kPlausible<Watts> = {1e-3, 1e9};

enum class Presence { kRequired, kOptional };

class JsonReader {
 public:
  // `errors` collects mistakes; `where` is the file's name, `pointer` the place of `value` in it.
  JsonReader(const nlohmann::ordered_json& value, std::string where, std::vector<Error>& errors,
             std::string pointer = "");

  bool has(std::string_view key) const;
  bool is_null(std::string_view key) const;     // there, and null
  bool is_boolean(std::string_view key) const;  // there, and true or false
  bool is_text(std::string_view key) const;     // there, and a string
  std::size_t error_count() const { return errors_->size(); }
  bool misses_keys(std::size_t from) const;            // whether one of the errors from this one on is a missing key
  std::string where(std::string_view key = "") const;  // "file#/pointer/key"

  // Reads "schema" and notes anything but `expected`.
  void schema(std::string_view expected);
  // Each returns a default when the key is missing or wrong, after noting why. Texts are printable().
  std::string text(std::string_view key, Presence presence = Presence::kRequired);
  std::vector<std::string> texts(std::string_view key, Presence presence = Presence::kOptional);
  bool boolean(std::string_view key, bool fallback, Presence presence = Presence::kOptional);
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most,
                       Presence presence = Presence::kRequired, std::int64_t fallback = 0);
  double number(std::string_view key, double least, double most, Presence presence = Presence::kRequired,
                double fallback = 0);
  // Numbers from `least` to `most`; those that are wrong are left out, after noting why.
  std::vector<double> numbers(std::string_view key, double least, double most, Presence presence = Presence::kRequired);
  // The same of whole numbers.
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most,
                                     Presence presence = Presence::kRequired);
  // `numbers`, in arrays of `width` numbers each.
  std::vector<std::vector<double>> number_rows(std::string_view key, std::size_t width, double least, double most,
                                               Presence presence = Presence::kRequired);
  // The index of the text in `names`; 0 after an error.
  std::size_t choice(std::string_view key, const std::vector<std::string_view>& names,
                     Presence presence = Presence::kRequired, std::size_t fallback = 0);
  template <class Enum>
  Enum enumerator(std::string_view key, Presence presence = Presence::kRequired, Enum fallback = Enum{}) {
    const std::span<const std::string_view> names = names_of<Enum>();
    return static_cast<Enum>(choice(key, {names.begin(), names.end()}, presence, static_cast<std::size_t>(fallback)));
  }
  // A positive quantity with its unit, within its plausible range.
  template <class Q>
  Q quantity(std::string_view key, Presence presence = Presence::kRequired) {
    const auto without_unit = [] { return parse_quantity<Q>("1").error(); };  // tells how one is written
    const std::string* value = quantity_text(key, presence, without_unit);
    if (value == nullptr) return Q();
    auto parsed = parse_quantity<Q>(shortened(*value));
    if (!parsed) {
      parsed.error().where = where(key);
      errors_->push_back(std::move(parsed.error()));
      return Q();
    }
    if (!(*parsed > Q())) {
      note(key, "\"" + shortened(*value) + "\" is not positive", "a quantity above zero");
      return Q();
    }
    constexpr NumberRange kRange = kPlausible<Q>;
    if (parsed->in_base() < kRange.least || parsed->in_base() > kRange.most) {
      note(key, "\"" + shortened(*value) + "\" is not plausible",
           to_text(Q::from_base(kRange.least)) + " to " + to_text(Q::from_base(kRange.most)));
      return Q();
    }
    return *parsed;
  }
  // Calls `read(JsonReader&)` on the object at `key`, and rejects its unknown keys afterwards.
  template <class Read>
  void object(std::string_view key, Read read, Presence presence = Presence::kRequired) {
    const nlohmann::ordered_json* value = find(key, presence);
    if (value == nullptr) return;
    if (!value->is_object()) return wrong_type(key, *value, "an object");
    JsonReader inner(*value, where_, *errors_, pointer_ + "/" + std::string(key));
    read(inner);
    inner.reject_unknown_keys();
  }
  // Calls `read(JsonReader&)` on every object of the array at `key`.
  template <class Read>
  void objects(std::string_view key, Read read, Presence presence = Presence::kRequired) {
    const nlohmann::ordered_json* value = find(key, presence);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong_type(key, *value, "an array");
    for (std::size_t i = 0; i < value->size(); ++i) {
      const std::string place = std::string(key) + "/" + std::to_string(i);
      if (!(*value)[i].is_object()) {
        wrong_type(place, (*value)[i], "an object");
        continue;
      }
      JsonReader inner((*value)[i], where_, *errors_, pointer_ + "/" + place);
      read(inner);
      inner.reject_unknown_keys();
    }
  }
  // An error of another reader.
  void note(Error error) { errors_->push_back(std::move(error)); }
  // The value at `key` as JSON text, for a reader of its own; empty where it is missing.
  std::string json(std::string_view key, Presence presence = Presence::kRequired);
  // All keys of the object at this reader.
  std::vector<std::string> keys() const;
  void ignore(std::string_view key) { known_.emplace(key); }
  // For files of other programs: whatever else they hold is theirs.
  void accept_unknown_keys() { accept_unknown_ = true; }
  void treat_null_as_missing() { null_is_missing_ = true; }

  // Notes every key that nobody asked for, with the nearest one that somebody did.
  void reject_unknown_keys();
  // `place` is a pointer without its first /: a key, or a path as in "levels/1".
  void note(std::string_view place, std::string message, std::string expected = "", std::string hint = "");
  // Whether a mistake was noted there.
  bool is_noted(std::string_view place) const;

 private:
  const nlohmann::ordered_json* find(std::string_view key, Presence presence);
  const std::string* quantity_text(std::string_view key, Presence presence, Error (*without_unit)());
  void add_numbers(const std::string& place, const nlohmann::ordered_json& values, double least, double most,
                   std::vector<double>& all);
  void wrong_type(std::string_view key, const nlohmann::ordered_json& value, std::string_view expected);

  const nlohmann::ordered_json* value_;
  std::string where_, pointer_;
  std::vector<Error>* errors_;
  std::set<std::string, std::less<>> known_;
  bool accept_unknown_ = false, null_is_missing_ = false;
};

}  // namespace ns_dist
