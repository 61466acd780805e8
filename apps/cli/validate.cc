#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_suite.h"
#include "ns_dist/kernel_suite.h"
#include "ns_dist/model_suite.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/suite_report.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {

namespace {

struct SuiteRequest {
  std::filesystem::path data;       // measured data, as --data names it: a folder, of runs a file; empty: none given
  std::vector<std::string> runs;    // ids or files of published runs
  std::vector<std::string> titles;  // of publications of runs and plans
  std::string rows;                 // which runs of a file, as RunRows names them; empty: those that it recommends
  std::string calibration, kernel_calibration;  // files, of the machine of the runs; empty: none
  unsigned threads = 1;
  bool refit = false;         // leave each GPU out in turn
  bool among_others = false;  // --data is of other suites, too
};

// A file of published runs, or those of a folder in the order of their names; none where the folder holds other data.
Result<std::vector<std::filesystem::path>> run_collections(const std::filesystem::path& data) {
  std::error_code failed;
  if (!std::filesystem::is_directory(data, failed)) return std::vector{data};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(data, failed)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Corrections of the machine that ran the steps. A file that cannot be read is one mistake, not one of each run.
Result<ScenarioSpec> corrections(const SuiteRequest& request) {
  ScenarioSpec with;
  if (!request.calibration.empty()) {
    NS_TRY_VOID(load_network_calibration(request.calibration));
    with.set("network/calibration", request.calibration);
  }
  if (!request.kernel_calibration.empty()) {
    NS_TRY_VOID(load_kernel_calibration(request.kernel_calibration));
    with.set("kernels/calibration", request.kernel_calibration);
  }
  return with;
}

using SuiteReports = std::vector<SuiteReport>;

Result<SuiteReports> built_in_runs(const SuiteRequest& request, const Catalog& catalog, const ScenarioSpec& with) {
  std::vector<PublishedRuns> publications;
  std::vector<std::string> wanted = request.runs;
  if (wanted.empty()) {
    for (const CatalogEntry& entry : catalog.list(CatalogKind::kRuns)) wanted.push_back(entry.id);
  }
  for (const std::string& reference : wanted) {
    auto runs = catalog.runs(reference);
    if (!runs) {
      if (runs.error().where.empty()) runs.error().where = "--runs";
      return fail(std::move(runs.error()));
    }
    for (PublishedRun& run : runs->runs) {
      run.set.insert(run.set.end(), with.assignments.begin(), with.assignments.end());
    }
    publications.push_back(*std::move(runs));
  }
  NS_TRY(const std::vector<RunCheck> checks, check_runs(publications, catalog));
  SuiteReport report = report_of(checks);
  for (const PublishedRuns& publication : publications) {
    report.note +=
        fmt::format("{}{}\n  measured: {}", report.note.empty() ? "" : "\n", publication.name, publication.source);
  }
  return SuiteReports{std::move(report)};
}

Result<SuiteReports> validate_runs(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const ScenarioSpec with, corrections(request));
  if (request.data.empty()) return built_in_runs(request, catalog, with);
  NS_TRY(const std::vector<std::filesystem::path> collections, run_collections(request.data));
  if (collections.empty() && request.among_others) return built_in_runs(request, catalog, with);
  RunSuiteOptions options{request.titles, with, request.refit, RunRows::kRecommended};
  if (!request.rows.empty()) {
    const auto rows = enumerator_from_name<RunRows>(request.rows);
    if (!rows) {
      return fail({ErrorCode::kUsage, fmt::format("\"{}\" is no kind of rows", request.rows), "--rows",
                   "recommended, other or all"});
    }
    options.rows = *rows;
  }
  SuiteReports all;
  std::size_t rows = 0;
  for (const std::filesystem::path& collection : collections) {
    Progress progress("validating", 1);
    NS_TRY(SuiteReport report,
           check_run_collection(collection, catalog, options, [&](double share) { progress.share(share); }));
    progress.done();
    if (collections.size() > 1) report.title = collection.filename().string();
    rows += report.rows;
    all.push_back(std::move(report));
  }
  if (rows == 0) {
    return fail({ErrorCode::kInvalidInput, fmt::format("no published run of {} is chosen", request.data.string()),
                 "--data", "a file with rows", "--publication and --rows choose some of them"});
  }
  return all;
}

Result<SuiteReports> validate_plans(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const std::vector<std::filesystem::path> collections, run_collections(request.data));
  SuiteReports all;
  for (const std::filesystem::path& collection : collections) {
    Progress progress(collection.filename().string(), 1);
    NS_TRY(SuiteReport report, check_plans(collection, catalog, request.titles, request.threads,
                                           [&](double share) { progress.share(share); }));
    progress.done();
    if (report.rows == report.mistakes.size()) continue;  // none of these publications in it
    all.push_back(std::move(report));
  }
  return all;
}

Result<SuiteReports> validate_kernels(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  KernelSuiteOptions options;
  options.data = request.data;
  options.threads = request.threads;
  options.refit = request.refit;
  Progress progress("validating", 1);
  NS_TRY(SuiteReport report, check_kernels(
                                 options, [&](std::string_view id) { return catalog.gpu(id); },
                                 [&](double share, std::string_view) { progress.share(share); }));
  progress.done();
  return SuiteReports{std::move(report)};
}

using CheckFolder = Result<SuiteReport>(const std::filesystem::path&, const Catalog&,
                                        const std::function<void(double)>&);
template <CheckFolder* check>
Result<SuiteReports> validate_folder(const SuiteRequest& request) {
  Progress progress("validating", 1);
  NS_TRY(SuiteReport report, check(request.data, Catalog::standard(), [&](double share) { progress.share(share); }));
  progress.done();
  return SuiteReports{std::move(report)};
}

struct Suite {
  std::string_view name, summary;
  std::string_view folder;  // of the measured data; "": the data are published runs
  bool needs_data;
  std::string_view takes;  // how long, if that is minutes; otherwise empty
  Result<SuiteReports> (*answer)(const SuiteRequest&);
};

// One line a suite.
constexpr std::array kSuites = {
    Suite{"runs", "training steps that others published (built in, or --data FILE)", "", false, "", validate_runs},
    Suite{"plans", "published plans, beside the best that a search finds", "", true,
          "up to a minute for each published plan, which a search looks for", validate_plans},
    Suite{"kernels", "single kernels", "kernels", true, "", validate_kernels},
    Suite{"models", "whole FP32 models, forward and backward", "models_fp32", true, "", validate_folder<check_models>},
    Suite{"collectives", "collectives in a node and across two, and runs of ASTRA-Sim", "collectives", true, "",
          validate_folder<check_collectives>},
};

struct ValidateRequest {
  std::vector<std::string> suites;
  SuiteRequest of;
  std::string data, threads;
  bool json = false;
};

std::string names_of_suites() {
  std::string names;
  for (const Suite& suite : kSuites) names += (names.empty() ? "" : ", ") + std::string(suite.name);
  return names;
}

// The suites whose measured data lie in a folder.
std::vector<std::string> suites_in(const std::filesystem::path& data) {
  std::vector<std::string> suites;
  std::error_code failed;
  for (const Suite& suite : kSuites) {
    if (suite.folder.empty() || data.empty()) continue;
    if (std::filesystem::is_directory(data / suite.folder, failed)) suites.emplace_back(suite.name);
  }
  return suites;
}

// What to write where --data names one of the folders of measured data rather than the one that holds them.
std::string folder_above(const std::filesystem::path& data) {
  std::error_code failed;
  const std::filesystem::path above = std::filesystem::weakly_canonical(data, failed).parent_path();
  return suites_in(above).empty() ? "" : fmt::format("write --data {}", above.string());
}

Result<int> answer(ValidateRequest& request) {
  request.of.data = request.data;
  NS_TRY(request.of.threads, read_threads(request.threads));
  if (request.suites.empty()) request.suites = suites_in(request.data);
  if (request.suites.empty()) request.suites = {"runs"};
  request.of.among_others = request.suites.size() > 1;
  std::vector<const Suite*> wanted;
  for (const std::string& name : request.suites) {
    const auto found = std::find_if(kSuites.begin(), kSuites.end(), [&](const Suite& s) { return s.name == name; });
    if (found == kSuites.end()) {
      return fail(
          {ErrorCode::kUsage, fmt::format("\"{}\" is not a suite", name), "--suite", "one of " + names_of_suites()});
    }
    if (found->needs_data && request.data.empty()) {
      const bool file = name == "plans";
      return fail({ErrorCode::kUsage, fmt::format("suite {} reads {}", name, file ? "published runs" : "measured data"),
                   "--data", file ? "a JSON file of published runs" : "a folder",
                   file ? "add --data FILE" : "add --data DIR"});
    }
    wanted.push_back(&*found);
  }
  const bool runs_alone = request.suites == std::vector<std::string>{"runs"};
  if (!request.of.rows.empty() && (!runs_alone || request.data.empty())) {
    return fail({ErrorCode::kUsage, "only published runs of a file have rows to choose", "--rows",
                 "--suite runs with --data FILE", "add --data FILE, or leave it out"});
  }
  if (!request.of.titles.empty() && request.data.empty()) {
    return fail({ErrorCode::kUsage, "only publications of a file are chosen by their titles", "--publication",
                 "--suite runs or plans with --data FILE", "write --runs ID: ns-dist list runs"});
  }
  for (const auto& [flag, text] : {std::pair("--kernel-calibration", &request.of.kernel_calibration),
                                   std::pair("--calibration", &request.of.calibration)}) {
    // The runs that are built in are of several machines.
    const bool reads = runs_alone && (!request.data.empty() || !request.of.runs.empty());
    if (text->empty() || reads) continue;
    return fail({ErrorCode::kUsage, "a correction is of one machine, so it needs the runs of that machine", flag,
                 "--suite runs with --runs ID or --data FILE", "add --runs ID or --data FILE, or leave it out"});
  }
  SuiteReports all;
  std::vector<Error> mistakes;
  std::size_t rows = 0;
  for (const Suite* suite : wanted) {
    if (!suite->takes.empty()) {
      std::fputs(fmt::format("ns-dist: suite {} takes {}\n", suite->name, suite->takes).c_str(), stderr);
    }
    auto answered = suite->answer(request.of);
    if (!answered) {
      Error& error = answered.error();
      if (error.code == ErrorCode::kNotFound && error.hint.empty()) error.hint = folder_above(request.of.data);
      return fail(std::move(answered.error()));
    }
    for (SuiteReport& report : *answered) {
      if (!request.json) std::fputs(((all.empty() ? "" : "\n") + to_markdown(report)).c_str(), stdout);
      mistakes.insert(mistakes.end(), report.mistakes.begin(), report.mistakes.end());
      rows += report.rows;
      all.push_back(std::move(report));
    }
  }
  if (request.json) std::fputs(to_json(all).c_str(), stdout);
  return report_rows(mistakes, rows);
}

}  // namespace

int validate_command(int argc, const char* const* argv) {
  CLI::App app{"How far off are our forecasts of what others measured?", "validate"};
  set_up(app);
  ValidateRequest request;
  std::string suites;
  for (const Suite& suite : kSuites)
    suites += fmt::format("{}{}: {}", suites.empty() ? "" : "; ", suite.name, suite.summary);
  app.add_option("--suite", request.suites, suites + " [runs; with a folder of --data those that it is for]")
      ->type_name("NAME");
  app.add_option("--data", request.data, "folder of measured data; runs, plans: a JSON file of published runs")
      ->type_name("DIR|FILE");
  app.add_option("--runs", request.of.runs,
                 "publications: ids of ns-dist list runs, or JSON files [all that are built in]")
      ->type_name("ID|FILE");
  app.add_option("--publication", request.of.titles,
                 "runs of --data, plans: only publications whose title holds TEXT [all]")
      ->type_name("TEXT");
  app.add_option("--rows", request.of.rows,
                 "runs of --data: those that it recommends, the others, or all [recommended]")
      ->type_name("recommended|other|all");
  app.add_option("--kernel-calibration", request.of.kernel_calibration,
                 "of --runs or --data: corrections measured on their GPU, as ns-dist calibrate writes them [none]")
      ->type_name("FILE");
  app.add_option("--calibration", request.of.calibration,
                 "of --runs or --data: the same of their cluster's collectives [none]")
      ->type_name("FILE");
  app.add_flag("--refit", request.of.refit,
               "also fit without each GPU and generation (kernels), without each publication (runs), minutes");
  app.add_option("--threads", request.threads, "threads [one a core]")->type_name("N");
  app.add_flag("--json", request.json, "print one JSON object");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
