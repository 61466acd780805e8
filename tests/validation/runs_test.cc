// Is it right? The iteration times that the paper prints against our forecasts. The budget may only shrink.
#include <gtest/gtest.h>

#include "ns_dist/error_figures.h"
#include "ns_dist/run_suite.h"

namespace ns_dist {
namespace {

TEST(PublishedRuns, KorthikantiWithinBudget) {
  const Catalog catalog = Catalog::standard();
  const auto runs = catalog.runs("korthikanti-2022");
  ASSERT_TRUE(runs) << to_text(runs.error());
  const auto checks = check_runs({&*runs, 1}, catalog);
  ASSERT_TRUE(checks) << to_text(checks.error());
  std::vector<double> errors, baseline;
  for (const RunCheck& check : *checks) {
    ASSERT_EQ(check.unsupported, "") << check.id;
    errors.push_back(check.error());
    baseline.push_back(check.baseline_error());
  }
  const ErrorFigures ours = figures_of(errors);
  EXPECT_EQ(ours.rows, 9u);
  EXPECT_LE(ours.mean, 0.034);
  EXPECT_LE(ours.largest, 0.095);
  EXPECT_LT(ours.mean, figures_of(baseline).mean);
}

}  // namespace
}  // namespace ns_dist
