#include "search_bounds.h"

#include <array>
#include <limits>

#include "clocks/fragment_length.h"
#include "costs.h"
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

PassesOfOne passes_of_one(const StepProgram& program, const std::vector<Forecast>& forecasts, const Model& model) {
  PassesOfOne found;
  found.parts.resize(PassesOfOne::part_count(model));
  const std::size_t loss = found.parts.size() - 1, predictions = loss - 1;
  PassesOfOne::Part all;
  std::array<double, kStreamCount> streams{};
  const auto seconds = [&](std::size_t work) { return forecasts[work].latency / units::s * (1 - kRounding); };
  std::vector<NodeSpan> room;
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
                                                     : std::min(predictions, static_cast<std::size_t>(layer) + 1);
      found.parts[part] += one;
      all += one;
    }
  });
  streams[static_cast<std::size_t>(Stream::kCompute)] = all.kernels();
  found.all = {std::max(all.beside(), *std::max_element(streams.begin(), streams.end())), all.apart(), all.kernels()};
  return found;
}

PassesOfOne passes_on_one_stage(Scenario scenario, const Session& session) {
  scenario.plan = on_one_stage(scenario.plan).plan;
  scenario.training.global_batch = scenario.training.micro_batch * scenario.plan.dp;
  scenario.stragglers = {};
  PassesOfOne nothing;
  nothing.parts.resize(PassesOfOne::part_count(scenario.model));
  const auto program = plan_program(scenario.model, scenario.plan, scenario.training, session.plans());
  if (!program) return nothing;
  auto costs = costs_of(*program, scenario, session);
  if (!costs) return nothing;
  for (const Fragment& fragment : program->fragments) {
    for (const FragmentNode& node : fragment.nodes) {
      const bool of_gradients = program->works[index(node.work)].name.starts_with("gradients.");
      if (node.stream == Stream::kShardedWeights || of_gradients) {
        costs->rows[0].forecasts[index(node.work)].latency = Seconds();
      }
    }
  }
  return passes_of_one(*program, costs->rows[0].forecasts, scenario.model);
}

double pipeline_bound(const PassesOfOne& one, const Scenario& scenario, std::int64_t microbatches, bool alike) {
  const ParallelPlan& plan = scenario.plan;
  const PipelineSchedule& schedule = traits_of(plan);
  if (!schedule.has_chunks(plan.vpp) || plan.pp * plan.vpp > 2 * scenario.model.layers) return 0;
  const Seats seats = schedule.seats({plan.pp, microbatches, plan.vpp});
  const auto layers = divide_layers(scenario.model, plan, seats);
  if (!layers) return 0;
  std::vector<PassesOfOne::Part> positions(layers->size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const LayerRange& range = (*layers)[i];
    if (i == 0) positions[i] += one.embedding();
    for (std::int64_t j = 0; j < range.count; ++j) positions[i] += one.layer(range.first + j);
    if (range.predictions > 0) positions[i] += one.predictions();
    if (i + 1 == positions.size()) positions[i] += one.loss();
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
