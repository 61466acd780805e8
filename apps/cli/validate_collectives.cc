#include "ns_dist/catalog.h"
#include "ns_dist/collective_suite.h"
#include "suites.h"
#include "tables.h"

namespace ns_dist::cli {

Result<SuiteAnswer> validate_collectives(const SuiteRequest& request) {
  const Catalog catalog = Catalog::standard();
  Progress progress("validating", 1);
  NS_TRY(CollectiveSuite suite, check_collectives(request.data, catalog, [&](double share) { progress.share(share); }));
  progress.done();
  return SuiteAnswer{std::move(suite.markdown), std::move(suite.mistakes), suite.rows};
}

}  // namespace ns_dist::cli
