#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/catalog.h"
#include "ns_dist/collective_suite.h"
#include "ns_dist/kernel_fit.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

constexpr std::string_view kCollectives = "collectives", kClusters = "clusters";

struct FitRequest {
  std::string output, threads;
  std::vector<std::string> data, predictors, exclude_gpus, exclude_generations, tables, exclude_tables,
      prefer_frameworks;
};

// Corrections of collectives: one of the two calibrations that the folder teaches.
Result<int> answer_collectives(const FitRequest& request) {
  for (const auto& [flag, is_given] :
       {std::pair("--exclude-gpu", !request.exclude_gpus.empty()),
        std::pair("--exclude-generation", !request.exclude_generations.empty()),
        std::pair("--table", !request.tables.empty()), std::pair("--exclude-table", !request.exclude_tables.empty()),
        std::pair("--prefer-framework", !request.prefer_frameworks.empty()),
        std::pair("--threads", !request.threads.empty())}) {
    if (is_given) return fail({ErrorCode::kUsage, "is not a flag of collectives", flag, "only with kernels"});
  }
  if (request.data.size() > 1)
    return fail({ErrorCode::kUsage, "collectives are read from one folder", "--data", "one folder"});
  const Catalog catalog = Catalog::standard();
  const CalibrationRecipe& recipe = request.predictors.front() == kCollectives ? kFamiliesRecipe : kClustersRecipe;
  NS_TRY(const NetworkCalibration wanted, learn_collectives(request.data.front(), recipe, catalog));
  NS_TRY_VOID(write_text(request.output, to_json(wanted)));
  std::fputs(fmt::format("{} curves in {}\n", wanted.curves.size(), request.output).c_str(), stdout);
  return kAnswered;
}

// What need not be found only after hours of fitting.
Result<void> check(const FitRequest& request) {
  std::vector<std::string> known(kernel_predictors().begin(), kernel_predictors().end());
  known.emplace_back(kCollectives), known.emplace_back(kClusters);
  for (const std::string& name : request.predictors) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = nearest_name(name, known);
    return fail({ErrorCode::kUsage, fmt::format("\"{}\" is not one of its values", name), "--predictor",
                 fmt::format("one of {}", fmt::join(known, ", ")), did_you_mean(near)});
  }
  std::error_code ignored;
  for (const std::string& folder : request.data) {
    if (std::filesystem::is_directory(folder, ignored)) continue;
    const bool file = std::filesystem::exists(folder, ignored);
    return fail({ErrorCode::kNotFound, fmt::format("\"{}\" is {}", folder, file ? "a file" : "not there"), "--data",
                 "a folder of tables, CSV or CSV.gz", file ? "name the folder that it lies in" : ""});
  }
  NS_TRY_VOID(
      check_is_file({"--output", request.output}, "a file: the card is written beside it", "write --output FILE"));
  NS_TRY_VOID(check_outputs({{"--output", request.output}, {"--output", request.output + ".md"}}, {}));
  return {};
}

Result<int> answer(const FitRequest& request) {
  NS_TRY_VOID(check(request));
  if (std::any_of(request.predictors.begin(), request.predictors.end(),
                  [](const std::string& name) { return name == kCollectives || name == kClusters; })) {
    if (request.predictors.size() == 1) return answer_collectives(request);
    return fail({ErrorCode::kUsage, "collectives are fitted by themselves", "--predictor",
                 "collectives or clusters alone, or predictors of kernels"});
  }
  KernelFitOptions options;
  options.data.assign(request.data.begin(), request.data.end());
  options.predictors = request.predictors;
  options.exclude_gpus = request.exclude_gpus;
  options.exclude_generations = request.exclude_generations;
  options.tables = request.tables;
  options.exclude_tables = request.exclude_tables;
  options.prefer_frameworks = request.prefer_frameworks;
  NS_TRY(options.threads, read_threads(request.threads));
  const Catalog catalog = Catalog::standard();
  Progress progress("fitting", 1);
  NS_TRY(const KernelFit fit, fit_kernels(
                                  options, [&](std::string_view id) { return catalog.gpu(id); },
                                  [&](double share, std::string_view) { progress.share(share); }));
  progress.done();
  NS_TRY_VOID(write_text(request.output, fit.weights));
  NS_TRY_VOID(write_text(request.output + ".md", fit.card));
  std::fputs(fit.card.c_str(), stdout);
  return kAnswered;
}

}  // namespace

int fit_command(int argc, const char* const* argv) {
  CLI::App app{
      "Weights of the kernel model from measured kernels, with a card that lists what they were fitted on; or "
      "corrections of the network model from measured collectives.",
      "fit"};
  set_up(app);
  FitRequest request;
  app.add_option("--data", request.data, "folders of measured kernels, CSV or CSV.gz")
      ->type_name("DIR ...")
      ->required()
      ->take_all();
  app.add_option("--output", request.output, "the weights; the card is written beside them as FILE.md")
      ->type_name("FILE")
      ->required();
  app.add_option("--predictor", request.predictors,
                 fmt::format("only these: {}; or, alone, {} (of GPU families inside a node) or {} (corrections of "
                             "single clusters)",
                             fmt::join(kernel_predictors(), ", "), kCollectives, kClusters))
      ->type_name("NAME");
  app.add_option("--exclude-gpu", request.exclude_gpus, "leave these out of the fit")->type_name("ID");
  app.add_option("--exclude-generation", request.exclude_generations, "leave these architectures out: hopper, ...")
      ->type_name("NAME");
  app.add_option("--table", request.tables, "read only tables whose name starts so: fp32_train")->type_name("NAME");
  app.add_option("--exclude-table", request.exclude_tables, "leave out tables whose name starts so: fp32_test")
      ->type_name("NAME");
  app.add_option("--prefer-framework", request.prefer_frameworks,
                 "of a GPU that several frameworks measured, read only the first of these that did: trtllm")
      ->type_name("NAME");
  app.add_option("--threads", request.threads, "threads [one a core]")->type_name("N");
  if (const auto done = parse(app, argc, argv)) return *done;
  const auto answered = answer(request);
  return answered ? *answered : report_error(answered.error());
}

}  // namespace ns_dist::cli
