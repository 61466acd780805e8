#include "ns_dist/catalog.h"
#include "ns_dist/kernel_suite.h"
#include "suites.h"
#include "tables.h"

namespace ns_dist::cli {

Result<SuiteAnswer> validate_kernels(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  KernelSuiteOptions options;
  options.data = request.data;
  options.threads = request.threads;
  options.refit = request.refit;
  Progress progress("validating", 1);
  NS_TRY(KernelSuite suite, check_kernels(
                                options, [&](std::string_view id) { return catalog.gpu(id); },
                                [&](double share, std::string_view) { progress.share(share); }));
  progress.done();
  return SuiteAnswer{std::move(suite.markdown), std::move(suite.mistakes), suite.rows};
}

}  // namespace ns_dist::cli
