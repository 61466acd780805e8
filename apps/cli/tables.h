// What the commands on tables share: a progress bar, files written whole, rows that could not be answered.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/collective_suite.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/result.h"

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

// Before the work: errors if --output cannot be written, or is one of the files that are read. Leaves the file as it
// is.
Result<void> check_output(const std::string& path, const std::vector<std::string>& inputs);

// Errors: a correction of kernels that were measured in another mode; which flag to add.
Result<void> check_mode(Mode measured, Mode asked);

// Clusters by GPU, for what reads tables of measurements: the GPU's usual machine. The catalog must outlive it.
UsualCluster usual_clusters(const Catalog& catalog);

// Prints the first twenty mistakes and how many there are; returns the exit code.
int report_rows(const std::vector<Error>& mistakes, std::size_t rows);

}  // namespace ns_dist::cli
