#include "search_bounds.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

// Four layers of 1 s forward and 2 s backward, half of it kernels; nothing before and behind them.
PassesOfOne four_layers() {
  PassesOfOne one;
  one.parts.resize(7);
  for (std::size_t layer = 1; layer <= 4; ++layer) one.parts[layer] = {1, 2, 0.5, 1};
  return one;
}

double bound(const char* schedule, bool alike = true) {
  Scenario scenario;
  scenario.model.layers = 4;
  scenario.plan.pp = 2;
  scenario.plan.schedule = schedule;
  return pipeline_bound(four_layers(), scenario, 4, alike);
}

// (m + p - 1) (t_f + t_b) of Narayanan et al. 2021, s.2.2: (4 + 2 - 1) x (2 + 4).
TEST(SearchBounds, OnEvenStagesTheBoundIsTheStepOf1F1B) { EXPECT_DOUBLE_EQ(bound("1f1b"), 30); }

// Stages that run other collectives are bounded by kernels alone.
TEST(SearchBounds, OfStagesThatLieOtherwiseOnlyKernelsCount) { EXPECT_DOUBLE_EQ(bound("1f1b", false), 15); }

// Beside each other, one pass hides the collectives of the other, but not its own: four times 4 s of backward passes,
// behind 2 s forward and before 4 s backward on the first stage.
TEST(SearchBounds, PairedPassesHideEachOthersCollectives) { EXPECT_DOUBLE_EQ(bound("combined-1f1b"), 2 + 4 * 4 + 4); }

}  // namespace
}  // namespace ns_dist
