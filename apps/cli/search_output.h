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
  std::string advice = {};               // on another number of GPUs
};

// What the best plan is best in.
enum class Objective { kTime, kCost, kEnergy };

// What else is asked.
struct SearchGoals {
  Objective objective = Objective::kTime;
  std::optional<std::string> from;  // the report that the search began with
  std::vector<FieldValues> listed;  // of the plan and of the training
  std::optional<double> tokens;     // of the whole training
  std::optional<Seconds> deadline;
  Reliability reliability;
  bool finds_size = false;           // the number of GPUs was not given
  std::optional<double> gpu_spread;  // standard deviation of the GPUs' speeds
  std::optional<Prices> prices;
  std::optional<double> budget;  // for the whole training, in the currency of the prices
};

// Whether memory is what most plans lack.
bool lacks_memory(const SearchResult& result);
// "ns-dist --model gpt3-175b ...": the command that repeats an answer.
std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from);
// How long the training takes with the fastest plan of the case; nothing without tokens or plans.
std::optional<TrainingTime> training_of(const SearchCase& found, const SearchGoals& goals);
bool in_time(const SearchCase& found, const SearchGoals& goals);
// What a GPU costs for an hour; nothing where it is not among the prices.
std::optional<double> price_of(const Gpu& gpu, const SearchGoals& goals);
// What the fastest plan of the case costs: the whole training, or 1e12 tokens where its length is not given. Nothing
// without plans, or without a price of the GPU.
std::optional<double> cost_of(const SearchCase& found, const SearchGoals& goals);

// "global batch 256 of 8,192 tokens, bf16": of what was listed, the values that the answers have; all without answers.
std::string work_text(const std::vector<SearchCase>& cases, const SearchGoals& goals);
// "fastest, simplest to run"
std::string joined(const std::vector<std::string>& texts);
// "tp 8 pp 4 dp 2"
std::string plan_text(const ParallelPlan& plan);
// "282,666 plans: 269 timed, ..."
std::string search_counts(const SearchResult& result);

// What the whole training takes with the fastest plan: time, electricity, money; nothing where nothing was asked.
std::string training_text(const SearchCase& found, const SearchGoals& goals, const Style& style);
std::string search_summary(const SearchCase& found, const SearchGoals& goals, const Style& style);
std::string search_table(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style);
std::string search_json(const std::vector<SearchCase>& cases, const SearchGoals& goals);
std::string search_csv(const std::vector<SearchCase>& cases, const SearchGoals& goals);

}  // namespace ns_dist::cli
