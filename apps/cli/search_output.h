// What `ns-dist search` prints: answers of one machine, tables of several, JSON and CSV.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "search_case.h"
#include "terminal.h"

namespace ns_dist::cli {

// "ns-dist --model gpt3-175b ...": the command that repeats an answer.
std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from);
// "global batch 256 of 8,192 tokens, bf16": of what was listed, the values that the answers have; all without answers.
std::string work_text(const std::vector<SearchCase>& cases, const SearchGoals& goals);
// "fastest, simplest to run"
std::string joined(const std::vector<std::string>& texts);
std::string models_text(const std::vector<SearchCase>& cases);  // "Llama 3 8B, 8 layers; Llama 3 8B, 16 layers"
// "tp 8 pp 4 dp 2"
std::string plan_text(const ParallelPlan& plan);
// "nvlink-4 450 GB/s"
std::string fabric_text(const FabricLevel& level);
// "3.5 h", "28.1 d": of a whole training.
std::string long_time(Seconds time);
// Of money, without its currency.
std::string cost_text(double cost);
// How much longer than the fastest plan's: "+9.3 % (-0.6 to +19.3)"; nothing of that plan itself.
std::string behind_text(const SearchAnswer& answer);
// What a search was asked beside the step: "15T tokens in 30 d, at most 2,000,000 USD (prices of 2026-11-22)"; nothing
// where it was not.
std::string goals_text(const SearchGoals& goals);
// "282,666 plans: 269 timed, ..."
std::string search_counts(const SearchResult& result);

// What the whole training takes `with` this plan: time, electricity, money; nothing where nothing was asked.
std::string training_text(const SearchAnswer& answer, const SearchGoals& goals, std::string_view with,
                          const Style& style);
std::string search_summary(const SearchCase& found, const SearchGoals& goals, const Style& style);
// The machines that a search compared, a row for each.
struct MachineTable {
  struct Column {
    std::string heading;
    std::size_t width;  // at least
    bool number = true;
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // a shorter one ends with why there is no plan
};
MachineTable machine_table(const std::vector<SearchCase>& cases, const SearchGoals& goals);
// What its marks mean, and the best machines.
std::string below_machines(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style);
// Both, as lines.
std::string search_table(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style);
// The report of one plan for programs, with the whole training where it was asked for.
std::string plan_json(const SearchAnswer& answer, const SearchGoals& goals);
std::string search_json(const std::vector<SearchCase>& cases, const SearchGoals& goals);
std::string search_csv(const std::vector<SearchCase>& cases, const SearchGoals& goals);

}  // namespace ns_dist::cli
