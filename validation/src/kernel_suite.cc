#include "ns_dist/kernel_suite.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>

#include "ns_dist/internal/threads.h"
#include "ns_dist/kernel_fit.h"
#include "recipes.h"
#include "sections.h"

namespace ns_dist {

bool fp32_training_gpu(std::string_view id) {
  constexpr std::array<std::string_view, 7> kFitted = {
      "p4", "p100-pcie-16gb", "v100-pcie-32gb", "t4", "a100-pcie-40gb", "mi100", "mi210"};
  return std::find(kFitted.begin(), kFitted.end(), id) != kFitted.end();
}

namespace {

// Every predictor as the shipped weights were fitted, but for what is left out. One thread fits a predictor.
Result<std::string> fitted_anew(const KernelSuiteOptions& options, const GpuOf& gpu_of, const Tell& tell) {
  constexpr std::size_t kCount = kKernelRecipes.size();
  std::mutex mutex;  // of `gpu_of`, `tell` and `shares`
  std::array<double, kCount> shares{};
  std::array<std::optional<Result<KernelFit>>, kCount> fits;
  std::atomic<std::size_t> next = 0;
  const GpuOf one_at_a_time = [&](std::string_view id) {
    const std::scoped_lock lock(mutex);
    return gpu_of(id);
  };
  const auto work = [&](unsigned) {
    for (std::size_t i = next++; i < kCount; i = next++) {
      KernelFitOptions fit = fit_options(kKernelRecipes[i]);
      fit.data = {options.data};
      fit.threads = 1;
      fits[i] = fit_kernels(fit, one_at_a_time, [&](double done, std::string_view what) {
        const std::scoped_lock lock(mutex);
        shares[i] = done;
        tell(std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(kCount), what);
      });
    }
  };
  on_threads(std::min<std::size_t>(options.threads, kCount), work);
  std::string text;
  for (const auto& fit : fits) {
    if (!*fit) {
      // Nothing measured for this predictor is fine as long as there is something for another.
      const bool nothing = fit->error().code == ErrorCode::kNotFound && fit->error().where == options.data.string();
      if (nothing && (&fit != &fits.back() || !text.empty())) continue;
      return fail(fit->error());
    }
    // The cards' tables of errors below one head.
    const std::string& card = (*fit)->card;
    const std::size_t head = std::min(card.find("\nErrors of forecasts"), card.size());
    const std::size_t rule = card.find("\n| --- ", head);
    const std::size_t rows = rule == std::string::npos ? card.size() : card.find('\n', rule + 1) + 1;
    text += text.empty() ? card.substr(head) : card.substr(rows);
  }
  return "### GPUs left out, fitted anew\n" + text;
}

}  // namespace

Result<SuiteReport> check_kernels(const KernelSuiteOptions& options, const GpuOf& gpu_of, const Tell& progress) {
  SuiteReport report{.title = "Kernels", .note = std::string(kErrorTerms)};
  const auto tell = [&](double done, std::string_view what) {
    if (progress) progress(done, what);
  };
  const double share = options.refit ? 0.1 : 1;
  NS_TRY(const std::size_t files, add_kernel_tables(report, options, gpu_of, [&](double done, std::string_view what) {
           tell(share * done, what);
         }));
  if (options.refit) {
    NS_TRY(report.text, fitted_anew(options, gpu_of, [&](double done, std::string_view what) {
             tell(share + (1 - share) * done, what);
           }));
  }
  if (files == 0) {
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no measured kernels";
    error.where = options.data.string();
    error.expected =
        "kernels/*.csv.gz, kernels_training/*.csv.gz or our own measurements (products_burst.csv, ...) in it";
    return fail(error);
  }
  report.rows += report.mistakes.size();
  return report;
}

}  // namespace ns_dist
