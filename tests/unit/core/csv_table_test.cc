#include "ns_dist/csv_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace ns_dist {
namespace {

TEST(CsvTable, RefusesNoTable) {
  EXPECT_FALSE(CsvTable::parse("", "x"));
  EXPECT_FALSE(CsvTable::parse("a,b,a\n", "x"));
  EXPECT_FALSE(CsvTable::read("/nowhere/at/all.csv"));
}

// A row is a line: what a field has beyond it, or a comma without quotes, would shift the columns.
TEST(CsvTable, RefusesRowsThatItCannotDivide) {
  const auto table = CsvTable::parse("a,b\n1,\"2,3\"\n1,2,3\n1,\"two\nlines\"\n\"x\"\"y,\",2\n1\n", "t.csv");
  ASSERT_TRUE(table) << to_text(table.error());
  std::vector<std::string_view> fields;
  const auto refused = [&](std::size_t row) {
    const auto read = table->fields(row, fields);
    return read ? "" : to_text(read.error());
  };
  EXPECT_EQ(refused(0), "");
  EXPECT_EQ(fields, (std::vector<std::string_view>{"1", "2,3"}));
  EXPECT_EQ(refused(1), "t.csv:3: 3 fields; expected 2, as in the header; put fields with commas in quotes");
  EXPECT_EQ(
      refused(2),
      "t.csv:4: a quote is not closed on its line; expected fields without line breaks, in quotes where they hold "
      "commas");
  EXPECT_EQ(refused(4), "");
  EXPECT_EQ(fields, (std::vector<std::string_view>{"x\"\"y,", "2"}));
  EXPECT_EQ(refused(5), "");
  EXPECT_EQ(fields, (std::vector<std::string_view>{"1"})) << "missing fields are empty ones";

  const auto header = CsvTable::parse("a,\"b\nc\"\n1,2\n", "t.csv");
  ASSERT_FALSE(header);
  EXPECT_EQ(to_text(header.error()).substr(0, 43), "t.csv:1: a quote is not closed on its line;");
}

TEST(AnsweredCsv, HasTheAnswerBehindEachRowInPlaceOfAnEarlierOne) {
  constexpr std::array<std::string_view, 2> kAnswers = {"x", "y"};
  const auto table = CsvTable::parse("a,\"b,c\",x,d\n1, \"2,\" ,3,4\n1\n1,2,3,4,5\n1,\"2\n\"", "t.csv");
  ASSERT_TRUE(table) << to_text(table.error());
  const AnsweredCsv answered(*table, kAnswers);
  EXPECT_EQ(answered.replaced(), (std::vector<std::string>{"x"}));
  EXPECT_EQ(answered.header(), "a,\"b,c\",d,x,y\n");
  // Every row has a, b and d, whatever the table has: also where a quote is open.
  const char* rows[] = {"1, \"2,\" ,4,", "1,,,", "1,2,4,", "1,\"2\",,", "\"\",,,"};
  ASSERT_EQ(table->row_count(), std::size(rows));
  for (std::size_t row = 0; row < std::size(rows); ++row) {
    std::string out;
    answered.append_row(*table, row, out);
    EXPECT_EQ(out, rows[row]) << row;
  }
}

// The pieces of a file of several have the rows of the whole, with their lines.
TEST(CsvStream, HasTheRowsOfTheWholeTable) {
  const auto path = std::filesystem::temp_directory_path() / "ns_dist_csv_stream_test.csv";
  {
    std::ofstream file(path);
    file << "\ngpu,op,b,h\n";
    for (int i = 0; i < 500'000; ++i) {
      file << "x,softmax," << i << ",3\n";
      if (i % 1000 == 0) file << "\r\n";
    }
    file << "x,softmax,1,4";  // no line break at the end
  }
  const auto whole = CsvTable::read(path);
  auto stream = CsvStream::open(path);
  ASSERT_TRUE(whole && stream);
  EXPECT_EQ(stream->header().columns(), whole->columns());
  EXPECT_EQ(stream->header().row_count(), 0u);
  std::size_t row = 0, pieces = 0;
  for (;; ++pieces) {
    const auto piece = stream->next();
    ASSERT_TRUE(piece);
    if (piece->row_count() == 0) break;
    for (std::size_t i = 0; i < piece->row_count(); ++i, ++row) {
      ASSERT_EQ(piece->text(i), whole->text(row));
      ASSERT_EQ(piece->line(i), whole->line(row));
    }
  }
  EXPECT_EQ(row, whole->row_count());
  EXPECT_GT(pieces, 1u);
  std::filesystem::remove(path);
}

TEST(CsvTable, ReadsGzip) {
  const auto path = std::filesystem::temp_directory_path() / "ns_dist_kernel_table_test.csv.gz";
  const std::string text = "gpu,op,b,h\nx,softmax,2,3\n";
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_GT(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), 0);
  gzclose(file);
  const auto whole = CsvTable::read(path);
  ASSERT_TRUE(whole) << to_text(whole.error());
  EXPECT_EQ(whole->row_count(), 1u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 6);
  EXPECT_FALSE(CsvTable::read(path)) << "a cut file";
  std::filesystem::remove(path);
}

// Texts that spreadsheets may write, told by their name.
TEST(CsvTable, OtherTextsAreNamed) {
  EXPECT_THAT(to_text(CsvTable::parse("a,b\r1,2\r", "mac.csv").error()), ::testing::HasSubstr("carriage return alone"));
  EXPECT_THAT(to_text(CsvTable::parse(std::string("\xFF\xFE") + "a", "wide.csv").error()),
              ::testing::HasSubstr("UTF-16"));
  EXPECT_TRUE(CsvTable::parse("a,b\r\n1,2\r\n", "crlf.csv"));
  EXPECT_TRUE(CsvTable::parse("a,b\r", "header.csv"));
  EXPECT_TRUE(CsvTable::parse("a,b", "header.csv"));
  EXPECT_THAT(to_text(CsvTable::parse("a,a\n", "twice.csv").error()), ::testing::HasSubstr("all different"));
}

}  // namespace
}  // namespace ns_dist
