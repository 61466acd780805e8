// V-Half (Qi et al. 2024, arXiv 2405.15362): one of two legs of the vee is traveled at half the pace,
// so that a microbatch stays 6 units a stage: about half of 1F1B's activations, and about half of its bubble.
#include "repeated_block.h"

namespace ns_dist {

extern constinit const PipelineSchedule kVHalf =
    schedules::vee_schedule("v-half", "a vee of two chunks; about half of 1f1b's activations and of its bubble",
                            [](const ScheduleShape& shape) {
                              return schedules::vee_orders(shape, {1, 2, 1, 2});
                            });

}  // namespace ns_dist
