#include <algorithm>

#include "ns_dist/fields.h"
#include "ns_dist/internal/split_at.h"
#include "readers.h"

namespace ns_dist {
namespace {

FieldLimit read_limit(JsonReader& reader) {
  FieldLimit limit{reader.text("field"), reader.texts("values"), reader.texts("except")};
  if (limit.values.empty() == limit.except.empty()) {
    reader.note("values", "a limit names the values that there are, or with \"except\" those that there are not");
  }
  return limit;
}

}  // namespace

bool FieldLimit::allows(std::string_view text) const {
  bool one_of_values = values.empty();
  for (const std::string_view word : split_at(text, ":,")) {
    for (const std::string& each : except) {
      if (each == word || (each == "N" && is_whole_number(word))) return false;
    }
    one_of_values |= std::find(values.begin(), values.end(), word) != values.end();
  }
  return one_of_values;
}

Result<Framework> read_framework(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema("ns-dist/framework/1");
  Framework framework;
  framework.id = reader.text("id");
  framework.name = reader.text("name");
  framework.like = reader.text("like", Presence::kOptional);
  framework.named_as = reader.texts("named_as");
  framework.compared_with = reader.text("compared_with", Presence::kOptional);
  reader.objects("set", [&](JsonReader& inner) {
    framework.set.push_back({{inner.text("field"), inner.text("value")}, inner.where()});
    const std::string& field = framework.set.back().field;
    const auto twice = [&](const Assignment& assignment) { return assignment.field == field; };
    if (std::count_if(framework.set.begin(), framework.set.end(), twice) > 1) inner.note("field", "it is set twice");
    if (inner.text("source").empty()) inner.note("source", "a default without its source");
  });
  reader.objects(
      "only",
      [&](JsonReader& inner) {
        framework.only.push_back({read_limit(inner), inner.where()});
        FieldLimit& limit = framework.only.back();
        inner.objects(
            "when", [&](JsonReader& condition) { limit.when.push_back(read_limit(condition)); }, Presence::kOptional);
        if (inner.text("source").empty()) inner.note("source", "a limit without its source");
      },
      Presence::kOptional);
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return framework;
}

}  // namespace ns_dist
