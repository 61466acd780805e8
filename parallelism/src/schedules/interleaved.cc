// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, s.2.2.2).
#include "repeated_block.h"

namespace ns_dist {

extern constinit const PipelineSchedule kInterleaved = {
    .name = "interleaved",
    .description = "1f1b over several model chunks a stage; a bubble smaller by their number",
    .most_chunks = 0,
    .overlaps_messages = true,
    .groups_microbatches = true,
    .seats = loop_seats,
    .pass_lists = [](const ScheduleShape& shape) { return schedules::interleaved_orders(shape, false); },
};

}  // namespace ns_dist
