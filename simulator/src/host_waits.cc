#include "host_waits.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "clocks/fragment_length.h"

namespace ns_dist {
namespace {

// Launches of one program take this share of the launch cost on another host: PyTorch's Linear takes 13.5 us on a
// Xeon of a DGX H100 and 33 to 37 us on Grace (TransformerEngine issue 2053), a factor of 2.5 from end to end.
constexpr double kFastHost = 0.6, kSlowHost = 1.5;

// What a host launches in a run of `fragment`.
Seconds launches_of(const Host& host, const Fragment& fragment, const WorkTable& works) {
  Seconds launches = static_cast<double>(fragment.nodes.size()) * host.launch();
  for (const FragmentNode& node : fragment.nodes) {
    const auto* op = std::get_if<Operator>(&works[index(node.work)].work);
    const auto* grouped = op != nullptr ? std::get_if<GroupedGemm>(&op->kind) : nullptr;
    if (grouped != nullptr && !grouped->one_kernel)
      launches += static_cast<double>(grouped->experts - 1) * host.expert_launch();
  }
  return launches;
}

// How long the GPU waits in a run of `fragment`, by row of costs. `room` is room to work in.
void find_waits(const Host& host, const Fragment& fragment, Seconds launches, const ProgramCosts& costs,
                std::vector<double>& room, std::vector<Forecast>& waits) {
  waits.clear();
  for (const ProgramCosts::Row& row : costs.rows) {
    const auto duration = [&](std::uint32_t work) { return row.forecasts[work].latency / units::s; };
    const Seconds hidden = host.blocking_launches ? Seconds() : fragment_length(fragment, duration, room) * units::s;
    const auto wait_on = [&](double share) { return max(Seconds(), share * launches - hidden); };
    Forecast& wait = waits.emplace_back();
    wait.latency = wait_on(1);
    wait.low = wait_on(kFastHost);
    wait.high = wait_on(kSlowHost);
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

void add_host_waits(const Host& host, StepProgram& program, ProgramCosts& costs) {
  if (host.cuda_graphs || !(host.launch_cost > Seconds())) return;
  std::vector<double> room;
  std::vector<Forecast> waits;
  for (Fragment& fragment : program.fragments) {
    find_waits(host, fragment, launches_of(host, fragment, program.works), costs, room, waits);
    if (std::all_of(waits.begin(), waits.end(), [](const Forecast& wait) { return !(wait.latency > Seconds()); }))
      continue;
    const WorkId work = add_wait("host.launches", waits, program, costs);
    const auto first = static_cast<std::uint32_t>(fragment.dependencies.size());
    const std::vector<std::int32_t> after = fragment.exits;
    std::copy_if(after.begin(), after.end(), std::back_inserter(fragment.dependencies),
                 [](std::int32_t on) { return on >= 0; });
    fragment.nodes.push_back(
        {Stream::kCompute, work, first, static_cast<std::uint32_t>(fragment.dependencies.size()) - first});
  }
}

}  // namespace ns_dist
