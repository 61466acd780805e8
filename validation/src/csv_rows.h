// Columns of a CSV table by name, with the line in every error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/csv_table.h"

namespace ns_dist {

// One row at a time. A missing column is an error of the file, an unreadable field one of the row.
class CsvRows {
 public:
  static Result<CsvRows> open(const std::filesystem::path& path, std::vector<std::string_view> required);

  std::size_t size() const { return table_.row_count(); }
  void go_to(std::size_t row);  // a row that CsvTable::fields refuses has this as its mistake
  std::string where() const;    // "file.csv:12"
  std::int64_t line() const { return table_.line(row_); }

  std::string_view text(std::string_view column) const;  // empty where the table has no such column
  // The number in a column: nothing where it is empty. A field that is no finite number is remembered as the row's
  // mistake.
  std::optional<double> number(std::string_view column);
  std::optional<double> positive(std::string_view column);
  std::int64_t whole(std::string_view column, std::int64_t fallback);
  // Takes the row's first mistake, if there was one.
  std::optional<Error> mistake();

 private:
  explicit CsvRows(CsvTable table) : table_(std::move(table)) {}
  CsvTable table_;
  std::size_t row_ = 0;
  std::vector<std::string_view> fields_;
  std::optional<Error> mistake_;
};

}  // namespace ns_dist
