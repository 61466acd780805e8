#include "ns_dist/internal/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ParseJson, SaysWhereAFileBreaks) {
  EXPECT_THAT(to_text(parse_json("{\"a\": 1", "x.json").error()), HasSubstr("x.json:1:"));
  EXPECT_THAT(to_text(parse_json("{\"a\": 1", "x.json").error()), HasSubstr("ends too early"));
  EXPECT_THAT(to_text(parse_json("{\"a", "x.json").error()), HasSubstr("x.json:1:4: the file ends too early;"));
  // A mistake in the last byte is no early end, and the library's own words are left out.
  EXPECT_THAT(to_text(parse_json("{\"a\": 1,}", "x.json").error()),
              HasSubstr("x.json:1:9: this is not JSON (unexpected '}'; expected string literal);"));
  EXPECT_THAT(to_text(parse_json("{\"a\": 1e400}", "x.json").error()),
              HasSubstr("this is not JSON (number overflow parsing '1e400');"));
  EXPECT_THAT(to_text(parse_json("{\n \"a\": nan}", "x.json").error()), HasSubstr("x.json:2:"));
  EXPECT_THAT(to_text(parse_json("{\"a\": 1, \"a\": 2}", "x.json").error()), HasSubstr("given twice"));
  EXPECT_THAT(to_text(parse_json(std::string(200, '['), "x.json").error()), HasSubstr("nested deeper"));
  EXPECT_FALSE(parse_json("", "x.json"));
  // What only the tree tells has a pointer.
  EXPECT_EQ(to_text(parse_json(R"({"a": [0, {"b": 1, "b": 2}]})", "x.json").error()),
            "x.json#/a/1/b: key \"b\" is given twice in one object; expected each key once");
  EXPECT_THAT(to_text(parse_json("{\"a\": " + std::string(200, '['), "x.json").error()),
              AllOf(HasSubstr("x.json#/a/0/0/"), HasSubstr("expected at most 64 objects and arrays in each other")));
  EXPECT_FALSE(parse_json("{\"a\": 1e999}", "x.json"));
}

// The parser takes it for the end of the text.
TEST(ParseJson, NothingIsIgnoredBehindAByteZero) {
  using namespace std::string_literals;
  EXPECT_EQ(to_text(parse_json("{\"a\": 1}\n\0{\"b\": 2}"s, "x.json").error()),
            "x.json:2:1: a byte 0; expected JSON text in UTF-8");
  EXPECT_THAT(to_text(parse_json("{\"a\":\0 1}"s, "x.json").error()), HasSubstr("x.json:1:6: a byte 0"));
  EXPECT_THAT(to_text(parse_json("no\0"s, "x.json").error()), HasSubstr("this is not JSON"));
}

TEST(ParseJson, APageThatIsCutShortIsNamed) {
  EXPECT_THAT(to_text(parse_json("<!doctype html>\n<html><head>", "step.html").error()),
              HasSubstr("step.html:1:1: this is HTML without a report: the page ends too early"));
}

TEST(JsonReader, EveryMistakeOfAFileIsReportedAtOnce) {
  const auto root =
      parse_json(R"({"cout": 1, "bandwidth": 5, "power": "3 GB", "layers": 1.5, "kind": "rign"})", "f.json");
  ASSERT_TRUE(root);
  std::vector<Error> errors;
  JsonReader reader(*root, "f.json", errors);
  reader.integer("count", 1, 10);
  reader.quantity<BytesPerSecond>("bandwidth");
  reader.quantity<Watts>("power");
  reader.integer("layers", 1, 10);
  reader.choice("kind", {"ring", "tree"});
  reader.reject_unknown_keys();
  ASSERT_EQ(errors.size(), 6u);
  const std::string text = to_text(join(errors));
  EXPECT_THAT(text, HasSubstr("f.json#: key \"count\" is missing"));
  EXPECT_THAT(text, HasSubstr("f.json#/bandwidth: 5 is a bare number"));
  EXPECT_THAT(text, HasSubstr("f.json#/power: \"3 GB\" is an amount of data; expected a power with its unit"));
  EXPECT_THAT(text, HasSubstr("f.json#/layers: 1.5 is not a whole number"));
  EXPECT_THAT(text,
              HasSubstr("f.json#/kind: \"rign\" is not known; expected one of ring, tree; did you mean \"ring\"?"));
  EXPECT_THAT(text, HasSubstr("f.json#/cout: key \"cout\" is not known; did you mean \"count\"?"));
}

TEST(NearestName, FindsTyposAndPartsAndNothingFarOff) {
  const std::vector<std::string> names = {"h100-sxm-80gb", "a100-sxm-80gb", "gpt3-175b", "h100"};
  EXPECT_EQ(nearest_name("h10", names), "h100");
  EXPECT_EQ(nearest_name("gpt3-175", names), "gpt3-175b");
  EXPECT_EQ(nearest_name("a100-smx-80gb", names), "a100-sxm-80gb");
  EXPECT_EQ(nearest_name("zebra", names), "");
  // What goes on as the name began is nearer than what looks like it.
  EXPECT_EQ(nearest_name("llama3", {"llama-13b", "llama3-70b", "llama3-8b"}), "llama3-8b");
}

TEST(JsonReader, ExcerptsAreShortWhateverTheValue) {
  const auto excerpt = [](const std::string& text) { return json_excerpt(nlohmann::ordered_json::parse(text)); };
  EXPECT_EQ(excerpt(R"([1,2.5,"a",null,{"b":true}])"), R"([1,2.5,"a",null,{"b":true}])");
  EXPECT_EQ(excerpt(std::string(60, '[') + std::string(60, ']')), std::string(40, '[') + "...");
  EXPECT_EQ(excerpt("\"" + std::string(1'000'000, 'x') + "\"").size(), 43u);
  EXPECT_LE(excerpt("{\"" + std::string(1000, 'k') + "\": 1}").size(), 43u);
}

TEST(JsonReader, NumbersAndRowsOfNumbers) {
  const auto root = *parse_json(R"({"all": [1, 2], "some": [1, "x", 9], "rows": [[1, 2], [3], [4, 5]]})", "f.json");
  std::vector<Error> errors;
  JsonReader reader(root, "f.json", errors);
  EXPECT_EQ(reader.numbers("all", 0, 5), (std::vector<double>{1, 2}));
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(reader.numbers("some", 0, 5), (std::vector<double>{1}));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].where, "f.json#/some/1");
  EXPECT_EQ(reader.number_rows("rows", 2, 0, 5), (std::vector<std::vector<double>>{{1, 2}, {4, 5}}));
  EXPECT_EQ(errors.size(), 3u);
}

TEST(JsonReader, NullIsAMissingKeyOnRequest) {
  const auto root = *parse_json(R"({"a": null})", "f.json");
  std::vector<Error> errors;
  JsonReader reader(root, "f.json", errors);
  reader.treat_null_as_missing();
  EXPECT_EQ(reader.integer("a", 1, 9, Presence::kOptional, 7), 7);
  EXPECT_TRUE(errors.empty());
}

// RFC 6901, s.3: what a pointer could not tell from its own signs.
TEST(JsonReader, KeysAreEscapedInPointers) {
  EXPECT_EQ(pointer_step("a/b~c"), "a~1b~0c");
  const auto root = *parse_json(R"({"a/b~c": 1})", "f.json");
  std::vector<Error> errors;
  JsonReader(root, "f.json", errors).reject_unknown_keys();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].where, "f.json#/a~1b~0c");
}

}  // namespace
}  // namespace ns_dist
