#include "ns_dist/internal/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace ns_dist {
namespace {

TEST(Printable, WritesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("H\xC3\xB6he \xE2\x82\xAC"), "H\xC3\xB6he \xE2\x82\xAC");
  EXPECT_EQ(printable("\x1b[31mred\n"), "\\x1b[31mred\\x0a");
  EXPECT_EQ(printable("a\xE2\x80\xAE"
                      "b"),
            "a\\xe2\\x80\\xaeb")
      << "U+202E turns the direction of writing";
  EXPECT_EQ(printable("\xC2\x9B"), "\\xc2\\x9b") << "C1";
}

TEST(Utf8, HasNoOverlongFormsNoSurrogatesAndNothingBeyondUnicode) {
  EXPECT_EQ(utf8_length("a"), 1u);
  EXPECT_EQ(utf8_length("\xC2\x80"), 2u);
  EXPECT_EQ(utf8_length("\xE0\xA0\x80"), 3u);
  EXPECT_EQ(utf8_length("\xF4\x8F\xBF\xBF"), 4u) << "U+10FFFF";
  for (const char* text : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                           "\xF5\x80\x80\x80", "\xC2", "\xE2\x82", "\xFF"}) {
    EXPECT_EQ(utf8_length(text), 0u) << printable(text);
    EXPECT_FALSE(is_utf8(std::string("eight ASCII, then ") + text));
  }
  EXPECT_TRUE(is_utf8("eight ASCII, then H\xC3\xB6he"));
  EXPECT_TRUE(is_utf8(""));
}

TEST(ShellWord, IsQuotedWhereAShellWouldReadItOtherwise) {
  EXPECT_EQ(shell_word("--tp"), "--tp");
  EXPECT_EQ(shell_word("Et|(tt|)*2tL"), "'Et|(tt|)*2tL'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("#1"), "'#1'");
  EXPECT_EQ(shell_word("a\x1b[31m it's \\"), "$'a\\x1b[31m it\\'s \\\\'");
  EXPECT_EQ(shell_word("r\xE9p.json"), "$'r\\xe9p.json'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace ns_dist
