// ZB-H2 (Qi et al. 2023, arXiv 2401.10241, s.2.2 and fig. 3 bottom): as many forward passes before the first gradient
// as fill the time until it comes back, up to 2 stages - 1 in flight. No stage idles between its first and its last
// pass; the bubble that is left is what stages wait for each other at both ends of the step.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "zb-h2";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 1));
  std::vector<PassList> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const std::array<schedules::BlockPass, 3> block = {{{PassKind::kForward, 0, 0},
                                                        {PassKind::kInputGradient, 0, 2 * (shape.stages - stage - 1)},
                                                        {PassKind::kWeightGradient, 0, 2 * (shape.stages - 1)}}};
    orders.push_back(schedules::repeat_block(block, shape.microbatches));
  }
  return orders;
}

}  // namespace

extern constinit const PipelineSchedule kZbH2 = {
    .name = kName,
    .description = "no stage idles between its first and its last pass; holds twice as much as 1f1b",
    .splits_backward = true,
    .seats = loop_seats,
    .orders = orders,
};

}  // namespace ns_dist
