// 1F1B (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473, s.2.2.1): after a warm-up of one forward for each
// stage behind, forwards and backwards alternate, so that a stage holds at most `stages - stage` microbatches.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  return schedules::repeat_blocks(shape, [](std::int64_t behind) {
    return std::array<schedules::BlockPass, 2>{{{PassKind::kForward, 0, 0}, {PassKind::kBackward, 0, behind}}};
  });
}

}  // namespace

extern constinit const PipelineSchedule kOneFOneB = {
    .name = "1f1b",
    .description = "forwards and backwards alternate; holds at most as many microbatches as stages",
    .seats = loop_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
