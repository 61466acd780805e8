#include "ns_dist/csv_table.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

namespace ns_dist {
namespace {

TEST(CsvTable, RefusesNoTable) {
  EXPECT_FALSE(CsvTable::parse("", "x"));
  EXPECT_FALSE(CsvTable::parse("a,b,a\n", "x"));
  EXPECT_FALSE(CsvTable::read("/nowhere/at/all.csv"));
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

}  // namespace
}  // namespace ns_dist
