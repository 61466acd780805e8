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

std::string ErrorTable::markdown(const std::string& note, std::size_t worst, bool total) const {
  if (groups_.empty()) return "";
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
  if (total && ordered.size() > 1) ordered.emplace_back("all", everything);

  std::string text = fmt::format("### {}\n\n", title_);
  if (!note.empty()) text += note + "\n\n";
  std::vector<std::string> others;
  for (const std::string& other : others_) {
    if (mean_of_other(everything, other)) others.push_back(other);
  }
  text += "| rows of | rows | mean % | median % | p90 % | max % | bias % | inside 90 % |";
  for (const std::string& other : others) text += fmt::format(" {} % |", other);
  text += "\n|---|---:|---:|---:|---:|---:|---:|---:|";
  for (std::size_t i = 0; i < others.size(); ++i) text += "---:|";
  text += "\n";
  for (const auto& [name, rows] : ordered) {
    const ErrorCount c = count_errors(rows);
    text += fmt::format("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:+.1f} | {:.0f} |", name, c.rows,
                        100 * c.mean, 100 * c.median, 100 * c.p90, 100 * c.largest, 100 * c.bias, 100 * c.inside);
    for (const std::string& other : others) {
      const auto mean = mean_of_other(rows, other);
      text += mean ? fmt::format(" {:.1f} |", 100 * *mean) : " - |";
    }
    text += "\n";
  }
  if (worst > 0) {
    std::stable_sort(everything.begin(), everything.end(),
                     [](const Judged* a, const Judged* b) { return std::abs(a->error()) > std::abs(b->error()); });
    text += "\nWorst rows:\n\n";
    for (std::size_t i = 0; i < everything.size() && i < worst; ++i) {
      const Judged& row = *everything[i];
      text += fmt::format("- {}: {:.4g} ms measured, {:.4g} forecast ({:+.1f} %)\n", row.label, row.measured,
                          row.forecast, 100 * row.error());
    }
  }
  return text + "\n";
}

}  // namespace ns_dist
