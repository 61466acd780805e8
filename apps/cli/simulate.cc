#include <cstdio>
#include <string>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/simulator.h"
#include "ns_dist/sinks.h"
#include "report_page.h"
#include "summary.h"
#include "tables.h"

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

// What was typed, for a shell, without where the answer goes.
std::string command_of(int argc, const char* const* argv, const CLI::App& app) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%#";
  std::string command = "ns-dist";
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, argument.find('='));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option != nullptr && option->get_group() == kWhatComesBack) {
      if (option->get_items_expected_max() > 0 && name == argument) ++i;
      continue;
    }
    command += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      command += argument;
      continue;
    }
    command += '\'';
    for (const char c : argument) command += c == '\'' ? "'\\''" : std::string(1, c);
    command += '\'';
  }
  return command;
}

}  // namespace

int simulate_command(int argc, const char* const* argv) {
  CLI::App app{"What does one step of this training plan take, does it fit, where does the time go?", "simulate"};
  set_up(app);
  WorkFlags flags;
  add_work_flags(app, flags);
  bool json = false;
  std::optional<std::string> page, trace, csv;
  app.add_flag("--json", json, "print one JSON object")->group(kWhatComesBack);
  app.add_option("--report", page, "write one HTML page for a meeting; --from reads it, too")
      ->type_name("FILE")
      ->group(kWhatComesBack);
  app.add_option("--trace", trace, "write the timeline for ui.perfetto.dev")->type_name("FILE")->group(kWhatComesBack);
  app.add_option("--csv", csv, "write the timeline, one line a node")->type_name("FILE")->group(kWhatComesBack);
  if (const auto done = parse(app, argc, argv)) return *done;

  if (auto writable =
          check_outputs({{"--report", page.value_or("")}, {"--trace", trace.value_or("")}, {"--csv", csv.value_or("")}},
                        inputs_of(flags));
      !writable) {
    return report_error(writable.error());
  }
  const auto scenario = read_scenario_of(flags);
  if (!scenario) return report_error(scenario.error());
  const auto session = Session::make(*scenario);
  if (!session) return report_error(session.error());
  const auto answer = simulate(*scenario, *session);
  if (!answer) return report_error(answer.error());
  if (page) {
    const auto text = report_page(*answer, *session, command_of(argc, argv, app));
    if (!text) return report_error(text.error());
    if (auto written = write_text(*page, *text); !written) {
      written.error().where = "--report";
      return report_error(written.error());
    }
  }
  if (trace || csv) {
    const auto step = unfold(*scenario, *session);
    if (!step) return report_error(step.error());
    if (auto written = write_with("perfetto", trace, *step); !written) return report_error(written.error());
    if (auto written = write_with("csv", csv, *step); !written) return report_error(written.error());
  }
  std::fputs((json ? to_json(*answer) : summary(*answer, style_of_standard_output())).c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
