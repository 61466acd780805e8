#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/run_suite.h"
#include "suites.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {

// A file of published runs, or those of a folder in the order of their names; none where the folder holds other data.
static Result<std::vector<std::filesystem::path>> run_collections(const std::filesystem::path& data) {
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
static Result<ScenarioSpec> corrections(const SuiteRequest& request) {
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

Result<SuiteAnswer> validate_runs(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const ScenarioSpec with, corrections(request));
  if (!request.data.empty()) {
    NS_TRY(const std::vector<std::filesystem::path> collections, run_collections(request.data));
    RunSuiteOptions options{request.titles, with, request.refit, RunRows::kRecommended};
    if (!request.rows.empty()) {
      const auto rows = enumerator_from_name<RunRows>(request.rows);
      if (!rows) {
        return fail({ErrorCode::kUsage,
                     fmt::format("\"{}\" is no kind of rows", request.rows),
                     "--rows",
                     "recommended, other or all",
                     "",
                     {}});
      }
      options.rows = *rows;
    }
    SuiteAnswer all;
    for (const std::filesystem::path& collection : collections) {
      Progress progress("validating", 1);
      NS_TRY(RunSuite suite,
             check_run_collection(collection, catalog, options, [&](double share) { progress.share(share); }));
      progress.done();
      if (collections.size() > 1) all.markdown += fmt::format("{}\n\n", collection.filename().string());
      all.markdown += suite.markdown + (collections.size() > 1 ? "\n" : "");
      all.mistakes.insert(all.mistakes.end(), suite.mistakes.begin(), suite.mistakes.end());
      all.rows += suite.rows;
    }
    if (!collections.empty() && all.rows == 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("no published run of {} is chosen", request.data.string()),
                   "--data",
                   "a file with rows",
                   "--publication and --rows choose some of them",
                   {}});
    }
    if (!collections.empty()) return all;
  }
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
  std::string text;
  for (const PublishedRuns& publication : publications) {
    text += fmt::format("{}\n  measured: {}\n", publication.name, publication.source);
  }
  return SuiteAnswer{text + "\n" + to_markdown(checks), {}, checks.size()};
}

Result<SuiteAnswer> validate_plans(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  NS_TRY(const std::vector<std::filesystem::path> collections, run_collections(request.data));
  SuiteAnswer all;
  for (const std::filesystem::path& collection : collections) {
    Progress progress(collection.filename().string(), 1);
    NS_TRY(RunSuite suite, check_plans(collection, catalog, request.titles, request.threads,
                                       [&](double share) { progress.share(share); }));
    progress.done();
    if (suite.rows == suite.mistakes.size()) continue;  // none of these publications in it
    all.markdown += suite.markdown;
    all.mistakes.insert(all.mistakes.end(), suite.mistakes.begin(), suite.mistakes.end());
    all.rows += suite.rows;
  }
  return all;
}

namespace {

// One line a suite.
constexpr std::array kSuites = {
    Suite{"runs", "training steps that others published (built in, or --data FILE)", false, "", validate_runs},
    Suite{"plans", "published plans, beside the best that a search finds", true,
          "up to a minute for each published plan, which a search looks for", validate_plans},
    Suite{"kernels", "single kernels", true, "", validate_kernels},
    Suite{"models", "whole FP32 models, forward and backward", true, "", validate_models},
    Suite{"collectives", "collectives in a node and across two, and runs of ASTRA-Sim", true, "", validate_collectives},
};

struct ValidateRequest {
  std::vector<std::string> suites;
  SuiteRequest of;
  std::string data, threads;
};

std::string names_of_suites() {
  std::string names;
  for (const Suite& suite : kSuites) names += (names.empty() ? "" : ", ") + std::string(suite.name);
  return names;
}

// What to write where --data names one of the folders of measured data rather than the one that holds them.
std::string folder_above(const std::filesystem::path& data) {
  std::error_code failed;
  const std::filesystem::path above = std::filesystem::weakly_canonical(data, failed).parent_path();
  for (const char* folder : {"kernels", "kernels_training", "models_fp32", "collectives"}) {
    if (std::filesystem::is_directory(above / folder, failed)) return fmt::format("write --data {}", above.string());
  }
  return "";
}

Result<int> answer(ValidateRequest& request) {
  request.of.data = request.data;
  NS_TRY(request.of.threads, read_threads(request.threads));
  if (request.suites.empty()) request.suites = {"runs"};
  std::vector<const Suite*> wanted;
  for (const std::string& name : request.suites) {
    const auto found = std::find_if(kSuites.begin(), kSuites.end(), [&](const Suite& s) { return s.name == name; });
    if (found == kSuites.end()) {
      return fail({ErrorCode::kUsage,
                   fmt::format("\"{}\" is not a suite", name),
                   "--suite",
                   "one of " + names_of_suites(),
                   "",
                   {}});
    }
    if (found->needs_data && request.data.empty()) {
      const bool file = name == "plans";
      return fail({ErrorCode::kUsage,
                   fmt::format("suite {} reads {}", name, file ? "published runs" : "measured data"),
                   "--data",
                   file ? "a JSON file of published runs" : "a folder",
                   file ? "add --data FILE" : "add --data DIR",
                   {}});
    }
    wanted.push_back(&*found);
  }
  const bool runs_alone = request.suites == std::vector<std::string>{"runs"};
  if (!request.of.rows.empty() && (!runs_alone || request.data.empty())) {
    return fail({ErrorCode::kUsage,
                 "only published runs of a file have rows to choose",
                 "--rows",
                 "--suite runs with --data FILE",
                 "add --data FILE, or leave it out",
                 {}});
  }
  for (const auto& [flag, text] : {std::pair("--kernel-calibration", &request.of.kernel_calibration),
                                   std::pair("--calibration", &request.of.calibration)}) {
    // The runs that are built in are of several machines.
    const bool reads = runs_alone && (!request.data.empty() || !request.of.runs.empty());
    if (text->empty() || reads) continue;
    return fail({ErrorCode::kUsage,
                 "a correction is of one machine, so it needs the runs of that machine",
                 flag,
                 "--suite runs with --runs ID or --data FILE",
                 "add --runs ID or --data FILE, or leave it out",
                 {}});
  }
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
    std::fputs(answered->markdown.c_str(), stdout);
    mistakes.insert(mistakes.end(), answered->mistakes.begin(), answered->mistakes.end());
    rows += answered->rows;
  }
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
  app.add_option("--suite", request.suites, suites + " [runs]")->type_name("NAME");
  app.add_option("--data", request.data, "folder of measured data; runs, plans: a JSON file of published runs")
      ->type_name("DIR|FILE");
  app.add_option("--runs", request.of.runs,
                 "publications: names in configs/runs, or JSON files [all that are built in]")
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
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
