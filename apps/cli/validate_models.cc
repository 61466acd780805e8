#include "ns_dist/catalog.h"
#include "ns_dist/model_suite.h"
#include "suites.h"
#include "tables.h"

namespace ns_dist::cli {

Result<SuiteAnswer> validate_models(const SuiteRequest& request) {
  Progress progress("validating", 1);
  NS_TRY(RunSuite suite, check_models(request.data, Catalog::standard(), [&](double share) { progress.share(share); }));
  progress.done();
  return SuiteAnswer{std::move(suite.markdown), std::move(suite.mistakes), suite.rows};
}

}  // namespace ns_dist::cli
