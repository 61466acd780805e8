// DualPipe (DeepSeek-V3, arXiv 2412.19437, s.3.2.1, fig. 5 and table 2): half of the microbatches enter the pipeline at
// each end, and every stage holds two parts of the model. In the middle of the step a forward pass of one direction
// always runs beside a backward pass of the other.
#include <fmt/format.h>

#include "repeated_block.h"

namespace ns_dist {
namespace {

constexpr std::string_view kName = "dualpipe";

Result<std::vector<PassList>> orders(const ScheduleShape& shape) {
  NS_TRY_VOID(schedules::require_chunks(kName, shape, 2));
  if (shape.stages % 2 != 0) {
    return fail({ErrorCode::kInfeasible, fmt::format("{} pairs the stages, and {} is odd", kName, shape.stages),
                 "plan/pp", "an even number of stages", fmt::format("plan/pp={}", shape.stages + 1)});
  }
  if (shape.microbatches % 2 != 0) {
    return fail(
        {ErrorCode::kInfeasible,
         fmt::format("{} sends half of the microbatches from each end, and {} is odd", kName, shape.microbatches),
         "training/global_batch", "an even number of microbatches",
         fmt::format("training/global_batch that gives {} microbatches", shape.microbatches + 1)});
  }
  const std::int64_t ranks = shape.stages / 2, half = shape.microbatches / 2;
  const schedules::Phase down{0, 0}, up{1, static_cast<std::int32_t>(half)};
  std::vector<PassList> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    orders.push_back(stage < ranks ? schedules::dual_order(ranks, stage, half, {down, up})
                                   : schedules::dual_order(ranks, shape.stages - 1 - stage, half, {up, down}));
  }
  return orders;
}

}  // namespace

extern constinit const PipelineSchedule kDualpipe = {
    .name = kName,
    .description = "microbatches from both ends, forwards beside backwards; every stage holds two parts of the model",
    .least_chunks = 2,
    .most_chunks = 2,
    .splits_backward = true,
    .overlaps_messages = true,
    .pairs_passes = true,
    .pairs_stages = true,
    .seats = mirrored_seats,
    .orders = orders,
};

}  // namespace ns_dist
