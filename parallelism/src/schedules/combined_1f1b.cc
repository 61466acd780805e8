// Interleaved 1F1B whose forward passes run beside backward passes of another microbatch: one computes while tokens of
// the other travel to experts and back (Megatron-Core, core/pipeline_parallel/combined_1f1b.py,
// overlap_moe_expert_parallel_comm). It has no pipeline of its own to fill, so it runs on one stage, too.
#include "repeated_block.h"

namespace ns_dist {

extern constinit const PipelineSchedule kCombined1f1b = {
    .name = "combined-1f1b",
    .description = "interleaved, forwards beside backwards: tokens of experts travel while another microbatch computes",
    .most_chunks = 0,
    .overlaps_messages = true,
    .pairs_passes = true,
    .hides_tokens = true,
    .groups_microbatches = true,
    .seats = loop_seats,
    .pass_lists = [](const ScheduleShape& shape) { return schedules::interleaved_orders(shape, true); },
};

}  // namespace ns_dist
