// ZB-V (Qi et al. 2024, arXiv 2405.15362, s.3, fig. 3):
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
    .description = "vee",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .seats = vee_seats,
    .orders = orders,
};

}  // namespace ns_dist
