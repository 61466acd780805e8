#include <algorithm>

#include "readers.h"

namespace ns_dist {

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
        framework.only.push_back({{inner.text("field"), inner.texts("values", Presence::kRequired)}, inner.where()});
        if (inner.text("source").empty()) inner.note("source", "a limit without its source");
      },
      Presence::kOptional);
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return framework;
}

}  // namespace ns_dist
