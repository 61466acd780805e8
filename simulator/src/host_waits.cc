#include "host_waits.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "clocks/fragment_length.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

// What a host takes to launch the nodes [first, end) of `fragment`.
Seconds launches_of(const Host& host, const Fragment& fragment, const WorkTable& works, std::size_t first,
                    std::size_t end) {
  Seconds launches = static_cast<double>(end - first) * host.launch();
  for (std::size_t n = first; n < end; ++n) {
    const auto* op = std::get_if<Operator>(&works[index(fragment.nodes[n].work)].work);
    const auto* grouped = op != nullptr ? std::get_if<GroupedGemm>(&op->kind) : nullptr;
    if (grouped != nullptr && !grouped->one_kernel)
      launches += static_cast<double>(grouped->experts - 1) * host.expert_launch();
  }
  return launches;
}

// How many times as long the launches of `fragment` take as one host's. Ranks wait for the slowest host at each of the
// c collectives among their N launches. A host's time between two is the sum of N / c launches, with a deviation of
// `deviation` sqrt(c / N) of its mean.
double slowest_host(const Host& host, const Fragment& fragment, const WorkTable& works, Seconds launches,
                    double deviation) {
  double collectives = 0, excess = 0;
  for (const FragmentNode& node : fragment.nodes) {
    const auto* collective = std::get_if<Collective>(&works[index(node.work)].work);
    if (collective == nullptr) continue;
    ++collectives;
    excess += slowest_of(collective->group.size(), 1) - 1;
  }
  if (collectives == 0) return 1;
  return 1 + deviation * std::sqrt(collectives / (launches / host.launch())) * excess / collectives;
}

// Nodes of a fragment that the host launches without looking at a result.
struct Launches {
  std::size_t first = 0;
  Seconds all, one;  // of all nodes, and of one
};

std::vector<Launches> parts_of(const Host& host, const Fragment& fragment, const WorkTable& works, double deviation) {
  const std::size_t end = fragment.nodes.size();
  const double slowest = slowest_host(host, fragment, works, launches_of(host, fragment, works, 0, end), deviation);
  std::vector<Launches> parts(1);
  for (std::size_t n = 1; n < end && !host.blocking_launches; ++n) {
    if (works[index(fragment.nodes[n].work)].after_read) parts.push_back({n, {}, {}});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t next = i + 1 < parts.size() ? parts[i + 1].first : end;
    parts[i].all = slowest * launches_of(host, fragment, works, parts[i].first, next);
    parts[i].one = slowest * host.launch();
  }
  return parts;
}

// How long the GPU waits in a run of `fragment`, by row of costs. `room` is room to work in.
void find_waits(const Host& host, const Fragment& fragment, const std::vector<Launches>& parts,
                const ProgramCosts& costs, std::vector<double>& room, std::vector<Forecast>& waits) {
  waits.clear();
  for (const ProgramCosts::Row& row : costs.rows) {
    const auto duration = [&](std::uint32_t work) { return row.forecasts[work].latency / units::s; };
    const double length = fragment_length(fragment, duration, room);
    const auto ended = [&](std::size_t part) {  // all that comes before it
      if (part == parts.size()) return length;
      const auto before = static_cast<std::ptrdiff_t>(parts[part].first);
      return before == 0 ? 0 : *std::max_element(room.begin(), room.begin() + before);
    };
    Forecast& wait = waits.emplace_back();
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Seconds hidden = host.blocking_launches ? Seconds() : (ended(p + 1) - ended(p)) * units::s;
      // Behind a read the GPU has nothing to do until the first launch.
      wait.latency += max(p == 0 ? Seconds() : parts[p].one, parts[p].all - hidden);
    }
    wait.low = wait.high = wait.latency;
  }
}

// Mapping memory hides behind kernels but for 0.3 (V100), 0.8 (MI210) and 1.5 ms (MI100) for each GB: what forward
// passes of FP32 models took beyond their kernels where PyTorch's cache had been emptied (median). At worst nothing
// hides.
constexpr double kMapping = 0.8e-12, kExposedMapping = 14e-12;  // s/B
// Where a step fills more than this share of memory, cudaMalloc fails, and PyTorch waits for the GPU, gives its cache
// back and calls again: 1.4 and 1.8 ms for each tensor in two steps that fill 0.82 and 0.90 of an MI210, whatever its
// size; nothing up to 0.67.
constexpr double kTight = 0.8, kTightCall = 1.6e-3;  // s

// Bytes of a tensor that a forward pass keeps: the mean of what its kernels write, in the pass with the most kernels.
double tensor_bytes(const StepProgram& program) {
  double mean = 0;
  std::size_t most = 0;
  for (const Fragment& fragment : program.fragments) {
    double written = 0;
    std::size_t kernels = 0;
    for (const FragmentNode& node : fragment.nodes) {
      const WorkItem& item = program.works[index(node.work)];
      const auto* op = std::get_if<Operator>(&item.work);
      if (op == nullptr || item.category != Category::kForward) continue;
      written += work_of(*op).written / units::B, ++kernels;
    }
    if (kernels > most) most = kernels, mean = written / static_cast<double>(kernels);
  }
  return mean;
}

// A work in which the GPU waits for the host, with its forecast by row of costs.
WorkId add_wait(std::string_view name, std::span<const Forecast> forecasts, StepProgram& program, ProgramCosts& costs) {
  const WorkId work = program.works.add(
      {std::string(name), Category::kOther, Operator{UnknownOperator{std::string(name), {}, {}, {}}, DType::kBf16}});
  for (std::size_t r = 0; r < costs.rows.size(); ++r) {
    ProgramCosts::Row& row = costs.rows[r];
    row.forecasts.push_back(forecasts[r]);
    if (!row.demands.empty()) row.demands.emplace_back();
  }
  return work;
}

// A work of one node, run once at the end of the actor's step.
void add_at_end(std::size_t actor, std::string_view name, const Forecast& forecast, StepProgram& program,
                ProgramCosts& costs) {
  const std::vector<Forecast> forecasts(costs.rows.size(), forecast);
  const WorkId work = add_wait(name, forecasts, program, costs);
  Fragment fragment;
  fragment.dependencies = {kEntry, kPreviousKernel};
  fragment.nodes.push_back({Stream::kCompute, work, 0, 2});
  fragment.exits = {0};
  Instruction run;
  run.index = index(program.add(std::move(fragment)));
  const ProgramLoops& loops = program.actors[actor].loops;
  program.bodies.insert(loops[loops.size() - 1].calls.back().body, run);
}

}  // namespace

void add_memory_mapping(const Scenario& scenario, const MemoryBudget& memory, StepProgram& program,
                        ProgramCosts& costs) {
  const double tensor = std::max(1.0, tensor_bytes(program));
  for (std::size_t stage = 0; stage < program.actors.size(); ++stage) {
    const StageMemory& used = memory.stages[stage];
    const double bytes = used.activations / units::B;
    const bool tight = used.total() > kTight * scenario.cluster.gpu.memory;
    Forecast mapping;
    mapping.latency = (tight ? bytes / tensor * kTightCall : bytes * kMapping) * units::s;
    mapping.low = 0.4 * mapping.latency;
    mapping.high = tight ? 1.6 * mapping.latency : bytes * kExposedMapping * units::s;
    add_at_end(stage, "host.memory", mapping, program, costs);
  }
}

bool add_host_waits(const Host& host, double deviation, StepProgram& program, ProgramCosts& costs) {
  if (host.cuda_graphs || !(host.launch_cost > Seconds())) return false;
  bool any = false;
  std::vector<double> room;
  std::vector<Forecast> waits;
  for (Fragment& fragment : program.fragments) {
    find_waits(host, fragment, parts_of(host, fragment, program.works, deviation), costs, room, waits);
    if (std::none_of(waits.begin(), waits.end(), [](const Forecast& wait) { return wait.latency > Seconds(); }))
      continue;
    any = true;
    const WorkId work = add_wait(kHostLaunches, waits, program, costs);
    const auto first = static_cast<std::uint32_t>(fragment.dependencies.size());
    const std::vector<std::int32_t> after = fragment.exits;
    std::copy_if(after.begin(), after.end(), std::back_inserter(fragment.dependencies),
                 [](std::int32_t on) { return on >= 0; });
    fragment.nodes.push_back(
        {Stream::kCompute, work, first, static_cast<std::uint32_t>(fragment.dependencies.size()) - first});
  }
  return any;
}

}  // namespace ns_dist
