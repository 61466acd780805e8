// ZB-H2 (Qi et al. 2023, arXiv 2401.10241, s.2.2 and fig. 3 bottom): as many forward passes before the first gradient
// as fill the time until it comes back, up to 2 stages - 1 in flight. No stage idles between its first and its last
// pass; the bubble that is left is what stages wait for each other at both ends of the step.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  return schedules::repeat_blocks(shape, [&](std::int64_t behind) {
    return std::array<schedules::BlockPass, 3>{{{PassKind::kForward, 0, 0},
                                                {PassKind::kInputGradient, 0, 2 * behind},
                                                {PassKind::kWeightGradient, 0, 2 * (shape.stages - 1)}}};
  });
}

}  // namespace

extern constinit const PipelineSchedule kZbH2 = {
    .name = "zb-h2",
    .description = "no stage idles between its first and its last pass; holds twice as much as 1f1b",
    .splits_backward = true,
    .seats = loop_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
