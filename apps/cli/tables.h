// What the commands on tables share: a progress bar, checks of outputs, rows that could not be answered.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/csv_table.h"
#include "ns_dist/files.h"
#include "ns_dist/result.h"

namespace ns_dist::cli {

// A line on standard error while that is a terminal, from a second on; nothing in a pipe.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  // `since`: when the work began.
  Progress(std::string_view what, std::size_t steps, Clock::time_point since = Clock::now());
  void at(std::size_t step);
  void share(double done, std::string_view note = "");  // 0 to 1, with a bar
  void note(std::string_view text);                     // without a bar: how long it takes is not known
  void done();

 private:
  bool is_due();
  void show(const std::string& line);

  std::string what_;
  std::size_t steps_;
  bool terminal_, shown_ = false;
  Clock::time_point next_;  // when it is shown again
};

// A file that a command writes, and the flag that names it; an empty path: the flag was not given. The answer of --json
// is {"--json", "-"}.
struct Output {
  const char* flag;
  std::string path;
};

// Before the work. Errors: an output that cannot be written, is named twice, or is one of the files `inputs` that are
// read (texts that name no file are skipped). Leaves all files as they are.
Result<void> check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs);

// The same of the files that were read: those that others are like, and the configuration in a model's folder, too.
Result<void> check_not_read(const std::vector<Output>& outputs, const std::vector<InputFile>& inputs);

// Errors: the output is standard output. `expected`: what it must be, and why.
Result<void> check_is_file(const Output& output, const char* expected, const char* hint);

// Where the answer of a command goes: JSON to standard output, a text for people to standard error where one of the
// outputs takes that.
std::FILE* stream_of_answer(bool json, const std::vector<Output>& outputs);

// Says on standard error which columns of the table `input` the forecasts take the place of, if there are some.
void tell_replaced(const std::string& input, const AnsweredCsv& answered);

// Rows that could not be answered, and answered rows whose measured time is none, of a table in pieces.
class RowMistakes {
 public:
  void add(std::vector<Error> mistakes, std::vector<Error> unmeasured, std::size_t rows);
  // As report_rows, of both; says also where the table `input` has no rows.
  int report(const std::string& input) const;

 private:
  struct Kind {
    std::vector<Error> first;
    std::vector<std::pair<std::int64_t, std::int64_t>> more;  // ranges of lines, of the rows behind these
    std::size_t count = 0;
    void add(std::vector<Error> mistakes);
    int report(std::size_t rows, std::string_view what) const;  // its exit code
  };
  Kind unanswered_, unmeasured_;
  std::size_t rows_ = 0;
};

// Prints the first twenty mistakes, how many there are, and in which lines the others are; returns the exit code.
int report_rows(const std::vector<Error>& mistakes, std::size_t rows);

}  // namespace ns_dist::cli
