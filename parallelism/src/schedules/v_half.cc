// V-Half (Qi et al. 2024, arXiv 2405.15362): one of two legs of the vee is traveled at half the pace,
// so that a microbatch stays 6 units a stage: about half of 1F1B's activations, and about half of its bubble.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "v-half";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 2));
  return schedules::vee_orders(shape, {1, 2, 1, 2});
}

}  // namespace

extern constinit const PipelineSchedule kVHalf = {
    .name = kName,
    .description = "a vee of two chunks; about half of 1f1b's activations and of its bubble",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .seats = vee_seats,
    .orders = orders,
};

}  // namespace ns_dist
