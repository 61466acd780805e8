// Schedules on vee seats from a building block (Qi et al. 2024, arXiv 2405.15362): the passes of one
// microbatch, placed so that copies of the block, one every six units, never meet on a stage. The memory of a stage is
// the time from its forward passes to its gradients, divided by six.
#include <algorithm>

#include "repeated_block.h"

namespace ns_dist::schedules {
namespace {

constexpr std::int64_t kInterval = 6;  // forward, input gradient and weight gradient of two chunks

struct PlacedPass {
  PassKind kind = PassKind::kForward;
  std::int32_t chunk = 0;
  std::int64_t start = 0;
};
using StageBlock = std::vector<PlacedPass>;

// Places a pass at `earliest` or at the next time at which no copy of the block occupies the stage.
std::int64_t place(StageBlock& stage, PassKind kind, std::int32_t chunk, std::int64_t earliest) {
  const auto taken = [&](std::int64_t start) {
    return std::any_of(stage.begin(), stage.end(),
                       [&](const PlacedPass& pass) { return (pass.start - start) % kInterval == 0; });
  };
  while (taken(earliest)) ++earliest;
  stage.push_back({kind, chunk, earliest});
  return earliest;
}

}  // namespace

std::vector<PassList> vee_orders(const ScheduleShape& shape, const VeePace& pace) {
  const auto stages = static_cast<std::size_t>(shape.stages);
  std::vector<StageBlock> blocks(stages);
  std::int64_t start = -1;
  const auto walk = [&](PassKind kind, std::int32_t chunk, bool down, std::int64_t gap) {
    for (std::size_t i = 0; i < stages; ++i) {
      start = place(blocks[down ? i : stages - 1 - i], kind, chunk, start + (i == 0 ? 1 : gap));
    }
  };
  walk(PassKind::kForward, 0, true, pace.forward_down);
  walk(PassKind::kForward, 1, false, pace.forward_up);
  walk(PassKind::kInputGradient, 1, true, pace.gradient_down);
  walk(PassKind::kInputGradient, 0, false, pace.gradient_up);

  std::vector<PassList> orders;
  for (StageBlock& block : blocks) {
    for (const std::size_t gradient : {std::size_t{2}, std::size_t{3}}) {
      place(block, PassKind::kWeightGradient, block[gradient].chunk, block[gradient].start + 1);
    }
    std::sort(block.begin(), block.end(),
              [](const PlacedPass& a, const PlacedPass& b) { return a.start % kInterval < b.start % kInterval; });
    std::vector<BlockPass> passes;
    for (const PlacedPass& pass : block) passes.push_back({pass.kind, pass.chunk, pass.start / kInterval});
    orders.push_back(repeat_block(passes, shape.microbatches));
  }
  return orders;
}

}  // namespace ns_dist::schedules
