// Forecasts beside measurements, counted.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/error_figures.h"
#include "ns_dist/suite_report.h"

namespace ns_dist {

// What the columns of a table of errors are, for the reader of a suite.
inline constexpr std::string_view kErrorTerms =
    "Errors are of forecast over measured; bias is signed, negative where we forecast too short. Inside: share of "
    "measurements inside our 90 % interval. Other forecasters' columns are means over the same rows, as far as they "
    "answered.";

// One measurement, our forecast of it with its 90 % interval, and the forecasts of others; all in one unit.
struct Judged {
  std::string label;
  double measured = 0, forecast = 0, low = 0, high = 0;
  std::map<std::string, double> others;  // by name; only those that answered
  double error() const { return forecast / measured - 1; }
};

struct ErrorCount : ErrorFigures {
  double inside = 0;  // share of measurements in the 90 % interval
};
ErrorCount count_errors(const std::vector<const Judged*>& rows);
// Mean error of `other`, a share, over the rows that it answered; nothing when it answered none of them.
std::optional<double> mean_of_other(const std::vector<const Judged*>& rows, const std::string& other);

// Rows in groups: one line a group, the largest mean error first, then one for all. `others` get a column each, on the
// rows that they answered, which may be fewer than ours.
class ErrorTable {
 public:
  ErrorTable(std::string title, std::vector<std::string> others = {})
      : title_(std::move(title)), others_(std::move(others)) {}
  void add(const std::string& group, Judged row);
  std::size_t rows() const;
  // Adds the table of groups, unless there are none, and one of the `worst` single rows, largest error first.
  void add_to(SuiteReport& report, const std::string& note, std::size_t worst) const;

 private:
  std::string title_;
  std::vector<std::string> others_;
  std::map<std::string, std::vector<Judged>> groups_;
};

// Adds why rows have no forecast, and of how many that holds.
void add_refused(SuiteReport& report, const std::map<std::string, std::int64_t>& reasons);

}  // namespace ns_dist
