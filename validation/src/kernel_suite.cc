#include "ns_dist/kernel_suite.h"

#include <algorithm>
#include <array>

#include "ns_dist/kernel_fit.h"
#include "sections.h"

namespace ns_dist {

bool fp32_training_gpu(std::string_view id) {
  constexpr std::array<std::string_view, 7> kFitted = {
      "p4", "p100-pcie-16gb", "v100-pcie-32gb", "t4", "a100-pcie-40gb", "mi100", "mi210"};
  return std::find(kFitted.begin(), kFitted.end(), id) != kFitted.end();
}

Result<KernelSuite> check_kernels(const KernelSuiteOptions& options, const GpuOf& gpu_of, const UsualCluster& usual,
                                  const Tell& progress) {
  KernelSuite suite;
  Sections sections{options, gpu_of, usual, suite.mistakes};
  const auto tell = [&](double done, std::string_view what) {
    if (progress) progress(done, what);
  };
  tell(0, "whole models");
  NS_TRY(const std::string models, model_sections(sections));
  const double share = options.refit ? 0.1 : 1;
  NS_TRY(std::string kernels,
         kernel_sections(sections, [&](double done, std::string_view what) { tell(share * done, what); }));
  if (options.refit) {
    KernelFitOptions fit;
    fit.data = options.data / "kernels";
    fit.predictors = {"gemm", "gemm_fp8", "attention", "moe"};
    fit.threads = options.threads;
    NS_TRY(const KernelFit fitted,
           fit_kernels(fit, gpu_of, [&](double done, std::string_view what) { tell(0.1 + 0.9 * done, what); }));
    kernels += "\n## GPUs left out, fitted anew\n" + fitted.card.substr(fitted.card.find("\nErrors of forecasts"));
  }
  if (sections.tables == 0) {
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no measured kernels or models";
    error.where = options.data.string();
    error.expected = "kernels/*.csv.gz or models_fp32/labels.csv in it";
    return fail(error);
  }
  suite.markdown =
      "# Kernels and whole FP32 models\n\nErrors are of forecast over measured; bias is signed, negative where we "
      "forecast "
      "too short. `inside 90 %`: share of measurements inside our interval. Other forecasters' columns are means over "
      "the "
      "same rows, as far as they answered.\n\n" +
      models + kernels;
  suite.rows = sections.rows + suite.mistakes.size();
  return suite;
}

}  // namespace ns_dist
