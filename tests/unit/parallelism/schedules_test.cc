#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {
namespace {

using ::testing::HasSubstr;

std::string text(const std::vector<SchedulePass>& order) {
  std::string result;
  for (const SchedulePass& pass : order) {
    if (!result.empty()) result += ' ';
    result += pass.kind == PassKind::kForward ? 'F' : 'B';
    result += std::to_string(pass.microbatch);
    if (pass.chunk > 0) result += static_cast<char>('a' + pass.chunk);
  }
  return result;
}

std::string order(const char* name, ScheduleShape shape, std::int64_t stage) {
  return text(*(*pipeline_schedule(name))->order(shape, stage));
}

// Huang et al. 2019, fig. 2c.
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

TEST(Schedules, InterleavedNeedsMicrobatchesInMultiplesOfStages) {
  const auto order = (*pipeline_schedule("interleaved"))->order({4, 6, 2}, 0);
  ASSERT_FALSE(order);
  EXPECT_THAT(to_text(order.error()), HasSubstr("multiple of 4 microbatches, such as 8"));
}

TEST(Schedules, AnUnknownNameNamesTheNearest) {
  EXPECT_THAT(to_text(pipeline_schedule("interleave").error()), HasSubstr("did you mean \"interleaved\"?"));
}

}  // namespace
}  // namespace ns_dist
