#include "host_waits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clocks/fragment_length.h"
#include "clocks/grid.h"
#include "clocks/program_queue.h"
#include "ns_dist/result.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

// Whether a graph of a part of a layer launches the node.
bool is_recorded(const Host& host, const Fragment& fragment, const WorkTable& works, std::size_t node) {
  const std::optional<LayerModule> module = works[index(fragment.nodes[node].work)].module;
  return module && host.cuda_graphs.records(*module);
}

struct LaunchTimes {
  double count = 0;
  Seconds all;
  double squares = 0;  // s^2: the sum of their squares
};

// What a host takes to launch the nodes [first, end) of `fragment`. Recorded nodes behind each other are one launch.
LaunchTimes launches_of(const Host& host, const Fragment& fragment, const WorkTable& works, std::size_t first,
                        std::size_t end) {
  LaunchTimes launches;
  const auto add = [&launches](double count, Seconds each) {
    launches.count += count, launches.all += count * each;
    launches.squares += count * std::pow(each / units::s, 2);
  };
  for (std::size_t n = first; n < end; ++n) {
    const bool recorded = is_recorded(host, fragment, works, n);
    if (recorded && n > first && is_recorded(host, fragment, works, n - 1)) continue;
    const WorkItem& item = works[index(fragment.nodes[n].work)];
    add(1, item.category == Category::kOptimizer ? host.launch_of_optimizer() : host.launch());
    const auto* op = std::get_if<Operator>(&item.work);
    const auto* grouped = op != nullptr ? std::get_if<GroupedGemm>(&op->kind) : nullptr;
    if (grouped != nullptr && !grouped->one_kernel && !recorded) {
      add(static_cast<double>(grouped->experts - 1), host.expert_launch_cost);
    }
  }
  return launches;
}

// How much longer than one host's a launch of `fragment` takes, on average. Ranks wait for the slowest host at each of
// c collectives. A launch deviates by `deviation` of what it takes, so a host's launches between two collectives by the
// root of the c-th part of the squares' sum.
Seconds longer_launch(const Fragment& fragment, const WorkTable& works, const LaunchTimes& launches, double deviation) {
  double collectives = 0, excess = 0;
  for (const FragmentNode& node : fragment.nodes) {
    const auto* collective = std::get_if<Collective>(&works[index(node.work)].work);
    if (collective == nullptr) continue;
    ++collectives;
    excess += slowest_of(collective->group.size(), 1) - 1;
  }
  if (collectives == 0) return Seconds();
  return deviation * std::sqrt(launches.squares / collectives) * excess / launches.count * units::s;
}

// Nodes of a fragment that the host launches without looking at a result.
struct Launches {
  std::size_t first = 0;
  Seconds all, one;  // of all nodes, and of one
};

std::vector<Launches> parts_of(const Host& host, const Fragment& fragment, const WorkTable& works, double deviation) {
  const std::size_t end = fragment.nodes.size();
  const Seconds longer = longer_launch(fragment, works, launches_of(host, fragment, works, 0, end), deviation);
  std::vector<Launches> parts(1);
  bool reads = false;  // a graph launches what reads: it ends before
  for (std::size_t n = 1; n < end && !host.blocking_launches; ++n) {
    reads |= works[index(fragment.nodes[n].work)].after_read;
    if (!reads || is_recorded(host, fragment, works, n)) continue;
    parts.push_back({n, {}, {}});
    reads = false;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t next = i + 1 < parts.size() ? parts[i + 1].first : end;
    const LaunchTimes launches = launches_of(host, fragment, works, parts[i].first, next);
    parts[i].all = launches.all + launches.count * longer;
    parts[i].one = host.launch() + longer;
  }
  return parts;
}

// When the last node ends that waits for node `first`, or is it.
double end_behind(const Fragment& fragment, const std::vector<NodeSpan>& spans, std::size_t first) {
  std::vector<bool> is_behind(spans.size());
  std::array<bool, kStreamCount> on_stream{};
  double end = 0;
  for (std::size_t n = first; n < spans.size(); ++n) {
    const FragmentNode& node = fragment.nodes[n];
    bool behind = n == first || on_stream[static_cast<std::size_t>(node.stream)];
    for (std::uint32_t d = 0; d < node.dependency_count && !behind; ++d) {
      const std::int32_t on = fragment.dependencies[node.first_dependency + d];
      behind = on >= 0 && is_behind[static_cast<std::size_t>(on)];
    }
    is_behind[n] = behind;
    if (!behind) continue;
    on_stream[static_cast<std::size_t>(node.stream)] = true;
    end = std::max(end, spans[n].end);
  }
  return end;
}

// How long the GPU waits in a run of a fragment whose nodes take `spans`, which is over at `length`.
double wait_of(const Host& host, const Fragment& fragment, const std::vector<Launches>& parts,
               const std::vector<NodeSpan>& spans, double length) {
  const double end = parts.size() > 1 ? end_behind(fragment, spans, parts.back().first) : length;
  const auto ended = [&](std::size_t part) {
    if (part == 0 || host.blocking_launches) return 0.0;  // kernels hide nothing of launches that block
    return part == parts.size() ? end : spans[parts[part].first].start;
  };
  struct InSeconds {
    double all, one;
  };
  const auto part = [&](std::size_t p) { return InSeconds{parts[p].all / units::s, parts[p].one / units::s}; };
  return wait_for_launches(parts.size(), part, ended, length - end);
}

// For the work of a wait that ends the fragment of so many nodes.
std::vector<HostLaunches> launches_before(const Host& host, const std::vector<Launches>& parts, std::size_t nodes) {
  std::vector<HostLaunches> out;
  for (const Launches& part : parts) {
    // Launches that block are hidden by no kernel.
    const std::size_t before = host.blocking_launches ? 0 : nodes - part.first;
    out.push_back({static_cast<std::uint32_t>(before), part.all, part.one});
  }
  return out;
}

// How long the GPU waits in runs of the fragments of a program, whose own collectives slow down the kernels beside them
// where costs have demands: kernels that take longer hide more launches.
class LaunchWaits {
 public:
  LaunchWaits(const Host& host, double deviation, const StepProgram& program, const ProgramCosts& costs)
      : host_(host), deviation_(deviation), program_(program), costs_(costs) {}

  // What the host launches for the fragment that was asked for last.
  std::vector<HostLaunches> launches() const { return launches_before(host_, parts_, nodes_); }

  // By row of costs. Of a program to which nothing but these waits was added since the first call.
  const std::vector<Forecast>& of(std::uint32_t number) {
    const Fragment& fragment = program_.fragments[number];
    nodes_ = fragment.nodes.size();
    parts_ = parts_of(host_, fragment, program_.works, deviation_);
    waits_.assign(costs_.rows.size(), {});
    for (std::uint32_t r = 0; r < costs_.rows.size(); ++r) {
      const ProgramCosts::Row& row = costs_.rows[r];
      const auto duration = [&](std::uint32_t work) { return row.forecasts[work].latency / units::s; };
      const double length = fragment_length(fragment, duration, spans_);
      double wait = wait_of(host_, fragment, parts_, spans_, length);
      if (wait > 0 && !row.demands.empty()) {
        // On the grid of the clocks, where sums are exact: a run beside others never becomes shorter than one alone.
        const Grid grid;
        const double alone = fragment_length(
            fragment, [&](std::uint32_t work) { return grid.snap(duration(work)); }, spans_);
        const double slow = run_beside_its_own(r, number);
        if (slow > alone)
          wait = std::max(wait_of(host_, fragment, parts_, spans_, slow), grid.snap(wait) - (slow - alone));
      }
      Forecast& found = waits_[r];
      found.low = found.high = found.latency = wait * units::s;
    }
    return waits_;
  }

 private:
  // Sets spans_ of a run beside its own collectives, and returns what it takes.
  double run_beside_its_own(std::uint32_t row, std::uint32_t fragment) {
    if (!queue_) queue_.emplace(program_, costs_, ProgramQueue::Options());
    spans_ = queue_->alone(row, FragmentId{fragment});
    double length = 0;
    for (const NodeSpan& span : spans_) length = std::max(length, span.end);
    return length;
  }

  const Host& host_;
  double deviation_;
  const StepProgram& program_;
  const ProgramCosts& costs_;
  std::optional<ProgramQueue> queue_;
  std::size_t nodes_ = 0;
  std::vector<Launches> parts_;
  std::vector<NodeSpan> spans_;
  std::vector<Forecast> waits_;
};

// Mapping memory hides behind kernels but for 0.3 (V100), 0.8 (MI210) and 1.5 ms (MI100) for each GB: what forward
// passes of FP32 models took beyond their kernels where PyTorch's cache had been emptied (median). At worst nothing
// hides.
constexpr double kMapping = 0.8e-12, kExposedMapping = 14e-12;  // s/B
// Where tensors fill more than this share of memory, cudaMalloc fails, and PyTorch waits for the GPU, gives its cache
// back and calls again: 1.4 and 1.8 ms for each tensor in two steps that fill 0.80 and 0.88 of an MI210, whatever its
// size; nothing in one that fills 0.79 of what an L4 has beside ECC.
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
WorkId add_wait(std::string_view name, std::span<const Forecast> forecasts, std::vector<HostLaunches> launches,
                StepProgram& program, ProgramCosts& costs) {
  WorkItem item;
  item.name = name;
  item.category = name == kHostLaunches ? Category::kLaunches : Category::kOther;
  item.work = Operator{UnknownOperator{std::string(name), {}, {}, {}}, DType::kBf16};
  item.launches = std::move(launches);
  const WorkId work = program.works.add(std::move(item));
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
  const WorkId work = add_wait(name, forecasts, {}, program, costs);
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
    const bool tight = used.total() - used.other > kTight * scenario.cluster.gpu.memory;
    Forecast mapping;
    mapping.latency = (tight ? bytes / tensor * kTightCall : bytes * kMapping) * units::s;
    constexpr double kLeast = 0.4, kMost = 1.6;  // of the interval. Chosen, not fitted
    mapping.low = kLeast * mapping.latency;
    mapping.high = tight ? kMost * mapping.latency : bytes * kExposedMapping * units::s;
    add_at_end(stage, "host.memory", mapping, program, costs);
  }
}

bool add_host_waits(const Host& host, double deviation, StepProgram& program, ProgramCosts& costs, bool every) {
  if (host.cuda_graphs.step || !(host.launch_cost > Seconds())) return false;
  bool any = false;
  LaunchWaits all(host, deviation, program, costs);
  for (std::uint32_t f = 0; f < program.fragments.size(); ++f) {
    const std::vector<Forecast>& waits = all.of(f);
    Fragment& fragment = program.fragments[f];
    const bool waited =
        std::any_of(waits.begin(), waits.end(), [](const Forecast& wait) { return wait.latency > Seconds(); });
    if (!waited && (!every || fragment.nodes.empty())) continue;
    any |= waited;
    const WorkId work = add_wait(kHostLaunches, waits, all.launches(), program, costs);
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
