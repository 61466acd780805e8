#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/simulator.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

// A line that overwrites itself on a terminal, nothing in a pipe.
void show_progress(std::int64_t files, std::int64_t of) {
  if (isatty(STDERR_FILENO) != 1) return;
  std::fputs(fmt::format("\r{} of {} traces{}", files, of, files == of ? "\n" : "").c_str(), stderr);
}

}  // namespace

int export_command(int argc, const char* const* argv) {
  CLI::App app{"Writes the plan as Chakra traces, one file a rank, with the inputs ASTRA-Sim needs beside them.",
               "export"};
  set_up(app);
  WorkFlags flags;
  add_work_flags(app, flags);
  std::string output, prefix = "trace", encoding = "durations";
  const char* group = "What comes back";
  app.add_option("--output", output, "folder for the files; made when it is missing")
      ->type_name("DIR")
      ->required()
      ->group(group);
  app.add_option("--prefix", prefix, "files are called NAME.RANK.et [trace]")->type_name("NAME")->group(group);
  app.add_option("--encoding", encoding,
                 "how durations are told: durations (microseconds), roofline (to the nanosecond) [durations]")
      ->type_name("HOW")
      ->group(group);
  if (const auto done = parse(app, argc, argv)) return *done;

  if (encoding != "durations" && encoding != "roofline") {
    return report_error({ErrorCode::kUsage,
                         fmt::format("\"{}\" is none of its values", encoding),
                         "--encoding",
                         "durations or roofline",
                         "",
                         {}});
  }
  const auto scenario = read_scenario_of(flags);
  if (!scenario) return report_error(scenario.error());
  const auto session = Session::make(*scenario);
  if (!session) return report_error(session.error());
  const auto step = unfold(*scenario, *session);
  if (!step) return report_error(step.error());
  const ExportOptions options{.directory = output,
                              .prefix = prefix,
                              .encoding = encoding == "roofline" ? TraceEncoding::kRoofline : TraceEncoding::kDurations,
                              .progress = show_progress};
  const auto written = write_traces(step->graph, step->timeline, options);
  if (!written) return report_error(written.error());
  if (written->ranks > 1) {
    const auto inputs = write_astra_inputs(scenario->cluster, written->ranks, options);
    if (!inputs) return report_error(inputs.error());
  }
  std::fputs(fmt::format("{} traces in {}: {} nodes, {}\n"
                         "  {} kernels, {} collectives in {} groups, {} sends, {} receives\n",
                         with_commas(written->ranks), output, with_commas(static_cast<std::int64_t>(written->nodes)),
                         bytes_text(static_cast<double>(written->bytes) * units::B),
                         with_commas(static_cast<std::int64_t>(written->kernels)),
                         with_commas(static_cast<std::int64_t>(written->collectives)), with_commas(written->groups),
                         with_commas(static_cast<std::int64_t>(written->sends)),
                         with_commas(static_cast<std::int64_t>(written->receives)))
                 .c_str(),
             stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
