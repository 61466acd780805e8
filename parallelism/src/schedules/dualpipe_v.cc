// DualPipeV (DeepSeek's repository deepseek-ai/DualPipe; after Sea AI Lab's "cut in half"): the first half of
// DualPipe's stages on vee seats, so that a microbatch comes back through the second chunk instead of a second copy of
// the model.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  std::vector<PassList> lists;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    lists.push_back(schedules::dual_order(shape.stages, stage, shape.microbatches,
                                          {schedules::Phase{0, 0}, schedules::Phase{1, 0}}));
  }
  return lists;
}

}  // namespace

extern constinit const PipelineSchedule kDualpipeV = {
    .name = "dualpipe-v",
    .description = "dualpipe cut in half: one copy of the model on a vee, forwards beside backwards",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .overlaps_messages = true,
    .pairs_passes = true,
    .seats = vee_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
