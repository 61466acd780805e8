#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/astra_formulas.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/printable.h"
#include "tables.h"
#include "terminal.h"
#include "trace_inputs.h"

namespace ns_dist::cli {
namespace {

struct ReplayRequest {
  std::string traces, network, system, groups, memory;
  std::optional<std::string> workload;  // ASTRA-Sim's own name for the prefix: then its own output, too
  std::string trace, csv;
  bool recorded = false, json = false;
};

// One line a node: rank, node, name, type, start_ns, end_ns.
class CsvTimeline {
 public:
  explicit CsvTimeline(OutputFile file) : out_(std::move(file)) { out_.write("rank,node,name,type,start_ns,end_ns\n"); }
  void add(const ReplayedNode& node) {
    std::string name;
    for (const char c : node.name) name += c == '"' ? std::string("\"\"") : std::string(1, c);
    out_.write(fmt::format("{},{},\"{}\",{},{},{}\n", node.rank, node.id, name, name_of(node.type), node.start_ns,
                           node.end_ns));
  }
  Result<void> finish() { return out_.finish(); }

 private:
  OutputFile out_;
};

// Chrome's trace event format, which ui.perfetto.dev reads: a rank is a process, a slot a thread.
class PerfettoTimeline {
 public:
  PerfettoTimeline(OutputFile file, std::int64_t ranks) : out_(std::move(file)) {
    out_.write(R"({"displayTimeUnit":"ms","traceEvents":[)");
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      event(fmt::format(R"("ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}})", rank));
      for (int slot = 0; slot < 4; ++slot) {
        event(fmt::format(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}})", rank, slot,
                          kSlots[slot]));
      }
    }
  }
  void add(const ReplayedNode& node) {
    const int slot = node.cpu                               ? 1
                     : node.type == TraceNodeType::kCompute ? 0
                     : node.type == TraceNodeType::kReceive ? 3
                                                            : 2;
    const auto name = nlohmann::json(node.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"args":{{"node":{}}})",
                      node.rank, slot, static_cast<double>(node.start_ns) * 1e-3,
                      static_cast<double>(node.end_ns - node.start_ns) * 1e-3, name, node.id));
  }
  Result<void> finish() {
    out_.write("\n]}\n");
    return out_.finish();
  }

 private:
  static constexpr const char* kSlots[] = {"kernels", "CPU", "collectives and sends", "receives"};
  void event(const std::string& text) {
    out_.write(fmt::format("{}{{{}}}", first_ ? "" : ",\n", text));
    first_ = false;
  }
  OutputFile out_;
  bool first_ = true;
};

struct Inputs {
  TraceSet traces;
  CommGroups groups;
  std::optional<AstraNetwork> network;  // none: recorded times
  ReplayOptions options;                // without callbacks
  std::vector<std::string> files;       // that are read
  std::filesystem::path system;         // one of them

  bool by_formulas() const { return network && !options.replay_only; }
};

Result<Inputs> read_inputs(const ReplayRequest& request) {
  Inputs out;
  NS_TRY(out.traces, find_traces(request.workload.value_or(request.traces)));
  NS_TRY(out.groups, groups_beside(out.traces, request.groups));
  const std::filesystem::path yml = beside(out.traces, request.network, "network.yml");
  const std::filesystem::path json = beside(out.traces, request.system, "system.json");
  out.system = json;
  out.files = {yml.string(), json.string(), beside(out.traces, request.groups, "comm_groups.json").string()};
  for (const std::filesystem::path& file : out.traces.files) out.files.push_back(file.string());
  std::error_code failed;
  if (request.recorded && request.system.empty() && !std::filesystem::exists(json, failed)) return out;
  const auto with_hint = [](Error error, const char* flag) {
    error.hint = fmt::format("name it with {}, or write --recorded for the times that the traces hold", flag);
    return fail(std::move(error));
  };
  const Result<std::string> system_text = read_text(json, kLargestAstraInput);
  if (!system_text) return with_hint(system_text.error(), "--system");
  Result<std::string> network_text = read_text(yml, kLargestAstraInput);
  const bool yml_is_read = network_text.has_value();
  if (!network_text && request.recorded && request.network.empty()) {
    network_text = "topology: [ Switch ]\nnpus_count: [ 2 ]\nbandwidth: [ 1 ]\nlatency: [ 0 ]\n";  // nobody asks it
  }
  if (!network_text) return with_hint(network_text.error(), "--network");
  NS_TRY(AstraSystem system, read_astra_system(*network_text, yml.string(), *system_text, json.string()));
  out.options = rules_of(system);
  if (request.recorded) {
    if (!yml_is_read) out.options.system.reset();  // its network is made up
    return out;
  }
  const auto ranks = static_cast<std::int64_t>(out.traces.files.size());
  if (system.npus() != ranks) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("the network has {} NPUs, and there are traces of {} ranks", system.npus(), ranks),
                 yml.string() + "#/npus_count", "one NPU for each trace"});
  }
  NS_TRY(out.network, AstraNetwork::make(std::move(system)));
  return out;
}

// The ranks in the order in which they end; those that end together, in their own.
std::vector<std::size_t> by_finish(const ReplayReport& report) {
  std::vector<std::size_t> order(report.finish_ns.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return report.finish_ns[a] < report.finish_ns[b]; });
  return order;
}

std::string json_text(const Inputs& inputs, const ReplayReport& report) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < report.finish_ns.size(); ++rank) {
    ranks.push_back({{"rank", rank},
                     {"complete", static_cast<bool>(report.complete[rank])},
                     {"finish_ns", report.finish_ns[rank]},
                     {"kernel_ns", report.kernel_ns[rank]},
                     {"communication_ns", report.communication_ns[rank]}});
  }
  const std::size_t last = by_finish(report).back();
  const nlohmann::ordered_json out = {{"schema", "ns-dist/replay/1"},
                                      {"traces", inputs.traces.prefix.string()},
                                      {"communication", inputs.by_formulas() ? "astra" : "recorded"},
                                      {"nodes", report.nodes},
                                      {"finished", report.finished},
                                      {"step_time_s", static_cast<double>(report.finish_ns[last]) * 1e-9},
                                      {"last_rank", last},
                                      {"ranks", std::move(ranks)},
                                      {"problems", json_of(report.problems)},
                                      {"deadlock", json_of(report.deadlock)}};
  return dump_json(out, 1);
}

// ASTRA-Sim's lines, in the order in which ranks end; exposed is what no kernel covers.
std::string astra_text(const ReplayReport& report) {
  std::string text;
  for (const std::size_t rank : by_finish(report)) {
    if (!report.complete[rank]) continue;
    text += fmt::format("sys[{}] finished, {} cycles, exposed communication {} cycles.\n", rank, report.finish_ns[rank],
                        report.finish_ns[rank] - report.kernel_ns[rank]);
  }
  return text;
}

std::string milliseconds(std::uint64_t ns) { return fmt::format("{:.6f}", static_cast<double>(ns) * 1e-6); }

std::string summary_text(const Inputs& inputs, const ReplayReport& report) {
  constexpr std::size_t kMostRows = 16;
  const std::vector<std::size_t> order = by_finish(report);
  std::string text =
      fmt::format("{} ranks, {} nodes: {} ms, rank {} ends last\n  communication {}\n", with_commas(order.size()),
                  with_commas(report.nodes), milliseconds(report.finish_ns[order.back()]), order.back(),
                  inputs.by_formulas() ? fmt::format("by ASTRA-Sim's formulas on {}", printable(inputs.files.front()))
                                       : "takes the times that the traces hold");
  if (report.memory_nodes > 0 && !inputs.options.replay_only) {
    text += fmt::format("  {} loads and stores of remote memory take the times that the traces hold\n",
                        with_commas(report.memory_nodes));
  }
  text += fmt::format("\n  {:>6} {:>16} {:>16} {:>22}\n", "rank", "finish, ms", "kernels, ms", "communication, ms");
  const auto row = [&](std::size_t rank) {
    text += fmt::format("  {:>6} {:>16} {:>16} {:>22}\n", rank, milliseconds(report.finish_ns[rank]),
                        milliseconds(report.kernel_ns[rank]), milliseconds(report.communication_ns[rank]));
  };
  if (order.size() <= kMostRows) {
    for (std::size_t rank = 0; rank < order.size(); ++rank) row(rank);
    return text;
  }
  for (std::size_t i = 0; i < kMostRows / 2; ++i) row(order[i]);
  text += "     ...\n";
  for (std::size_t i = order.size() - kMostRows / 2; i < order.size(); ++i) row(order[i]);
  return text + "  (the first and the last ranks to end; all of them with --json)\n";
}

int report_problems(const Inputs& inputs, const ReplayReport& report) {
  constexpr std::size_t kMost = 20;
  std::string text = fmt::format("ns-dist: {}: {} of {} ranks run to their end\n",
                                 printable(inputs.traces.prefix.string()), report.finished, report.finish_ns.size());
  for (std::size_t i = 0; i < std::min(kMost, report.problems.size()); ++i) {
    text += fmt::format("  {}\n", text_of(report.problems[i]));
  }
  if (report.problems.size() > kMost) text += fmt::format("  and {} more\n", report.problems.size() - kMost);
  for (const TraceWait& wait : report.deadlock) text += fmt::format("  in a circle: {}\n", text_of(wait));
  if (const std::string hint = hint_of_groups(inputs.groups, report.problems); !hint.empty()) {
    text += fmt::format("  {}\n", hint);
  }
  std::fputs(text.c_str(), stderr);
  return kInputAtFault;
}

Result<int> answer(const ReplayRequest& request) {
  if (request.workload.has_value() == !request.traces.empty()) {
    return fail({ErrorCode::kUsage, request.workload ? "the traces are named twice" : "the traces are missing",
                 "TRACES", "a folder or PREFIX of PREFIX.0.et, or ASTRA-Sim's --workload-configuration"});
  }
  NS_TRY(Inputs inputs, read_inputs(request));
  std::optional<CsvTimeline> csv;
  std::optional<PerfettoTimeline> trace;
  const std::vector<Output> outputs = {
      {"--json", request.json ? "-" : ""}, {"--csv", request.csv}, {"--trace", request.trace}};
  NS_TRY_VOID(check_outputs(outputs, inputs.files));
  if (!request.csv.empty()) {
    NS_TRY(OutputFile file, OutputFile::open(request.csv));
    csv.emplace(std::move(file));
  }
  if (!request.trace.empty()) {
    NS_TRY(OutputFile file, OutputFile::open(request.trace));
    trace.emplace(std::move(file), static_cast<std::int64_t>(inputs.traces.files.size()));
  }
  if (csv || trace) {
    inputs.options.visit = [&](const ReplayedNode& node) {
      if (csv) csv->add(node);
      if (trace) trace->add(node);
    };
  }
  if (inputs.network) inputs.options.network = network_of(*inputs.network, inputs.system);
  Progress progress("reading", inputs.traces.files.size());
  inputs.options.progress = [&](std::int64_t files) { progress.at(static_cast<std::size_t>(files)); };
  const Result<ReplayReport> replayed = replay(inputs.traces, inputs.groups, inputs.options);
  if (!replayed) {
    Error error = replayed.error();
    if (error.where.starts_with(inputs.system.string() + "#")) {
      error.hint = "or write --recorded for the times that the traces hold";
    }
    return fail(std::move(error));
  }
  const ReplayReport& report = *replayed;
  progress.done();
  if (csv) NS_TRY_VOID(csv->finish());
  if (trace) NS_TRY_VOID(trace->finish());
  std::FILE* const stream = stream_of_answer(request.json, outputs);
  if (request.json) {
    std::fputs(json_text(inputs, report).c_str(), stream);
  } else if (request.workload) {
    std::fputs(astra_text(report).c_str(), stream);
  } else if (report.ok()) {
    std::fputs(summary_text(inputs, report).c_str(), stream);
  }
  return report.ok() ? kAnswered : report_problems(inputs, report);
}

}  // namespace

int replay_command(int argc, const char* const* argv) {
  CLI::App app{
      "How long do these Chakra traces take by the rules of ASTRA-Sim: its network formulas, and one collective or "
      "send\n"
      "at a time on each rank? Where ASTRA-Sim would hang: who waits for whom.\n"
      "The formulas know ring, direct and, on a Switch, halvingDoubling; on several dimensions one chunk alone\n"
      "(preferred-dataset-splits 1). --recorded does without them.",
      "replay"};
  set_up(app);
  ReplayRequest request;
  app.add_option("TRACES", request.traces, "folder, or PREFIX of PREFIX.RANK.et, plain or .et.gz")->type_name("");
  const char* beside = "Read beside the traces";
  app.add_option("--network", request.network, "ASTRA-Sim's network yml [network.yml beside the traces]")
      ->type_name("FILE")
      ->group(beside);
  app.add_option("--system", request.system, "ASTRA-Sim's system json [system.json beside the traces]")
      ->type_name("FILE")
      ->group(beside);
  app.add_option("--groups", request.groups, "communicator groups [comm_groups.json beside the traces, if it is there]")
      ->type_name("FILE")
      ->group(beside);
  app.add_flag("--recorded", request.recorded, "communication takes the times that the traces hold")->group(beside);
  const char* back = "What comes back";
  app.add_flag("--json", request.json, "print one JSON object")->group(back);
  app.add_option("--trace", request.trace, "write the timeline for ui.perfetto.dev")->type_name("FILE")->group(back);
  app.add_option("--csv", request.csv, "write the timeline, one line for each node of the traces")
      ->type_name("FILE")
      ->group(back);
  const char* own = "As ASTRA-Sim's command line; its output lines come back";
  app.add_option("--workload-configuration", request.workload, "the prefix of the traces")
      ->type_name("PREFIX")
      ->group(own);
  app.add_option("--system-configuration", request.system, "as --system")->type_name("FILE")->group(own);
  app.add_option("--network-configuration", request.network, "as --network")->type_name("FILE")->group(own);
  app.add_option("--comm-group-configuration", request.groups, "as --groups")->type_name("FILE")->group(own);
  app.add_option("--remote-memory-configuration", request.memory, "accepted and ignored")
      ->type_name("FILE")
      ->group(own);
  if (const auto done = parse(app, argc, argv)) return *done;
  for (const auto& [ours, theirs] :
       {std::pair("--system", "--system-configuration"), std::pair("--network", "--network-configuration"),
        std::pair("--groups", "--comm-group-configuration")}) {
    if (app.count(ours) == 0 || app.count(theirs) == 0) continue;
    return report_error({ErrorCode::kUsage, fmt::format("its file is named twice: {} is the same flag", ours), theirs,
                         "one of the two"});
  }
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
