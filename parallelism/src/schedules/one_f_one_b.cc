// 1F1B (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473, s.2.2.1): after a warm-up of one forward for each
// stage behind, forwards and backwards alternate, so that a stage holds at most `stages - stage` microbatches.
#include <algorithm>

#include "schedules.h"

namespace ns_dist::schedules {

Result<std::vector<SchedulePass>> one_f_one_b_order(const ScheduleShape& shape, std::int64_t stage) {
  NS_TRY_VOID(one_chunk("1f1b", shape));
  const std::int64_t warm_up = std::min(shape.microbatches, shape.stages - stage - 1);
  std::vector<SchedulePass> order;
  order.reserve(static_cast<std::size_t>(2 * shape.microbatches));
  std::int32_t forward = 0, backward = 0;
  while (forward < warm_up) order.push_back({PassKind::kForward, forward++, 0});
  while (forward < shape.microbatches) {
    order.push_back({PassKind::kForward, forward++, 0});
    order.push_back({PassKind::kBackward, backward++, 0});
  }
  while (backward < shape.microbatches) order.push_back({PassKind::kBackward, backward++, 0});
  return order;
}

std::int64_t one_f_one_b_in_flight(const ScheduleShape& shape, std::int64_t stage) {
  return std::min(shape.microbatches, shape.stages - stage);
}

}  // namespace ns_dist::schedules
