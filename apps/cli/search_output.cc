#include "search_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ns_dist/version.h"

namespace ns_dist::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostReasons = 6;

// In single quotes where the shell would read it otherwise.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/:,+=@%-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, ", ")); }

double headroom(const Report& report) {
  return (report.scenario.cluster.gpu.memory - report.memory.peak()) / units::GiB;
}

std::string behind_text(const SearchAnswer& answer) {
  if (answer.behind == Seconds()) return "";
  const double step = (answer.report.step - answer.behind) / units::s;
  return fmt::format("{:+.1f} % ({:+.1f} to {:+.1f})", 100 * (answer.behind / units::s) / step,
                     100 * (answer.behind_low / units::s) / step, 100 * (answer.behind_high / units::s) / step);
}

std::string counts(const SearchResult& result) {
  std::string text = fmt::format("{} plans in {:.1f} s: {} timed", with_commas(static_cast<std::int64_t>(result.plans)),
                                 result.seconds, with_commas(static_cast<std::int64_t>(result.evaluated)));
  const std::uint64_t slow = result.bounded + result.skipped;
  if (slow > 0) text += fmt::format(", {} slower by a lower bound", with_commas(static_cast<std::int64_t>(slow)));
  std::uint64_t impossible = 0;
  for (const auto& [reason, count] : result.infeasible) impossible += count;
  if (impossible > 0) text += fmt::format(", {} not possible", with_commas(static_cast<std::int64_t>(impossible)));
  if (result.unseen > 0) {
    text += fmt::format(", {} not looked at", with_commas(static_cast<std::int64_t>(result.unseen)));
  }
  return text;
}

std::string degrees(const ParallelPlan& plan) {
  std::string text = fmt::format("tp {} pp {} dp {}", plan.tp, plan.pp, plan.dp);
  if (plan.cp > 1) text += fmt::format(" cp {}", plan.cp);
  if (plan.ep > 1) text += fmt::format(" ep {}", plan.ep);
  if (plan.vpp > 1) text += fmt::format(" vpp {}", plan.vpp);
  return text;
}

std::string no_plan(const SearchCase& found) {
  if (found.result.interrupted) return "interrupted before a plan was timed";
  if (!found.result.least_memory) return "no plan is possible";
  return fmt::format("no plan fits into memory: the least needs {} of {}", bytes_text(*found.result.least_memory),
                     bytes_text(found.base.cluster.gpu.memory));
}

void add_reasons(std::string& page, const SearchResult& result) {
  if (result.infeasible.empty()) return;
  std::vector<std::pair<std::string, std::uint64_t>> reasons(result.infeasible.begin(), result.infeasible.end());
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  page += "\nNot possible\n";
  for (std::size_t i = 0; i < std::min(kMostReasons, reasons.size()); ++i) {
    const auto example = result.examples.find(reasons[i].first);
    page += fmt::format("  {:>11}  {}{}\n", with_commas(static_cast<std::int64_t>(reasons[i].second)),
                        with_flags(reasons[i].first),
                        example == result.examples.end() ? "" : ", as in: " + with_flags(example->second));
  }
}

ordered_json answer_json(const SearchAnswer& answer, const std::optional<std::string>& from) {
  ordered_json json;
  json["why"] = joined(answer.why);
  json["command"] = command_of(answer, from);
  json["behind_s"] = answer.behind / units::s;
  json["behind_low_s"] = answer.behind_low / units::s;
  json["behind_high_s"] = answer.behind_high / units::s;
  json["headroom_bytes"] = (answer.report.scenario.cluster.gpu.memory - answer.report.memory.peak()) / units::B;
  json["network_s"] = answer.network / units::s;
  json["kinds_of_parallelism"] = answer.kinds;
  json.update(ordered_json::parse(to_json(answer.report)));
  return json;
}

}  // namespace

std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from) {
  std::vector<Assignment> assignments = answer.assignments;
  for (Assignment& each : assignments) each.text = shell_word(each.text);
  return fmt::format("ns-dist{} {}", from ? " --from " + shell_word(*from) : "",
                     to_flags(assignments, answer.report.scenario.plan));
}

std::string search_summary(const SearchCase& found, const std::optional<std::string>& from, const Style& style) {
  const Scenario& base = found.base;
  const SearchResult& result = found.result;
  std::string page = style.bold(fmt::format("{} on {} x {} ({})", base.model.name, with_commas(found.gpus),
                                            base.cluster.gpu.name, base.cluster.gpu.id)) +
                     "\n";
  page += fmt::format("  global batch {} of {} tokens, {}\n", with_commas(base.training.global_batch),
                      with_commas(base.training.sequence), name_of(base.training.dtype));
  page += fmt::format("  {}{}\n", result.interrupted ? style.red("interrupted; ") : "", counts(result));
  if (result.answers.empty()) {
    page += fmt::format("\n  {}\n", style.red(no_plan(found)));
  }
  for (const SearchAnswer& answer : result.answers) {
    const Report& report = answer.report;
    page += fmt::format("\n{}\n", style.bold(joined(answer.why)));
    const std::string behind = behind_text(answer);
    page += fmt::format("  {}  (90 % interval {} to {}){}\n", style.bold(duration_text(report.step)),
                        duration_text(report.step_low), duration_text(report.step_high),
                        behind.empty() ? "" : fmt::format(", {} of the fastest", behind));
    page += fmt::format("  MFU {:.1f} %, {} of {} ({:.1f} GiB free), network {}\n", 100 * report.mfu,
                        bytes_text(report.memory.peak()), bytes_text(base.cluster.gpu.memory), headroom(report),
                        duration_text(answer.network));
    page += fmt::format("  {}\n", command_of(answer, from));
  }
  add_reasons(page, result);
  return page;
}

std::string search_table(const std::vector<SearchCase>& cases, const std::optional<std::string>& from,
                         const Style& style) {
  std::string page = style.bold(fmt::format("{:<18}{:>8}  {:>9}  {:>14}  {:>6}  {:>9}  {}", "GPU", "GPUs", "step",
                                            "tokens/s", "MFU", "memory", "plan")) +
                     "\n";
  const SearchAnswer* best = nullptr;
  for (const SearchCase& each : cases) {
    page += fmt::format("{:<18}{:>8}  ", each.base.cluster.gpu.id, with_commas(each.gpus));
    if (each.result.answers.empty()) {
      page += no_plan(each) + "\n";
      continue;
    }
    const SearchAnswer& answer = each.result.answers.front();
    const Report& report = answer.report;
    page += fmt::format("{:>9}  {:>14}  {:>4.1f} %  {:>9}  {}\n", duration_text(report.step),
                        with_commas(static_cast<std::int64_t>(report.tokens_per_second)), 100 * report.mfu,
                        bytes_text(report.memory.peak()), degrees(report.scenario.plan));
    if (best == nullptr || report.tokens_per_second > best->report.tokens_per_second) best = &answer;
  }
  if (best != nullptr) page += fmt::format("\n{}\n  {}\n", style.bold("The fastest"), command_of(*best, from));
  return page;
}

std::string search_json(const std::vector<SearchCase>& cases, const std::optional<std::string>& from) {
  ordered_json json;
  json["schema"] = "ns-dist/search/1";
  json["version"] = version();
  std::uint64_t plans = 0, evaluated = 0, bounded = 0, skipped = 0, unseen = 0;
  double seconds = 0;
  bool interrupted = false;
  ordered_json infeasible = ordered_json::object(), examples = ordered_json::object();
  std::vector<const SearchAnswer*> answers;
  for (const SearchCase& each : cases) {
    const SearchResult& result = each.result;
    plans += result.plans;
    evaluated += result.evaluated;
    bounded += result.bounded;
    skipped += result.skipped;
    unseen += result.unseen;
    seconds += result.seconds;
    interrupted |= result.interrupted;
    for (const auto& [reason, count] : result.infeasible) {
      infeasible[reason] = infeasible.value(reason, std::uint64_t{0}) + count;
    }
    for (const auto& [reason, example] : result.examples) {
      if (!examples.contains(reason)) examples[reason] = example;
    }
    for (const SearchAnswer& answer : result.answers) answers.push_back(&answer);
  }
  std::stable_sort(answers.begin(), answers.end(), [](const SearchAnswer* a, const SearchAnswer* b) {
    return a->report.tokens_per_second > b->report.tokens_per_second;
  });
  json["plans"] = ordered_json::array();
  for (const SearchAnswer* answer : answers) json["plans"].push_back(answer_json(*answer, from));
  json["space"] = plans;
  json["evaluated"] = evaluated;
  json["left_out"] = {{"by_step_without_sharing", bounded}, {"by_kernels", skipped}, {"not_looked_at", unseen}};
  json["infeasible"] = infeasible;
  json["infeasible_examples"] = examples;
  json["interrupted"] = interrupted;
  json["seconds"] = seconds;
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string search_csv(const std::vector<SearchCase>& cases, const std::optional<std::string>& from) {
  std::string text =
      "gpu,gpus,why,step_time_s,step_time_low_s,step_time_high_s,behind_s,behind_low_s,behind_high_s,tokens_per_s,mfu,"
      "memory_bytes,network_s,kinds_of_parallelism,tp,cp,pp,dp,ep,vpp,schedule,micro_batch,zero,recompute,command\n";
  for (const SearchCase& each : cases) {
    for (const SearchAnswer& answer : each.result.answers) {
      const Report& report = answer.report;
      const ParallelPlan& plan = report.scenario.plan;
      std::string command = command_of(answer, from), escaped;
      for (const char c : command) escaped += c == '"' ? std::string("\"\"") : std::string(1, c);
      text += fmt::format(
          "{},{},\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n",
          each.base.cluster.gpu.id, each.gpus, joined(answer.why), report.step / units::s, report.step_low / units::s,
          report.step_high / units::s, answer.behind / units::s, answer.behind_low / units::s,
          answer.behind_high / units::s, report.tokens_per_second, report.mfu, report.memory.peak() / units::B,
          answer.network / units::s, answer.kinds, plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.vpp, plan.schedule,
          report.scenario.training.micro_batch, enumerator_name(plan.zero), field_text(plan.recompute), escaped);
    }
  }
  return text;
}

}  // namespace ns_dist::cli
