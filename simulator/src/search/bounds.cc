#include "search/bounds.h"

#include <array>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "clocks/fragment_length.h"
#include "costs.h"
#include "group_places.h"
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

// A plan's passes on one stage, with its kernels forecast.
struct OneStage {
  StepProgram program;
  std::vector<Forecast> forecasts;  // of works
};

Result<OneStage> with_one_stage(Scenario scenario, const Session& session) {
  scenario.plan = on_one_stage(scenario.plan).plan;
  scenario.training.global_batch = scenario.training.micro_batch * scenario.plan.dp;
  scenario.stragglers = {};
  NS_TRY(StepProgram program, plan_program(scenario.model, scenario.plan, scenario.training, session.plans()));
  NS_TRY(ProgramCosts costs, costs_of(program, scenario, session));
  for (const Fragment& fragment : program.fragments) {
    for (const FragmentNode& node : fragment.nodes) {
      const std::size_t work = index(node.work);
      const WorkItem& item = program.works[work];
      const bool shared = item.name.starts_with("weights.") || item.name.starts_with("gradients.");
      const bool agrees = item.category == Category::kOther;  // on the largest values of fp8, with other ranks
      if (node.stream == Stream::kShardedWeights || shared || agrees) costs.rows[0].forecasts[work].latency = Seconds();
    }
  }
  return OneStage{std::move(program), std::move(costs.rows[0].forecasts)};
}

// Its passes where each collective of a pass takes `time`.
template <class Time>
PassesOfOne passes_with(const OneStage& one, const Model& model, const Time& time) {
  std::vector<Forecast> forecasts = one.forecasts;
  for (std::size_t work = 0; work < forecasts.size(); ++work) {
    const auto* collective = std::get_if<Collective>(&one.program.works[work].work);
    Seconds& latency = forecasts[work].latency;
    if (collective != nullptr && latency > Seconds()) latency = time(*collective);
  }
  return passes_of_one(one.program, forecasts, model);
}

// What a collective takes alone; of groups that lie otherwise, the slowest (costs_of). Nothing of one without a
// forecast.
Seconds slowest_of(Collective collective, OtherPlaces& places, const NetworkCost& network) {
  Seconds slowest;
  const auto look = [&](const RankGroup& group) {
    collective.group = group;
    if (const auto forecast = network.forecast(collective)) slowest = std::max(slowest, forecast->latency);
  };
  const std::vector<RankGroup>& others = places.of(collective.group);
  look(RankGroup(collective.group));
  std::for_each(others.begin(), others.end(), look);
  return slowest;
}

PassesOfOne no_passes(const Model& model) {
  PassesOfOne nothing;
  nothing.parts.resize(PassesOfOne::part_count(model));
  return nothing;
}

}  // namespace

std::int64_t distance_of_places(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  if (!on_one_stage(plan).collectives) return 0;
  const std::int64_t period = period_of(scenario.cluster);
  return plan.pp == 1 ? period : std::gcd(mesh_of(plan).stride("pp"), period);
}

bool has_several_places(const Cluster& cluster, std::int64_t distance) {
  return distance > 0 && distance < period_of(cluster);
}

bool pairs_passes(const ParallelPlan& plan) { return traits_of(plan).pairs_passes && !exchanges_by_layer(plan); }

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
  found.all = {std::max(all.beside(), *std::max_element(streams.begin(), streams.end())), all.apart()};
  return found;
}

PassesOfOne passes_on_one_stage(const Scenario& scenario, const Session& session) {
  const auto one = with_one_stage(scenario, session);
  return one ? passes_of_one(one->program, one->forecasts, scenario.model) : no_passes(scenario.model);
}

PassesOfOne least_passes(const Scenario& scenario, const Session& session) {
  const std::int64_t distance = distance_of_places(scenario), period = period_of(scenario.cluster);
  if (distance == period) return passes_on_one_stage(scenario, session);
  const auto one = with_one_stage(scenario, session);
  if (!one) return no_passes(scenario.model);
  const NetworkCost& network = session.network(scenario.training.precision);
  return passes_with(*one, scenario.model, [&](Collective collective) {
    if (distance == 0) return Seconds();
    const auto here = network.forecast(collective);
    Seconds least = here ? here->latency : Seconds();
    for (Rank place = distance; place < period; place += distance) {
      collective.group.first += distance;
      if (const auto there = network.forecast(collective)) least = std::min(least, there->latency);
    }
    return least;
  });
}

PassesOfStages passes_on_each_stage(const Scenario& scenario, const Session& session) {
  if (!has_several_places(scenario.cluster, distance_of_places(scenario))) return {{least_passes(scenario, session)}};
  const auto one = with_one_stage(scenario, session);
  if (!one) return {{no_passes(scenario.model)}};
  const Mesh mesh = mesh_of(scenario.plan);
  const NetworkCost& network = session.network(scenario.training.precision);
  const std::int64_t period = period_of(scenario.cluster);
  PassesOfStages found;
  std::vector<Rank> places;
  for (std::int64_t stage = 0; stage < scenario.plan.pp; ++stage) {
    const Rank rank = stage * mesh.stride("pp");
    const auto known = std::find(places.begin(), places.end(), rank % period);
    found.of_stage.push_back(static_cast<std::size_t>(known - places.begin()));
    if (known != places.end()) continue;
    places.push_back(rank % period);
    OtherPlaces others(mesh, scenario.cluster);
    found.places.push_back(passes_with(*one, scenario.model, [&](Collective collective) {
      collective.group = collective.group.of(rank);
      return slowest_of(std::move(collective), others, network);
    }));
  }
  return found;
}

std::vector<ExchangeTime> exchange_times(const Scenario& scenario, const Session& session) {
  const LayerExchanges exchanges = layer_exchanges(scenario.model, scenario.plan, scenario.training, session.plans());
  const NetworkCost& network = session.network(scenario.training.precision);
  const auto seconds = [&](const std::vector<Collective>& collectives) {
    double sum = 0;
    for (const Collective& each : collectives) {
      if (const auto forecast = network.forecast(each)) sum += forecast->latency / units::s * (1 - kRounding);
    }
    return sum;
  };
  std::vector<ExchangeTime> of_kind, of_layer;
  for (const LayerExchange& kind : exchanges.kinds) of_kind.push_back({seconds(kind.forward), seconds(kind.backward)});
  if (of_kind.empty()) return of_layer;
  for (const std::uint16_t kind : exchanges.of_layer) of_layer.push_back(of_kind[kind]);
  return of_layer;
}

double pipeline_bound(const PassesOfStages& passes, const Scenario& scenario, std::int64_t microbatches,
                      std::span<const ExchangeTime> exchanges, const PassesOfOne* kept) {
  const ParallelPlan& plan = scenario.plan;
  const PipelineSchedule& schedule = traits_of(plan);
  if (!schedule.has_chunks(plan.vpp) || plan.pp * plan.vpp > 2 * scenario.model.layers) return 0;
  const Seats seats = schedule.seats({plan.pp, microbatches, plan.vpp});
  const auto layers = divide_layers(scenario.model, plan, seats);
  if (!layers) return 0;
  const auto part_at = [&](std::size_t i, const PassesOfOne& one) {
    const LayerRange& range = (*layers)[i];
    PassesOfOne::Part part;
    if (i == 0) part += one.embedding();
    const std::int64_t again = kept != nullptr ? frozen_layers_of(plan, range) + plan.recompute_layers : range.count;
    for (std::int64_t j = 0; j < range.count; ++j) part += (j < again ? one : *kept).layer(range.first + j);
    if (range.predictions > 0) part += one.predictions();
    if (i + 1 == layers->size()) part += one.loss();
    return part;
  };
  const auto add_exchanges = [&](const LayerRange& range, PassesOfOne::Part& part) {
    ExchangeTime all;
    for (const ExchangeTime& each :
         exchanges.subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count))) {
      all.forward += each.forward;
      all.backward += each.backward;
    }
    part.forward = std::max(part.forward, all.forward);
    part.backward = std::max(part.backward, all.backward);
  };
  struct Stage {
    PassesOfOne::Part work;  // of one microbatch in each direction
    double forward = std::numeric_limits<double>::infinity(), backward = forward;  // before its first position
  };
  std::vector<Stage> stages(static_cast<std::size_t>(plan.pp));
  for (const std::vector<Seat>& direction : seats) {
    double forward = 0, backward = 0;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      Stage& stage = stages[static_cast<std::size_t>(direction[i].stage)];
      PassesOfOne::Part part = part_at(i, passes.stage(direction[i].stage));
      if (direction[i].stage == 0 && !exchanges.empty()) add_exchanges((*layers)[i], part);
      stage.work += part;
      stage.forward = std::min(stage.forward, forward);
      stage.backward = std::min(stage.backward, backward);
      forward += part.forward;
      backward += part.backward;
    }
  }
  const auto times = static_cast<double>(microbatches / static_cast<std::int64_t>(seats.size()));
  double longest = 0;
  for (const Stage& stage : stages) {
    const double work = pairs_passes(plan) ? stage.work.beside() : stage.work.apart();
    // The halves of a split backward pass take longer than the whole. Behind a weight gradient there may be nothing.
    longest = std::max(longest, stage.forward + times * work + (schedule.splits_backward ? 0 : stage.backward));
  }
  return longest;
}

}  // namespace ns_dist
