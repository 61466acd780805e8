// Looped breadth-first (Lamy-Poirier 2022, arXiv 2211.05953, s.4 and fig. 4d): all microbatches pass the first chunk,
// then all pass the next one; gradients come back in the reverse order of chunks. Any number of chunks.
#include "repeated_block.h"

namespace ns_dist {
namespace {

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  PassList list;
  const auto chunks = static_cast<std::int32_t>(shape.chunks);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    list.push_back(schedules::run_of(PassKind::kForward, chunk, 0, shape.microbatches));
  }
  for (std::int32_t chunk = chunks - 1; chunk >= 0; --chunk) {
    list.push_back(schedules::run_of(PassKind::kBackward, chunk, 0, shape.microbatches));
  }
  return std::vector<PassList>(static_cast<std::size_t>(shape.stages), list);
}

}  // namespace

extern constinit const PipelineSchedule kBreadthFirst = {
    .name = "breadth-first",
    .description = "all microbatches through one model chunk, then through the next; holds every microbatch",
    .most_chunks = 0,
    .overlaps_messages = true,
    .seats = loop_seats,
    .pass_lists = pass_lists,
};

}  // namespace ns_dist
