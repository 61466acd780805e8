// Tables: CSV files with a header, plain or gzipped.
//
//   NS_TRY(const CsvTable table, CsvTable::read("rows.csv.gz"));
//   for (std::size_t i = 0; i < table.row_count(); ++i) NS_TRY_VOID(table.fields(i, fields));
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

// folder/name.csv or folder/name.csv.gz, whichever is there; empty when neither is.
std::filesystem::path table_path(const std::filesystem::path& folder, std::string_view name);

// A measured time of the column latency_ms: 1 ps to 1e6 s, as other durations; nothing where `text` is none. Outside of
// it, relative errors are no finite numbers.
std::optional<double> usable_latency(std::string_view text);
// A measured time that is none.
Error bad_latency(std::string_view text, std::string where);
// Of a row that has to be measured: its latency_ms, or `bad`, which stands there and is no time. Error: it has none.
Result<double> measured_ms(const std::optional<double>& latency_ms, std::string_view bad, std::string where);

// Rows that a command leaves out, counted by what they are: "of a100, not of h100".
class LeftOutRows {
 public:
  void add(std::string what, std::string where);
  std::vector<std::string> notes() const;  // "12 rows of a100, not of h100: left out, the first at mine.csv:7"

 private:
  std::map<std::string, std::pair<std::size_t, std::string>> rows_;  // their number, and where the first is
};
inline constexpr std::string_view kWithoutTime = "without a time in latency_ms";

// A text as a cell of a CSV, whose lines are rows: what would end a line becomes a space.
std::string csv_cell(std::string text);

// A CSV text with an index of its rows. Quoted fields may hold commas; a field may not hold a line break.
class CsvTable {
 public:
  // Reads a file or a pipe, plain or gzipped, or standard input ("-"). Errors: cannot be read, no header, a column
  // twice, more than 256 MiB (unpacked), 5 million rows or 1,000 columns.
  static Result<CsvTable> read(const std::filesystem::path& path);
  static Result<CsvTable> parse(std::string text, std::string where);

  const std::string& where() const { return where_; }
  const std::vector<std::string>& columns() const { return columns_; }
  std::optional<std::size_t> column(std::string_view name) const;
  std::size_t row_count() const { return rows_.size(); }
  std::int64_t line(std::size_t row) const { return rows_[row].line; }
  std::string_view text(std::size_t row) const {
    return std::string_view(text_).substr(rows_[row].begin, rows_[row].size);
  }
  // The fields of a row, at most as many as there are columns, without blanks and quotes around them. Errors, with the
  // row's line: more fields than columns, a quote that is not closed on its line.
  Result<void> fields(std::size_t row, std::vector<std::string_view>& out) const;

 private:
  friend class CsvStream;
  struct Row {
    std::size_t begin = 0, size = 0;
    std::int64_t line = 0;
  };
  void find_rows(std::int64_t lines_before);
  std::string text_, where_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

// Reads a CSV file piece by piece: any number of rows in constant memory.
class CsvStream {
 public:
  // Reads the header. Errors: as CsvTable::read; the file as a whole has no limit.
  static Result<CsvStream> open(const std::filesystem::path& path);
  CsvStream(CsvStream&&) noexcept;
  ~CsvStream();

  const CsvTable& header() const { return header_; }  // a table without rows
  // The next rows, a few megabytes of text; no rows at the end. Errors: cannot be unpacked or is cut short; a line of
  // more than 64 MiB.
  Result<CsvTable> next();
  // How much of the file was read, from 0 to 1.
  double share() const;

 private:
  struct File;
  CsvStream();
  Result<void> fill(std::size_t size);

  std::unique_ptr<File> file_;
  CsvTable header_;
  std::string rest_;        // read, but not handed over
  std::int64_t lines_ = 1;  // handed over, with the header
};

// A table with a forecast behind each row. Columns of these names in the table, of an earlier answer, are replaced.
class AnsweredCsv {
 public:
  // Of a table, or of the header of a stream whose pieces are answered. Keeps a reference to `answers`, the names of
  // the new columns.
  AnsweredCsv(const CsvTable& header, std::span<const std::string_view> answers);

  std::vector<std::string> replaced() const;  // columns of the table
  std::string header() const;                 // the first line
  // Appends the fields that a row keeps, as they stand there, each with a comma behind it. Fields that are missing are
  // empty, those beyond the columns are left out, and a quote that is not closed is closed: the answer has its place.
  void append_row(const CsvTable& piece, std::size_t row, std::string& out) const;

 private:
  std::vector<std::string> columns_;
  std::span<const std::string_view> answers_;
  std::vector<char> kept_;  // whether a column stays
};

}  // namespace ns_dist
