#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/search.h"

namespace ns_dist {
namespace {

using nlohmann::ordered_json;

constexpr double kMostRows = 1e8;  // a sweep with more is refused
constexpr const char* kExpected =
    "an object of fields and values, as in {\"tp\": [1, 2, 4], \"micro-batch\": \"1..8\"}";

Error mistake(const std::string& where, std::string message, std::string hint = "") {
  return {ErrorCode::kInvalidInput, std::move(message), where, kExpected, std::move(hint)};
}

// "tp", "micro-batch" and "plan/tp" are fields.
const FieldDescription* field_of(const std::string& key) {
  for (const FieldDescription& description : scenario_fields()) {
    if (key == description.field.name || "--" + key == description.flag) return &description;
  }
  return nullptr;
}

// An error of a value of `field` as the file has it: fields have the file's keys there.
Error of_file(Error error, const std::string& where, const std::string& field, const std::string& key) {
  error.where = where;
  error.code = ErrorCode::kInvalidInput;
  for (std::size_t at = 0; (at = error.hint.find(field + "=", at)) != std::string::npos;) {
    const std::string own = fmt::format("\"{}\": ", key);
    error.hint.replace(at, field.size() + 1, own);
    at += own.size();
  }
  for (Error& more : error.also) more = of_file(std::move(more), where, field, key);
  return error;
}

std::string text_of(const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

bool set_the_same(const FieldDescription& a, const FieldDescription& b) {
  return a.field.name == b.field.name || a.covers(b.field.name) || b.covers(a.field.name);
}

Result<std::vector<FieldValues>> read_sweep(std::string_view text, const std::string& path) {
  NS_TRY(const ordered_json root, parse_json(text, path));
  if (!root.is_object() || root.empty()) return fail(mistake(path + "#", "there are no fields"));
  std::vector<FieldValues> fields;
  std::vector<Error> errors;
  std::vector<std::string> names;
  for (const FieldDescription& description : scenario_fields()) names.push_back(description.flag.substr(2));
  for (const auto& [key, value] : root.items()) {
    const std::string where = path + "#/" + pointer_step(key);
    const FieldDescription* description = field_of(key);
    if (description == nullptr) {
      const std::string near = nearest_name(key, names);
      errors.push_back(mistake(where, "there is no such field", did_you_mean(near)));
      continue;
    }
    const std::string field(description->field.name);
    const auto same = std::find_if(fields.begin(), fields.end(), [&](const FieldValues& each) {
      return set_the_same(*find_field(each.field), *description);
    });
    if (same != fields.end()) {
      errors.push_back(mistake(
          where, same->field == field ? "the field is there twice"
                                      : fmt::format("\"{}\" sets it, too", find_field(same->field)->flag.substr(2))));
      continue;
    }
    FieldValues values{field, {}};
    std::set<std::string> known;  // equal values are taken once, as in lists of read_values
    if (value.is_array() && value.empty()) errors.push_back(mistake(where, "there are no values"));
    for (const ordered_json& each : value.is_array() ? value : ordered_json::array({value})) {
      if (!each.is_primitive() || each.is_null()) {
        errors.push_back(mistake(where, fmt::format("{} is no value", json_excerpt(each))));
      } else if (value.is_array()) {
        if (std::string one = text_of(each); known.insert(one).second) values.values.push_back(std::move(one));
      } else if (auto list = read_values(field, text_of(each)); !list) {
        errors.push_back(of_file(std::move(list.error()), where, field, key));
      } else {
        values = *std::move(list);
      }
    }
    if (value.is_array()) {
      ScenarioSpec spec;
      for (const std::string& each : values.values) spec.set(field, std::string_view(each));
      if (auto readable = check_values(spec); !readable) {
        errors.push_back(of_file(std::move(readable.error()), where, field, key));
      }
    }
    fields.push_back(std::move(values));
  }
  if (!errors.empty()) return fail(join(std::move(errors)));
  double rows = 1;
  for (const FieldValues& each : fields) rows *= static_cast<double>(each.values.size());
  if (rows > kMostRows) {
    const auto most = std::max_element(fields.begin(), fields.end(), [](const FieldValues& a, const FieldValues& b) {
      return a.values.size() < b.values.size();
    });
    return fail(
        {ErrorCode::kInvalidInput, fmt::format("the sweep has {:.3g} rows", rows), path,
         fmt::format("at most {:.0e}", kMostRows),
         fmt::format("write fewer values of {} ({} values)", find_field(most->field)->flag, most->values.size())});
  }
  return fields;
}

}  // namespace ns_dist
