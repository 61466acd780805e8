// What `ns-dist search` prints: answers of one machine, tables of several, JSON and CSV.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ns_dist/search.h"
#include "ns_dist/sensitivity.h"
#include "ns_dist/time_to_train.h"
#include "terminal.h"

namespace ns_dist::cli {

// One machine that was searched.
struct SearchCase {
  Scenario base;  // its model, machine and training
  std::int64_t gpus = 0;
  SearchResult result;
  std::vector<Sensitivity> sensitivity;  // of the first answer, where asked for
};

// What else is asked.
struct SearchGoals {
  std::optional<std::string> from;  // the report that the search began with
  std::optional<double> tokens;     // of the whole training
  std::optional<Seconds> deadline;
  Reliability reliability;
  std::optional<Prices> prices;
};

// "ns-dist --model gpt3-175b ...": the command that repeats an answer.
std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from);
// How long the training takes with the fastest plan of the case; nothing without tokens or plans.
std::optional<TrainingTime> training_of(const SearchCase& found, const SearchGoals& goals);

std::string search_summary(const SearchCase& found, const SearchGoals& goals, const Style& style);
std::string search_table(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style);
std::string search_json(const std::vector<SearchCase>& cases, const SearchGoals& goals);
std::string search_csv(const std::vector<SearchCase>& cases, const SearchGoals& goals);

}  // namespace ns_dist::cli
