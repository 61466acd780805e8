#include "fragment.h"

#include <algorithm>
#include <span>
#include <utility>

namespace ns_dist {
namespace {

using Calls = std::span<const Call>;

bool communicates(const Call& call) { return std::holds_alternative<Communication>(call.what); }

// Nodes in the order in which a rank launches them. Kernels follow one another; a communication starts after the kernel
// before it, and kernels wait for it with `blocking` or `wait`.
class Recording {
 public:
  explicit Recording(std::size_t calls) {
    fragment_.nodes.reserve(calls);
    fragment_.dependencies.reserve(2 * calls);
  }

  void kernel(WorkId work) {
    begin(Stream::kCompute, work);
    for (const std::int32_t node : pending_) depend(node);
    pending_.clear();
    last_kernel_ = last();
  }

  // Starts a communication after the last kernel and `waits`.
  std::int32_t start(Stream stream, WorkId work, std::span<const std::int32_t> waits) {
    begin(stream, work);
    for (const std::int32_t node : waits) depend(node);
    depend(last_kernel_);
    return last();
  }
  // Whatever comes next waits for the communication, and the communication for all that was pending.
  void blocking(Stream stream, WorkId work) { pending_ = {start(stream, work, pending_)}; }

  void wait(std::int32_t communication) { pending_.push_back(communication); }
  const std::vector<std::int32_t>& pending() const { return pending_; }

  Fragment take() && {
    fragment_.exits = std::move(pending_);
    return std::move(fragment_);
  }

 private:
  void begin(Stream stream, WorkId work) {
    fragment_.nodes.push_back({stream, work, static_cast<std::uint32_t>(fragment_.dependencies.size()), 0});
  }
  void depend(std::int32_t node) {
    fragment_.dependencies.push_back(node);
    ++fragment_.nodes.back().dependency_count;
  }
  std::int32_t last() const { return static_cast<std::int32_t>(fragment_.nodes.size()) - 1; }

  Fragment fragment_;
  std::vector<std::int32_t> pending_{kEntry};
  std::int32_t last_kernel_ = kPreviousKernel;
};

// Records the calls of steps.
class Writer {
 public:
  Writer(WorkTable& works, const std::array<RankGroup, 6>& groups, std::size_t calls, TensorBlocking blocking)
      : works_(works), groups_(groups), recording_(calls), blocking_(blocking) {}

  // Calls of this step follow.
  void begin(const BlockStep& step) {
    if (!step.hides) wait_for(Beside::kSteps);
    module_ = step.module;
  }

  void run(const Call& call, Category category) {
    if (const auto* op = std::get_if<Operator>(&call.what)) {
      recording_.kernel(works_.intern({call.name, category, *op, {}, call.after_read, module_}));
      wait_for(Beside::kKernel);
      return;
    }
    const auto& communication = std::get<Communication>(call.what);
    if (group(communication).size() == 1) return;
    if (communication.beside == Beside::kNothing || blocking_ == TensorBlocking::kOn) {
      recording_.blocking(stream(communication), work(call, communication));
      return;
    }
    const std::int32_t node = recording_.start(stream(communication), work(call, communication), recording_.pending());
    under_way_.push_back({node, communication.beside});
  }
  void run(Calls calls, Category category) {
    for (const Call& call : calls) run(call, category);
  }

  void both_gradients(const BlockStep& step) {
    Calls input = step.input_gradient, weight = step.weight_gradient;
    if (std::all_of(input.begin(), input.end(), communicates) ||
        std::all_of(weight.begin(), weight.end(), communicates)) {
      // There is no kernel beside which anything could run.
      run(input, Category::kBackward);
      run(weight, Category::kBackward);
      return;
    }
    std::size_t leading = 0, trailing = 0;
    while (communicates(weight[leading])) ++leading;
    while (communicates(input[input.size() - 1 - trailing])) ++trailing;
    const Calls gathers = weight.first(leading), reductions = input.last(trailing);
    input = input.first(input.size() - trailing);
    weight = weight.subspan(leading);
    const std::int32_t gathered = blocking_ == TensorBlocking::kOn ? kNone : start(gathers);
    if (blocking_ == TensorBlocking::kOn) run(gathers, Category::kBackward);
    run(input, Category::kBackward);
    const std::int32_t reduced = blocking_ == TensorBlocking::kOff ? start(reductions) : kNone;
    if (gathered != kNone) recording_.wait(gathered);
    run(weight, Category::kBackward);
    if (reduced != kNone) recording_.wait(reduced);
    if (blocking_ != TensorBlocking::kOff) run(reductions, Category::kBackward);
  }

  Fragment take() && {
    for (const UnderWay& other : under_way_) recording_.wait(other.node);
    return std::move(recording_).take();
  }

 private:
  static constexpr std::int32_t kNone = -3;
  struct UnderWay {
    std::int32_t node = 0;  // communication
    Beside beside = Beside::kNothing;
  };

  void wait_for(Beside beside) {
    for (const UnderWay& other : under_way_) {
      if (other.beside == beside) recording_.wait(other.node);
    }
    std::erase_if(under_way_, [beside](const UnderWay& other) { return other.beside == beside; });
  }

  // Starts communications one after another. Returns the last one.
  std::int32_t start(Calls calls) {
    std::int32_t started = kNone;
    for (const Call& call : calls) {
      const auto& communication = std::get<Communication>(call.what);
      if (group(communication).size() == 1) continue;
      const std::span<const std::int32_t> waits =
          started == kNone ? std::span<const std::int32_t>(recording_.pending()) : std::span(&started, 1);
      started = recording_.start(stream(communication), work(call, communication), waits);
    }
    return started;
  }

  const RankGroup& group(const Communication& communication) const {
    return groups_[static_cast<std::size_t>(communication.axis)];
  }
  struct Lane {
    Stream stream;
    Category category;
  };
  static Lane lane(Axis axis) {
    switch (axis) {
      case Axis::kTensor:
      case Axis::kExpertTensor:
        break;
      case Axis::kExpert:
        return {Stream::kExpertParallel, Category::kExpertParallel};
      case Axis::kContext:
      case Axis::kContextInner:
      case Axis::kContextPair:
        return {Stream::kContextParallel, Category::kContextParallel};
    }
    return {Stream::kTensorParallel, Category::kTensorParallel};
  }
  static Stream stream(const Communication& communication) { return lane(communication.axis).stream; }
  WorkId work(const Call& call, const Communication& communication) const {
    return works_.intern({call.name,
                          lane(communication.axis).category,
                          Collective{.kind = communication.kind,
                                     .size = communication.size,
                                     .group = group(communication),
                                     .imbalance = communication.imbalance,
                                     .routing = communication.routing,
                                     .ring = ring(communication)},
                          {},
                          call.after_read,
                          module(communication.axis)});
  }
  // Experts' preprocessing ends before the exchange.
  std::optional<LayerModule> module(Axis axis) const {
    const bool of_experts = axis == Axis::kExpert || axis == Axis::kExpertTensor;
    return of_experts && module_ ? LayerModule::kMoe : module_;
  }
  // Of context parallelism: as many ranks as have no heads to exchange, each next to the other.
  Stride ring(const Communication& communication) const {
    if (communication.axis != Axis::kContextPair) return {};
    const Stride& all = groups_[static_cast<std::size_t>(Axis::kContext)].strides.front();
    const Stride& inner = groups_[static_cast<std::size_t>(Axis::kContextInner)].strides.front();
    return {all.count / inner.count, inner.count * inner.stride};
  }

  WorkTable& works_;
  const std::array<RankGroup, 6>& groups_;
  Recording recording_;
  std::vector<UnderWay> under_way_;
  TensorBlocking blocking_;
  std::optional<LayerModule> module_;  // of the calls that follow
};

// Nodes of a fragment in launch order, with their numbers in the merged fragment.
struct Turn {
  const Fragment* fragment;
  std::vector<std::int32_t> merged;  // numbers of the nodes that were taken
  std::int32_t began = 0;            // merged number at which the turn began

  bool done() const { return merged.size() == fragment->nodes.size(); }
  std::int32_t number(std::int32_t node) const { return node < 0 ? node : merged[static_cast<std::size_t>(node)]; }
  std::span<const std::int32_t> dependencies(const FragmentNode& node) const {
    return std::span(fragment->dependencies).subspan(node.first_dependency, node.dependency_count);
  }
  bool waits() const {
    const FragmentNode& next = fragment->nodes[merged.size()];
    if (next.stream != Stream::kCompute) return false;
    const auto on = dependencies(next);
    return std::any_of(on.begin(), on.end(), [&](std::int32_t node) {
      return node >= 0 && fragment->nodes[static_cast<std::size_t>(node)].stream != Stream::kCompute &&
             number(node) >= began;
    });
  }
};

}  // namespace

FragmentMaker::FragmentMaker(const Shape& shape, const Mesh& mesh, WorkTable& works) : shape_(&shape), works_(&works) {
  const ParallelPlan& plan = *shape.plan;
  const auto set = [&](Axis axis, RankGroup group) { groups_[static_cast<std::size_t>(axis)] = std::move(group); };
  set(Axis::kTensor, tensor_group(plan, mesh, 0));
  if (shape.ep > 1) set(Axis::kExpert, expert_group(plan, mesh, 0));
  set(Axis::kExpertTensor, expert_tensor_group(plan, mesh, 0));
  if (shape.cp == 1) return;
  set(Axis::kContext, context_group(plan, mesh, 0));
  set(Axis::kContextInner, context_inner_group(mesh, 0, shape.cp_inner));
  set(Axis::kContextPair, context_pair(plan, mesh, 0, shape.cp_inner));
}

Fragment FragmentMaker::pass(const Block& block, PassKind kind) const {
  const ParallelPlan& plan = *shape_->plan;
  const bool full = plan.recompute == Recompute::kFull,
             again = kind == PassKind::kBackward || kind == PassKind::kInputGradient;
  std::size_t calls = 0;
  for (const BlockStep& step : block.steps) {
    calls += step.forward.size() + step.input_gradient.size() + step.weight_gradient.size();
  }
  Writer writer(*works_, groups_, calls, plan.blocking_tp);
  const auto forward = [&](std::size_t i, Calls calls_of_step, Category category) {
    writer.begin(block.steps[i]);
    writer.run(calls_of_step, category);
  };
  if (kind == PassKind::kForward) {
    for (std::size_t i = 0; i < block.steps.size(); ++i) forward(i, block.steps[i].forward, Category::kForward);
    return std::move(writer).take();
  }
  const std::vector<StepRange> ranges =
      again ? recomputed_steps(block, plan.recompute, plan.recompute_modules) : std::vector<StepRange>();
  const bool stops = full && plan.recompute_early_stop && !ranges.empty();
  const std::vector<std::size_t> until_kept = stops ? calls_until_kept(block) : std::vector<std::size_t>();
  auto range = ranges.begin();
  for (std::size_t end = block.steps.size(); end > 0; --end) {
    if (range != ranges.end() && range->end == end) {
      for (std::size_t i = range->first; i < end; ++i) {
        const BlockStep& step = block.steps[i];
        if (plan.recompute == Recompute::kOperators) {
          forward(i, step.repeated, Category::kRecompute);
          continue;
        }
        const Calls all = step.forward;
        if (!full && (step.again & plan.recompute_modules) == 0) continue;
        forward(i, stops ? all.first(until_kept[i]) : all, Category::kRecompute);
      }
      ++range;
    }
    const BlockStep& step = block.steps[end - 1];
    writer.begin(step);
    switch (kind) {
      case PassKind::kForward:
        break;
      case PassKind::kBackward:
        writer.both_gradients(step);
        break;
      case PassKind::kInputGradient:
        writer.run(step.input_gradient, Category::kBackward);
        break;
      case PassKind::kWeightGradient:
        writer.run(step.weight_gradient, Category::kBackward);
        break;
    }
  }
  return std::move(writer).take();
}

Fragment FragmentMaker::of(Calls calls, Category category) const {
  Writer writer(*works_, groups_, calls.size(), shape_->plan->blocking_tp);
  writer.run(calls, category);
  return std::move(writer).take();
}

Fragment beside(const Fragment& first, const Fragment& second) {
  Fragment merged;
  merged.nodes.reserve(first.nodes.size() + second.nodes.size());
  merged.dependencies.reserve(first.dependencies.size() + second.dependencies.size());
  Turn turns[2] = {{&first, {}, 0}, {&second, {}, 0}};
  for (Turn& turn : turns) turn.merged.reserve(turn.fragment->nodes.size());
  Turn *current = &turns[0], *other = &turns[1];
  while (!current->done() || !other->done()) {
    if (current->done() || (current->waits() && !other->done())) {
      std::swap(current, other);
      current->began = static_cast<std::int32_t>(merged.nodes.size());
    }
    const FragmentNode& node = current->fragment->nodes[current->merged.size()];
    const auto dependencies = static_cast<std::uint32_t>(merged.dependencies.size());
    for (const std::int32_t on : current->dependencies(node)) merged.dependencies.push_back(current->number(on));
    current->merged.push_back(static_cast<std::int32_t>(merged.nodes.size()));
    merged.nodes.push_back({node.stream, node.work, dependencies, node.dependency_count});
  }
  for (const Turn& turn : turns) {
    for (const std::int32_t exit : turn.fragment->exits) {
      const std::int32_t number = turn.number(exit);
      if (std::find(merged.exits.begin(), merged.exits.end(), number) == merged.exits.end()) {
        merged.exits.push_back(number);
      }
    }
  }
  return merged;
}

void append(const Fragment& from, std::int32_t last_kernel, Fragment& made) {
  const auto base = static_cast<std::int32_t>(made.nodes.size());
  const auto moved = [&](std::int32_t on) {
    if (on >= 0) return on + base;
    return on == kPreviousKernel ? last_kernel : on;
  };
  for (const FragmentNode& node : from.nodes) {
    const auto first = static_cast<std::uint32_t>(made.dependencies.size());
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      made.dependencies.push_back(moved(from.dependencies[node.first_dependency + d]));
    }
    made.nodes.push_back({node.stream, node.work, first, node.dependency_count});
  }
  for (const std::int32_t exit : from.exits) {
    const std::int32_t on = moved(exit);
    if (std::find(made.exits.begin(), made.exits.end(), on) == made.exits.end()) made.exits.push_back(on);
  }
}

}  // namespace ns_dist
