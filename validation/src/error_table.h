// Forecasts beside measurements, counted.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ns_dist/error_figures.h"

namespace ns_dist {

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

// Rows in groups, as Markdown: one line a group, the largest mean error first, then one for all. `others` get a column
// each, on the rows that they answered, which may be fewer than ours.
class ErrorTable {
 public:
  ErrorTable(std::string title, std::vector<std::string> others = {})
      : title_(std::move(title)), others_(std::move(others)) {}
  void add(const std::string& group, Judged row);
  bool empty() const { return groups_.empty(); }
  std::size_t rows() const;
  // `worst`: how many single rows are listed below, largest error first. `note` stands between title and table.
  std::string markdown(const std::string& note, std::size_t worst, bool total = true) const;

 private:
  std::string title_;
  std::vector<std::string> others_;
  std::map<std::string, std::vector<Judged>> groups_;
};

}  // namespace ns_dist
