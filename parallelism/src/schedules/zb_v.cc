// ZB-V (Qi et al. 2023, arXiv 2401.10241, s.6; the steps are those of PyTorch's torch.distributed.pipelining,
// ScheduleZBVZeroBubble): forward passes of chunk 0 fill the time until the first microbatch comes back up the vee.
// Each stage holds as many activations as 1F1B's first stage.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "repeated_block.h"

namespace ns_dist {
namespace {

struct Step {
  PassKind kind;
  std::int32_t chunk;
};
constexpr Step F0{PassKind::kForward, 0}, F1{PassKind::kForward, 1}, I0{PassKind::kInputGradient, 0},
    I1{PassKind::kInputGradient, 1}, W0{PassKind::kWeightGradient, 0}, W1{PassKind::kWeightGradient, 1};

// `behind` stages lie between `stage` and the end of the vee, this one included. At least 2 stages - 1 microbatches.
PassList order(std::int64_t stage, std::int64_t behind, std::int64_t microbatches) {
  PassList list;
  std::array<std::array<std::int64_t, 2>, kPassKindCount> next{};  // microbatch by kind and chunk
  const auto repeat = [&](std::int64_t times, std::initializer_list<Step> steps) {
    PassLoop loop{{}, times, 1};
    for (const Step& step : steps) {
      std::int64_t& microbatch = next[static_cast<std::size_t>(step.kind)][static_cast<std::size_t>(step.chunk)];
      loop.passes.push_back({step.kind, static_cast<std::int32_t>(microbatch), step.chunk, false});
      microbatch += times;
    }
    if (times > 0) list.push_back(std::move(loop));
  };
  repeat(2 * behind - 1, {F0});
  repeat(stage, {F1, F0});
  repeat(behind, {F1, I1, W1});
  repeat(microbatches - (2 * behind - 1) - stage, {F0, I0, W0, F1, I1, W1});
  repeat(behind - 1, {I0, W0, F1, I1, W1});
  repeat(stage, {I0, I1});
  repeat(behind, {I0, W0});
  repeat(stage, {W1});
  repeat(stage, {W0});
  return list;
}

std::vector<PassList> pass_lists(const ScheduleShape& shape) {
  std::vector<PassList> lists;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const std::int64_t enough = std::max(shape.microbatches, 2 * shape.stages - 1);
    PassList list = order(stage, shape.stages - stage, enough);
    if (enough > shape.microbatches) list = schedules::first_microbatches(list, shape.microbatches);
    lists.push_back(std::move(list));
  }
  return lists;
}

}  // namespace

extern constinit const PipelineSchedule kZbV = schedules::vee_schedule(
    "zb-v", "a vee of two chunks with weight gradients apart; 1f1b's activations, and hardly a bubble", pass_lists);

}  // namespace ns_dist
