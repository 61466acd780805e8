// ZB-H1 (Qi et al. 2023, arXiv 2401.10241, s.2.1 and fig. 3 top): 1F1B whose weight gradients run later, so that each
// stage has as many microbatches in flight as there are stages. Its bubble is a third of 1F1B's.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "zb-h1";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 1));
  std::vector<PassList> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const std::array<schedules::BlockPass, 3> block = {{{PassKind::kForward, 0, 0},
                                                        {PassKind::kInputGradient, 0, shape.stages - stage - 1},
                                                        {PassKind::kWeightGradient, 0, shape.stages - 1}}};
    orders.push_back(schedules::repeat_block(block, shape.microbatches));
  }
  return orders;
}

}  // namespace

extern constinit const PipelineSchedule kZbH1 = {
    .name = kName,
    .description = "1f1b with separate weight gradients; a third of its bubble, and no more memory on the first stage",
    .splits_backward = true,
    .seats = loop_seats,
    .orders = orders,
};

}  // namespace ns_dist
