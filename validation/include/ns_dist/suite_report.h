// What a suite of `ns-dist validate` finds, as tables: Markdown for people, JSON for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

// How Markdown writes the numbers of a column. Cells hold seconds, milliseconds and shares (0.05: 5 %).
enum class Figure { kText, kNumber, kSeconds, kMilliseconds, kPercent, kWholePercent, kSignedPercent };

struct SuiteColumn {
  std::string key;      // in JSON
  std::string heading;  // in Markdown, without the unit, which `figure` names
  Figure figure = Figure::kText;
};
using SuiteCell = std::variant<std::monostate, std::string, std::int64_t, double>;  // monostate: there is none

struct SuiteTable {
  std::string title;
  std::string note;  // stands before the table
  std::vector<SuiteColumn> columns;
  std::vector<std::vector<SuiteCell>> rows{};  // as many cells as columns
};

struct SuiteReport {
  std::string title{};               // of all tables
  std::string note{};                // stands before them; lines
  std::vector<SuiteTable> tables{};  // those without rows are not written
  std::string text{};                // Markdown behind the tables
  std::vector<Error> mistakes{};     // rows that could not be read or forecast, each with its place
  std::size_t rows = 0;              // that were compared or have a mistake
};

std::string to_markdown(const SuiteReport& report);

// One object: {schema "ns-dist/validation/1", suites[{title, note, tables[{title, note, rows[{key: cell}]}], text,
// rows, mistakes[{where, message}]}]}.
std::string to_json(std::span<const SuiteReport> reports);

}  // namespace ns_dist
