#include "search_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "ns_dist/energy.h"
#include "ns_dist/simulator.h"
#include "sizes.h"

namespace ns_dist::cli {

const SearchAnswer* fastest_of(const SearchCase& found) {
  return found.result.answers.empty() ? nullptr : &found.result.answers.front();
}

bool same_machine(const Scenario& one, const Scenario& other) {
  return one.model == other.model && one.cluster.gpu.id == other.cluster.gpu.id && one.cluster.id == other.cluster.id;
}

std::vector<Assignment> set_apart(const Scenario& base, const SearchGoals& goals) {
  std::vector<Assignment> set;
  for (const FieldValues& each : goals.separate) {
    if (!decides_machine(each.field)) set.push_back({each.field, value_text(base, each.field)});
  }
  return set;
}

std::vector<Assignment> all_listed(const Scenario& scenario, const SearchGoals& goals) {
  std::vector<Assignment> set = set_apart(scenario, goals);
  for (const FieldValues& each : goals.listed) set.push_back({each.field, value_text(scenario, each.field)});
  for (const FieldValues& each : goals.separate) {
    if (each.values.size() == 1) continue;
    if (each.field == "machine/cluster") set.push_back({each.field, scenario.cluster.id});
    if (each.field == "machine/gpus_per_node") {
      set.push_back({each.field, std::to_string(scenario.cluster.gpus_per_node())});
    }
  }
  return set;
}

const FieldValues* listed_in(const SearchGoals& goals, std::string_view field) {
  const auto known = std::find_if(goals.listed.begin(), goals.listed.end(),
                                  [field](const FieldValues& each) { return each.field == field; });
  return known == goals.listed.end() ? nullptr : &*known;
}

std::map<std::string, std::uint64_t>::const_iterator most_frequent(const SearchResult& result) {
  return std::max_element(result.infeasible.begin(), result.infeasible.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
}

bool lacks_memory(const SearchResult& result) {
  const auto most = most_frequent(result);
  return result.least_memory && (most == result.infeasible.end() || most->first != kGlobalBatch);
}

bool is_tight(const Report& report) { return report.memory.device() > report.scenario.cluster.gpu.memory; }

std::optional<TrainingTime> training_of(const SearchAnswer& answer, const SearchGoals& goals) {
  if (!goals.tokens) return std::nullopt;
  const auto time = time_to_train(answer.report, *goals.tokens, goals.reliability, answer.unequal_step);
  return time ? std::optional(*time) : std::nullopt;
}

std::optional<TrainingTime> training_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : training_of(*fastest, goals);
}

double speed_of(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto time = training_of(answer, goals);
  return time ? time->tokens / (time->total / units::s) : answer.report.tokens_per_second;
}

std::optional<double> price_of(const Gpu& gpu, const WholeTraining& training) {
  if (!training.prices) return std::nullopt;
  const auto known = training.prices->gpu_hour.find(gpu.id);
  return known == training.prices->gpu_hour.end() ? std::nullopt : std::optional(known->second);
}

std::optional<double> cost_of(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto price = price_of(answer.report.scenario.cluster.gpu, goals);
  if (!price) return std::nullopt;
  if (const auto time = training_of(answer, goals)) return *price * time->gpu_hours;
  return *price * static_cast<double>(answer.report.ranks) * 1e12 / speed_of(answer, goals) / 3600;
}

std::optional<double> cost_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : cost_of(*fastest, goals);
}

std::optional<Joules> energy_of(const SearchAnswer& answer, const SearchGoals& goals) {
  if (!answer.report.energy) return std::nullopt;
  const auto time = training_of(answer, goals);
  return time ? time->energy : answer.report.energy->trillion_tokens;
}

std::optional<Joules> energy_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : energy_of(*fastest, goals);
}

bool in_time(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto time = training_of(answer, goals);
  return time && goals.deadline && time->total <= *goals.deadline;
}

bool in_time(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest != nullptr && in_time(*fastest, goals);
}

bool surely_in_time(const SearchCase& found, const SearchGoals& goals) {
  const auto time = training_of(found, goals);
  return time && goals.deadline && time->high <= *goals.deadline;
}

bool in_budget(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto cost = cost_of(answer, goals);
  return cost && goals.budget && *cost <= *goals.budget;
}

bool in_budget(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest != nullptr && in_budget(*fastest, goals);
}

std::optional<double> amount(const SearchCase& found, const SearchGoals& goals, Spent spent) {
  if (found.result.answers.empty()) return std::nullopt;
  if (spent == Spent::kMoney) return cost_of(found, goals);
  if (spent == Spent::kGpus) return static_cast<double>(found.gpus);
  const auto energy = energy_of(found, goals);
  return energy ? std::optional(*energy / kKilowattHour) : std::nullopt;
}

Spent spent_of(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const Spent asked = goals.objective == Objective::kEnergy ? Spent::kEnergy
                      : goals.prices                        ? Spent::kMoney
                                                            : Spent::kGpus;
  const bool known = std::any_of(cases.begin(), cases.end(),
                                 [&](const SearchCase& each) { return amount(each, goals, asked).has_value(); });
  return known ? asked : Spent::kGpus;
}

bool on_front(const SearchCase& one, const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const Spent what = spent_of(cases, goals);
  const std::optional<double> spent = amount(one, goals, what);
  if (!spent) return false;
  const double speed = speed_of(*fastest_of(one), goals);
  return std::none_of(cases.begin(), cases.end(), [&](const SearchCase& other) {
    const std::optional<double> other_spent = amount(other, goals, what);
    if (&other == &one || !other_spent) return false;
    const double other_speed = speed_of(*fastest_of(other), goals);
    return other_speed >= speed && *other_spent <= *spent && (other_speed > speed || *other_spent < *spent);
  });
}

BestCases best_of(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  BestCases best;
  for (const SearchCase& each : cases) {
    const SearchAnswer* answer = fastest_of(each);
    if (answer == nullptr) continue;
    const double speed = speed_of(*answer, goals);
    const auto is_faster = [&](const SearchCase* other) { return speed > speed_of(*fastest_of(*other), goals); };
    const auto takes_less = [&](const SearchCase* other, Spent spent) {
      const auto known = other == nullptr ? std::nullopt : amount(*other, goals, spent);
      const auto here = amount(each, goals, spent);
      return here && (!known || *here < *known);
    };
    if (best.fastest == nullptr || is_faster(best.fastest)) best.fastest = &each;
    if (takes_less(best.cheapest, Spent::kMoney)) best.cheapest = &each;
    if (takes_less(best.least_energy, Spent::kEnergy)) best.least_energy = &each;
    const bool is_in_time = in_time(each, goals);
    if (is_in_time && takes_less(best.cheapest_in_time, Spent::kMoney)) best.cheapest_in_time = &each;
    const auto precedes = [&](const SearchCase* other, bool fewer) {
      return other == nullptr || (each.gpus != other->gpus ? (each.gpus < other->gpus) == fewer : is_faster(other));
    };
    if (is_in_time && precedes(best.fewest_gpus_in_time, true)) best.fewest_gpus_in_time = &each;
    if (surely_in_time(each, goals) && precedes(best.fewest_gpus_surely_in_time, true)) {
      best.fewest_gpus_surely_in_time = &each;
    }
    if (in_budget(each, goals) && precedes(best.most_gpus_in_budget, false)) best.most_gpus_in_budget = &each;
  }
  return best;
}

static Result<Prediction> prediction_of(const Scenario& scenario) {
  NS_TRY(const Session session, Session::make(scenario));
  return predict(scenario, session);
}

Result<void> compare_costs(std::vector<SearchCase>& cases, const SearchGoals& goals) {
  constexpr double kMostTimes = 1.5;
  struct Cheapest {
    const SearchCase* found;
    double cost;
    std::optional<Prediction> prediction = {};
  };
  std::map<std::string, Cheapest> cheapest;  // of each model
  for (const SearchCase& each : cases) {
    const auto cost = cost_of(each, goals);
    if (!cost || !std::isfinite(*cost)) continue;
    const auto [known, is_first] = cheapest.try_emplace(each.base.model.id, Cheapest{&each, *cost});
    if (!is_first && *cost < known->second.cost) known->second = {&each, *cost};
  }
  for (SearchCase& each : cases) {
    const auto cost = cost_of(each, goals);
    const auto known = cheapest.find(each.base.model.id);
    if (!cost || known == cheapest.end() || &each == known->second.found) continue;
    const double times = *cost / known->second.cost;
    if (!(times <= kMostTimes)) continue;
    const Report &least = fastest_of(*known->second.found)->report, &report = fastest_of(each)->report;
    if (!known->second.prediction) {
      NS_TRY(known->second.prediction, prediction_of(least.scenario));
    }
    NS_TRY(const Prediction prediction, prediction_of(report.scenario));
    // A second of a step here costs as much as so many there.
    const double weight = times * report.tokens_per_second / least.tokens_per_second;
    const StepDifference behind =
        compare(least.scenario, *known->second.prediction, report.scenario, prediction, weight);
    each.cost_behind = CostBehind{times - 1, behind.share_low, behind.share_high};
  }
  return {};
}

std::vector<const SearchAnswer*> ranked_answers(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  std::vector<const SearchAnswer*> answers;
  for (const SearchCase& each : cases) {
    for (const SearchAnswer& answer : each.result.answers) answers.push_back(&answer);
  }
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  const auto rank = [&](const SearchAnswer* answer) {  // lower is better
    if (goals.objective == Objective::kCost) return cost_of(*answer, goals).value_or(kUnknown);
    if (goals.objective == Objective::kTime) return 1 / speed_of(*answer, goals);
    const auto energy = energy_of(*answer, goals);
    return energy ? *energy / kKilowattHour : kUnknown;
  };
  std::stable_sort(answers.begin(), answers.end(),
                   [&](const SearchAnswer* a, const SearchAnswer* b) { return rank(a) < rank(b); });
  std::stable_partition(answers.begin(), answers.end(), [&](const SearchAnswer* answer) {
    return (!goals.deadline || in_time(*answer, goals)) && (!goals.budget || in_budget(*answer, goals));
  });
  return answers;
}

std::vector<std::string> gpus_of(const std::vector<SearchCase>& cases) {
  std::vector<std::string> gpus;
  for (const SearchCase& each : cases) gpus.push_back(each.base.cluster.gpu.id);
  return gpus;
}

std::vector<std::string> unknown_prices(const WholeTraining& training, const std::vector<std::string>& gpus) {
  std::vector<std::string> texts;
  if (!training.prices) return texts;
  for (const auto& [id, text] : training.prices->unknown) {
    if (std::find(gpus.begin(), gpus.end(), id) == gpus.end()) texts.push_back(text);
  }
  if (!texts.empty()) return texts;  // a misspelled GPU is why
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto here = gpus.begin() + static_cast<std::ptrdiff_t>(i);
    if (training.prices->gpu_hour.contains(*here) || std::find(gpus.begin(), here, *here) != here) continue;
    texts.push_back(fmt::format("no price of {}: what it costs is not known", *here));
  }
  return texts;
}

}  // namespace ns_dist::cli
