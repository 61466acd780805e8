// What the commands on tables share: a progress bar, files written whole, rows that could not be answered.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/collective_suite.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/result.h"

struct gzFile_s;  // of zlib

namespace ns_dist::cli {

// A bar on standard error while that is a terminal; nothing in a pipe.
class Progress {
 public:
  Progress(std::string_view what, std::size_t steps);
  void at(std::size_t step);
  void share(double done);  // 0 to 1
  void done();

 private:
  std::string what_;
  std::size_t steps_;
  int shown_ = -1;
  bool terminal_;
};

// Errors: the file cannot be written.
Result<void> write_text(const std::string& path, std::string_view text);
// The same, gzipped where the path ends in .gz.
Result<void> write_table(const std::string& path, std::string_view text);

// The same in pieces, to standard output where the path is empty. A regular file appears under its name when it is
// finished, and not at all where the work failed.
class TableWriter {
 public:
  explicit TableWriter(const std::string& path);
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;
  ~TableWriter();
  void write(std::string_view text);  // a mistake is told by finish()
  Result<void> finish();

 private:
  std::string path_, written_;  // `written_`: where the pieces go
  std::FILE* file_ = nullptr;   // plain
  gzFile_s* packed_ = nullptr;
  bool good_ = true;
};

// Before the work: errors if --output cannot be written, or is one of the files that are read. Leaves the file as it
// is.
Result<void> check_output(const std::string& path, const std::vector<std::string>& inputs);

// Errors: a correction of kernels that were measured in another mode; which flag to add.
Result<void> check_mode(Mode measured, Mode asked);

// Clusters by GPU, for what reads tables of measurements: the GPU's usual machine. The catalog must outlive it.
UsualCluster usual_clusters(const Catalog& catalog);

// Rows that could not be answered, of a table in pieces.
class RowMistakes {
 public:
  void add(std::vector<Error> mistakes, std::size_t rows);
  std::size_t rows() const { return rows_; }
  // As report_rows.
  int report() const;

 private:
  std::vector<Error> first_;
  std::size_t mistakes_ = 0, rows_ = 0;
};

// Prints the first twenty mistakes and how many there are; returns the exit code.
int report_rows(const std::vector<Error>& mistakes, std::size_t rows);

}  // namespace ns_dist::cli
