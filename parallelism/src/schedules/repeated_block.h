// Helpers that several schedules share: a block of passes repeated for each microbatch.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist::schedules {

// A pass of microbatch k - lag in the k-th repetition of a block.
struct BlockPass {
  PassKind kind = PassKind::kForward;
  std::int32_t chunk = 0;
  std::int64_t lag = 0;
};

// The block repeated until each of its passes has run for each microbatch; passes of microbatches that do not exist are
// left out (Qi et al. 2024, arXiv 2405.15362: a schedule is a building block repeated at a uniform interval).
PassList repeat_block(std::span<const BlockPass> block, std::int64_t microbatches);

// The lists of all stages, each with its own block: block_of(stages behind it).
template <class BlockOf>
std::vector<PassList> repeat_blocks(const ScheduleShape& shape, const BlockOf& block_of) {
  std::vector<PassList> lists;
  for (std::int64_t behind = shape.stages - 1; behind >= 0; --behind) {
    lists.push_back(repeat_block(block_of(behind), shape.microbatches));
  }
  return lists;
}

// A run of the same pass over microbatches first, first + 1, ... (shift 1) or downwards (shift -1).
PassLoop run_of(PassKind kind, std::int32_t chunk, std::int64_t first, std::int64_t count, std::int32_t shift = 1);

// Appends passes as a loop, or as one repeat more of the last loop where they continue it.
void append(PassList& list, std::span<const SchedulePass> passes);
inline void append(PassList& list, std::initializer_list<SchedulePass> passes) {
  append(list, std::span(passes.begin(), passes.size()));
}

// The passes of microbatches 0 to count - 1. A part of an order that runs is an order that runs.
PassList first_microbatches(const PassList& list, std::int64_t count);

// Least time between the starts of a microbatch's passes on neighboring stages: forward passes down and up the vee,
// input gradients down and up.
struct VeePace {
  std::int64_t forward_down = 1, forward_up = 1, gradient_down = 1, gradient_up = 1;
};
// Forward passes, input and weight gradients on vee seats. All take one unit, and a block of six starts every six
// units.
std::vector<PassList> vee_orders(const ScheduleShape& shape, const VeePace& pace);

// Megatron-LM's orders for any number of chunks. `in_pairs`: each forward pass between the first and the
// last backward pass runs beside the backward pass that follows it.
std::vector<PassList> interleaved_orders(const ScheduleShape& shape, bool in_pairs);

// A schedule of two chunks on vee seats that splits backward passes.
constexpr PipelineSchedule vee_schedule(std::string_view name, std::string_view description,
                                        std::vector<PassList> (*pass_lists)(const ScheduleShape&)) {
  return {.name = name,
          .description = description,
          .least_chunks = 2,
          .most_chunks = 2,
          .splits_backward = true,
          .seats = vee_seats,
          .pass_lists = pass_lists};
}

// DualPipe's order of one rank (DeepSeek-V3, arXiv 2412.19437, fig. 5): `rank` of the `ranks` that a microbatch visits
// one after the other, the pipeline's first half or all of its vee. Phase 0 enters the pipeline at rank 0, phase 1
// comes back; each has `microbatches`.
struct Phase {
  std::int32_t chunk = 0, first_microbatch = 0;
};
PassList dual_order(std::int64_t ranks, std::int64_t rank, std::int64_t microbatches,
                    const std::array<Phase, 2>& phases);

}  // namespace ns_dist::schedules
