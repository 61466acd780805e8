#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

char letter(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return 'F';
    case PassKind::kBackward:
      return 'B';
    case PassKind::kInputGradient:
      return 'I';
    case PassKind::kWeightGradient:
      return 'W';
  }
  return '?';
}

// Passes of chunk 1 end in b; + joins passes that run beside each other.
std::string text(const PassList& list) {
  std::string result;
  for (const SchedulePass& pass : flatten(list)) {
    if (!result.empty()) result += pass.beside_previous ? '+' : ' ';
    result += letter(pass.kind);
    result += std::to_string(pass.microbatch);
    if (pass.chunk > 0) result += static_cast<char>('a' + pass.chunk);
  }
  return result;
}

const PipelineSchedule& schedule(const char* name) { return **pipeline_schedule(name); }

std::string order(const char* name, ScheduleShape shape, std::size_t stage) {
  return text((*schedule(name).orders(shape))[stage]);
}

ScheduleFacts facts(const char* name, ScheduleShape shape) {
  const auto orders = schedule(name).orders(shape);
  const auto checked = orders ? check(schedule(name).seats(shape), *orders) : fail(orders.error());
  if (checked) return *checked;
  ADD_FAILURE() << name << ": " << to_text(checked.error());
  return {};
}

std::string refusal(const char* name, ScheduleShape shape) { return to_text(schedule(name).orders(shape).error()); }

std::int64_t most(const ScheduleFacts& facts) {
  return *std::max_element(facts.most_live.begin(), facts.most_live.end());
}

double longest_idle(const ScheduleFacts& facts) { return *std::max_element(facts.idle.begin(), facts.idle.end()); }

// Every schedule on every small shape: it is refused, or each pass runs once and no stage waits forever.
TEST(Schedules, EndOnEveryShape) {
  for (const PipelineSchedule* each : pipeline_schedules()) {
    for (std::int64_t stages = 1; stages <= 8; ++stages) {
      for (std::int64_t microbatches = 1; microbatches <= 16; ++microbatches) {
        for (std::int64_t chunks = 1; chunks <= 4; ++chunks) {
          const ScheduleShape shape{stages, microbatches, chunks};
          if (chunks < each->least_chunks || (each->most_chunks != 0 && chunks > each->most_chunks)) continue;
          const auto orders = each->orders(shape);
          if (!orders) continue;
          const auto checked = check(each->seats(shape), *orders);
          EXPECT_TRUE(checked) << each->name << " " << stages << " x " << microbatches << " x " << chunks << ": "
                               << to_text(checked.error());
        }
      }
    }
  }
}

// Whoever names no schedule has Megatron-LM's: 1F1B, and the interleaved one for several chunks.
TEST(Schedules, OfNobodysChoiceAreMegatrons) {
  EXPECT_EQ(schedule_for(1).name, "1f1b");
  for (const std::int64_t chunks : {2, 3, 12}) EXPECT_EQ(schedule_for(chunks).name, "interleaved");
  ParallelPlan plan;
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    plan.schedule = schedule->name;
    EXPECT_EQ(&traits_of(plan), schedule);
  }
  plan.schedule = "1f2b";
  EXPECT_EQ(traits_of(plan).name, "1f1b");
}

TEST(Schedules, GpipeRunsBackwardsInReverse) { EXPECT_EQ(order("gpipe", {2, 3, 1}, 0), "F0 F1 F2 B2 B1 B0"); }

// Narayanan et al. 2021, fig. 4 top: four stages, eight microbatches.
TEST(Schedules, OneForwardOneBackward) {
  EXPECT_EQ(order("1f1b", {4, 8, 1}, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order("1f1b", {4, 8, 1}, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  EXPECT_EQ(order("1f1b", {4, 2, 1}, 0), "F0 F1 B0 B1");
}

// Narayanan et al. 2021, fig. 4 bottom: device 1 of 4, two chunks (b is the second), eight microbatches.
TEST(Schedules, InterleavedTurnsToTheNextChunkAfterARound) {
  EXPECT_EQ(order("interleaved", {4, 8, 2}, 0).substr(0, 53), "F0 F1 F2 F3 F0b F1b F2b F3b F4 F5 F6 B0b F7 B1b F4b B");
}

// Megatron-Core's groups: ten microbatches on four stages are two groups of five.
TEST(Schedules, InterleavedTakesLargerGroupsWhereTheLastWouldBeTooSmall) {
  EXPECT_EQ(order("interleaved", {4, 10, 2}, 3).substr(0, 34), "F0 F1 F2 F3 F4 F0b B0b F1b B1b F2b");
  EXPECT_EQ(order("interleaved", {4, 3, 2}, 0), "F0 F1 F2 F0b F1b F2b B0b B1b B2b B0 B1 B2");
  EXPECT_EQ(order("interleaved", {4, 3, 2}, 3), "F0 F1 F2 F0b B0b F1b B1b F2b B2b B0 B1 B2");
  for (std::int64_t microbatches = 4; microbatches < 40; ++microbatches) {
    const double busy = 9.0 * static_cast<double>(microbatches);
    EXPECT_EQ(facts("interleaved", {4, microbatches, 3}).makespan, busy + 3.0 * 3);
  }
}

// Megatron-Core, get_pp_rank_microbatches: 2 (p - i - 1) + (v - 1) p passes of warm-up, all where there are no more.
TEST(Schedules, InterleavedWarmsUpAlikeHoweverFewMicrobatchesThereAre) {
  EXPECT_EQ(order("interleaved", {4, 4, 2}, 3), "F0 F1 F2 F3 F0b B0b F1b B1b F2b B2b F3b B3b B0 B1 B2 B3");
  EXPECT_EQ(order("interleaved", {4, 4, 2}, 2), "F0 F1 F2 F3 F0b F1b F2b B0b F3b B1b B2b B3b B0 B1 B2 B3");
  EXPECT_THAT(facts("interleaved", {4, 4, 2}).most_live, ElementsAre(8, 8, 7, 5));
  for (const char* name : {"interleaved", "combined-1f1b"}) {
    for (std::int64_t p = 1; p <= 8; ++p) {
      for (std::int64_t m = 1; m <= p; ++m) {
        for (std::int64_t v = 1; v <= 3; ++v) {
          const ScheduleShape shape{p, m, v};
          const auto checked = check(schedule(name).seats(shape), *schedule(name).orders(shape));
          ASSERT_TRUE(checked) << name << p << m << v << to_text(checked.error());
        }
      }
    }
  }
}

// Lamy-Poirier 2022, fig. 4d.
TEST(Schedules, BreadthFirstRunsOneChunkForAllMicrobatches) {
  EXPECT_EQ(order("breadth-first", {2, 3, 2}, 1), "F0 F1 F2 F0b F1b F2b B0b B1b B2b B0 B1 B2");
}

// Qi et al. 2023, fig. 3: four stages.
TEST(Schedules, ZeroBubbleDelaysWeightGradients) {
  EXPECT_EQ(order("zb-h1", {4, 6, 1}, 0), "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5");
  EXPECT_EQ(order("zb-h1", {4, 6, 1}, 3), "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5");
  EXPECT_EQ(order("zb-h2", {4, 8, 1}, 0), "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7");
  EXPECT_EQ(order("zb-h2", {2, 4, 1}, 1), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
}

// Qi et al. 2023, s.6: the last of four stages turns each microbatch around.
TEST(Schedules, ZbVFillsTheTimeUntilTheFirstMicrobatchComesBack) {
  EXPECT_EQ(order("zb-v", {4, 7, 2}, 0).substr(0, 51), "F0 F1 F2 F3 F4 F5 F6 F0b I0b W0b F1b I1b W1b F2b I2");
  EXPECT_EQ(order("zb-v", {4, 7, 2}, 3).substr(0, 51), "F0 F0b F1 F1b F2 F2b F3 F3b I0b W0b F4 I0 W0 F4b I1");
}

// DeepSeek-V3, fig. 5: the two ends of a pipeline of two, with four microbatches from each end.
TEST(Schedules, DualPipeRunsForwardsBesideBackwards) {
  EXPECT_EQ(order("dualpipe", {2, 6, 2}, 0), "F0 F3b F1 B3b F4b+B0 F2+B4b F5b+B1 B5b I2 W2");
  EXPECT_EQ(order("dualpipe", {2, 6, 2}, 1), "F3b F0 F4b B0 F1+B3b F5b+B1 F2+B4b B2 I5b W5b");
}

TEST(Schedules, SeatsAreDataOfTheSchedule) {
  using S = Seat;
  EXPECT_THAT(loop_seats({2, 1, 2})[0], ElementsAre(S{0, 0}, S{1, 0}, S{0, 1}, S{1, 1}));
  EXPECT_THAT(vee_seats({2, 1, 2})[0], ElementsAre(S{0, 0}, S{1, 0}, S{1, 1}, S{0, 1}));
  const Seats mirrored = mirrored_seats({2, 2, 2});
  EXPECT_THAT(mirrored[0], ElementsAre(S{0, 0}, S{1, 0}));
  EXPECT_THAT(mirrored[1], ElementsAre(S{1, 1}, S{0, 1}));
}

// (p - 1) / m and (p - 1) / (v m): Narayanan et al. 2021, s.2.2. Breadth-first: Lamy-Poirier 2022, eq. 4.
TEST(ScheduleFacts, BubblesArePublishedOnes) {
  for (const double p : {2, 4, 8}) {
    for (const double m : {8, 32}) {
      const auto stages = static_cast<std::int64_t>(p), microbatches = static_cast<std::int64_t>(m);
      EXPECT_NEAR(facts("gpipe", {stages, microbatches, 1}).bubble, (p - 1) / m, 1e-12);
      EXPECT_NEAR(facts("1f1b", {stages, microbatches, 1}).bubble, (p - 1) / m, 1e-12);
      EXPECT_NEAR(facts("interleaved", {stages, microbatches, 4}).bubble, (p - 1) / (4 * m), 1e-12);
      EXPECT_NEAR(facts("breadth-first", {stages, microbatches, 4}).bubble, (p - 1) / (4 * m), 1e-12);
    }
  }
}

TEST(ScheduleFacts, LiveActivationsArePublishedOnes) {
  EXPECT_THAT(facts("gpipe", {4, 9, 1}).most_live, Each(9));
  EXPECT_THAT(facts("1f1b", {4, 9, 1}).most_live, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(facts("interleaved", {4, 8, 2}).most_live, ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(facts("breadth-first", {4, 9, 2}).most_live, Each(18));
}

// Qi et al. 2023, table 2: 1F1B's peak, and (p - 1) (F + B - W) instead of (p - 1) (F + B).
TEST(ScheduleFacts, ZbH1HasAThirdOfTheBubbleAndTheSamePeak) {
  for (const std::int64_t p : {2, 4, 8}) {
    const ScheduleFacts zero = facts("zb-h1", {p, 32, 1}), plain = facts("1f1b", {p, 32, 1});
    EXPECT_NEAR(zero.bubble, plain.bubble / 3, 1e-12);
    EXPECT_EQ(most(zero), most(plain));
  }
}

// Qi et al. 2023, table 2: no bubble, and twice the peak. Stages begin one after the other and end so as well.
TEST(ScheduleFacts, ZbH2NeverIdlesBetweenFirstAndLastPass) {
  for (const std::int64_t p : {2, 4, 8}) {
    const ScheduleFacts zero = facts("zb-h2", {p, 32, 1});
    EXPECT_THAT(zero.idle, Each(0));
    EXPECT_EQ(zero.makespan, static_cast<double>(3 * 32 + p - 1));
    EXPECT_THAT(zero.most_live, Each(2 * p - 1));
  }
}

// Qi et al. 2024: peaks of 1, about 1/2 and about 1/3 of 1F1B's, which are 2 p passes of half a stage. The
// paper adds a constant number of passes, which depends on p.
TEST(ScheduleFacts, VeesHoldAsMuchAsTheirBuildingBlockIsLong) {
  for (const std::int64_t p : {4, 6, 8, 12, 16, 32}) {
    EXPECT_EQ(most(facts("zb-v", {p, 6 * p, 2})), 2 * p);
    EXPECT_LE(most(facts("v-half", {p, 6 * p, 2})), p + 3);
    EXPECT_LE(most(facts("v-min", {p, 6 * p, 2})), (2 * p + 2) / 3 + 4);
  }
}

// 1F1B's bubble is (p - 1) (F + B + W), 6 (p - 1) in passes of half a stage.
TEST(ScheduleFacts, VeesTradeMemoryForBubble) {
  for (const std::int64_t p : {4, 8, 16}) {
    const double plain = 6.0 * static_cast<double>(p - 1);
    const double zero = longest_idle(facts("zb-v", {p, 6 * p, 2})), half = longest_idle(facts("v-half", {p, 6 * p, 2})),
                 least = longest_idle(facts("v-min", {p, 6 * p, 2}));
    EXPECT_EQ(zero, 0);
    EXPECT_LE(half, 0.56 * plain);
    EXPECT_LE(least, 0.67 * plain);
    EXPECT_LT(zero, half);
    EXPECT_LT(half, least);
  }
  // The stages begin one after the other, and nothing else is lost.
  EXPECT_EQ(facts("zb-v", {4, 1000, 2}).makespan, 6 * 1000 + 3);
}

// DeepSeek-V3, table 2: (p / 2 - 1) (F&B + B - 3 W), where F&B takes 3, B 2 and W 1, and p + 1 activations.
TEST(ScheduleFacts, DualPipeIsAsPublished) {
  for (const std::int64_t p : {2, 4, 8, 16}) {
    const ScheduleFacts dual = facts("dualpipe", {p, 4 * p, 2});
    EXPECT_EQ(longest_idle(dual), static_cast<double>(p / 2 - 1) * (3 + 2 - 3));
    EXPECT_THAT(dual.most_live, Each(p + 1));
    EXPECT_EQ(dual.makespan, static_cast<double>(3 * 4 * p) + longest_idle(dual));
    // The half of twice as many stages; a microbatch passes each stage twice.
    const ScheduleFacts half = facts("dualpipe-v", {p, 4 * p, 2});
    EXPECT_EQ(longest_idle(half), static_cast<double>(p - 1) * (3 + 2 - 3));
    EXPECT_THAT(half.most_live, Each(2 * p + 1));
  }
}

// Megatron-Core with overlap_moe_expert_parallel_comm: one forward pass more than interleaved 1F1B before the first
// backward pass, then pairs of two microbatches each. They take as long as their passes, so the bubble of a
// microbatch's way down the pipeline stays.
TEST(ScheduleFacts, CombinedRunsPairsOfDifferentMicrobatches) {
  EXPECT_EQ(order("combined-1f1b", {1, 3, 1}, 0), "F0 F1+B0 F2+B1 B2");
  EXPECT_EQ(order("combined-1f1b", {2, 4, 1}, 0), "F0 F1 F2 F3+B0 B1 B2 B3");
  EXPECT_EQ(order("combined-1f1b", {2, 4, 1}, 1), "F0 F1+B0 F2+B1 F3+B2 B3");
  for (const std::int64_t p : {1, 2, 4, 8}) {
    for (const std::int64_t chunks : {1, 2, 4}) {
      const ScheduleShape shape{p, 4 * p, chunks};
      const ScheduleFacts combined = facts("combined-1f1b", shape), plain = facts("interleaved", shape);
      EXPECT_EQ(combined.most_live[0], plain.most_live[0] + (p * chunks > 1 || p == 1 ? 1 : 0)) << p << chunks;
      EXPECT_LE(combined.makespan, plain.makespan + static_cast<double>(3 * (p - 1))) << p << chunks;
      const std::vector<PassList> orders = *schedule("combined-1f1b").orders(shape);
      for (const PassList& list : orders) {
        SchedulePass before;
        std::int64_t pairs = 0;
        for (const SchedulePass& pass : flatten(list)) {
          if (pass.beside_previous) {
            ++pairs;
            EXPECT_EQ(before.kind, PassKind::kForward);
            EXPECT_TRUE(pass.microbatch != before.microbatch || pass.chunk != before.chunk);
          }
          before = pass;
        }
        EXPECT_GE(pairs, 4 * p * chunks - (2 * (p - 1) + (chunks - 1) * p + 1));
      }
    }
  }
}

PassList listed(std::initializer_list<SchedulePass> passes) { return {{passes, 1, 1}}; }

std::string mistake(const ScheduleShape& shape, const std::vector<PassList>& orders) {
  const auto result = check(loop_seats(shape), orders);
  return result ? "" : to_text(result.error());
}

constexpr PassKind F = PassKind::kForward, B = PassKind::kBackward, I = PassKind::kInputGradient,
                   W = PassKind::kWeightGradient;

// The search's bounds rely on it.
TEST(Schedules, OnlyThoseThatSayItPairPasses) {
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    const ScheduleShape shape{4, 8, schedule->least_chunks};
    const auto orders = schedule->orders(shape);
    ASSERT_TRUE(orders.has_value()) << schedule->name;
    bool pairs = false;
    for (const PassList& list : *orders) {
      for (const SchedulePass& pass : flatten(list)) pairs |= pass.beside_previous;
    }
    EXPECT_EQ(pairs, schedule->pairs_passes) << schedule->name;
  }
}

TEST(ScheduleFacts, CheckFindsMistakes) {
  EXPECT_EQ(mistake({1, 1, 1}, {listed({{F, 0, 0}, {I, 0, 0}, {W, 0, 0}})}), "");
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 0, 0}, {W, 0, 0}, {I, 0, 0}})}), HasSubstr("before its input gradient"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{B, 0, 0}, {F, 0, 0}})}), HasSubstr("before its forward"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 0, 0}, {F, 0, 0}})}), HasSubstr("F0 of chunk 0 runs twice"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 0, 0}, {B, 0, 0}, {W, 0, 0}})}), HasSubstr("runs twice"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 0, 0}, {I, 0, 0}})}), HasSubstr("microbatch 0 lacks a pass"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 1, 0}, {B, 1, 0}})}), HasSubstr("travels in 0 directions"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 0, 1}})}), HasSubstr("has no seat"));
  EXPECT_THAT(mistake({1, 1, 1}, {listed({{F, 9, 0}})}), HasSubstr("belongs to no microbatch"));
  const PassList straight = listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}});
  EXPECT_EQ(mistake({2, 2, 1}, {straight, listed({{F, 1, 0}, {B, 1, 0}, {F, 0, 0}, {B, 0, 0}})}), "");
  EXPECT_THAT(mistake({2, 2, 1}, {listed({{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}}),
                                  listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}})}),
              HasSubstr("waits forever"));
}

// Two passes beside each other begin when both can, and share the GPU.
TEST(ScheduleFacts, PassesBesideEachOtherTakeTheSumOfTheirTimes) {
  const PassList list = listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0, true}, {B, 1, 0}});
  const auto facts = check(loop_seats({1, 2, 1}), std::vector<PassList>{list});
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->makespan, 6);
  EXPECT_EQ(facts->most_live, std::vector<std::int64_t>{2});
}

TEST(ScheduleFacts, MostHeldCountsWhatWaitsForTheWeightGradient) {
  const std::vector<ChunkBytes> chunks = {{10, 4}, {100, 40}};
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {I, 0, 0}, {F, 0, 1}, {I, 0, 1}, {W, 0, 0}, {W, 0, 1}}), chunks), 104);
  EXPECT_EQ(most_held({{{{F, 0, 0}}, 1000, 1}, {{{B, 0, 0}}, 1000, 1}}, chunks), 10000);
}

// 10 bytes, of which 6 are the loss's; then a layer needs 7.
TEST(ScheduleFacts, MostHeldCountsTheLossesOfForwardPassesThatAreHeld) {
  const std::vector<ChunkBytes> chunks = {{10, 0, 6}};
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}}), chunks), 10);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}}), chunks), 20);
  // The loss of one is over when the other one reaches its own.
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0, true}, {B, 1, 0}}), chunks), 14);
}
TEST(ScheduleFacts, MostHeldCountsWhatABackwardPassNeeds) {
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}}), std::vector<ChunkBytes>{{10, 0, 6, 7}}), 11);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}}), std::vector<ChunkBytes>{{10, 0, 6, 5}}), 10);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {I, 0, 0}, {W, 0, 0}}), std::vector<ChunkBytes>{{10, 4, 6, 7}}), 11);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}}), std::vector<ChunkBytes>{{10, 0, 6, 0, 12}}), 12);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {I, 0, 0}, {W, 0, 0}}), std::vector<ChunkBytes>{{10, 4, 6, 0, 12}}), 16);
}
// The loss needs 3 at the end of its forward pass, beside what that keeps, or 5 at the beginning of its backward pass.
// Beside a forward pass, that is before this one keeps anything.
TEST(ScheduleFacts, MostHeldCountsWhatALossNeeds) {
  const std::vector<ChunkBytes> forward = {{10, 0, 6, 0, 0, 3, 0}}, backward = {{10, 0, 6, 0, 0, 0, 5}};
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}}), forward), 13);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}}), forward), 23);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {B, 0, 0}}), backward), 15);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0, true}, {B, 1, 0}}), forward), 17);
  EXPECT_EQ(most_held(listed({{F, 0, 0}, {F, 1, 0}, {B, 0, 0, true}, {B, 1, 0}}), backward), 15);
}

TEST(Schedules, AnUnknownNameNamesTheNearest) {
  EXPECT_THAT(to_text(pipeline_schedule("interleave").error()),
              AllOf(HasSubstr("plan/schedule"), HasSubstr("did you mean \"interleaved\"?")));
}

TEST(Schedules, RefusalsNameAFieldAndAnAssignment) {
  EXPECT_THAT(refusal("1f1b", {4, 8, 2}), AllOf(HasSubstr("plan/vpp: "), HasSubstr("plan/vpp=1")));
  EXPECT_THAT(refusal("zb-v", {4, 8, 1}), HasSubstr("plan/vpp=2"));
  EXPECT_THAT(refusal("dualpipe", {3, 8, 2}), HasSubstr("plan/pp=4"));
  EXPECT_THAT(refusal("dualpipe", {4, 7, 2}), AllOf(HasSubstr("training/global_batch"), HasSubstr("8 microbatches")));
}

}  // namespace
}  // namespace ns_dist
