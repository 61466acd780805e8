#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/training_clock.h"
#include "ns_dist/version.h"
#include "tables.h"
#include "terminal.h"
#include "trace_inputs.h"

namespace ns_dist::cli {
namespace {

struct AnnotateRequest {
  std::string traces, output, gpu, recorded_on, calibration, mode = "sustained";
  bool force = false, json = false, repair = false;
};

// Products of fp32 inputs run as fp32; convolutions as TF32 where the GPU has it, which is PyTorch's default.
Operator as_pytorch_runs(const Operator& op, const Gpu& gpu) {
  Operator out = op;
  if (std::holds_alternative<Convolution>(op.kind) && op.dtype == DType::kFp32 &&
      gpu.tensor[DType::kTf32] > FlopsPerSecond()) {
    out.dtype = DType::kTf32;
  }
  return out;
}

// Shortest time of that work: half-precision matrix rate, or memory. Without work: what memory moves.
double roofline_seconds(const Gpu& gpu, double flops, double bytes) {
  FlopsPerSecond peak;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) peak = std::max(peak, gpu.matrix_peak(dtype));
  if (!(bytes > 0) && !(flops > 0)) return 1 / (gpu.memory_bandwidth / (units::B / units::s));
  return std::max(flops / (peak / (units::FLOP / units::s)), bytes / (gpu.memory_bandwidth / (units::B / units::s)));
}

struct Done {
  AnnotateReport annotated;
  std::optional<RepairReport> repaired;
  std::size_t files = 1;
  bool copied_network = false;  // network.yml of the traces that were read
};

void add(const AnnotateReport& one, AnnotateReport* all) {
  all->nodes += one.nodes;
  all->waits_kept += one.waits_kept;
  all->by_micros += one.by_micros;
  for (std::size_t way = 0; way < kAnnotateWays; ++way) {
    all->ways[way].kernels += one.ways[way].kernels;
    all->ways[way].recorded_ns += one.ways[way].recorded_ns;
    all->ways[way].new_ns += one.ways[way].new_ns;
  }
}

// What is repaired: the name in JSON, a line for people.
struct Repaired {
  const char *name, *line;
  std::uint64_t RepairReport::*count;
};
constexpr Repaired kRepaired[] = {
    {"dangling_dependencies", "dependencies on nodes that are not there: dropped", &RepairReport::dangling},
    {"circles", "dependencies that close a circle: dropped", &RepairReport::circles},
    {"chained", "kernels and collectives wait for the one before on their stream", &RepairReport::chained},
    {"cpu_collectives", "CPU's parts of collectives: CPU operators", &RepairReport::cpu_collectives},
    {"not_run", "metadata and invalid nodes: CPU operators", &RepairReport::not_run},
};

void add(const RepairReport& one, std::optional<RepairReport>* all) {
  if (!*all) all->emplace();
  for (const Repaired& each : kRepaired) (**all).*each.count += one.*each.count;
}

// In the folder of `path`: one that was not there before, for what is not finished.
Result<Unfinished> folder_beside(const std::filesystem::path& path) {
  std::error_code failed;
  const std::filesystem::path in =
      is_standard_output(path) ? std::filesystem::temp_directory_path(failed) : path.parent_path();
  for (int number = 0;; ++number) {
    std::optional<Unfinished> folder = Unfinished::folder(in / fmt::format(".ns-dist-{}-{}", ::getpid(), number));
    if (folder) return *std::move(folder);
    if (errno == EEXIST) continue;
    return fail({ErrorCode::kInvalidInput, fmt::format("cannot be written: {}", std::strerror(errno)), path.string(),
                 "a path that can be written"});
  }
}

// With --repair, by way of a file in a folder of its own.
Result<void> annotate_file(const std::filesystem::path& from, const std::filesystem::path& to,
                           const AnnotateModel& model, bool repairs, Done* done) {
  std::optional<Unfinished> folder;
  if (repairs) {
    NS_TRY(folder, folder_beside(to));
  }
  const std::filesystem::path annotated = folder ? folder->path() / "annotated.et" : to;
  NS_TRY(const AnnotateReport one, annotate(from, annotated, model));
  add(one, &done->annotated);
  if (!folder) return {};
  NS_TRY(const RepairReport repaired, repair(annotated, to));
  add(repaired, &done->repaired);
  return {};
}

// Of the recorded time.
double share_of(AnnotateWay way, const AnnotateReport& report) {
  double all = 0;
  for (const AnnotateShare& share : report.ways) all += share.recorded_ns;
  return all > 0 ? report.ways[static_cast<std::size_t>(way)].recorded_ns / all : 0;
}

std::string summary_text(const Done& done, const std::string& output, const Gpu& gpu) {
  const AnnotateReport& report = done.annotated;
  const std::size_t files = done.files;
  double recorded = 0, now = 0;
  for (const AnnotateShare& share : report.ways) {
    recorded += share.recorded_ns;
    now += share.new_ns;
  }
  std::string text = fmt::format("{} {} in {}: {} nodes, for {} ({})\n\n  {:<20} {:>12} {:>9} {:>14} {:>14}\n", files,
                                 files == 1 ? "trace" : "traces", output, with_commas(report.nodes), gpu.name, gpu.id,
                                 "duration from", "kernels", "of time", "recorded, ms", "now, ms");
  for (std::size_t way = 0; way < kAnnotateWays; ++way) {
    const AnnotateShare& share = report.ways[way];
    // A trace without durations: of the new time.
    const double whole = recorded > 0 ? recorded : now, part = recorded > 0 ? share.recorded_ns : share.new_ns;
    const double of_time = whole > 0 ? 100 * part / whole : 0;
    text += fmt::format("  {:<20} {:>12} {:>7.1f} % {:>14.3f} {:>14.3f}\n", name_of(static_cast<AnnotateWay>(way)),
                        with_commas(share.kernels), of_time, share.recorded_ns * 1e-6, share.new_ns * 1e-6);
  }
  text += fmt::format("  {:<20} {:>12} {:>9} {:>14.3f} {:>14.3f}\n", "all", "", "", recorded * 1e-6, now * 1e-6);
  if (report.waits_kept > 0) {
    text += fmt::format(
        "\n  waits for the host that tell of no launches: {}, kept as recorded. Export the plan again, without "
        "--no-operators\n",
        with_commas(report.waits_kept));
  }
  if (done.copied_network) {
    text += "\n  network.yml is a copy: it describes the network of the traces that were read\n";
  }
  if (done.repaired) text += "\n  repaired\n";
  for (const Repaired& each : kRepaired) {
    if (!done.repaired) break;
    text += fmt::format("  {:>12} {}\n", with_commas(*done.repaired.*each.count), each.line);
  }
  return text;
}

std::string json_text(const Done& done, const Gpu& gpu) {
  const AnnotateReport& report = done.annotated;
  nlohmann::ordered_json ways = nlohmann::ordered_json::object();
  for (std::size_t way = 0; way < kAnnotateWays; ++way) {
    const AnnotateShare& share = report.ways[way];
    ways[std::string(name_of(static_cast<AnnotateWay>(way)))] = {
        {"kernels", share.kernels}, {"recorded_ms", share.recorded_ns * 1e-6}, {"now_ms", share.new_ns * 1e-6}};
  }
  nlohmann::ordered_json out = {{"schema", "ns-dist/annotate/1"},
                                {"gpu", gpu.id},
                                {"nodes", report.nodes},
                                {"ways", std::move(ways)},
                                {"waits_kept", report.waits_kept}};
  for (const Repaired& each : kRepaired) {
    if (done.repaired) out["repaired"][each.name] = *done.repaired.*each.count;
  }
  return dump_json(out, 1);
}

// What an export or annotate says of the traces in the folder.
std::optional<nlohmann::ordered_json> manifest_in(const std::filesystem::path& folder) {
  const Result<std::string> text = read_text(folder / "manifest.json", kLargestAstraInput);
  auto parsed = text ? parse_json(*text, "manifest.json") : nlohmann::ordered_json();
  auto root = parsed ? *std::move(parsed) : nlohmann::ordered_json();
  if (!root.is_object() || !root.contains("schema") || root["schema"] != "ns-dist/traces/1") return std::nullopt;
  return std::optional<nlohmann::ordered_json>(std::in_place, std::move(root));
}

// Whether ASTRA-Sim, with this system json, times kernels by their work.
bool has_roofline(const std::filesystem::path& system) {
  const Result<std::string> text = read_text(system, kLargestAstraInput);
  const auto root = text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  if (!root.is_object()) return false;
  const auto found = root.find("roofline-enabled");
  return found != root.end() && *found == 1;
}

Result<Done> annotate_folder(const AnnotateRequest& request, const AnnotateModel& model) {
  Done done;
  NS_TRY(const TraceSet traces, find_traces(request.traces));
  NS_TRY_VOID(check_is_file({"--output", request.output}, "a folder for several traces", ""));
  const std::filesystem::path read = traces.prefix.has_parent_path() ? traces.prefix.parent_path() : ".";
  if (std::error_code none; std::filesystem::equivalent(read, request.output, none)) {
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is the folder that is read", request.output), "--output",
                 "another folder", "the traces would be overwritten"});
  }
  const std::size_t files = done.files = traces.files.size();
  NS_TRY(ExportFolder folder, ExportFolder::open(request.output, traces.prefix.filename().string(),
                                                 static_cast<std::int64_t>(files), request.force));
  Progress progress("annotating", files);
  for (std::size_t rank = 0; rank < files; ++rank) {
    const std::filesystem::path& from = traces.files[rank];
    NS_TRY_VOID(annotate_file(from, folder.staging() / from.filename(), model, request.repair, &done));
    progress.at(rank + 1);
  }
  progress.done();
  for (const char* beside : {"comm_groups.json", "network.yml", "system.json", "remote_memory.json"}) {
    const std::filesystem::path from = traces.prefix.parent_path() / beside;
    std::error_code failed;
    if (!std::filesystem::exists(from, failed)) continue;
    std::filesystem::copy_file(from, folder.staging() / beside, failed);
    if (failed) {
      return fail({ErrorCode::kInvalidInput, "cannot be copied", from.string(), "a readable file"});
    }
    done.copied_network |= std::string_view(beside) == "network.yml";
  }
  if (done.annotated.by_micros > 0 && has_roofline(folder.staging() / "system.json")) {
    warn(
        fmt::format("system.json has \"roofline-enabled\": 1, so that ASTRA-Sim and ns-dist replay take num_ops and "
                    "tensor_size, not the new durations of {} kernels; write 0 there",
                    with_commas(done.annotated.by_micros)));
  }
  nlohmann::ordered_json manifest = {{"schema", "ns-dist/traces/1"},
                                     {"provenance", {{"version", version()}, {"git_revision", git_revision()}}},
                                     {"prefix", traces.prefix.filename().string()},
                                     {"ranks", files},
                                     {"nodes", done.annotated.nodes},
                                     {"annotated_for", request.gpu}};
  if (const auto old = manifest_in(read)) manifest["exported"] = old->contains("exported") ? (*old)["exported"] : *old;
  NS_TRY_VOID(folder.commit(dump_json(manifest, 1)));
  return done;
}

Result<int> answer(const AnnotateRequest& request) {
  NS_TRY(const ComputeModelOptions options, read_kernel_options(request.mode, request.calibration));
  const Catalog catalog = Catalog::standard();
  NS_TRY(const Gpu gpu, named_by("--gpu", catalog.gpu(request.gpu)));
  std::optional<Gpu> old;
  if (!request.recorded_on.empty()) {
    NS_TRY(old, named_by("--recorded-on", catalog.gpu(request.recorded_on)));
  }
  NS_TRY(const std::unique_ptr<ComputeCost> kernels, make_compute_model(gpu, options));
  std::error_code failed;
  const bool one_file = std::filesystem::is_regular_file(request.traces, failed);
  std::int64_t ranks = one_file ? ranks_beside(request.traces) : 1;
  if (!one_file) {
    if (const auto found = find_traces(request.traces)) ranks = static_cast<std::int64_t>(found->files.size());
  }
  const TrainingClock clock(gpu, options.calibration ? CalibratedShares(*options.calibration) : CalibratedShares(),
                            ranks);
  AnnotateModel model;
  std::string refused;  // why the GPU cannot run a kernel, of the first one
  model.forecast = [&](const Operator& op) -> std::optional<double> {
    const Operator run = as_pytorch_runs(op, gpu);
    // A benchmark is one kernel at full clocks; a step has the clocks of training.
    const Result<Forecast> forecast =
        options.mode == Mode::kSustained ? clock.forecast(*kernels, run) : kernels->forecast(run);
    if (forecast) return forecast->latency / units::ns;
    if (refused.empty()) refused = to_text(forecast.error());
    return std::nullopt;
  };
  // Kernels alone have no factor.
  model.experts = options.mode == Mode::kSustained ? std::optional(clock.experts) : std::nullopt;
  if (old) {
    model.ratio = [&](double flops, double bytes) -> std::optional<double> {
      return roofline_seconds(gpu, flops, bytes) / roofline_seconds(*old, flops, bytes);
    };
  }
  const std::vector<Output> outputs = {{"--json", request.json ? "-" : ""}, {"--output", request.output}};
  Done done;
  if (one_file) {
    NS_TRY_VOID(check_outputs(outputs, {request.traces}));
    NS_TRY_VOID(annotate_file(request.traces, request.output, model, request.repair, &done));
  } else {
    NS_TRY(done, annotate_folder(request, model));
  }
  constexpr double kNoticed = 0.01;
  if (const double host = share_of(AnnotateWay::kHost, done.annotated); host > kNoticed) {
    warn(fmt::format(
        "{:.0f} % of the recorded time is the host's own work (offloaded activations or optimizer), kept as "
        "it was: export the plan for this GPU to forecast it",
        100 * host));
  }
  const std::string scales = old ? "" : "; --recorded-on, the GPU of the recording, scales it";
  if (const double kept = share_of(AnnotateWay::kKept, done.annotated); !refused.empty()) {
    warn(fmt::format("some kernels cannot be forecast for {}: {}{}", gpu.name, refused, scales));
  } else if (!old && kept > kNoticed) {
    warn(fmt::format("{:.0f} % of the recorded time is kept as it was, of kernels that do not tell what they compute{}",
                     100 * kept, scales));
  }
  std::fputs((request.json ? json_text(done, gpu) : summary_text(done, request.output, gpu)).c_str(),
             stream_of_answer(request.json, outputs));
  return kAnswered;
}

}  // namespace

int annotate_command(int argc, const char* const* argv) {
  CLI::App app{
      "Kernel durations of Chakra traces for another GPU: by our own attributes, or PyTorch's operators with their\n"
      "shapes, or the tensors of STAGE's symbolic traces, or the ratio of rooflines.\n"
      "All other bytes of the traces stay as they are, but for --repair.",
      "annotate"};
  set_up(app);
  AnnotateRequest request;
  app.add_option("TRACES", request.traces, "one trace; or a folder or PREFIX of PREFIX.RANK.et, plain or .et.gz")
      ->type_name("")
      ->required();
  app.add_option("--gpu", request.gpu, "the GPU whose durations are written: ns-dist list gpus, or JSON")
      ->type_name("ID|FILE")
      ->required();
  app.add_option("--output", request.output, "a file for one trace (gzipped with .gz), a folder for several")
      ->type_name("PATH")
      ->required();
  app.add_option(
         "--recorded-on", request.recorded_on,
         "the GPU of the recorded durations; kernels without a known operator are scaled by the rooflines of both "
         "GPUs [they keep their duration]")
      ->type_name("ID|FILE");
  app.add_option("--mode", request.mode, "sustained: as in a step; burst: one kernel alone [sustained]")
      ->type_name("WHICH");
  app.add_option("--kernel-calibration", request.calibration,
                 "corrections measured on this GPU, as ns-dist calibrate writes them [none]")
      ->type_name("FILE");
  app.add_flag("--repair", request.repair,
               "make recorded PyTorch traces run in ASTRA-Sim: chain the kernels of a stream, drop dependencies on "
               "missing nodes and in circles, turn the CPU's collectives and metadata into CPU operators");
  app.add_flag("--force", request.force, "write into a folder with other files");
  app.add_flag("--json", request.json, "print one JSON object");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
