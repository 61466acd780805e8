// Is it right? The iteration times that the paper prints against our forecasts. The budget may only shrink.
#include <gtest/gtest.h>

#include <cmath>

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

// All that is built in: a user who runs `ns-dist validate` sees these.
TEST(PublishedRuns, AllWithinBudget) {
  const Catalog catalog = Catalog::built_in();
  std::vector<PublishedRuns> publications;
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kRuns)) {
    auto runs = catalog.runs(entry.id);
    ASSERT_TRUE(runs) << to_text(runs.error());
    publications.push_back(*std::move(runs));
  }
  const auto checks = check_runs(publications, catalog);
  ASSERT_TRUE(checks) << to_text(checks.error());
  std::vector<double> errors, baseline;
  std::size_t inside = 0;
  for (const RunCheck& check : *checks) {
    ASSERT_EQ(check.unsupported, "") << check.publication << ": " << check.id;
    errors.push_back(check.error());
    baseline.push_back(check.baseline_error());
    if (check.inside()) ++inside;
  }
  const ErrorFigures ours = figures_of(errors);
  EXPECT_GE(ours.rows, 389u);
  EXPECT_LE(ours.mean, 0.051);
  EXPECT_LE(ours.p90, 0.12);
  EXPECT_LE(std::abs(ours.bias), 0.01);
  EXPECT_GE(inside, 0.85 * static_cast<double>(ours.rows));
  EXPECT_LT(2.5 * ours.mean, figures_of(baseline).mean);
}

}  // namespace
}  // namespace ns_dist
