#include "left_out_constants.h"

#include <gmock/gmock.h>

#include <deque>

#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

CollectedRun run_of(const std::string& publication, const std::string& gpu, int dp) {
  CollectedRun run;
  run.publication = publication;
  run.model = *Catalog::standard().model("llama3-8b");
  run.spec.set("machine/gpu", std::string_view(gpu)).set("plan/dp", dp).set("training/global_batch", 4 * dp);
  return run;
}

// Steps that were made with other constants give these back, whichever publication is left out.
TEST(LeftOutConstants, FindsTheConstantsThatMadeTheSteps) {
  const Catalog catalog = Catalog::standard();
  std::deque<CollectedRun> runs;
  std::vector<JudgedRun> judged;
  for (const char* publication : {"first", "second", "third"}) {
    for (const char* gpu : {"h100-sxm-80gb", "b200-sxm"}) {
      runs.push_back(run_of(publication, gpu, gpu[0] == 'h' ? 8 : 64));
      Scenario scenario = *scenario_of(runs.back(), catalog);
      scenario.constants = {.exponent = 0.28, .deviation = 0.01, .experts = 1};
      judged.push_back({&runs.back(), *step_time(scenario, *Session::make(scenario))});
    }
  }
  const auto table = left_out_constants(judged, catalog, {});
  ASSERT_TRUE(table);
  const std::string text = to_markdown({.tables = {*table}});
  for (const char* publication : {"first", "second", "third"}) {
    EXPECT_THAT(text, HasSubstr(std::string("| ") + publication + " | 0.28 | 1.0 | "));
  }
  EXPECT_THAT(text, HasSubstr("| each publication one vote | - | - | - | - | - | 0.0 | +0.0 |"));
}

// Steps that took a million times as long as any constants say are forecast 100 % too short, by publications of two
// runs as by those of one.
TEST(LeftOutConstants, PublicationsOfManyRunsHaveOneVote) {
  const Catalog catalog = Catalog::standard();
  const CollectedRun first = run_of("first", "h100-sxm-80gb", 8), second = run_of("second", "h100-sxm-80gb", 8);
  const std::vector<JudgedRun> judged = {{&first, 1e7 * units::s}, {&first, 1e7 * units::s}, {&second, 1e7 * units::s}};
  const auto table = left_out_constants(judged, catalog, {});
  ASSERT_TRUE(table);
  const std::string text = to_markdown({.tables = {*table}});
  EXPECT_THAT(text, HasSubstr("| each publication one vote | - | - | - | - | - | 100.0 | -100.0 |"));
}

TEST(LeftOutConstants, OnePublicationLeavesNothingToFindThemOn) {
  const Catalog catalog = Catalog::standard();
  const CollectedRun run = run_of("alone", "h100-sxm-80gb", 8);
  const std::vector<JudgedRun> judged = {{&run, 1 * units::s}};
  EXPECT_TRUE(left_out_constants(judged, catalog, {})->rows.empty());
}

}  // namespace
}  // namespace ns_dist
