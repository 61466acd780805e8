// V-Min (Qi et al. 2024, arXiv 2405.15362): each pass starts as soon as the one before it is over, so
// that a microbatch stays about 4 units a stage: a third of 1F1B's activations. The price is a longer bubble.
#include "repeated_block.h"

namespace ns_dist {

extern constinit const PipelineSchedule kVMin = schedules::vee_schedule(
    "v-min", "a vee of two chunks; about a third of 1f1b's activations, and two thirds of its bubble",
    [](const ScheduleShape& shape) {
      return schedules::vee_orders(shape, {1, 1, 1, 1});
    });

}  // namespace ns_dist
