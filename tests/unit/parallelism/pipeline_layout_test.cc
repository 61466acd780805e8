#include "ns_dist/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

std::vector<PositionParts> positions(std::string_view text) {
  const auto read = read_pipeline_layout(text);
  EXPECT_TRUE(read) << to_text(read.error());
  return read.value_or(std::vector<PositionParts>{});
}

std::string mistake(std::string_view text) {
  const auto read = read_pipeline_layout(text);
  return read ? "none" : to_text(read.error());
}

// Megatron-Core's own layout of DeepSeek-V3 on 16 stages of two chunks: 3 + 29 x 2 = 61 layers.
TEST(PipelineLayout, MegatronsNotationIsRead) {
  const std::vector<PositionParts> parts = positions("Et*3|(tt|)*29m|L");
  ASSERT_EQ(parts.size(), 32);
  EXPECT_EQ(parts.front(), (PositionParts{3, 0}));
  for (std::size_t i = 1; i < 30; ++i) EXPECT_EQ(parts[i], (PositionParts{2, 0})) << i;
  EXPECT_EQ(parts[30], (PositionParts{0, 1}));
  EXPECT_EQ(parts[31], (PositionParts{0, 0}));
}

TEST(PipelineLayout, CommasAndSpacesDivideNothing) {
  EXPECT_EQ(positions("E,tt | ,(t|)*2 ,L"), positions("Ett|t|t|L"));
}

TEST(PipelineLayout, ParenthesesNest) { EXPECT_EQ(positions("E((t|)*2tt|)*2L"), positions("Et|t|tt|t|t|tt|L")); }

TEST(PipelineLayout, WhatIsWrittenIsReadBack) {
  for (const char* text : {"EL", "Et|L", "Ettt|(tt|)*29m|L", "Et|t*4|t|mL", "Et*100|L", "E|(t|)*7tmmL", "E|||L"}) {
    EXPECT_EQ(pipeline_layout_text(positions(text)), text);
  }
}

TEST(PipelineLayout, MistakesAreNamed) {
  EXPECT_THAT(mistake("t|t|L"), HasSubstr("write one E"));
  EXPECT_THAT(mistake("Et|Et|L"), HasSubstr("write one E"));
  EXPECT_THAT(mistake("Et|t|"), HasSubstr("write one L"));
  EXPECT_THAT(mistake(""), HasSubstr("write one E"));
  EXPECT_THAT(mistake("Et|x|L"), HasSubstr("\"x\" is no part"));
  EXPECT_THAT(mistake("E(t|L"), HasSubstr("without its \")\""));
  EXPECT_THAT(mistake("Et)|L"), HasSubstr("without its \"(\""));
  EXPECT_THAT(mistake("Et*|L"), HasSubstr("t*3"));
  EXPECT_THAT(mistake("Em|t|L"), HasSubstr("before the first m"));
  EXPECT_THAT(mistake("Et|m|mL"), HasSubstr("into one position"));
  EXPECT_THAT(mistake("E((((t*1000)*1000)*1000)*1000)L"), HasSubstr("million"));
  EXPECT_THAT(mistake("Et*99999999999999999999L"), HasSubstr("million"));
  EXPECT_THAT(mistake("Et*2000000L"), HasSubstr("million"));
  std::string vain = "E";  // each is written, and then repeated 0 times
  for (int i = 0; i < 20; ++i) vain += "(t*1000000)*0";
  EXPECT_THAT(mistake(vain + "t|L"), HasSubstr("million"));
  EXPECT_THAT(mistake("E" + std::string(100, '(') + "L"), HasSubstr("too deep"));
}

}  // namespace
}  // namespace ns_dist
