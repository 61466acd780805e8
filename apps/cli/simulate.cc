#include <cstdio>
#include <string>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/simulator.h"
#include "ns_dist/sinks.h"
#include "summary.h"
#include "tables.h"

namespace ns_dist::cli {
namespace {

Result<void> write_with(std::string_view kind, const std::optional<std::string>& path, const UnfoldedStep& step) {
  if (!path) return {};
  for (const TraceSinkKind& sink_kind : trace_sinks()) {
    if (sink_kind.name != kind) continue;
    NS_TRY(const auto sink, sink_kind.make(*path));
    return write_timeline(step, *sink);
  }
  detail::broken_contract("a sink of trace_sinks()", __FILE__, __LINE__);
}

}  // namespace

int simulate_command(int argc, const char* const* argv) {
  CLI::App app{"What does one step of this training plan take, does it fit, where does the time go?", "simulate"};
  set_up(app);
  WorkFlags flags;
  add_work_flags(app, flags);
  bool json = false;
  std::optional<std::string> trace, csv;
  app.add_flag("--json", json, "print one JSON object")->group("What comes back");
  app.add_option("--trace", trace, "write the timeline for ui.perfetto.dev")
      ->type_name("FILE")
      ->group("What comes back");
  app.add_option("--csv", csv, "write the timeline, one line a node")->type_name("FILE")->group("What comes back");
  if (const auto done = parse(app, argc, argv)) return *done;

  if (auto writable = check_outputs({{"--trace", trace.value_or("")}, {"--csv", csv.value_or("")}}, inputs_of(flags));
      !writable) {
    return report_error(writable.error());
  }
  const auto scenario = read_scenario_of(flags);
  if (!scenario) return report_error(scenario.error());
  const auto session = Session::make(*scenario);
  if (!session) return report_error(session.error());
  const auto answer = simulate(*scenario, *session);
  if (!answer) return report_error(answer.error());
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
