#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "evidence.h"
#include "ns_dist/sensitivity.h"
#include "ns_dist/simulator.h"
#include "ns_dist/sinks.h"
#include "report_page.h"
#include "search_output.h"
#include "summary.h"
#include "tables.h"
#include "whole_training.h"

namespace ns_dist::cli {
namespace {

constexpr const char* kWhatComesBack = "What comes back";

Result<void> write_with(std::string_view kind, const std::optional<std::string>& path, const UnfoldedStep& step) {
  if (!path) return {};
  for (const TraceSinkKind& sink_kind : trace_sinks()) {
    if (sink_kind.name != kind) continue;
    NS_TRY(const auto sink, sink_kind.make(*path));
    return write_timeline(step, *sink);
  }
  detail::broken_contract("a sink of trace_sinks()", __FILE__, __LINE__);
}

struct StepFlags {
  WorkFlags work;
  TrainingFlags training;
  bool json = false, sensitivity = false;
  std::optional<std::string> page, trace, csv, changes;
};

void add_step_flags(CLI::App& app, StepFlags& flags) {
  add_work_flags(app, flags.work);
  app.get_option("--from")->description(
      "a report or its page again, or with FILE#2 a search's second plan: the work, --what-if, --sensitivity and the "
      "whole training; flags change it");
  add_training_flags(app, flags.training);
  app.add_flag("--json", flags.json, "print one JSON object")->group(kWhatComesBack);
  app.add_flag("--sensitivity", flags.sensitivity, "what does 1 % better of each part of the machine change?")
      ->group(kWhatComesBack);
  app.add_option("--what-if", flags.changes,
                 fmt::format("what do these change, as in \"inter-bandwidth x2, launch-cost x0.5\"? Parts: {}",
                             fmt::join(part_names(), ", ")))
      ->type_name("CHANGES")
      ->group(kWhatComesBack);
  app.add_option("--report", flags.page, "write one HTML page for a meeting; --from reads it, too")
      ->type_name("FILE")
      ->group(kWhatComesBack);
  app.add_option("--trace", flags.trace, "write the timeline for ui.perfetto.dev")
      ->type_name("FILE")
      ->group(kWhatComesBack);
  app.add_option("--csv", flags.csv, "write the timeline, one line for each kernel, collective and message")
      ->type_name("FILE")
      ->group(kWhatComesBack);
}

// The step of the report that --from names, where flags changed it.
std::optional<Against> against_base(const WorkFlags& flags, const Scenario& scenario, const Session& session) {
  const auto base = read_base_of(flags);
  if (!base || !*base || **base == scenario) return std::nullopt;
  const auto found = compare(**base, scenario, session);
  if (!found) {
    warn(fmt::format("no comparison with {}: {}", *flags.from, found.error().message));
    return std::nullopt;
  }
  return Against{*flags.from, *found};
}

// The step as the only answer of a search: a whole training is told alike.
Result<SearchAnswer> as_answer(const Report& report, const WholeTraining& training) {
  SearchAnswer answer;
  answer.report = report;
  if (training.gpu_spread) {
    NS_TRY(answer.unequal_step, step_of_unequal_gpus(report.scenario, *training.gpu_spread));
  }
  return answer;
}

std::vector<Output> outputs_of(const StepFlags& flags) {
  return {{"--json", flags.json ? "-" : ""},
          {"--report", flags.page.value_or("")},
          {"--trace", flags.trace.value_or("")},
          {"--csv", flags.csv.value_or("")}};
}

// Takes what the report of --from asked where no flag says it.
Result<void> repeat_questions(StepFlags& flags) {
  NS_TRY(const auto asked, read_asked_of(flags.work));
  if (asked.empty()) return {};
  repeat(asked, *flags.work.from, flags.training);
  flags.sensitivity |= asked.contains("sensitivity");
  if (const auto found = asked.find("what-if"); found != asked.end() && !flags.changes) flags.changes = found->second;
  return {};
}

// `command`: what was typed.
Result<void> answer(StepFlags flags, const std::string& command) {
  const std::vector<Output> outputs = outputs_of(flags);
  NS_TRY_VOID(check_outputs(outputs, inputs_of(flags.work, flags.training)));
  NS_TRY_VOID(repeat_questions(flags));
  std::vector<PartChange> changes;
  if (flags.changes) {
    NS_TRY(changes, read_part_changes(*flags.changes));
  }
  SearchGoals goals;
  NS_TRY(static_cast<WholeTraining&>(goals), read_training(flags.training));
  NS_TRY(const Scenario scenario, read_scenario_of(flags.work));
  NS_TRY_VOID(check_not_read(outputs, scenario.files));
  NS_TRY(const Session session, Session::make(scenario));
  NS_TRY(Report report, simulate(scenario, session));
  if (flags.sensitivity) {
    NS_TRY(report.sensitivity, sensitivities(scenario));
  }
  if (!changes.empty()) {
    NS_TRY(report.what_if, what_if(scenario, changes));
  }
  report.against = against_base(flags.work, scenario, session);
  report.asked = goals.asked;
  if (flags.sensitivity) report.asked.emplace("sensitivity", "on");
  if (flags.changes) report.asked.emplace("what-if", *flags.changes);
  NS_TRY(const SearchAnswer plan, as_answer(report, goals));
  const auto training = [&](const Style& style) { return training_text(plan, goals, "this plan", style); };
  const std::vector<RunCheck> evidence = flags.page || !flags.json ? evidence_for(scenario) : std::vector<RunCheck>();
  if (flags.page) {
    NS_TRY(const std::string text, report_page(report, session, evidence, training(Style()), command));
    NS_TRY_VOID(write_text(*flags.page, text));
  }
  if (flags.trace || flags.csv) {
    NS_TRY(const UnfoldedStep step, unfold(scenario, session));
    NS_TRY_VOID(write_with("perfetto", flags.trace, step));
    NS_TRY_VOID(write_with("csv", flags.csv, step));
  }
  std::FILE* const stream = stream_of_answer(flags.json, outputs);
  const Style style = style_of(stream);
  std::fputs(
      (flags.json ? plan_json(plan, goals) : summary(report, evidence_line(evidence, scenario), training(style), style))
          .c_str(),
      stream);
  return {};
}

}  // namespace

std::vector<std::string> simulate_flags() { return flags_of(add_step_flags); }

int simulate_command(int argc, const char* const* argv) {
  CLI::App app{"What does one step of this training plan take, does it fit, where does the time go?", "simulate"};
  set_up(app);
  StepFlags flags;
  add_step_flags(app, flags);
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(flags, command_line("ns-dist", argc, argv, app, {}, kWhatComesBack));
  return answered ? kAnswered : report_error(answered.error());
}

}  // namespace ns_dist::cli
