#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "arguments.h"
#include "ns_dist/csv_table.h"
#include "ns_dist/energy.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/sensitivity_json.h"
#include "ns_dist/version.h"
#include "report_text.h"
#include "search_output.h"
#include "tables.h"

namespace ns_dist::cli {
namespace {

using nlohmann::ordered_json;

ordered_json training_json(const TrainingTime& time) {
  return {{"tokens", time.tokens},
          {"steps", time.steps},
          {"seconds", time.total / units::s},
          {"low_s", time.low / units::s},
          {"high_s", time.high / units::s},
          {"without_failures_s", time.without_failures / units::s},
          {"goodput", time.goodput},
          {"time_between_failures_s", time.time_between_failures / units::s},
          {"step_time_s", time.step / units::s},
          {"checkpoint_s", time.checkpoint / units::s},
          {"checkpoint_standstill_s", time.standstill / units::s},
          {"checkpoint_interval_s", time.interval / units::s},
          {"spare_nodes", time.spare_nodes},
          {"enough_nodes_share", time.whole},
          {"gpu_hours", time.gpu_hours},
          {"kwh_at_most", time.energy ? ordered_json(*time.energy / kKilowattHour) : ordered_json(nullptr)}};
}

// What the whole training with a plan takes and costs.
void add_training(ordered_json& json, const SearchAnswer& answer, const SearchGoals& goals) {
  if (const auto time = training_of(answer, goals)) json["training"] = training_json(*time);
  if (const auto cost = cost_of(answer, goals)) json["cost"] = *cost;
}

// Of what the prices are, and which of them are missing or of no GPU.
ordered_json prices_json(const SearchGoals& goals, const std::vector<std::string>& gpus) {
  ordered_json json = {{"currency", goals.prices->currency},
                       {"of", goals.tokens ? "training" : "1e12 tokens"},
                       {"date", goals.prices->date}};
  if (const auto unknown = unknown_prices(goals, gpus); !unknown.empty()) json["unknown"] = unknown;
  return json;
}

ordered_json answer_json(const SearchAnswer& answer, const SearchGoals& goals) {
  ordered_json json;
  json["why"] = joined(answer.why);
  json["command"] = command_of(answer, goals.from);
  json["behind_s"] = answer.behind.longer / units::s;
  json["behind_low_s"] = answer.behind.low / units::s;
  json["behind_high_s"] = answer.behind.high / units::s;
  json["headroom_bytes"] = (answer.report.scenario.cluster.gpu.memory - answer.report.memory.peak()) / units::B;
  json["network_s"] = answer.network / units::s;
  json["kinds_of_parallelism"] = answer.kinds;
  add_training(json, answer, goals);
  Report report = answer.report;
  report.asked = goals.asked;
  json.update(ordered_json::parse(report_json(std::move(report))));
  return json;
}

// A line of the table.
ordered_json row_json(const SearchCase& each, const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  ordered_json row = {{"model", each.base.model.id},
                      {"framework", each.base.framework},
                      {"gpu", each.base.cluster.gpu.id},
                      {"gpus", each.gpus}};
  if (const SearchAnswer* fastest = fastest_of(each)) {
    const Training& training = fastest->report.scenario.training;
    row["global_batch"] = training.global_batch;
    row["sequence"] = training.sequence;
    row["dtype"] = name_of(training.precision);
    row["tight"] = is_tight(fastest->report);
  }
  for (const auto& [field, text] : set_apart(each.base, goals)) row["set"][with_flags(field).substr(2)] = text;
  for (const FabricLevel& level : each.base.cluster.levels) {
    row["fabrics"].push_back({{"id", level.fabric.id},
                              {"units", level.size},
                              {"bytes_per_s_per_gpu", level.bandwidth_per_gpu() / (units::B / units::s)}});
  }
  row["plans"] = each.result.answers.size();
  if (lacks_memory(each.result) && each.result.answers.empty()) {
    row["least_memory_bytes"] = *each.result.least_memory / units::B;
  }
  if (!each.advice.empty()) row["advice"] = each.advice;
  if (!each.result.answers.empty()) {
    const Report& report = each.result.answers.front().report;
    row["step_time_s"] = report.step / units::s;
    row["tokens_per_s"] = report.tokens_per_second;
    row["mfu"] = report.mfu;
    row["on_front"] = on_front(each, cases, goals);
    if (const auto time = training_of(each, goals)) row["training"] = training_json(*time);
    if (goals.deadline) {
      row["in_time"] = in_time(each, goals);
      row["surely_in_time"] = surely_in_time(each, goals);
    }
    if (const auto cost = cost_of(each, goals)) row["cost"] = *cost;
    if (each.cost_behind) {
      row["cost_behind"] = each.cost_behind->more;
      row["cost_behind_low"] = each.cost_behind->low;
      row["cost_behind_high"] = each.cost_behind->high;
    }
    if (goals.budget) row["in_budget"] = in_budget(each, goals);
    if (const auto energy = energy_of(each, goals)) row["kwh_at_most"] = *energy / kKilowattHour;
  }
  if (!each.sensitivity.empty()) row["sensitivity"] = sensitivity_json(each.sensitivity);
  return row;
}

// "launch_cost": the flag of a field as the heading of a column. Of the training, the field, as in reports.
std::string column_of(std::string_view field) {
  constexpr std::string_view kTraining = "training/";
  if (field.starts_with(kTraining)) return std::string(field.substr(kTraining.size()));
  std::string name = with_flags(field).substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace

std::string plan_json(const SearchAnswer& answer, const SearchGoals& goals) {
  if (!goals.tokens && !goals.prices) return report_json(answer.report);
  ordered_json json = ordered_json::parse(report_json(answer.report));
  add_training(json, answer, goals);
  if (goals.prices) json["prices"] = prices_json(goals, {answer.report.scenario.cluster.gpu.id});
  return dump_json(json, 2);
}

std::string search_json(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  ordered_json json;
  json["schema"] = "ns-dist/search/1";
  json["version"] = version();
  std::uint64_t plans = 0, evaluated = 0, with_fewer_layers = 0, bounded = 0, skipped = 0, unseen = 0;
  double seconds = 0;
  bool interrupted = false;
  ordered_json infeasible = ordered_json::object(), examples = ordered_json::object();
  for (const SearchCase& each : cases) {
    const SearchResult& result = each.result;
    plans += result.plans;
    evaluated += result.evaluated;
    with_fewer_layers += result.evaluated_with_fewer_layers;
    bounded += result.bounded;
    skipped += result.skipped;
    unseen += result.unseen;
    seconds += result.seconds;
    interrupted |= result.interrupted;
    for (const auto& [reason, count] : result.infeasible) {
      infeasible[reason] = infeasible.value(reason, std::uint64_t{0}) + count;
    }
    for (const auto& [reason, example] : result.examples) {
      if (!examples.contains(reason)) examples[reason] = with_flags(example);
    }
  }
  json["plans"] = ordered_json::array();
  for (const SearchAnswer* answer : ranked_answers(cases, goals)) json["plans"].push_back(answer_json(*answer, goals));
  json["table"] = ordered_json::array();
  for (const SearchCase& each : cases) {
    json["table"].push_back(row_json(each, cases, goals));
  }
  if (goals.prices) json["cost"] = prices_json(goals, gpus_of(cases));
  json["space"] = plans;
  json["evaluated"] = evaluated;
  json["evaluated_with_fewer_layers"] = with_fewer_layers;
  json["left_out"] = {{"by_step_without_sharing", bounded}, {"by_kernels", skipped}, {"not_looked_at", unseen}};
  json["infeasible"] = infeasible;
  json["infeasible_examples"] = examples;
  json["interrupted"] = interrupted;
  json["seconds"] = seconds;
  return dump_json(json, 2);
}

std::string search_csv(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; };
  const auto count = [](std::int64_t value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> row;
  const auto fill = [&](const SearchAnswer& answer) {
    const Report& report = answer.report;
    const Scenario& scenario = report.scenario;
    const ParallelPlan& plan = scenario.plan;
    const Training& training = scenario.training;
    const std::vector<FabricLevel>& levels = scenario.cluster.levels;
    row = {{"model", scenario.model.id},
           {"framework", scenario.framework},
           {"gpu", scenario.cluster.gpu.id},
           {"gpus", count(report.ranks)},
           {"inside_nodes", fabric_text(levels.front())},
           {"between_nodes", fabric_text(levels.back())},
           {"global_batch", count(training.global_batch)},
           {"sequence", count(training.sequence)},
           {"dtype", std::string(name_of(training.precision))},
           {"why", joined(answer.why)},
           {"step_time_s", number(report.step / units::s)},
           {"step_time_low_s", number(report.step_low / units::s)},
           {"step_time_high_s", number(report.step_high / units::s)},
           {"behind_s", number(answer.behind.longer / units::s)},
           {"behind_low_s", number(answer.behind.low / units::s)},
           {"behind_high_s", number(answer.behind.high / units::s)},
           {"tokens_per_s", number(report.tokens_per_second)},
           {"mfu", number(report.mfu)},
           {"memory_bytes", number(report.memory.peak() / units::B)},
           {"network_s", number(answer.network / units::s)},
           {"kinds_of_parallelism", count(answer.kinds)},
           {"tp", count(plan.tp)},
           {"cp", count(plan.cp)},
           {"pp", count(plan.pp)},
           {"dp", count(plan.dp)},
           {"ep", count(plan.ep)},
           {"vpp", count(plan.vpp)},
           {"schedule", plan.schedule},
           {"micro_batch", count(training.micro_batch)},
           {"zero", std::string(name_of(plan.zero))},
           {"recompute", field_text(recomputation_of(plan))}};
    if (goals.tokens) {
      const auto time = training_of(answer, goals);
      row.emplace_back("training_s", time ? number(time->total / units::s) : "");
    }
    if (goals.prices) {
      const auto cost = cost_of(answer, goals);
      row.emplace_back(goals.tokens ? "cost" : "cost_of_1e12_tokens", cost ? number(*cost) : "");
    }
    for (auto& [field, text] : all_listed(scenario, goals)) {
      std::string name = column_of(field);
      const bool known = std::any_of(row.begin(), row.end(), [&](const auto& cell) { return cell.first == name; });
      if (!known) row.emplace_back(std::move(name), std::move(text));
    }
    row.emplace_back("command", command_of(answer, goals.from));
  };
  const auto line = [&](const auto& part) {
    std::vector<std::string> cells;
    for (const auto& cell : row) cells.push_back(csv_cell(std::string(part(cell))));
    return fmt::format("{}\n", fmt::join(cells, ","));
  };
  SearchAnswer none;  // for the heading
  none.report.scenario = cases.front().base;
  fill(none);
  std::string text = line([](const auto& cell) { return cell.first; });
  for (const SearchCase& each : cases) {
    for (const SearchAnswer& answer : each.result.answers) {
      fill(answer);
      text += line([](const auto& cell) { return cell.second; });
    }
  }
  return text;
}

}  // namespace ns_dist::cli
