// The order of interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, s.2.2.2): each stage holds several model
// chunks and turns to the next chunk after a group of microbatches. The order is Megatron-LM's
// (core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving and get_schedule_table).
//
// In pairs, every stage runs one forward pass more before its first backward pass, so that the passes of a pair belong
// to different microbatches (the same function with overlap_moe_expert_parallel_comm).
#include <algorithm>

#include "repeated_block.h"

namespace ns_dist {

std::int64_t microbatch_group(const ScheduleShape& shape) {
  if (shape.microbatches <= shape.stages) return shape.microbatches;
  std::int64_t group = shape.stages;
  while (shape.microbatches % group != 0 && shape.microbatches % group < shape.stages) ++group;
  return group;
}

namespace {

// The k-th pass of a stage in one direction.
SchedulePass pass_of(const ScheduleShape& shape, std::int64_t group, PassKind kind, std::int64_t k) {
  const std::int64_t first = k / (group * shape.chunks) * group;
  const std::int64_t size = std::min(group, shape.microbatches - first);
  const std::int64_t in_group = k - first * shape.chunks, chunk = in_group / size;
  return {kind, static_cast<std::int32_t>(first + in_group % size),
          static_cast<std::int32_t>(kind == PassKind::kForward ? chunk : shape.chunks - 1 - chunk), false};
}

PassList order(const ScheduleShape& shape, std::int64_t stage, bool in_pairs) {
  const std::int64_t group = microbatch_group(shape);
  const std::int64_t total = shape.microbatches * shape.chunks, round = group * shape.chunks;
  const std::int64_t filled = 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * group + (in_pairs ? 1 : 0);
  const std::int64_t warm_up = std::min(total, filled);
  const auto forward = [&](std::int64_t k) { return pass_of(shape, group, PassKind::kForward, k); };
  const auto backward = [&](std::int64_t k, bool paired = false) {
    SchedulePass pass = pass_of(shape, group, PassKind::kBackward, k);
    pass.beside_previous = paired;
    return pass;
  };
  PassList list;
  std::int64_t done = 0;  // backward passes
  for (std::int64_t k = 0; k < warm_up; ++k) schedules::append(list, {forward(k)});
  // Rounds whose forward passes all belong to whole groups repeat.
  const std::int64_t rounds = (shape.microbatches / group * round - warm_up) / round;
  if (rounds > 0) {
    PassLoop steady{{}, rounds, static_cast<std::int32_t>(group)};
    steady.passes.reserve(static_cast<std::size_t>(2 * round));
    for (; done < round; ++done) {
      steady.passes.push_back(forward(warm_up + done));
      steady.passes.push_back(backward(done, in_pairs));
    }
    list.push_back(std::move(steady));
    done = rounds * round;
  }
  for (; warm_up + done < total; ++done) schedules::append(list, {forward(warm_up + done), backward(done, in_pairs)});
  for (; done < total; ++done) schedules::append(list, {backward(done)});
  return list;
}

}  // namespace

std::vector<PassList> schedules::interleaved_orders(const ScheduleShape& shape, bool in_pairs) {
  std::vector<PassList> lists;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) lists.push_back(order(shape, stage, in_pairs));
  return lists;
}

}  // namespace ns_dist
