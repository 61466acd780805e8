// Do the JSON Schemas of configs/schema say what the files hold, and what the readers take?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ns_dist/catalog.h"
#include "readers.h"

namespace ns_dist {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::Matches;

const std::filesystem::path kConfigs = std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs";

Json parsed(const std::filesystem::path& path) { return Json::parse(std::ifstream(path)); }

bool has_type(const Json& value, const Json& type) {
  if (type.is_array()) {
    return std::any_of(type.begin(), type.end(), [&](const Json& each) { return has_type(value, each); });
  }
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  return type == "integer" && value.is_number() && std::floor(value.get<double>()) == value.get<double>();
}

// Notes where `value` breaks `schema`, by the keywords that our schemas use; any other keyword is noted, too.
void check(const Json& schema, const Json& value, const std::string& place, std::vector<std::string>& wrong) {
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds) wrong.push_back(place + ": " + what);
  };
  if (schema.contains("type") && !has_type(value, schema["type"])) return expect(false, "not " + schema["type"].dump());
  static const std::set<std::string> kOfObjects = {"propertyNames", "properties", "additionalProperties"};
  for (const auto& [keyword, rule] : schema.items()) {
    const std::string broken = keyword + " " + rule.dump();
    if (keyword == "const") {
      expect(value == rule, broken);
    } else if (keyword == "enum") {
      expect(std::find(rule.begin(), rule.end(), value) != rule.end(), broken);
    } else if (keyword == "pattern") {
      expect(Matches(ContainsRegex(rule.get<std::string>()))(value.get<std::string>()), broken);
    } else if (keyword == "minLength") {
      expect(value.get<std::string>().size() >= rule, broken);
    } else if (keyword == "minimum") {
      expect(value >= rule, broken);
    } else if (keyword == "maximum") {
      expect(value <= rule, broken);
    } else if (keyword == "exclusiveMinimum") {
      expect(value > rule, broken);
    } else if (keyword == "minItems" || keyword == "minProperties") {
      expect(value.size() >= rule, broken);
    } else if (keyword == "maxProperties") {
      expect(value.size() <= rule, broken);
    } else if (keyword == "uniqueItems") {
      expect(std::set<Json>(value.begin(), value.end()).size() == value.size(), broken);
    } else if (keyword == "items") {
      for (std::size_t i = 0; i < value.size(); ++i) check(rule, value[i], place + "/" + std::to_string(i), wrong);
    } else if (keyword == "anyOf") {
      expect(std::any_of(rule.begin(), rule.end(),
                         [&](const Json& each) {
                           std::vector<std::string> why;
                           check(each, value, place, why);
                           return why.empty();
                         }),
             broken);
    } else if (keyword == "required") {
      for (const std::string key : rule) expect(value.contains(key), "\"" + key + "\" is missing");
    } else if (kOfObjects.contains(keyword) && !value.is_object()) {
      continue;
    } else if (keyword == "propertyNames") {
      for (const auto& [key, unused] : value.items()) check(rule, key, place + "/" + key, wrong);
    } else if (keyword == "properties") {
      for (const auto& [key, inner] : rule.items()) {
        if (value.contains(key)) check(inner, value[key], place + "/" + key, wrong);
      }
    } else if (keyword == "additionalProperties") {
      for (const auto& [key, inner] : value.items()) {
        if (schema.contains("properties") && schema["properties"].contains(key)) continue;
        expect(rule != false, "\"" + key + "\" is not described");
        if (rule.is_object()) check(rule, inner, place + "/" + key, wrong);
      }
    } else {
      static const std::set<std::string> kSaysNothing = {"$schema", "$id", "title", "description", "type"};
      expect(kSaysNothing.contains(keyword), "this test does not know the keyword " + keyword);
    }
  }
}

// What a schema or a reader says of each object, by its place: "/moe", "/levels/0".
struct Description {
  std::map<std::string, std::set<std::string>> keys, required;
  std::map<std::string, std::string> choices;  // by the place of the key: "one of ring, tree"
};

void describe(const Json& schema, const std::string& place, Description& found) {
  if (schema.contains("items")) return describe(schema["items"], place + "/0", found);
  if (schema.contains("enum")) {
    std::string& names = found.choices[place];
    for (const std::string name : schema["enum"]) names += (names.empty() ? "one of " : ", ") + name;
  }
  if (!schema.contains("properties")) return;
  for (const auto& [key, inner] : schema["properties"].items()) {
    found.keys[place].insert(key);
    describe(inner, place + "/" + key, found);
  }
  for (const std::string key : schema.value("required", Json::array())) found.required[place].insert(key);
  for (const Json& each : schema.value("anyOf", Json::array())) {
    for (const std::string key : each["required"]) found.required[place].insert(key);
  }
  if (schema.contains("minProperties")) found.required[place] = found.keys[place];  // one of them is required
}

using Read = std::function<Error(const std::string& json)>;

// By the reader's errors: an unknown key is told which ones are known, a wrong name which ones there are.
void note(const Error& error, Description& found) {
  const std::string kKnown = "known here: ", kEnd = "/?", place = error.where.substr(error.where.find('#') + 1);
  if (error.hint.starts_with(kKnown) && place.ends_with(kEnd)) {
    std::istringstream names(error.hint.substr(kKnown.size()));
    for (std::string name; std::getline(names >> std::ws, name, ',');) {
      found.keys[place.substr(0, place.size() - kEnd.size())].insert(name);
    }
  }
  if (error.message.starts_with("key \"") && error.message.ends_with("\" is missing")) {
    found.required[place].insert(error.message.substr(5, error.message.find('"', 5) - 5));
  }
  if (error.message == "\"?\" is not known" && error.expected.starts_with("one of ")) {
    found.choices[place] = error.expected;
  }
  for (const Error& other : error.also) note(other, found);
}

// Asks for one object after the other, which is empty, and then for all of them with all their keys: a torus has other
// keys than a switch.
Description asked(const Description& described, const Read& read) {
  Description found;
  Json all;
  for (const auto& [place, keys] : described.keys) {
    Json empty;
    empty[Json::json_pointer(place + "/?")] = "?";
    note(read(empty.dump()), found);
    all[Json::json_pointer(place + "/?")] = "?";
    for (const std::string& key : keys) {
      if (!described.keys.contains(place + "/" + key) && !described.keys.contains(place + "/" + key + "/0")) {
        all[Json::json_pointer(place + "/" + key)] = "?";
      }
    }
  }
  note(read(all.dump()), found);
  return found;
}

struct Kind {
  const char* name;
  const char* folder;
  Read read;
};

const std::vector<Kind>& kinds() {
  static const Catalog catalog = Catalog::built_in();
  static const std::vector<Kind> kKinds = {
      {"gpu", "gpus", [](const std::string& json) { return read_gpu(json, "x").error(); }},
      {"fabric", "fabrics", [](const std::string& json) { return read_fabric(json, "x").error(); }},
      {"model", "models", [](const std::string& json) { return read_model(json, "x").error(); }},
      {"cluster", "clusters", [](const std::string& json) { return read_cluster(json, "x", catalog).error(); }}};
  return kKinds;
}

Json schema_of(const Kind& kind) { return parsed(kConfigs / "schema" / (std::string(kind.name) + ".json")); }

TEST(Schema, EveryFileFollowsIt) {
  for (const Kind& kind : kinds()) {
    const Json schema = schema_of(kind);
    std::size_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(kConfigs / kind.folder)) {
      std::vector<std::string> wrong;
      check(schema, parsed(file.path()), "#", wrong);
      EXPECT_THAT(wrong, ElementsAre()) << file.path();
      ++files;
    }
    EXPECT_GT(files, 5U) << kind.folder;
  }
}

TEST(Schema, DescribesTheKeysThatTheReaderTakes) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Description described;
    describe(schema_of(kind), "", described);
    Description read = asked(described, kind.read);
    for (const auto& [place, keys] : described.keys) EXPECT_EQ(keys, read.keys[place]) << place;
    // Files of the catalog hold more than the reader needs.
    for (const auto& [place, keys] : read.required) {
      for (const std::string& key : keys) EXPECT_THAT(described.required[place], Contains(key)) << place;
    }
    // The reader takes any text for some keys whose names the schema lists.
    for (const auto& [place, names] : read.choices) EXPECT_EQ(described.choices[place], names) << place;
    EXPECT_EQ(read.choices.empty(), described.choices.empty());
  }
}

// The two tests above notice a schema that is wrong.
TEST(Schema, AChangedSchemaIsNoticed) {
  const Kind& gpu = kinds().front();
  const Json file = parsed(kConfigs / "gpus" / "h100-sxm-80gb.json"), schema = schema_of(gpu);
  const auto wrong_with = [&](const char* pointer, const Json& value) {
    Json changed = schema;
    changed[Json::json_pointer(pointer)] = value;
    std::vector<std::string> wrong;
    check(changed, file, "#", wrong);
    return wrong;
  };
  EXPECT_THAT(wrong_with("/title", "G"), ElementsAre());
  EXPECT_THAT(wrong_with("/properties/memory/properties", Json::object({{"type", Json::object()}})),
              ElementsAre("#/memory: \"capacity\" is not described", "#/memory: \"bandwidth\" is not described"));
  EXPECT_THAT(wrong_with("/properties/vendor/enum", {"amd"}), ElementsAre("#/vendor: enum [\"amd\"]"));
  EXPECT_THAT(wrong_with("/properties/pcie/required", {"width"}), ElementsAre("#/pcie: \"width\" is missing"));
  EXPECT_THAT(wrong_with("/properties/sm_count/minimum", 133), ElementsAre("#/sm_count: minimum 133"));
  EXPECT_THAT(wrong_with("/properties/name/maxLength", 3),
              ElementsAre("#/name: this test does not know the keyword maxLength"));

  Description described;
  describe(schema, "", described);
  described.keys["/memory"].erase("type");
  EXPECT_THAT(asked(described, gpu.read).keys.at("/memory"), Contains("type"));
}

}  // namespace
}  // namespace ns_dist
