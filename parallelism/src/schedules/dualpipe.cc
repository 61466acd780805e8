// DualPipe (DeepSeek-V3, arXiv 2412.19437, s.3.2.1, fig. 5 and table 2): half of the microbatches enter the pipeline at
// each end, and every stage holds two parts of the model. In the middle of the step a forward pass of one direction
// always runs beside a backward pass of the other.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  const std::int64_t ranks = shape.stages / 2, half = shape.microbatches / 2;
  const schedules::Phase down{0, 0}, up{1, static_cast<std::int32_t>(half)};
  std::vector<PassList> lists;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    lists.push_back(stage < ranks ? schedules::dual_order(ranks, stage, half, {down, up})
                                  : schedules::dual_order(ranks, shape.stages - 1 - stage, half, {up, down}));
  }
  return lists;
}

}  // namespace

extern constinit const PipelineSchedule kDualpipe = {
    .name = "dualpipe",
    .description = "microbatches from both ends, forwards beside backwards; every stage holds two parts of the model",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .overlaps_messages = true,
    .pairs_passes = true,
    .pairs_stages = true,
    .seats = mirrored_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
