#include "ns_dist/suite_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

using nlohmann::ordered_json;

std::string_view unit_of(Figure figure) {
  switch (figure) {
    case Figure::kText:
    case Figure::kNumber:
      return "";
    case Figure::kSeconds:
      return " s";
    case Figure::kMilliseconds:
      return " ms";
    case Figure::kPercent:
    case Figure::kWholePercent:
    case Figure::kSignedPercent:
      return " %";
  }
  return "";
}

std::string number_text(double value, Figure figure) {
  switch (figure) {
    case Figure::kText:
    case Figure::kNumber:
      return fmt::format("{}", value);
    case Figure::kSeconds:
      return fmt::format("{:.3f}", value);
    case Figure::kMilliseconds:
      return fmt::format("{:.4g}", value);
    case Figure::kPercent:
      return fmt::format("{:.1f}", 100 * value);
    case Figure::kWholePercent:
      return fmt::format("{:.0f}", 100 * value);
    case Figure::kSignedPercent:
      return fmt::format("{:+.1f}", 100 * value);
  }
  return "";
}

std::string cell_text(const SuiteCell& cell, Figure figure) {
  return std::visit(
      [&](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::monostate>) return "-";
        if constexpr (std::is_same_v<Value, std::string>) return value;
        if constexpr (std::is_same_v<Value, std::int64_t>) return fmt::format("{}", value);
        if constexpr (std::is_same_v<Value, double>) return number_text(value, figure);
      },
      cell);
}

ordered_json cell_json(const SuiteCell& cell) {
  return std::visit(
      [](const auto& value) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          return nullptr;
        } else {
          return value;
        }
      },
      cell);
}

std::string table_markdown(const SuiteTable& table) {
  std::string text;
  if (!table.title.empty()) text += fmt::format("### {}\n\n", table.title);
  if (!table.note.empty()) text += table.note + "\n\n";
  text += "|";
  for (const SuiteColumn& column : table.columns)
    text += fmt::format(" {}{} |", column.heading, unit_of(column.figure));
  text += "\n|";
  for (const SuiteColumn& column : table.columns) text += column.figure == Figure::kText ? "---|" : "---:|";
  text += "\n";
  for (const std::vector<SuiteCell>& row : table.rows) {
    text += "|";
    for (std::size_t i = 0; i < row.size(); ++i)
      text += fmt::format(" {} |", cell_text(row[i], table.columns[i].figure));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string to_markdown(const SuiteReport& report) {
  std::vector<std::string> parts;
  if (!report.title.empty()) parts.push_back(fmt::format("# {}\n", report.title));
  if (!report.note.empty()) parts.push_back(report.note + "\n");
  for (const SuiteTable& table : report.tables) {
    if (!table.rows.empty()) parts.push_back(table_markdown(table));
  }
  if (!report.text.empty()) parts.push_back(report.text);
  return fmt::format("{}", fmt::join(parts, "\n"));
}

std::string to_json(std::span<const SuiteReport> reports) {
  ordered_json suites = ordered_json::array();
  for (const SuiteReport& report : reports) {
    ordered_json tables = ordered_json::array(), mistakes = ordered_json::array();
    for (const SuiteTable& table : report.tables) {
      if (table.rows.empty()) continue;
      ordered_json rows = ordered_json::array();
      for (const std::vector<SuiteCell>& row : table.rows) {
        ordered_json& object = rows.emplace_back(ordered_json::object());
        for (std::size_t i = 0; i < row.size(); ++i) object[table.columns[i].key] = cell_json(row[i]);
      }
      tables.push_back({{"title", table.title}, {"note", table.note}, {"rows", std::move(rows)}});
    }
    for (const Error& mistake : report.mistakes) {
      mistakes.push_back({{"where", mistake.where}, {"message", mistake.message}});
    }
    suites.push_back({{"title", report.title},
                      {"note", report.note},
                      {"tables", std::move(tables)},
                      {"text", report.text},
                      {"rows", report.rows},
                      {"mistakes", std::move(mistakes)}});
  }
  const ordered_json json = {{"schema", "ns-dist/validation/1"}, {"suites", std::move(suites)}};
  return dump_json(json, 1);
}

}  // namespace ns_dist
