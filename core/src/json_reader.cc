#include "ns_dist/internal/json_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/printable.h"

namespace ns_dist {
namespace {

std::string range_text(double least, double most) {
  return std::isfinite(most) ? fmt::format("a number from {} to {}", least, most)
                             : fmt::format("a number from {}", least);
}

std::string_view type_of(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "true or false";
  if (value.is_string()) return "text";
  if (value.is_number()) return "a number";
  if (value.is_array()) return "an array";
  return "an object";
}

constexpr std::size_t kLongestExcerpt = 40;

// Recursion ends at kLongestExcerpt: each level of nesting adds a byte.
void append_excerpt(const nlohmann::ordered_json& value, std::string& text) {
  if (text.size() > kLongestExcerpt) return;
  const bool object = value.is_object();
  if (!object && !value.is_array()) {
    if (value.is_string()) {
      const std::string& all = *value.get_ptr<const std::string*>();
      const nlohmann::ordered_json cut = all.substr(0, kLongestExcerpt);
      text += cut.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    } else {
      text += value.dump();
    }
    return;
  }
  text += object ? '{' : '[';
  bool first = true;
  for (const auto& [key, inner] : value.items()) {
    if (text.size() > kLongestExcerpt) return;
    if (!first) text += ',';
    first = false;
    if (object) {
      append_excerpt(key.substr(0, kLongestExcerpt), text);
      text += ':';
    }
    append_excerpt(inner, text);
  }
  text += object ? '}' : ']';
}

constexpr std::size_t kMostKeys = 10'000;

// Builds the tree in one pass, and ends at what nlohmann's parser lets through.
struct StrictParse : nlohmann::json_sax<nlohmann::ordered_json> {
  // An object or an array that is open: its keys so far, and the last one; or the number of its last value.
  struct Level {
    nlohmann::ordered_json* node;
    std::set<std::string, std::less<>> keys = {};
    const std::string* key = nullptr;
    std::int64_t index = -1;
  };
  nlohmann::ordered_json root;
  std::vector<Level> levels;
  std::string problem, expected = "a JSON object", pointer;
  std::size_t byte = 0;

  nlohmann::ordered_json& put(nlohmann::ordered_json value) {
    if (levels.empty()) return root = std::move(value);
    Level& level = levels.back();
    ++level.index;
    if (level.key == nullptr) {
      level.node->push_back(std::move(value));
      return level.node->back();
    }
    // The key is new: no need to look for it.
    auto& members = level.node->get_ref<nlohmann::ordered_json::object_t&>();
    members.push_back({*level.key, std::move(value)});
    return members.back().second;
  }
  bool add(nlohmann::ordered_json value) { return put(std::move(value)), true; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool refuse(std::string message, std::string wanted) {
    problem = std::move(message), expected = std::move(wanted);
    for (const Level& level : levels) {
      pointer += "/" + (level.key != nullptr ? pointer_step(*level.key) : std::to_string(level.index));
    }
    return false;
  }
  bool open(nlohmann::ordered_json empty) {
    if (levels.size() == kDeepestJson) {
      ++levels.back().index;
      return refuse(fmt::format("nested deeper than {} levels", kDeepestJson),
                    fmt::format("at most {} objects and arrays in each other", kDeepestJson));
    }
    levels.push_back({&put(std::move(empty))});
    return true;
  }
  bool close() { return levels.pop_back(), true; }
  bool start_object(std::size_t) override { return open(nlohmann::ordered_json::object()); }
  bool key(string_t& name) override {
    Level& level = levels.back();
    if (level.keys.size() >= kMostKeys) {  // an ordered object looks through all of them for each
      level.key = &name;
      return refuse(fmt::format("more than {} keys in one object", kMostKeys),
                    fmt::format("at most {} keys", kMostKeys));
    }
    const auto [added, is_new] = level.keys.insert(name);
    level.key = &*added;
    if (is_new) return true;
    return refuse(fmt::format("key \"{}\" is given twice in one object", shortened(name)), "each key once");
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(nlohmann::ordered_json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    byte = position;
    problem = error.what();
    return false;
  }
};

// What nlohmann says of a mistake, as in "[json.exception.parse_error.101] parse error at line 1, column 2: syntax
// error while parsing value - invalid literal; last read: 'no'", without what it says of itself and of the place.
std::string_view cause_of(std::string_view what) {
  const auto skip = [&what](std::string_view begin, std::string_view end) {
    const std::size_t at = what.starts_with(begin) ? what.find(end) : std::string_view::npos;
    if (at != std::string_view::npos) what.remove_prefix(at + end.size());
  };
  skip("[json.exception", "] ");
  skip("parse error", ": ");
  skip("syntax error", " - ");
  return what;
}

// "file:line:column" of a byte.
std::string place_of(std::string_view text, std::size_t byte, const std::string& where) {
  const std::string_view before = text.substr(0, byte);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  return fmt::format("{}:{}:{}", where, line, column);
}

bool is_markup(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '<';
}

}  // namespace

std::string json_excerpt(const nlohmann::ordered_json& value) {
  std::string text;
  append_excerpt(value, text);
  if (text.size() > kLongestExcerpt) text = text.substr(0, kLongestExcerpt) + "...";
  return text;
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  return text.size() <= kLongest ? std::string(text) : std::string(text.substr(0, kLongest)) + "...";
}

std::string pointer_step(std::string_view key) {
  std::string step;
  for (const char c : shortened(key)) step += c == '~' ? std::string("~0") : c == '/' ? "~1" : std::string(1, c);
  return step;
}

Result<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& where) {
  if (text.size() > kLongestJson) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} MiB of JSON", text.size() >> 20), where,
                 fmt::format("at most {} MiB", kLongestJson >> 20)});
  }
  StrictParse parse;
  const bool parsed = nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &parse);
  std::string message = parse.problem;
  const bool ends = message.find("unexpected end of input") != std::string::npos ||
                    message.find("missing closing quote") != std::string::npos;
  // The parser takes a byte 0 for the end, and what is behind it would not be read.
  if (const std::size_t null = text.find('\0'); null != std::string_view::npos && (parsed || ends)) {
    return fail({ErrorCode::kInvalidInput, "a byte 0", place_of(text, null, where), "JSON text in UTF-8"});
  }
  if (parsed) return std::move(parse.root);
  std::string place = where;
  if (!parse.pointer.empty()) place += "#" + shortened(parse.pointer);
  if (parse.byte > 0) {
    place = place_of(text, parse.byte - 1, where);
    message = ends              ? "the file ends too early"
              : is_markup(text) ? "this is HTML without a report: the page ends too early, or is none of ns-dist"
                                : "this is not JSON (" + shortened(cause_of(message)) + ")";
  }
  return fail({ErrorCode::kInvalidInput, message, place, parse.expected});
}

JsonReader::JsonReader(const nlohmann::ordered_json& value, std::string where, std::vector<Error>& errors,
                       std::string pointer)
    : value_(&value), where_(std::move(where)), pointer_(std::move(pointer)), errors_(&errors) {
  if (!value.is_object()) wrong_type("", value, "an object");
}

bool JsonReader::has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

bool JsonReader::is_null(std::string_view key) const { return has(key) && value_->find(key)->is_null(); }

bool JsonReader::is_boolean(std::string_view key) const { return has(key) && value_->find(key)->is_boolean(); }

bool JsonReader::is_text(std::string_view key) const { return has(key) && value_->find(key)->is_string(); }

std::string JsonReader::where(std::string_view key) const {
  return key.empty() ? where_ + "#" + pointer_ : fmt::format("{}#{}/{}", where_, pointer_, shortened(key));
}

void JsonReader::note(std::string_view place, std::string message, std::string expected, std::string hint) {
  errors_->push_back(
      {ErrorCode::kInvalidInput, std::move(message), where(place), std::move(expected), std::move(hint)});
}

bool JsonReader::misses_keys(std::size_t from) const {
  return std::any_of(errors_->begin() + static_cast<std::ptrdiff_t>(from), errors_->end(),
                     [](const Error& error) { return error.message.ends_with("is missing"); });
}

bool JsonReader::is_noted(std::string_view place) const {
  return std::any_of(errors_->begin(), errors_->end(),
                     [here = where(place)](const Error& error) { return error.where == here; });
}

void JsonReader::wrong_type(std::string_view key, const nlohmann::ordered_json& value, std::string_view expected) {
  note(key, fmt::format("{} is {}", json_excerpt(value), type_of(value)), std::string(expected));
}

const nlohmann::ordered_json* JsonReader::find(std::string_view key, Presence presence) {
  known_.emplace(key);
  if (!value_->is_object()) return nullptr;
  const auto found = value_->find(key);
  if (found != value_->end() && !(null_is_missing_ && found->is_null())) return &*found;
  if (presence == Presence::kRequired) note("", fmt::format("key \"{}\" is missing", key));
  return nullptr;
}

void JsonReader::schema(std::string_view expected) {
  if (value_->is_object() && find("schema", Presence::kOptional) == nullptr) {
    note("", "key \"schema\" is missing", fmt::format("\"schema\": \"{}\"", expected));
    return;
  }
  const std::string given = text("schema");
  if (!given.empty() && given != expected) {
    note("schema", fmt::format("\"{}\" is not what is read here", shortened(given)), fmt::format("\"{}\"", expected));
  }
}

std::string JsonReader::json(std::string_view key, Presence presence) {
  const nlohmann::ordered_json* value = find(key, presence);
  return value == nullptr ? "" : value->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

const std::string* JsonReader::quantity_text(std::string_view key, Presence presence, Error (*without_unit)()) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return nullptr;
  if (value->is_string()) return value->get_ptr<const std::string*>();
  if (value->is_number()) {
    Error usual = without_unit();
    note(key, fmt::format("{} is a bare number", json_excerpt(*value)), std::move(usual.expected),
         std::move(usual.hint));
  } else {
    wrong_type(key, *value, "a quantity as text with its unit");
  }
  return nullptr;
}

std::string JsonReader::text(std::string_view key, Presence presence) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return {};
  if (value->is_string()) return printable(value->get<std::string>());
  wrong_type(pointer_step(key), *value, "text");
  return {};
}

std::vector<std::string> JsonReader::texts(std::string_view key, Presence presence) {
  std::vector<std::string> all;
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return all;
  if (!value->is_array()) {
    wrong_type(key, *value, "an array of texts");
    return all;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    if ((*value)[i].is_string()) {
      all.push_back(printable((*value)[i].get<std::string>()));
    } else {
      wrong_type(fmt::format("{}/{}", key, i), (*value)[i], "text");
    }
  }
  return all;
}

bool JsonReader::boolean(std::string_view key, bool fallback, Presence presence) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, *value, "true or false");
  return fallback;
}

std::int64_t JsonReader::integer(std::string_view key, std::int64_t least, std::int64_t most, Presence presence,
                                 std::int64_t fallback) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return fallback;
  const auto expected = [&] { return fmt::format("a whole number from {} to {}", least, most); };
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>());
  if (!whole) {
    note(key, fmt::format("{} is not a whole number", json_excerpt(*value)), expected());
    return fallback;
  }
  const double approximate = value->get<double>();
  if (approximate < static_cast<double>(least) || approximate > static_cast<double>(most)) {
    note(key, fmt::format("{} is out of range", json_excerpt(*value)), expected());
    return fallback;
  }
  return value->is_number_integer() ? value->get<std::int64_t>() : static_cast<std::int64_t>(approximate);
}

double JsonReader::number(std::string_view key, double least, double most, Presence presence, double fallback) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    wrong_type(key, *value, range_text(least, most));
    return fallback;
  }
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    note(key, fmt::format("{} is out of range", json_excerpt(*value)), range_text(least, most));
    return fallback;
  }
  return number;
}

void JsonReader::add_numbers(const std::string& place, const nlohmann::ordered_json& values, double least, double most,
                             std::vector<double>& all) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const nlohmann::ordered_json& value = values[i];
    if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most) {
      all.push_back(value.get<double>());
    } else {
      note(fmt::format("{}/{}", place, i), fmt::format("{} is out of range", json_excerpt(value)),
           range_text(least, most));
    }
  }
}

std::vector<double> JsonReader::numbers(std::string_view key, double least, double most, Presence presence) {
  std::vector<double> all;
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return all;
  if (value->is_array()) {
    add_numbers(std::string(key), *value, least, most, all);
  } else {
    wrong_type(key, *value, "an array of numbers");
  }
  return all;
}

std::vector<std::int64_t> JsonReader::integers(std::string_view key, std::int64_t least, std::int64_t most,
                                               Presence presence) {
  std::vector<std::int64_t> all;
  const std::vector<double> values = numbers(key, static_cast<double>(least), static_cast<double>(most), presence);
  const nlohmann::ordered_json* given = find(key, Presence::kOptional);
  for (const double value : values) {
    all.push_back(static_cast<std::int64_t>(value));
    if (static_cast<double>(all.back()) == value) continue;
    const auto place = std::find(given->begin(), given->end(), nlohmann::ordered_json(value)) - given->begin();
    note(fmt::format("{}/{}", key, place), fmt::format("{} is not a whole number", value),
         range_text(static_cast<double>(least), static_cast<double>(most)));
  }
  return all;
}

std::vector<std::vector<double>> JsonReader::number_rows(std::string_view key, std::size_t width, double least,
                                                         double most, Presence presence) {
  std::vector<std::vector<double>> all;
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return all;
  const std::string expected = fmt::format("arrays of {} numbers", width);
  if (!value->is_array()) {
    wrong_type(key, *value, expected);
    return all;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::string place = fmt::format("{}/{}", key, i);
    if ((*value)[i].is_array() && (*value)[i].size() == width) {
      add_numbers(place, (*value)[i], least, most, all.emplace_back());
    } else {
      wrong_type(place, (*value)[i], expected);
    }
  }
  return all;
}

std::size_t JsonReader::choice(std::string_view key, const std::vector<std::string_view>& names, Presence presence,
                               std::size_t fallback) {
  const nlohmann::ordered_json* value = find(key, presence);
  if (value == nullptr) return fallback;
  const auto expected = [&] { return fmt::format("one of {}", fmt::join(names, ", ")); };
  if (!value->is_string()) {
    wrong_type(key, *value, expected());
    return fallback;
  }
  const std::string& given = *value->get_ptr<const std::string*>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == given) return i;
  }
  const std::string near = nearest_name(given, {names.begin(), names.end()});
  note(key, fmt::format("\"{}\" is not known", shortened(given)), expected(), did_you_mean(near));
  return fallback;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> all;
  if (!value_->is_object()) return all;
  for (const auto& [key, unused] : value_->items()) all.push_back(key);
  return all;
}

void JsonReader::reject_unknown_keys() {
  if (accept_unknown_ || !value_->is_object()) return;
  const std::vector<std::string> known(known_.begin(), known_.end());
  constexpr int kMostNoted = 20;  // the nearest name of each takes time
  int noted = 0;
  for (const auto& [key, unused] : value_->items()) {
    if (known_.contains(key)) continue;
    if (++noted > kMostNoted) return note("", fmt::format("more than {} keys are not known", kMostNoted));
    const std::string near = nearest_name(key, known);
    note(pointer_step(key), fmt::format("key \"{}\" is not known", shortened(key)), "",
         did_you_mean(near, fmt::format("known here: {}", fmt::join(known, ", "))));
  }
}

}  // namespace ns_dist
