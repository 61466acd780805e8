// DualPipeV (DeepSeek's repository deepseek-ai/DualPipe; after Sea AI Lab's "cut in half"): the first half of
// DualPipe's stages on vee seats, so that a microbatch comes back through the second chunk instead of a second copy of
// the model.
#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "dualpipe-v";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 2));
  std::vector<PassList> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    orders.push_back(schedules::dual_order(shape.stages, stage, shape.microbatches,
                                           {schedules::Phase{0, 0}, schedules::Phase{1, 0}}));
  }
  return orders;
}

}  // namespace

extern constinit const PipelineSchedule kDualpipeV = {
    .name = kName,
    .description = "dualpipe cut in half: one copy of the model on a vee, forwards beside backwards",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .overlaps_messages = true,
    .pairs_passes = true,
    .seats = vee_seats,
    .orders = orders,
};

}  // namespace ns_dist
