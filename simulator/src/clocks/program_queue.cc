#include "clocks/program_queue.h"

#include "clocks/program_engine.h"
#include "clocks/program_fragments.h"

namespace ns_dist {

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

const std::vector<NodeSpan>& ProgramQueue::alone(std::uint32_t actor, FragmentId fragment) {
  const std::uint32_t row = costs_.row_of_actor[actor];
  return Engine(*this, 1).measured(row, index(fragment), {})->spans;
}

}  // namespace ns_dist
