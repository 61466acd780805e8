#include "search_bounds.h"

#include <array>
#include <limits>

#include "clocks/fragment_length.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

bool is_kernel_of_a_pass(const WorkItem& item) {
  return std::holds_alternative<Operator>(item.work) &&
         (item.category == Category::kForward || item.category == Category::kBackward ||
          item.category == Category::kRecompute);
}

}  // namespace

bool pairs_passes(const ParallelPlan& plan) { return traits_of(plan).pairs_passes && !shards_gradients(plan); }

PassesOfOne passes_of_one(const StepProgram& program, const std::vector<Forecast>& forecasts, std::int64_t layers) {
  PassesOfOne found;
  const auto loss = static_cast<std::size_t>(layers) + 1;
  found.parts.resize(loss + 1);
  PassesOfOne::Part all;
  std::array<double, kStreamCount> streams{};
  const auto seconds = [&](std::size_t work) { return forecasts[work].latency / units::s * (1 - kRounding); };
  std::vector<double> room;
  bool in_layers = false, was_forward = true;  // of the pass
  for_each_instruction(program, program.actors[0], [&](const Instruction& instruction, double) {
    if (instruction.kind != Instruction::Kind::kRun) return;
    const Fragment& fragment = program.fragments[instruction.index];
    bool computes = false, forward = false;
    double kernels = 0;
    for (const FragmentNode& node : fragment.nodes) {
      const WorkItem& item = program.works[index(node.work)];
      if (!is_kernel_of_a_pass(item)) continue;
      computes = true;
      forward |= item.category == Category::kForward;
      kernels += seconds(index(node.work));
    }
    if (!computes) return;  // not of a pass
    for (const FragmentNode& node : fragment.nodes) {
      streams[static_cast<std::size_t>(node.stream)] += instruction.times * seconds(index(node.work));
    }
    const double length = fragment_length(fragment, seconds, room);
    const PassesOfOne::Part one =
        forward ? PassesOfOne::Part{length, 0, kernels, 0} : PassesOfOne::Part{0, length, 0, kernels};
    if (forward != was_forward) in_layers = false;
    was_forward = forward;
    in_layers |= instruction.layer >= 0;
    for (std::int32_t i = 0; i < instruction.times; ++i) {
      const std::int32_t layer = instruction.layer + i * instruction.layer_step;
      const std::size_t part = instruction.layer < 0 ? (forward == in_layers ? loss : 0)
                                                     : std::min(loss, static_cast<std::size_t>(layer) + 1);
      found.parts[part] += one;
      all += one;
    }
  });
  streams[static_cast<std::size_t>(Stream::kCompute)] = all.kernels();
  found.all = {std::max(all.beside(), *std::max_element(streams.begin(), streams.end())), all.apart(), all.kernels()};
  return found;
}

double pipeline_bound(const PassesOfOne& one, const Scenario& scenario, std::int64_t microbatches, bool alike) {
  const ParallelPlan& plan = scenario.plan;
  const PipelineSchedule& schedule = traits_of(plan);
  const bool has_chunks =
      plan.vpp >= schedule.least_chunks && (schedule.most_chunks == 0 || plan.vpp <= schedule.most_chunks);
  if (!has_chunks || plan.pp * plan.vpp > 2 * scenario.model.layers) return 0;
  const Seats seats = schedule.seats({plan.pp, microbatches, plan.vpp});
  const auto layers = divide_layers(scenario.model, plan, seats);
  if (!layers) return 0;
  std::vector<PassesOfOne::Part> positions(layers->size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const LayerRange& range = (*layers)[i];
    const std::int64_t first = range.first + (i == 0 ? 0 : 1);
    const std::int64_t end = range.first + range.count + (i + 1 == positions.size() ? 2 : 1);
    for (std::int64_t part = first; part < end; ++part) positions[i] += one.parts[static_cast<std::size_t>(part)];
    if (!alike) positions[i] = positions[i].without_collectives();
  }
  struct Stage {
    PassesOfOne::Part work;  // of one microbatch in each direction
    double forward = std::numeric_limits<double>::infinity(), backward = forward;  // before its first position
  };
  std::vector<Stage> stages(static_cast<std::size_t>(plan.pp));
  for (const std::vector<Seat>& direction : seats) {
    double forward = 0, backward = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      Stage& stage = stages[static_cast<std::size_t>(direction[i].stage)];
      stage.work += positions[i];
      stage.forward = std::min(stage.forward, forward);
      stage.backward = std::min(stage.backward, backward);
      forward += positions[i].forward;
      backward += positions[i].backward;
    }
  }
  const auto times = static_cast<double>(microbatches / static_cast<std::int64_t>(seats.size()));
  double longest = 0;
  for (const Stage& stage : stages) {
    const double passes = pairs_passes(plan) ? stage.work.beside() : stage.work.apart();
    // The halves of a split backward pass take longer than the whole. Behind a weight gradient there may be nothing.
    longest = std::max(longest, stage.forward + times * passes + (schedule.splits_backward ? 0 : stage.backward));
  }
  return longest;
}

}  // namespace ns_dist
