#include "error_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ns_dist {

ErrorCount count_errors(const std::vector<const Judged*>& rows) {
  std::vector<double> errors;
  std::size_t inside = 0;
  for (const Judged* row : rows) {
    errors.push_back(row->error());
    if (row->low <= row->measured && row->measured <= row->high) ++inside;
  }
  ErrorCount count{figures_of(std::move(errors))};
  if (count.rows > 0) count.inside = static_cast<double>(inside) / static_cast<double>(count.rows);
  return count;
}

std::optional<double> mean_of_other(const std::vector<const Judged*>& rows, const std::string& other) {
  double sum = 0;
  std::size_t answered = 0;
  for (const Judged* row : rows) {
    const auto found = row->others.find(other);
    if (found == row->others.end()) continue;
    sum += std::abs(found->second / row->measured - 1), ++answered;
  }
  if (answered == 0) return std::nullopt;
  return sum / static_cast<double>(answered);
}

void ErrorTable::add(const std::string& group, Judged row) { groups_[group].push_back(std::move(row)); }

std::size_t ErrorTable::rows() const {
  std::size_t rows = 0;
  for (const auto& [name, group] : groups_) rows += group.size();
  return rows;
}

void ErrorTable::add_to(SuiteReport& report, const std::string& note, std::size_t worst) const {
  if (groups_.empty()) return;
  using Group = std::pair<std::string, std::vector<const Judged*>>;
  std::vector<Group> ordered;
  std::vector<const Judged*> everything;
  for (const auto& [name, rows] : groups_) {
    Group group{name, {}};
    for (const Judged& row : rows) group.second.push_back(&row), everything.push_back(&row);
    ordered.push_back(std::move(group));
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const Group& a, const Group& b) {
    return count_errors(a.second).mean > count_errors(b.second).mean;
  });
  if (ordered.size() > 1) ordered.emplace_back("all", everything);

  SuiteTable groups{title_,
                    note,
                    {{"group", "rows of"},
                     {"rows", "rows", Figure::kNumber},
                     {"mean", "mean", Figure::kPercent},
                     {"median", "median", Figure::kPercent},
                     {"p90", "p90", Figure::kPercent},
                     {"max", "max", Figure::kPercent},
                     {"bias", "bias", Figure::kSignedPercent},
                     {"inside", "inside", Figure::kWholePercent}}};
  std::vector<std::string> others;
  for (const std::string& other : others_) {
    if (!mean_of_other(everything, other)) continue;
    others.push_back(other);
    groups.columns.push_back({other, other, Figure::kPercent});
  }
  for (const auto& [name, rows] : ordered) {
    const ErrorCount c = count_errors(rows);
    std::vector<SuiteCell>& cells = groups.rows.emplace_back(std::vector<SuiteCell>{
        name, static_cast<std::int64_t>(c.rows), c.mean, c.median, c.p90, c.largest, c.bias, c.inside});
    for (const std::string& other : others) {
      const auto mean = mean_of_other(rows, other);
      cells.push_back(mean ? SuiteCell(*mean) : SuiteCell());
    }
  }
  report.tables.push_back(std::move(groups));

  std::stable_sort(everything.begin(), everything.end(),
                   [](const Judged* a, const Judged* b) { return std::abs(a->error()) > std::abs(b->error()); });
  everything.resize(std::min(worst, everything.size()));
  SuiteTable single{fmt::format("{}: worst rows", title_),
                    "",
                    {{"row", "row"},
                     {"measured_ms", "measured", Figure::kMilliseconds},
                     {"forecast_ms", "forecast", Figure::kMilliseconds},
                     {"error", "error", Figure::kSignedPercent}}};
  for (const Judged* row : everything) single.rows.push_back({row->label, row->measured, row->forecast, row->error()});
  report.tables.push_back(std::move(single));
}

void add_refused(SuiteReport& report, const std::map<std::string, std::int64_t>& reasons) {
  SuiteTable table{"Not forecast", "", {{"rows", "rows", Figure::kNumber}, {"why", "why"}}};
  for (const auto& [reason, count] : reasons) table.rows.push_back({count, reason});
  report.tables.push_back(std::move(table));
}

}  // namespace ns_dist
