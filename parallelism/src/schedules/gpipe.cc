// GPipe (Huang et al. 2019, arXiv 1811.06965, fig. 2c): all forwards, then all backwards in reverse.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  const PassList list = {schedules::run_of(PassKind::kForward, 0, 0, shape.microbatches),
                         schedules::run_of(PassKind::kBackward, 0, shape.microbatches - 1, shape.microbatches, -1)};
  return std::vector<PassList>(static_cast<std::size_t>(shape.stages), list);
}

}  // namespace

extern constinit const PipelineSchedule kGpipe = {
    .name = "gpipe",
    .description = "all forwards, then all backwards; holds every microbatch",
    .seats = loop_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
