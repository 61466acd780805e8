// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, s.2.2.2): each stage holds several model chunks and turns
// to the next chunk after as many microbatches as there are stages. The order is Megatron-LM's
// (core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving).
#include <fmt/format.h>

#include <algorithm>

#include "schedules.h"

namespace ns_dist::schedules {
namespace {

std::int64_t warm_up_passes(const ScheduleShape& shape, std::int64_t stage) {
  const std::int64_t total = shape.microbatches * shape.chunks;
  if (shape.microbatches == shape.stages) return total;
  return std::min(total, 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages);
}

// The k-th unit of a stage's work in one direction.
SchedulePass unit(const ScheduleShape& shape, PassKind kind, std::int64_t k) {
  const std::int64_t round = shape.stages * shape.chunks;
  const std::int64_t chunk = (k % round) / shape.stages;
  const std::int64_t microbatch = (k / round) * shape.stages + k % shape.stages;
  return {kind, static_cast<std::int32_t>(microbatch),
          static_cast<std::int32_t>(kind == PassKind::kForward ? chunk : shape.chunks - 1 - chunk)};
}

}  // namespace

Result<std::vector<SchedulePass>> interleaved_order(const ScheduleShape& shape, std::int64_t stage) {
  if (shape.chunks > 1 && shape.stages < 2) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} model chunks need a pipeline", shape.chunks),
                 "--vpp",
                 "pp of at least 2",
                 "use vpp 1",
                 {}});
  }
  if (shape.microbatches % shape.stages != 0) {
    const std::int64_t up = (shape.microbatches / shape.stages + 1) * shape.stages;
    return fail({ErrorCode::kInfeasible,
                 fmt::format("interleaved needs microbatches in multiples of the {} stages, and there are {}",
                             shape.stages, shape.microbatches),
                 "--schedule",
                 fmt::format("a global batch that gives a multiple of {} microbatches, such as {}", shape.stages, up),
                 "or use vpp 1 with 1f1b",
                 {}});
  }
  const std::int64_t total = shape.microbatches * shape.chunks;
  const std::int64_t warm_up = warm_up_passes(shape, stage);
  std::vector<SchedulePass> order;
  order.reserve(static_cast<std::size_t>(2 * total));
  std::int64_t forward = 0, backward = 0;
  while (forward < warm_up) order.push_back(unit(shape, PassKind::kForward, forward++));
  while (forward < total) {
    order.push_back(unit(shape, PassKind::kForward, forward++));
    order.push_back(unit(shape, PassKind::kBackward, backward++));
  }
  while (backward < total) order.push_back(unit(shape, PassKind::kBackward, backward++));
  return order;
}

std::int64_t interleaved_in_flight(const ScheduleShape& shape, std::int64_t stage) {
  return std::min(shape.microbatches * shape.chunks, warm_up_passes(shape, stage) + 1);
}

double interleaved_bubble(const ScheduleShape& shape) {
  return static_cast<double>(shape.stages - 1) / static_cast<double>(shape.microbatches * shape.chunks);
}

}  // namespace ns_dist::schedules
