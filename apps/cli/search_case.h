// Machines that a search compared, and which of them is best in what.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/search.h"
#include "ns_dist/sensitivity.h"
#include "ns_dist/time_to_train.h"
#include "whole_training.h"

namespace ns_dist::cli {

// How much more a case costs than the cheapest one of its model, as a share of that one's cost, with a 90 % interval.
struct CostBehind {
  double more = 0, low = 0, high = 0;
};

// One machine that was searched.
struct SearchCase {
  Scenario base;  // its model, machine and training
  std::int64_t gpus = 0;
  SearchResult result;
  std::vector<Sensitivity> sensitivity;        // of the first answer, where asked for
  std::string advice = {};                     // on another number of GPUs
  std::optional<CostBehind> cost_behind = {};  // of its fastest plan, where it costs not much more than the cheapest
};

// What the best plan is best in.
enum class Objective { kTime, kCost, kEnergy };

// What else is asked.
struct SearchGoals : WholeTraining {
  Objective objective = Objective::kTime;
  std::optional<std::string> from;    // the report that the search began with
  std::vector<FieldValues> listed;    // tried in one space: of the plan and of the training
  std::vector<FieldValues> separate;  // a space for each value
  std::optional<Seconds> deadline;
  bool finds_size = false;       // the number of GPUs was not given
  std::optional<double> budget;  // for the whole training, in the currency of the prices
};

// Whether two cases have one model on one machine, whatever its size.
bool same_machine(const Scenario& one, const Scenario& other);
// The fastest plan; nothing where there is none.
const SearchAnswer* fastest_of(const SearchCase& found);
// The fields of goals.separate, without the model, the framework and the machine, with their values in a case.
std::vector<Assignment> set_apart(const Scenario& base, const SearchGoals& goals);
// What tells answers apart beside model, framework, GPUs and fabrics: all fields with a list, and their values in the
// scenario of an answer.
std::vector<Assignment> all_listed(const Scenario& scenario, const SearchGoals& goals);
// The values of a field that has several in one space; else nullptr.
const FieldValues* listed_in(const SearchGoals& goals, std::string_view field);
// Why most plans are not possible: a reason and its number; `end` without any.
std::map<std::string, std::uint64_t>::const_iterator most_frequent(const SearchResult& result);
// Whether memory is what plans lack that are possible otherwise. Of few of them, where the global batch rules out most,
// it is not said: another batch has more.
bool lacks_memory(const SearchResult& result);
// Whether fragmentation may take more than there is.
bool is_tight(const Report& report);

// What a plan takes, or the fastest plan of a case. Nothing without plans, and where it is not known: a time without
// --tokens, a cost without a price of the GPU, energy without its board power.

// How long the training takes.
std::optional<TrainingTime> training_of(const SearchAnswer& answer, const SearchGoals& goals);
std::optional<TrainingTime> training_of(const SearchCase& found, const SearchGoals& goals);
// Tokens a second: of a whole training with its failures, where its length is known.
double speed_of(const SearchAnswer& answer, const SearchGoals& goals);
// What a GPU costs for an hour.
std::optional<double> price_of(const Gpu& gpu, const WholeTraining& training);
// What the whole training costs, or 1e12 tokens where its length is not given.
std::optional<double> cost_of(const SearchAnswer& answer, const SearchGoals& goals);
std::optional<double> cost_of(const SearchCase& found, const SearchGoals& goals);
// At most, of the same.
std::optional<Joules> energy_of(const SearchAnswer& answer, const SearchGoals& goals);
std::optional<Joules> energy_of(const SearchCase& found, const SearchGoals& goals);
bool in_time(const SearchAnswer& answer, const SearchGoals& goals);
bool in_time(const SearchCase& found, const SearchGoals& goals);
// By the end of the 90 % interval.
bool surely_in_time(const SearchCase& found, const SearchGoals& goals);
bool in_budget(const SearchAnswer& answer, const SearchGoals& goals);
bool in_budget(const SearchCase& found, const SearchGoals& goals);

// What a case takes, for which another may take less: energy or money where these are asked for, or GPUs.
enum class Spent { kGpus, kMoney, kEnergy };
// Of it, in kWh, the prices' currency, or GPUs.
std::optional<double> amount(const SearchCase& found, const SearchGoals& goals, Spent spent);
Spent spent_of(const std::vector<SearchCase>& cases, const SearchGoals& goals);
// Whether no other case is faster and takes no more, or is as fast and takes less. What a case without a price takes is
// not known: it is not compared.
bool on_front(const SearchCase& one, const std::vector<SearchCase>& cases, const SearchGoals& goals);

// The cases that are best in one way each; nullptr: none.
struct BestCases {
  const SearchCase *fastest = nullptr, *cheapest = nullptr, *cheapest_in_time = nullptr, *least_energy = nullptr;
  // Of equal numbers of GPUs, the faster one.
  const SearchCase *fewest_gpus_in_time = nullptr, *fewest_gpus_surely_in_time = nullptr,
                   *most_gpus_in_budget = nullptr;
};
BestCases best_of(const std::vector<SearchCase>& cases, const SearchGoals& goals);

// Fills `cost_behind` of the cases that cost at most half as much again as the cheapest one of their model. Forecast
// by one model each, two machines of one GPU err together. Errors: those of the forecasts.
Result<void> compare_costs(std::vector<SearchCase>& cases, const SearchGoals& goals);

// The answers of all cases, best by the objective first; those in time and within the budget come before others.
std::vector<const SearchAnswer*> ranked_answers(const std::vector<SearchCase>& cases, const SearchGoals& goals);

// The GPU of each case, by its id.
std::vector<std::string> gpus_of(const std::vector<SearchCase>& cases);
// Prices of GPUs that the catalog does not know, and that are none of `gpus` (ids) either; or else those of `gpus`
// without a price. A text for each.
std::vector<std::string> unknown_prices(const WholeTraining& training, const std::vector<std::string>& gpus);

}  // namespace ns_dist::cli
