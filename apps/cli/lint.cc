#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/astra_formulas.h"
#include "ns_dist/astra_network.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/printable.h"
#include "tables.h"
#include "terminal.h"
#include "trace_inputs.h"

namespace ns_dist::cli {
namespace {

struct LintRequest {
  std::string traces, groups, network, system;
  bool no_run = false, json = false;
};

// The network and the system, where their files are there. `clock`: that of a replay.
Result<LintOptions> options_of(const LintRequest& request, const TraceSet& traces, std::optional<AstraNetwork>* clock) {
  LintOptions options;
  if (request.no_run) options.most_nodes_to_run = 0;
  const std::filesystem::path yml = beside(traces, request.network, "network.yml");
  const std::filesystem::path json = beside(traces, request.system, "system.json");
  std::error_code failed;
  const bool asked = !request.network.empty() || !request.system.empty();
  if (!asked && (!std::filesystem::exists(yml, failed) || !std::filesystem::exists(json, failed))) return options;
  NS_TRY(options.system, system_of(yml, json));
  if (options.system->npus() == static_cast<std::int64_t>(traces.files.size())) {
    if (Result<AstraNetwork> network = AstraNetwork::make(*options.system)) {
      options.network = network_of(clock->emplace(*std::move(network)), json);
    }
  }
  if (const Result<std::string> text = read_text(beside(traces, "", "remote_memory.json"), kLargestAstraInput)) {
    const auto root = nlohmann::json::parse(*text, nullptr, false);
    options.no_remote_memory = root.is_object() && root.value("memory-type", nlohmann::json()) == "NO_MEMORY_EXPANSION";
  }
  return options;
}

std::string summary_text(const TraceSet& traces, const LintReport& report, double seconds) {
  constexpr std::size_t kMost = 40, kMostAlike = 3;
  const auto commas = [](std::uint64_t n) { return with_commas(n); };
  std::string text;
  std::map<std::string_view, std::size_t> alike;  // how many of each message
  std::size_t shown = 0;
  for (const TraceProblem& problem : report.problems) {
    if (shown == kMost) break;
    if (++alike[problem.message] > kMostAlike) continue;
    text += text_of(problem) + "\n";
    ++shown;
  }
  if (report.problem_count > shown) text += fmt::format("and {} more\n", commas(report.problem_count - shown));
  for (const TraceWait& wait : report.deadlock) text += fmt::format("in a circle: {}\n", text_of(wait));
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  text +=
      fmt::format("{}: {} ranks, {} nodes ({} kernels, {} collectives, {} sends, {} receives), ",
                  printable(traces.prefix.string()), traces.files.size(), commas(report.nodes), commas(report.kernels),
                  commas(report.collectives), commas(report.sends), commas(report.receives));
  if (report.problem_count == 0) {
    text += report.ran ? "nothing wrong; every rank runs to its end\n" : "nothing wrong; not run\n";
  } else {
    text += fmt::format("{} {}\n", commas(report.problem_count), report.problem_count == 1 ? "mistake" : "mistakes");
  }
  text += fmt::format("{:.2f} s", seconds);
  if (report.nodes >= 100'000) {  // a rate of fewer nodes is that of opening files
    text += fmt::format(", {:.1f} million nodes/s", static_cast<double>(report.nodes) / std::max(seconds, 1e-9) * 1e-6);
  }
  return text + "\n";
}

std::string json_text(const TraceSet& traces, const LintReport& report, double seconds) {
  const nlohmann::ordered_json out = {{"schema", "ns-dist/lint/1"},
                                      {"traces", traces.prefix.string()},
                                      {"ranks", traces.files.size()},
                                      {"nodes", report.nodes},
                                      {"kernels", report.kernels},
                                      {"collectives", report.collectives},
                                      {"sends", report.sends},
                                      {"receives", report.receives},
                                      {"ran", report.ran},
                                      {"problem_count", report.problem_count},
                                      {"problems", json_of(report.problems)},
                                      {"deadlock", json_of(report.deadlock)},
                                      {"notes", report.notes},
                                      {"seconds", seconds}};
  return dump_json(out, 1);
}

Result<int> answer(const LintRequest& request) {
  NS_TRY(const TraceSet traces, find_traces(request.traces));
  NS_TRY(const CommGroups groups, groups_beside(traces, request.groups));
  std::optional<AstraNetwork> clock;
  NS_TRY(LintOptions options, options_of(request, traces, &clock));
  Progress progress("reading", traces.files.size());
  options.progress = [&](std::int64_t files) { progress.at(static_cast<std::size_t>(files)); };
  const auto begin = std::chrono::steady_clock::now();
  NS_TRY(LintReport report, lint(traces, groups, options));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress.done();
  if (auto hint = hint_of_groups(groups, report.problems); !hint.empty()) report.notes.push_back(std::move(hint));
  std::fputs((request.json ? json_text(traces, report, seconds) : summary_text(traces, report, seconds)).c_str(),
             stdout);
  return report.problem_count == 0 ? kAnswered : kInputAtFault;
}

}  // namespace

int lint_command(int argc, const char* const* argv) {
  CLI::App app{
      "What is wrong with these Chakra traces: what would ASTRA-Sim stop at, hang in or lose? Exit code 1 where\n"
      "something is wrong; notes alone are not.",
      "lint"};
  set_up(app);
  LintRequest request;
  app.add_option("TRACES", request.traces, "folder, or PREFIX of PREFIX.RANK.et, plain or .et.gz")
      ->type_name("")
      ->required();
  app.add_option("--groups", request.groups, "communicator groups [comm_groups.json beside the traces, if it is there]")
      ->type_name("FILE");
  app.add_option("--network", request.network,
                 "ASTRA-Sim's network yml [network.yml beside the traces, if it is there]")
      ->type_name("FILE");
  app.add_option("--system", request.system, "ASTRA-Sim's system json [system.json beside the traces, if it is there]")
      ->type_name("FILE");
  app.add_flag(
      "--no-run", request.no_run,
      "read only; hangs that show when ranks wait for each other are not found [up to 20 million nodes are run]");
  app.add_flag("--json", request.json, "print one JSON object");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
