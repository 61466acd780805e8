// Is the picture of a step the step?
#include "ns_dist/outline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

using Assignments = std::vector<std::pair<const char*, const char*>>;

Scenario scenario_of(const Assignments& assignments) {
  ScenarioSpec spec;
  for (const auto& [field, value] : assignments) spec.set(field, value);
  return resolve(spec, Catalog::standard()).value();
}

struct Drawn {
  Prediction prediction;
  StepOutline outline;
};
Drawn draw(const Scenario& scenario, std::size_t pieces) {
  const Session session = Session::make(scenario).value();
  return {predict(scenario, session).value(), outline(scenario, session, pieces).value()};
}

const Assignments kPlans[] = {
    {{"plan/pp", "4"}, {"training/global_batch", "64"}},
    {{"plan/pp", "4"},
     {"plan/tp", "2"},
     {"plan/vpp", "2"},
     {"plan/recompute", "full"},
     {"training/global_batch", "32"}},
    {{"plan/pp", "4"}, {"plan/dp", "2"}, {"plan/schedule", "zb-h1"}, {"training/global_batch", "64"}},
    {{"plan/pp", "4"}, {"plan/schedule", "dualpipe"}, {"training/global_batch", "32"}},
    {{"training/global_batch", "512"}},
    {{"plan/dp", "4"}, {"plan/zero", "3"}, {"training/global_batch", "64"}},
    {{"model", "mixtral-8x7b"}, {"plan/ep", "8"}, {"plan/dp", "8"}, {"plan/pp", "2"}, {"training/global_batch", "64"}}};

Scenario plan_of(Assignments assignments) {
  const bool named = std::any_of(assignments.begin(), assignments.end(),
                                 [](const auto& pair) { return std::string_view(pair.first) == "model"; });
  if (!named) assignments.emplace_back("model", "gpt3-13b");
  return scenario_of(assignments);
}

TEST(Outline, StagesAreFullAndWhatIsLeftOutIsTheRest) {
  for (const Assignments& plan : kPlans) {
    const auto [prediction, outline] = draw(plan_of(plan), 300);
    ASSERT_EQ(outline.stages.size(), prediction.program.actors.size());
    Seconds left_out;
    for (const OutlineCut& cut : outline.cuts) {
      left_out += static_cast<double>(cut.copies) * cut.length;
      EXPECT_LE(cut.at, outline.length);
      EXPECT_GE(cut.at, cut.length) << "what repeats is drawn once";
    }
    EXPECT_NEAR((outline.length + left_out) / prediction.step, 1, 1e-12);
    for (const std::vector<OutlinePiece>& stage : outline.stages) {
      Seconds at;
      for (const OutlinePiece& piece : stage) {
        EXPECT_EQ(piece.start, at);
        EXPECT_NEAR(piece.time.total() / (piece.end - piece.start), 1, 1e-6) << piece.start / units::ms << " ms";
        at = piece.end;
      }
      EXPECT_EQ(at, outline.length);
    }
  }
}

// Nothing is left out: the mean of the stages is the breakdown.
TEST(Outline, SumsToTheBreakdown) {
  for (const Assignments& plan : kPlans) {
    Scenario scenario = plan_of(plan);
    scenario.settings.unfolded = true;
    const auto [prediction, outline] = draw(scenario, 100);
    EXPECT_TRUE(outline.cuts.empty());
    Breakdown sum;
    for (const std::vector<OutlinePiece>& stage : outline.stages) {
      for (const OutlinePiece& piece : stage) {
        for (std::uint32_t c = 0; c < kCategoryCount; ++c) {
          sum.*part_of(static_cast<Category>(c)) += piece.time.by_category[c];
        }
        sum.bubble += piece.time.idle;
      }
    }
    const auto stages = static_cast<double>(outline.stages.size());
    const Breakdown& parts = prediction.breakdown;
    const double step = prediction.step / units::s;
    EXPECT_NEAR(sum.compute / units::s / stages, parts.compute / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.recompute / units::s / stages, parts.recompute / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.tp_exposed / units::s / stages, parts.tp_exposed / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.ep_exposed / units::s / stages, parts.ep_exposed / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.pp_exposed / units::s / stages, parts.pp_exposed / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.dp_exposed / units::s / stages, parts.dp_exposed / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.bubble / units::s / stages, parts.bubble / units::s, 1e-9 * step);
    EXPECT_NEAR(sum.optimizer / units::s / stages, parts.optimizer / units::s, 1e-9 * step);
  }
}

// 1F1B: every stage has each microbatch once forward and once backward, and stage s of p begins backward after p - s
// forward passes. Folded, the last microbatches are those of the unfolded step.
TEST(Outline, PassesCarryTheirMicrobatches) {
  constexpr std::int32_t kStages = 4, kMicrobatches = 40;
  Scenario scenario = scenario_of({{"model", "gpt3-13b"}, {"plan/pp", "4"}, {"training/global_batch", "40"}});
  for (const bool unfolded : {true, false}) {
    scenario.settings.unfolded = unfolded;
    const StepOutline outline = draw(scenario, 100'000).outline;
    EXPECT_EQ(outline.cuts.empty(), unfolded);
    for (std::int32_t s = 0; s < kStages; ++s) {
      const std::vector<OutlinePiece>& pieces = outline.stages[static_cast<std::size_t>(s)];
      std::int64_t left_out = 0;
      for (const OutlineCut& cut : outline.cuts) left_out += cut.copies * cut.microbatches;
      std::map<std::int32_t, int> forward, backward;
      std::int64_t halves_forward = 0, halves_backward = 0, before_backward = 0;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].microbatch < 0) continue;
        const bool is_forward = pieces[i].time.of(Category::kForward) > Seconds();
        ++(is_forward ? forward : backward)[pieces[i].microbatch];
        // A pass that is under way at the cut begins as one microbatch and ends as a later one.
        if (left_out > 0 && i > 0 && pieces[i - 1].microbatch + left_out == pieces[i].microbatch) {
          ++(is_forward ? halves_forward : halves_backward);
        }
        if (is_forward && backward.empty()) ++before_backward;
      }
      EXPECT_EQ(before_backward, kStages - s);
      EXPECT_EQ(forward.begin()->first, 0);
      EXPECT_EQ(backward.rbegin()->first, kMicrobatches - 1);
      for (const auto& [microbatch, times] : forward) EXPECT_EQ(times, 1) << "stage " << s << ", " << microbatch;
      for (const auto& [microbatch, times] : backward) EXPECT_EQ(times, 1) << "stage " << s << ", " << microbatch;
      EXPECT_EQ(static_cast<std::int64_t>(forward.size()) + left_out - halves_forward, kMicrobatches);
      EXPECT_EQ(static_cast<std::int64_t>(backward.size()) + left_out - halves_backward, kMicrobatches);
    }
  }
}

TEST(Outline, NoPieceIsShorterThanAsked) {
  for (const Assignments& plan : kPlans) {
    for (const std::size_t pieces : {1u, 7u, 200u}) {
      const StepOutline outline = draw(plan_of(plan), pieces).outline;
      for (const std::vector<OutlinePiece>& stage : outline.stages) {
        EXPECT_LE(stage.size(), pieces);
        for (const OutlinePiece& piece : stage) {
          EXPECT_GE((piece.end - piece.start) / outline.length, 0.999999 / static_cast<double>(pieces));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ns_dist
