#include "csv_rows.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/run_command.h"

namespace ns_dist {
namespace {

TEST(CsvRows, ARowThatCannotBeDividedIsAMistake) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "rows.csv";
  std::ofstream(path) << "name,ms\nlong,1,2\n\"two\nlines\",1\n\"one, line\",2\n";
  auto rows = CsvRows::open(path, {"name", "ms"});
  ASSERT_TRUE(rows) << to_text(rows.error());
  const auto mistake_of = [&](std::size_t row) {
    rows->go_to(row);
    const auto mistake = rows->mistake();
    return mistake ? to_text(*mistake).substr(path.string().size()) : "";
  };
  EXPECT_EQ(mistake_of(0).substr(0, 24), ":2: 3 fields; expected 2");
  EXPECT_EQ(mistake_of(1).substr(0, 38), ":3: a quote is not closed on its line;");
  EXPECT_EQ(mistake_of(3), "") << "of the row before";
  EXPECT_EQ(rows->text("name"), "one, line");
  EXPECT_EQ(rows->number("ms"), 2);
}

}  // namespace
}  // namespace ns_dist
