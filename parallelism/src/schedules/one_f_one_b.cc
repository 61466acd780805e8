// 1F1B (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473, s.2.2.1): after a warm-up of one forward for each
// stage behind, forwards and backwards alternate, so that a stage holds at most `stages - stage` microbatches.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "1f1b";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 1));
  std::vector<PassList> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const std::array<schedules::BlockPass, 2> block = {
        {{PassKind::kForward, 0, 0}, {PassKind::kBackward, 0, shape.stages - stage - 1}}};
    orders.push_back(schedules::repeat_block(block, shape.microbatches));
  }
  return orders;
}

}  // namespace

extern constinit const PipelineSchedule kOneFOneB = {
    .name = kName,
    .description = "forwards and backwards alternate; holds at most as many microbatches as stages",
    .seats = loop_seats,
    .orders = orders,
};

}  // namespace ns_dist
