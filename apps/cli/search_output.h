// What `ns-dist search` prints: answers of one machine, tables of several, JSON and CSV.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ns_dist/search.h"
#include "terminal.h"

namespace ns_dist::cli {

// One machine that was searched.
struct SearchCase {
  Scenario base;  // its model, machine and training
  std::int64_t gpus = 0;
  SearchResult result;
};

// "ns-dist --model gpt3-175b ...": the command that repeats an answer. `from`: the report that the search began with.
std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from);

std::string search_summary(const SearchCase& found, const std::optional<std::string>& from, const Style& style);
std::string search_table(const std::vector<SearchCase>& cases, const std::optional<std::string>& from,
                         const Style& style);
std::string search_json(const std::vector<SearchCase>& cases, const std::optional<std::string>& from);
std::string search_csv(const std::vector<SearchCase>& cases, const std::optional<std::string>& from);

}  // namespace ns_dist::cli
