#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/astra_formulas.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/as_collective.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/simulator.h"
#include "ns_dist/version.h"
#include "terminal.h"
#include "trace_inputs.h"

namespace ns_dist::cli {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{4} << 30;  // bytes that are written without --large

std::string size_text(std::uint64_t bytes) { return bytes_text(static_cast<double>(bytes) * units::B); }

// A line that overwrites itself on a terminal, nothing in a pipe.
void show_progress(std::int64_t files, std::int64_t of) {
  if (isatty(STDERR_FILENO) != 1) return;
  std::fputs(fmt::format("\r{} of {} traces{}", files, of, files == of ? "\n" : "").c_str(), stderr);
}

// What ASTRA-Sim will answer for the traces, and the two reasons why that is not our step.
struct Answer {
  Seconds there;     // its slowest rank
  Seconds slots;     // of the difference: one slot a rank for collectives and sends, rounded durations
  Seconds formulas;  // the rest: its formulas instead of our forecasts
};

// Nothing where replaying would take minutes.
Result<std::optional<Answer>> answer_of(const std::filesystem::path& folder, const ExportSummary& written,
                                        const UnfoldedStep& step, const ExportOptions& options) {
  constexpr std::uint64_t kMostNodes = 2'000'000;
  if (written.ranks == 1 || written.nodes > kMostNodes) return std::nullopt;
  NS_TRY(const TraceSet traces, find_traces(folder / options.prefix));
  NS_TRY(const CommGroups groups, groups_beside(traces, ""));
  NS_TRY(AstraSystem system, system_of(folder / "network.yml", folder / "system.json"));
  ReplayOptions rules = rules_of(system);
  const auto slowest = [](const ReplayReport& report) {
    return static_cast<double>(*std::max_element(report.finish_ns.begin(), report.finish_ns.end())) * units::ns;
  };
  NS_TRY(const ReplayReport recorded, replay(traces, groups, rules));
  NS_TRY(const AstraNetwork network, AstraNetwork::make(std::move(system)));
  rules.network = network_of(network, folder / "system.json");
  NS_TRY(const ReplayReport there, replay(traces, groups, rules));
  return Answer{slowest(there), slowest(recorded) - step.timeline.step, slowest(there) - slowest(recorded)};
}

std::string answer_text(const Answer& answer, Seconds step) {
  const auto rounded = [](Seconds time) { return std::round(time / units::us) / 1000 + 0.0; };  // no -0.000
  return fmt::format(
      "  ASTRA-Sim will answer {:.3f} ms with its congestion-unaware network; our step takes {:.3f} ms\n"
      "    {:+12.3f} ms  collectives and sends of a rank run one at a time there, and durations are rounded\n"
      "    {:+12.3f} ms  its network formulas instead of our forecasts\n",
      answer.there / units::ms, step / units::ms, rounded(answer.slots), rounded(answer.formulas));
}

// Collectives and messages of the step, with what the network model says they take alone.
std::vector<AstraTarget> targets_of(const UnfoldedStep& step) {
  const std::span<const WorkItem> works = step.graph.works();
  std::vector<double> count(works.size(), 0);
  for (std::uint32_t n = 0; n < step.graph.node_count(); ++n) ++count[index(step.graph.node(NodeId{n}).work)];
  const Mesh& mesh = step.graph.mesh();
  std::vector<AstraTarget> out;
  for (std::size_t w = 0; w < works.size(); ++w) {
    AstraTarget target{{}, step.forecasts[w].latency, count[w]};
    if (const auto* collective = std::get_if<Collective>(&works[w].work)) {
      target.collective = *collective;
    } else if (const auto* message = std::get_if<Message>(&works[w].work)) {
      target.collective = as_collective(*message, mesh);
    } else {
      continue;
    }
    // Stages and buckets repeat each other.
    const auto same = std::find_if(out.begin(), out.end(), [&](const AstraTarget& other) {
      return other.time == target.time && other.collective.kind == target.collective.kind &&
             other.collective.size == target.collective.size &&
             other.collective.group.strides == target.collective.group.strides;
    });
    if (same == out.end()) {
      out.push_back(std::move(target));
    } else {
      same->count += target.count;
    }
  }
  return out;
}

std::string fit_text(const AstraFit& fit) {
  return fmt::format(
      "  network.yml is fitted to our forecasts of this plan's collectives and messages: {:.1f} % off, {:.1f} % "
      "before;\n"
      "    their sum is {:+.1f} % off\n",
      100 * fit.error, 100 * fit.error_before, 100 * (fit.total - 1));
}

struct Exported {
  std::string manifest;  // manifest.json of the folder
  ExportSummary written;
  std::optional<AstraFit> fit;
  std::optional<Answer> answer;
};

std::string manifest_of(const Exported& exported, const Scenario& scenario, const UnfoldedStep& step,
                        const ExportOptions& options) {
  const auto& [manifest, written, fit, answer] = exported;
  const auto inputs = nlohmann::ordered_json::parse(write_scenario(scenario));
  nlohmann::ordered_json out = {
      {"schema", "ns-dist/traces/1"},
      {"provenance", {{"version", version()}, {"git_revision", git_revision()}, {"inputs", inputs["files"]}}},
      {"prefix", options.prefix},
      {"ranks", written.ranks},
      {"encoding", name_of(options.encoding)},
      {"merged_kernels", options.merge_kernels},
      {"operators", options.operators},
      {"nodes", written.nodes},
      {"bytes", written.bytes},
      {"groups", written.groups},
      {"step_time_s", step.timeline.step / units::s}};
  if (fit) out["network_fit"] = {{"error_before", fit->error_before}, {"error", fit->error}, {"total", fit->total}};
  if (answer) {
    out["astra_sim"] = {{"step_time_s", answer->there / units::s},
                        {"by_slots_s", answer->slots / units::s},
                        {"by_formulas_s", answer->formulas / units::s}};
  }
  out["inputs"] = inputs;
  return dump_json(out, 1);
}

struct ExportRequest {
  WorkFlags work;
  std::string output, prefix = "trace", encoding;
  bool merge = false, no_operators = false, json = false, force = false, large = false, fit_network = false;
};

// Whether the traces may be written: they fit onto the file system, and are few or wanted although they are large.
Result<void> check_size(const ExportSummary& expected, std::uint64_t free, const ExportOptions& options, bool large) {
  std::string smaller;
  if (!options.merge_kernels) smaller += "--merge-kernels (a node for each chain of kernels), ";
  if (options.operators) smaller += "--no-operators, ";
  smaller += "a smaller --dp or a smaller --global-batch: there is a file for each rank";
  const std::string traces = fmt::format("{} traces of {}", with_commas(expected.ranks), size_text(expected.bytes));
  if (free < expected.bytes + expected.bytes / 64) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} do not fit: {} are free", traces, size_text(free)),
                 options.directory.string(), "a file system with room", "write " + smaller});
  }
  if (expected.bytes > kLargest && !large) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} would be written", traces), options.directory.string(),
                 fmt::format("at most {}, or --large", size_text(kLargest)),
                 fmt::format("write --large, or {}", smaller)});
  }
  return {};
}

// Everything that can be known is checked before the first byte is written; the folder is whole or not there.
Result<Exported> write_export(const Scenario& scenario, const UnfoldedStep& step, const ExportOptions& options,
                              const ExportRequest& request, ExportFolder folder) {
  Exported out;
  NS_TRY(TraceExport traces, TraceExport::prepare(step.graph, step.timeline, options));
  const ExportSummary& expected = traces.expected();
  if (expected.ranks > 1) {
    NS_TRY(const AstraSystem system, to_astra(scenario.cluster, expected.ranks));
    if (request.fit_network) {
      NS_TRY(out.fit, fit_astra(system, targets_of(step), options.node_gpus));
    }
  }
  NS_TRY_VOID(check_size(expected, folder.free_bytes(), options, request.large));
  if (isatty(STDERR_FILENO) == 1 || request.large) {
    std::fputs(fmt::format("writing {} traces, {}\n", with_commas(expected.ranks), size_text(expected.bytes)).c_str(),
               stderr);
  }
  NS_TRY(out.written, traces.write(folder.staging()));
  if (out.written.ranks > 1) {
    ExportOptions beside = options;
    beside.directory = folder.staging();
    std::optional<AstraSystem> fitted;
    if (out.fit) fitted = out.fit->system;
    NS_TRY_VOID(write_astra_inputs(scenario.cluster, out.written.ranks, beside, fitted));
  }
  NS_TRY(out.answer, answer_of(folder.staging(), out.written, step, options));
  NS_TRY(out.manifest, folder.commit(manifest_of(out, scenario, step, options)));
  return out;
}

// How the traces are written, of what the flags say. Errors: a prefix with a folder, an unknown encoding.
Result<ExportOptions> read_options(const ExportRequest& request) {
  const std::string& prefix = request.prefix;
  if (prefix.empty() || prefix == "." || prefix == ".." || prefix.find('/') != std::string::npos) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no beginning of a file name", prefix), "--prefix",
                 "a name without \"/\"", "the folder is --output"});
  }
  ExportOptions options;
  options.directory = request.output;
  options.prefix = prefix;
  options.encoding = request.merge ? TraceEncoding::kDurations : TraceEncoding::kRoofline;  // merged: small files
  if (!request.encoding.empty()) {
    NS_TRY(options.encoding, of_flag("--encoding", read_enumerator<TraceEncoding>(request.encoding)));
  }
  options.operators = !request.no_operators;
  options.merge_kernels = request.merge;
  options.progress = show_progress;
  return options;
}

std::string summary_of(const Exported& exported, const Scenario& scenario, const std::string& folder, Seconds step) {
  const ExportSummary& written = exported.written;
  const Gpu& gpu = scenario.cluster.gpu;
  std::string text = fmt::format(
      "{} traces in {}: {} nodes, {}\n"
      "  {} on {} ({})\n"
      "  {} kernels, {} collectives in {}, {} sends, {} receives\n",
      with_commas(written.ranks), folder, with_commas(written.nodes), size_text(written.bytes), scenario.model.name,
      gpu.name, gpu.id, with_commas(written.kernels), with_commas(written.collectives),
      counted(written.groups, "group"), with_commas(written.sends), with_commas(written.receives));
  if (written.ranks == 1) text += "  ASTRA-Sim runs two ranks or more: no network was written beside this one\n";
  if (exported.fit) text += fit_text(*exported.fit);
  if (exported.answer) text += answer_text(*exported.answer, step);
  return text;
}

// Writes the folder; what is printed of it.
Result<std::string> answer(const ExportRequest& request) {
  NS_TRY(ExportOptions options, read_options(request));
  NS_TRY(const Scenario scenario, read_scenario_of(request.work));
  warn_of(scenario);
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  NS_TRY(ExportFolder folder, ExportFolder::open(request.output, request.prefix, ranks, request.force));
  NS_TRY(const Session session, Session::make(scenario));
  // Waits of other GPUs follow from the operators.
  NS_TRY(const UnfoldedStep step, unfold(scenario, session, options.operators));
  const auto works = step.graph.works();
  options.host_work = std::any_of(works.begin(), works.end(), [](const WorkItem& item) { return item.host.any(); });
  if (options.operators) {
    NS_TRY(options.alone, kernels_alone(scenario, session, step.graph));
  }
  options.node_gpus = scenario.cluster.gpus_per_node();
  NS_TRY(Exported exported, write_export(scenario, step, options, request, std::move(folder)));
  return request.json ? std::move(exported.manifest)
                      : summary_of(exported, scenario, request.output, step.timeline.step);
}

}  // namespace

int export_command(int argc, const char* const* argv) {
  CLI::App app{"Writes the plan as Chakra traces, one file a rank, with the inputs ASTRA-Sim needs beside them.",
               "export"};
  set_up(app);
  ExportRequest request;
  add_work_flags(app, request.work);
  const char* group = "What comes back";
  app.add_option("--output", request.output, "folder for the files; made when it is missing")
      ->type_name("DIR")
      ->required()
      ->group(group);
  app.add_option("--prefix", request.prefix, "files are called NAME.RANK.et [trace]")->type_name("NAME")->group(group);
  app.add_option("--encoding", request.encoding,
                 "how kernels tell their time: roofline (num_ops and tensor_size, to the nanosecond), durations "
                 "(duration_micros, whole microseconds) [roofline; durations with --merge-kernels]")
      ->type_name("HOW")
      ->group(group);
  app.add_flag(
         "--merge-kernels", request.merge,
         "small traces: chains of kernels with nothing between them become one node each, and what ASTRA-Sim reads in "
         "roofline mode alone is written once")
      ->group(group);
  app.add_flag("--no-operators", request.no_operators, "leave out each kernel's operator: smaller files")->group(group);
  app.add_flag("--fit-network", request.fit_network,
               "bandwidths and latencies of network.yml such that ASTRA-Sim's formulas answer our forecasts of this "
               "plan's collectives [those of the data sheets]")
      ->group(group);
  app.add_flag("--large", request.large,
               fmt::format("write more than {}: there is a file for each rank, and each microbatch is in it",
                           size_text(kLargest)))
      ->group(group);
  app.add_flag("--force", request.force, "write into a folder with other files; traces of more ranks in it are removed")
      ->group(group);
  app.add_flag("--json", request.json, "print one JSON object, as in manifest.json of the folder")->group(group);
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto text = answer(request);
  if (!text) return report_error(text.error());
  std::fputs(text->c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
