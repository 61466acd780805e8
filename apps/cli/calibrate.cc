#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "next_collectives.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_calibration.h"
#include "ns_dist/collective_table.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/next_measurements.h"
#include "ns_dist/planner.h"
#include "ns_dist/scenario.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct CalibrateRequest {
  std::string gpu, cluster, collectives, kernels, output, next;
  std::optional<std::string> mode;  // "sustained"
  std::vector<std::string> from;
  bool json = false;
};

Output answer_of(const CalibrateRequest& request) { return {"--json", request.json ? "-" : ""}; }

struct Calibrated {
  std::string text;             // for people
  nlohmann::ordered_json json;  // for programs
};

// Steps whose kernels matter where no report names others: dense and with experts, with each kind of attention,
// normalization and activation, on 1 to 8 ranks of tensor parallelism.
struct TypicalStep {
  std::string_view model;
  int tp, pp, ep;
};
constexpr std::array<TypicalStep, 6> kTypicalSteps = {{{"llama3-8b", 1, 1, 1},
                                                       {"gpt3-13b", 2, 2, 1},
                                                       {"llama3-70b", 4, 4, 1},
                                                       {"gpt3-175b", 8, 16, 1},
                                                       {"mixtral-8x7b", 1, 4, 8},
                                                       {"deepseek-v2-lite", 1, 1, 8}}};
constexpr std::size_t kAdvised = 20;

Result<Cluster> cluster_of(const CalibrateRequest& request) {
  if (request.gpu.empty() && request.cluster.empty()) {
    return fail({ErrorCode::kUsage, "the machine of the measurements is missing", "--cluster, --gpu",
                 "a cluster, or a GPU for its usual one", "add --cluster ID (ns-dist list clusters)"});
  }
  const Catalog catalog = Catalog::standard();
  if (request.cluster.empty()) {
    NS_TRY(const Gpu gpu, named_by("--gpu", catalog.gpu(request.gpu)));
    return named_by("--gpu", catalog.usual_machine(gpu));
  }
  NS_TRY(Cluster cluster, named_by("--cluster", catalog.cluster(request.cluster)));
  if (request.gpu.empty()) return cluster;
  NS_TRY(const Gpu gpu, named_by("--gpu", catalog.gpu(request.gpu)));
  return with_gpu(cluster, gpu);
}

Result<std::vector<MeasuredCollective>> read_rows(const CalibrateRequest& request, const Cluster& cluster) {
  NS_TRY(const CsvTable table, CsvTable::read(request.collectives));
  NS_TRY(const CollectiveReader reader, CollectiveReader::of(table, "", cluster.id));
  if (!table.column("latency_ms")) {
    return fail({ErrorCode::kInvalidInput, "no column \"latency_ms\"", fmt::format("{}:1", table.where()),
                 "measured times in milliseconds"});
  }
  const Catalog catalog = Catalog::standard();
  std::map<std::string, bool> gpus;                         // by what rows call them: whether it is this one
  std::map<std::string, std::optional<std::string>> known;  // ids of clusters by what rows call them
  const auto is_gpu = [&](const std::string& name) {
    const auto [found, is_new] = gpus.try_emplace(name, cluster.gpu.is_called(name));
    if (is_new && !found->second) {
      const auto gpu = catalog.gpu(name);
      found->second = gpu && gpu->id == cluster.gpu.id;
    }
    return found->second;
  };
  const auto cluster_called = [&](const std::string& name) {
    const auto [found, is_new] = known.try_emplace(name);
    if (!is_new) return found->second;
    if (name == cluster.id) {
      found->second = name;
    } else if (const auto other = catalog.cluster(name)) {
      found->second = other->id;
    }
    return found->second;
  };
  std::vector<MeasuredCollective> measured;
  std::vector<Error> mistakes;
  LeftOutRows left_out;
  std::set<std::string> labels;  // of clusters that the catalog does not know
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    auto row = reader.row(i);
    if (!row) {
      mistakes.push_back(std::move(row.error()));
      continue;
    }
    const std::string where = reader.where(i);
    const std::optional<std::string> named = cluster_called(row->cluster);
    if (!row->gpu.empty() && !is_gpu(row->gpu)) {
      left_out.add(fmt::format("of {}, not of {}", shortened(row->gpu), cluster.gpu.id), where);
    } else if (!row->cluster.empty() && named && *named != cluster.id) {
      left_out.add(fmt::format("of {}, not of {}", shortened(row->cluster), cluster.id), where);
    } else if (!row->latency_ms) {
      left_out.add(std::string(kWithoutTime), where);
    } else {
      if (!row->cluster.empty() && !named) labels.insert(shortened(row->cluster));
      row->gpu.clear(), row->cluster = cluster.id;  // whatever it calls them
      measured.push_back({*std::move(row), where});
    }
  }
  if (!mistakes.empty()) return fail(join(std::move(mistakes)));
  if (labels.size() > 1) {
    return fail(
        {ErrorCode::kInvalidInput,
         fmt::format("rows of {} clusters that the catalog does not have: {}", labels.size(), fmt::join(labels, ", ")),
         table.where(), fmt::format("rows of {} only", cluster.id), "keep the rows of one of them"});
  }
  std::vector<std::string> notes = left_out.notes();
  if (measured.empty() && !notes.empty()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{}", fmt::join(notes, "; ")), table.where(),
                 fmt::format("measured collectives of {}", cluster.id)});
  }
  if (!labels.empty()) {
    notes.push_back(
        fmt::format("rows of {}, which the catalog does not have, are taken for {}", *labels.begin(), cluster.id));
  }
  for (const std::string& note : notes) warn(note);
  return measured;
}

// Measurements that contradict each other, or hold work that one correction cannot describe, make a useless correction.
void warn_if_worse(std::string_view what, double before, double after) {
  constexpr double kVisible = 0.0005;  // of what is printed
  if (!(after > before + kVisible)) return;
  warn(
      fmt::format("rows of {} that the correction does not know are forecast worse with it: {:.1f} % before, {:.1f} % "
                  "after; do without it, or measure more rows",
                  what, 100 * before, 100 * after));
}

// The kernels of a step.
Result<std::vector<KernelUse>> kernels_of(const Scenario& scenario) {
  NS_TRY(const StepProgram program, plan_program(scenario.model, scenario.plan, scenario.training));
  const std::vector<std::uint64_t> runs = program.run_counts();
  std::vector<KernelUse> kernels;
  for (std::size_t w = 0; w < program.works.size(); ++w) {
    const auto* op = std::get_if<Operator>(&program.works[w].work);
    if (op == nullptr || program.works[w].host.any()) continue;
    kernels.push_back({*op, static_cast<double>(runs[w])});
  }
  return kernels;
}

// The steps that --from names.
Result<std::vector<Scenario>> reported_steps(const CalibrateRequest& request) {
  std::vector<Scenario> steps;
  for (const std::string& report : request.from) {
    WorkFlags flags;
    flags.from = report;
    NS_TRY(const auto scenario, read_base_of(flags));
    steps.push_back(*scenario);
  }
  return steps;
}

// The best format for training that the GPU has.
ScenarioSpec spec_of(const TypicalStep& typical, const Gpu& gpu) {
  const auto has = [&](DType dtype) { return gpu.matrix_peak(dtype) > FlopsPerSecond(); };
  ScenarioSpec spec;
  spec.set("model", typical.model);
  spec.set("plan/tp", typical.tp).set("plan/pp", typical.pp).set("plan/ep", typical.ep).set("plan/dp", 8);
  spec.set("training/dtype", has(DType::kBf16) ? "bf16" : has(DType::kFp16) ? "fp16" : "fp32");
  return spec;
}

// The kernels of the reports that --from names. Typical steps count where it names none, and are kernels that may be
// measured where it does.
Result<std::vector<std::vector<KernelUse>>> steps_of(const CalibrateRequest& request, const Gpu& gpu) {
  NS_TRY(const std::vector<Scenario> reported, reported_steps(request));
  std::vector<std::vector<KernelUse>> steps;
  for (const Scenario& scenario : reported) {
    NS_TRY(steps.emplace_back(), kernels_of(scenario));
  }
  const Catalog catalog = Catalog::standard();
  for (const TypicalStep& typical : kTypicalSteps) {
    ScenarioSpec spec = spec_of(typical, gpu);
    spec.set("machine/gpu", "h100-sxm-80gb");  // what kernels there are does not depend on the machine
    NS_TRY(const Scenario scenario, resolve(spec, catalog));
    NS_TRY(steps.emplace_back(), kernels_of(scenario));
    if (reported.empty()) continue;
    for (KernelUse& use : steps.back()) use.runs = 0;
  }
  return steps;
}

// The steps of the reports that --from names, or typical ones that this cluster can run.
Result<std::vector<Scenario>> steps_on(const CalibrateRequest& request, const Cluster& cluster) {
  NS_TRY(std::vector<Scenario> steps, reported_steps(request));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].cluster.id == cluster.id) continue;
    return fail({ErrorCode::kInvalidInput, fmt::format("the report is of {}", steps[i].cluster.id), request.from[i],
                 fmt::format("a step on {}", cluster.id)});
  }
  if (!request.from.empty()) return steps;
  const Catalog catalog = Catalog::standard();
  for (const TypicalStep& typical : kTypicalSteps) {
    ScenarioSpec spec = spec_of(typical, cluster.gpu);
    if (!request.cluster.empty()) spec.set("machine/cluster", request.cluster);
    if (!request.gpu.empty()) spec.set("machine/gpu", request.gpu);
    if (auto scenario = resolve(spec, catalog)) steps.push_back(*std::move(scenario));
  }
  return steps;
}

std::string text_of_steps(const CalibrateRequest& request, std::size_t typical) {
  if (!request.from.empty()) return fmt::format("{}", fmt::join(request.from, ", "));
  return typical == kTypicalSteps.size() ? "six typical steps" : fmt::format("{} typical steps", typical);
}

// What to measure next; --next has it as a table.
Result<Calibrated> advice_of(const CalibrateRequest& request, const Gpu& gpu, const KernelCalibration& calibration,
                             std::span<const std::vector<KernelUse>> steps) {
  NS_TRY(const MeasurementAdvice advice, next_measurements(gpu, calibration, steps, kAdvised));
  std::vector<Operator> rows;
  nlohmann::ordered_json next = nlohmann::ordered_json::array();
  std::string text = fmt::format("What to measure next, by the kernels of {}: expected error {:.1f} % now\n",
                                 text_of_steps(request, kTypicalSteps.size()), 100 * advice.error);
  if (!advice.rows.empty()) text += "  share %  error %   then %  kernel\n";
  for (const NextMeasurement& row : advice.rows) {
    text += fmt::format("  {:>7.1f}  {:>7.1f}  {:>7.1f}  {}\n", 100 * row.share, 100 * row.error, 100 * row.left,
                        to_text(row.work));
    rows.push_back(row.work);
    next.push_back({{"kernel", to_text(row.work)},
                    {"share", row.share},
                    {"expected_error", row.error},
                    {"expected_error_of_all", row.left}});
  }
  if (advice.rows.empty()) text += "  nothing: of each kernel as much is known as one more measurement tells\n";
  if (request.next.empty()) {
    text += "  --next FILE.csv writes these rows for tools/collect/kernels.py\n";
  } else {
    NS_TRY_VOID(write_text(request.next, kernel_rows(gpu.id, rows)));
    text += fmt::format("  in {}, for tools/collect/kernels.py --rows\n", request.next);
  }
  return Calibrated{std::move(text), {{"expected_error", advice.error}, {"next", std::move(next)}}};
}

// A correction of kernels: what the measurements of one GPU add to the forecast for it.
Result<Calibrated> calibrate_gpu(const CalibrateRequest& request) {
  if (request.gpu.empty()) {
    return fail({ErrorCode::kUsage, "the GPU of the measurements is missing", "--gpu", "a GPU",
                 "add --gpu ID (ns-dist list gpus)"});
  }
  ComputeModelOptions options;
  const std::string mode = request.mode.value_or("sustained");
  NS_TRY(options.mode, read_mode(mode));
  NS_TRY(const Gpu gpu, named_by("--gpu", Catalog::standard().gpu(request.gpu)));
  std::vector<std::string> inputs = request.from;
  inputs.insert(inputs.end(), {request.kernels, request.gpu});
  NS_TRY_VOID(check_outputs({{"--output", request.output}, {"--next", request.next}, answer_of(request)}, inputs));
  NS_TRY(const auto steps, steps_of(request, gpu));
  nlohmann::ordered_json json = {{"schema", "ns-dist/calibrate/1"}, {"gpu", gpu.id}, {"mode", mode}};
  if (request.kernels.empty()) {
    NS_TRY(Calibrated advice, advice_of(request, gpu, {gpu.id, options.mode, {}}, steps));
    json.update(advice.json);
    return Calibrated{std::move(advice.text), std::move(json)};
  }
  NS_TRY(const CsvTable table, CsvTable::read(request.kernels));
  NS_TRY_VOID(check_kernel_columns(table, gpu.id));
  std::vector<std::string> notes;
  NS_TRY(const KernelCalibration calibration, calibrate_kernels(gpu, table, options, &notes));
  for (const std::string& note : notes) warn(note);
  NS_TRY_VOID(write_text(request.output, to_json(calibration)));
  std::string text = fmt::format("{} on {}, in {}\n", mode, gpu.id, request.output);
  if (options.mode == Mode::kSustained)
    text.insert(text.size() - 1, "; ns-dist kernels takes it with --mode sustained");
  nlohmann::ordered_json families = nlohmann::ordered_json::array();
  for (const FamilyCalibration& family : calibration.families) {
    text += fmt::format(
        "  {:<16} {:<5} {:>5} kernels: mean error {:.1f} % before, {:.1f} % after, each by the others\n", family.family,
        name_of(family.dtype), family.points.size(), 100 * family.before, 100 * family.after);
    warn_if_worse(fmt::format("{} {}", family.family, name_of(family.dtype)), family.before, family.after);
    families.push_back({{"family", family.family},
                        {"dtype", name_of(family.dtype)},
                        {"rows", family.points.size()},
                        {"error_before", family.before},
                        {"error_after", family.after}});
  }
  json["families"] = std::move(families);
  json["notes"] = notes;
  NS_TRY(const Calibrated advice, advice_of(request, gpu, calibration, steps));
  json.update(advice.json);
  return Calibrated{text + advice.text, std::move(json)};
}

// What to measure next; --next has it as a table.
Result<Calibrated> advice_of(const CalibrateRequest& request, const Cluster& cluster, const NetworkCalibration& curves,
                             std::span<const Scenario> steps) {
  if (steps.empty()) return Calibrated{{}, nlohmann::ordered_json::object()};
  NS_TRY(const CollectiveAdvice advice, next_collectives(steps, curves, kAdvised / 2));
  std::string text = fmt::format("What to measure next, by the collectives of {}: up to {:.0f} % longer now\n",
                                 text_of_steps(request, steps.size()), 100 * advice.interval);
  std::string table = "cluster,collective,ranks,gpus_per_node,bytes\n";
  nlohmann::ordered_json next = nlohmann::ordered_json::array();
  if (!advice.rows.empty()) text += "  share %  up to %  collective\n";
  for (const auto& [row, share, interval, has_curve] : advice.rows) {
    text += fmt::format("  {:>7.1f}  {:>7.0f}  {} of {} between {} ranks, {} in a node\n", 100 * share, 100 * interval,
                        name_of(row.kind), to_text(row.size), row.ranks, row.gpus_per_node);
    // With smaller sizes, or larger ones of a few bytes, where it would be the only one.
    constexpr double kLeast = 1024;  // bytes
    const double step = row.size / units::B < kLeast ? 4 : 0.25;
    for (std::size_t more = has_curve ? 1 : kFewestSizes; more > 0; --more) {
      table += fmt::format("{},{},{},{},{}\n", csv_cell(cluster.id), name_of(row.kind), row.ranks, row.gpus_per_node,
                           std::ceil(row.size / units::B * std::pow(step, more - 1)));
    }
    next.push_back({{"collective", name_of(row.kind)},
                    {"ranks", row.ranks},
                    {"gpus_per_node", row.gpus_per_node},
                    {"bytes", row.size / units::B},
                    {"share", share},
                    {"interval", interval}});
  }
  if (advice.rows.empty()) {
    text += advice.interval > 0 ? "  nothing: all were measured\n" : "  nothing: these steps have no collectives\n";
  }
  if (!request.next.empty()) {
    NS_TRY_VOID(write_text(request.next, table));
    text += fmt::format("  in {}; with more sizes of what was not measured, for a correction needs {}\n", request.next,
                        kFewestSizes);
  }
  return Calibrated{std::move(text), {{"interval", advice.interval}, {"next", std::move(next)}}};
}

// A correction of collectives: what the measurements add to the curves that are compiled in.
Result<Calibrated> calibrate_cluster(const CalibrateRequest& request) {
  NS_TRY(const Cluster cluster, cluster_of(request));
  std::vector<std::string> inputs = request.from;
  inputs.insert(inputs.end(), {request.collectives, request.gpu, request.cluster});
  NS_TRY_VOID(check_outputs({{"--output", request.output}, {"--next", request.next}, answer_of(request)}, inputs));
  NS_TRY(const std::vector<Scenario> steps, steps_on(request, cluster));
  if (steps.empty() && !request.next.empty()) {
    return fail({ErrorCode::kUsage, fmt::format("none of the typical steps runs on {}", cluster.id), "--next",
                 "a step whose collectives decide what to measure", "write --from REPORT, too"});
  }
  NS_TRY(std::vector<MeasuredCollective> rows, read_rows(request, cluster));
  NS_TRY(const CollectiveCalibration calibrated, calibrate_collectives(cluster, std::move(rows), request.collectives));
  for (const std::string& note : calibrated.notes) warn(note);
  NS_TRY_VOID(write_text(request.output, to_json(calibrated.curves)));
  warn_if_worse(cluster.id, calibrated.before, calibrated.after);
  const std::size_t curves = calibrated.curves.curves.size();
  NS_TRY(const Calibrated advice, advice_of(request, cluster, calibrated.curves, steps));
  nlohmann::ordered_json json = {{"schema", "ns-dist/calibrate/1"},
                                 {"cluster", cluster.id},
                                 {"rows", calibrated.rows},
                                 {"rows_left_out", calibrated.curves.left_out.size()},
                                 {"curves", curves},
                                 {"error_before", calibrated.before},
                                 {"error_after", calibrated.after},
                                 {"notes", calibrated.notes}};
  json.update(advice.json);
  return Calibrated{fmt::format("{} rows, {} for cluster {} in {}\n  mean error {:.1f} % before, {:.1f} % "
                                "after, each by the others\n{}",
                                calibrated.rows, counted(curves, "curve"), cluster.id, request.output,
                                100 * calibrated.before, 100 * calibrated.after, advice.text),
                    std::move(json)};
}

}  // namespace

int calibrate_command(int argc, const char* const* argv) {
  CLI::App app{
      "A correction from a few measurements of one's own: of a GPU's kernels, for --kernel-calibration, or of a "
      "cluster's collectives, for --calibration.",
      "calibrate"};
  set_up(app);
  CalibrateRequest request;
  app.add_option("--cluster", request.cluster, "where they were measured: ns-dist list clusters, or JSON")
      ->type_name("ID|FILE");
  app.add_option("--gpu", request.gpu, "or the GPU, for its usual cluster: ns-dist list gpus, or JSON")
      ->type_name("ID|FILE");
  app.add_option("--collectives", request.collectives,
                 "columns collective, ranks, bytes, latency_ms; optional gpus_per_node (full nodes), dtype")
      ->type_name("CSV");
  app.add_option("--kernels", request.kernels,
                 "or columns op, dtype, the operator's dimensions and latency_ms, as ns-dist kernels reads them")
      ->type_name("CSV");
  app.add_option("--mode", request.mode, "how the kernels ran: burst, one alone; sustained, back to back [sustained]")
      ->type_name("WHICH");
  app.add_option("--from", request.from,
                 "reports whose kernels or collectives decide what to measure next [six typical steps, tp 1 to 8]")
      ->type_name("REPORT");
  app.add_option(
         "--next", request.next,
         "what to measure next, at most 20 kernels or 10 collectives, as a table; alone, the kernels to measure first")
      ->type_name("CSV");
  app.add_option("--output", request.output, "the correction")->type_name("FILE");
  app.add_flag("--json", request.json, "print one JSON object");
  if (const auto done = parse(app, argc, argv)) return *done;
  const bool nothing = request.collectives.empty() && request.kernels.empty();
  const bool first = nothing && !request.next.empty();
  if (nothing && !first) {
    return report_error({ErrorCode::kUsage, "no measurements are given", "--kernels, --collectives",
                         "one of them, with --output FILE", "--gpu ID --next FILE alone writes what to measure first"});
  }
  if (!first && request.output.empty()) {
    return report_error({ErrorCode::kUsage, "the correction has no file", "--output", "a file", "add --output FILE"});
  }
  for (const auto& [flag, of_kernels, is_given] : {std::tuple("--mode", true, request.mode.has_value()),
                                                   std::tuple("--cluster", false, !request.cluster.empty())}) {
    if (!is_given || of_kernels == request.collectives.empty()) continue;
    return report_error({ErrorCode::kUsage, of_kernels ? "is not a flag of collectives" : "is not a flag of kernels",
                         flag, of_kernels ? "only with kernels" : "only with collectives"});
  }
  if (!request.collectives.empty() && !request.kernels.empty()) {
    return report_error(
        {ErrorCode::kUsage, "kernels and collectives are two corrections", "--kernels, --collectives", "one of them"});
  }
  const auto answered = request.collectives.empty() ? calibrate_gpu(request) : calibrate_cluster(request);
  if (!answered) return report_error(answered.error());
  const std::string text = request.json ? dump_json(answered->json, 1) : answered->text;
  std::fputs(text.c_str(), stream_of_answer(request.json, {{"--output", request.output}, {"--next", request.next}}));
  return kAnswered;
}

}  // namespace ns_dist::cli
