// DualPipe's order of passes (DeepSeek-V3, arXiv 2412.19437, s.3.2.1 and fig. 5; its eight steps are named as in
// DeepSeek's repository deepseek-ai/DualPipe). A forward pass of one phase runs beside a backward pass of the other.
#include <algorithm>
#include <deque>

#include "repeated_block.h"

namespace ns_dist::schedules {
namespace {

class DualOrder {
 public:
  DualOrder(std::int64_t microbatches, const std::array<Phase, 2>& phases)
      : microbatches_(microbatches), phases_(phases) {}

  PassList run(std::int64_t ranks, std::int64_t rank) {
    const std::int64_t behind = ranks - rank - 1;                             // ranks between this one and the middle
    for (std::int64_t i = 0; i < 2 * behind; ++i) emit({forward(0)});         // nF0
    for (std::int64_t i = 0; i <= rank; ++i) emit({forward(0), forward(1)});  // nF0F1
    for (std::int64_t i = 0; i < behind; ++i) emit({input_gradient(1), weight_gradient(), forward(1)});  // nB1W1F1
    // nF0B1F1B0, of which the least number is written out. The middle rank's first backward pass waits for the forward
    // pass before it, so that the two cannot run at once.
    for (std::int64_t i = 0; i < rank + 2; ++i) {
      emit({forward(0), backward(1, behind > 0 || i > 0), forward(1), backward(0, true)});
    }
    lengthen(std::max<std::int64_t>(0, microbatches_ - (2 * ranks + 1)));
    for (std::int64_t i = 0; i < behind; ++i) emit({backward(1, false), forward(1), backward(0, true)});  // nB1F1B0
    const std::int64_t half = (rank + 1) / 2;  // nB1B0: weight gradients are split off from the half on
    for (std::int64_t i = 0; i <= rank; ++i) {
      const bool first_split = i > half || (i == half && rank % 2 == 1), second_split = i >= half;
      emit({first_split ? input_gradient(1) : backward(1, false),
            second_split ? input_gradient(0) : backward(0, false)});
    }
    for (std::int64_t i = 0; i < behind; ++i) emit({weight_gradient(), input_gradient(0)});  // nWB0
    while (!waiting_.empty()) emit({weight_gradient()});                                     // nW
    return std::move(list_);
  }

 private:
  SchedulePass pass(PassKind kind, std::size_t phase, std::int32_t microbatch, bool beside = false) const {
    return {kind, microbatch + phases_[phase].first_microbatch, phases_[phase].chunk, beside};
  }
  SchedulePass forward(std::size_t phase) { return pass(PassKind::kForward, phase, forwards_[phase]++); }
  SchedulePass backward(std::size_t phase, bool beside) {
    return pass(PassKind::kBackward, phase, backwards_[phase]++, beside);
  }
  SchedulePass input_gradient(std::size_t phase) {
    const SchedulePass result = pass(PassKind::kInputGradient, phase, backwards_[phase]++);
    waiting_.push_back(result);
    return result;
  }
  SchedulePass weight_gradient() {
    SchedulePass result = waiting_.front();
    waiting_.pop_front();
    result.kind = PassKind::kWeightGradient;
    return result;
  }

  bool exists(const SchedulePass& pass) const {
    const Phase& phase = phases_[pass.chunk == phases_[0].chunk ? 0 : 1];
    return pass.microbatch - phase.first_microbatch < microbatches_;
  }
  // Leaves out passes of microbatches that do not exist: a part of an order that runs is an order that runs.
  void emit(const std::vector<SchedulePass>& passes) {
    std::vector<SchedulePass> existing;
    bool previous = false;
    for (SchedulePass pass : passes) {
      const bool beside = pass.beside_previous && previous;
      previous = exists(pass);
      pass.beside_previous = beside;
      if (previous) existing.push_back(pass);
    }
    if (!existing.empty()) append(list_, existing);
  }
  // Repeats the last loop for further microbatches of each phase.
  void lengthen(std::int64_t times) {
    if (times == 0) return;
    list_.back().repeats += times;
    for (std::int32_t& next : forwards_) next += static_cast<std::int32_t>(times);
    for (std::int32_t& next : backwards_) next += static_cast<std::int32_t>(times);
  }

  std::int64_t microbatches_;
  std::array<Phase, 2> phases_;
  std::array<std::int32_t, 2> forwards_{}, backwards_{};
  std::deque<SchedulePass> waiting_;  // input gradients whose weight gradient has not run
  PassList list_;
};

}  // namespace

PassList dual_order(std::int64_t ranks, std::int64_t rank, std::int64_t microbatches,
                    const std::array<Phase, 2>& phases) {
  return DualOrder(microbatches, phases).run(ranks, rank);
}

}  // namespace ns_dist::schedules
