// GPipe (Huang et al. 2019, arXiv 1811.06965, fig. 2c): all forwards, then all backwards in reverse.
#include "schedules.h"

namespace ns_dist::schedules {

Result<std::vector<SchedulePass>> gpipe_order(const ScheduleShape& shape, std::int64_t) {
  NS_TRY_VOID(one_chunk("gpipe", shape));
  std::vector<SchedulePass> order;
  order.reserve(static_cast<std::size_t>(2 * shape.microbatches));
  for (std::int64_t m = 0; m < shape.microbatches; ++m) {
    order.push_back({PassKind::kForward, static_cast<std::int32_t>(m), 0});
  }
  for (std::int64_t m = shape.microbatches - 1; m >= 0; --m) {
    order.push_back({PassKind::kBackward, static_cast<std::int32_t>(m), 0});
  }
  return order;
}

std::int64_t gpipe_in_flight(const ScheduleShape& shape, std::int64_t) { return shape.microbatches; }

double plain_bubble(const ScheduleShape& shape) {
  return static_cast<double>(shape.stages - 1) / static_cast<double>(shape.microbatches);
}

}  // namespace ns_dist::schedules
