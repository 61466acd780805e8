// ZB-H1 (Qi et al. 2023, arXiv 2401.10241, s.2.1 and fig. 3 top): 1F1B whose weight gradients run later, so that each
// stage has as many microbatches in flight as there are stages. Its bubble is a third of 1F1B's.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  return schedules::repeat_blocks(shape, [&](std::int64_t behind) {
    return std::array<schedules::BlockPass, 3>{{{PassKind::kForward, 0, 0},
                                                {PassKind::kInputGradient, 0, behind},
                                                {PassKind::kWeightGradient, 0, shape.stages - 1}}};
  });
}

}  // namespace

extern constinit const PipelineSchedule kZbH1 = {
    .name = "zb-h1",
    .description = "1f1b with separate weight gradients; a third of its bubble, and no more memory on the first stage",
    .splits_backward = true,
    .seats = loop_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
