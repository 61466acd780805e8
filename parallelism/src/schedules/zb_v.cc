// ZB-V (Qi et al. 2023, arXiv 2401.10241, s.6; as a building block in Qi et al. 2024, arXiv 2405.15362, s.3): a
// microbatch stays 12 units a stage, as many activations as 1F1B's. The passes of a block follow the uniform interval
// from the first microbatch on, which leaves a third of 1F1B's bubble at the ends of the step.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "zb-v";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 2));
  return schedules::vee_orders(shape, {2, 4, 2, 4});
}

}  // namespace

extern constinit const PipelineSchedule kZbV = {
    .name = kName,
    .description = "a vee of two chunks; 1f1b's activations on every stage, and a third of its bubble",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .seats = vee_seats,
    .orders = orders,
};

}  // namespace ns_dist
