#include "clocks/program_queue.h"

#include "clocks/program_engine.h"
#include "clocks/program_fragments.h"

namespace ns_dist {

std::uint32_t NodeSpans::add(std::size_t nodes) {
  if (count_ + nodes > blocks_.size() * kBlock) {
    const std::size_t more = (nodes + kBlock - 1) / kBlock;
    owned_.push_back(std::make_unique<NodeSpan[]>(more * kBlock));
    count_ = blocks_.size() * kBlock;
    for (std::size_t i = 0; i < more; ++i) blocks_.push_back(owned_.back().get() + i * kBlock);
  }
  const auto first = static_cast<std::uint32_t>(count_);
  count_ += nodes;
  return first;
}

ProgramQueue::ProgramQueue(const StepProgram& program, const ProgramCosts& costs, Options options)
    : program_(program),
      costs_(costs),
      options_(options),
      fragments_(std::make_unique<ProgramFragments>(program, costs)) {}

ProgramQueue::~ProgramQueue() = default;

std::optional<double> ProgramQueue::run() {
  for (;;) {
    history_ = {};
    Engine engine(*this, program_.actors.size());
    const std::optional<double> step = engine.run(costs_);
    if (!step || *step <= fragments_->grid().limit()) return step;
    fragments_->set_grid(Grid::covering(2 * *step), costs_);
  }
}

const StepHistory& ProgramQueue::history() const { return history_; }

const std::vector<NodeSpan>& ProgramQueue::alone(std::uint32_t row, FragmentId fragment) {
  return Engine(*this, 1).measured(row, index(fragment), {})->spans;
}

}  // namespace ns_dist
