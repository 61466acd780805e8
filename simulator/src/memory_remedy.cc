#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "advice.h"
#include "fewer_layers.h"
#include "machine.h"
#include "memory_savings.h"
#include "ns_dist/internal/offload_parts.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "plan_defaults.h"
#include "scenario_fields.h"
#include "step_times.h"

namespace ns_dist {
namespace {

// How many plans that fit are compared by the clock without sharing, and how many of these by the clock of the step.
constexpr std::size_t kMostFitting = 128;
constexpr std::ptrdiff_t kMostTimed = 3;
// A plan that fits with nothing to spare is proposed where others take this much longer; more GPUs, where the optimizer
// on the host takes this much more of their time.
constexpr double kMuchFaster = 1.5;
// The optimizer on the host is proposed where all else takes this much longer. It depends on hosts, which are less
// known.
constexpr double kFaster = 1.1;

// A plan whose memory fits, and where it runs.
struct Fitting {
  SmallerPlan candidate;
  Cluster machine;
  Bytes peak, device;
  std::int64_t ranks = 0;
  Seconds step;
};

class RemedySearch {
 public:
  RemedySearch(const Scenario& scenario, const Session& session)
      : scenario_(scenario),
        session_(session),
        degrees_(other_degrees(scenario)),
        savings_(savings_for(scenario)),
        framework_(scenario) {
    for (const SmallerPlan& each : degrees_) {
      if (const auto ranks = rank_count(each.plan)) by_ranks_[*ranks].push_back(&each);
    }
  }

  std::optional<FittingPlan> find() {
    std::optional<Fitting> best = fastest_near();
    if (!best) return std::nullopt;
    if (offloads(best->candidate)) offload_less(*best);
    if (best->candidate.plan.recompute == Recompute::kFull && scenario_.plan.recompute != Recompute::kFull)
      recompute_less(*best);
    return FittingPlan{changed_to(best->candidate, best->machine),
                       {best->peak, best->device, best->step, best->ranks, changes(best->candidate)}};
  }

 private:
  // How a plan gets its memory.
  enum class Gpus { kNoMore, kMore };
  enum class Optimizer { kStays, kOnHost };
  struct Pair {
    double cost;
    const SmallerPlan *degrees, *saving;
  };

  static bool faster(const Fitting& a, const Fitting& b) { return a.step < b.step; }

  bool offloads(const SmallerPlan& candidate) const {
    return candidate.plan.offload_optimizer.value > scenario_.plan.offload_optimizer.value;
  }

  Scenario changed_to(const SmallerPlan& candidate, const Cluster& machine) const {
    Scenario changed = scenario_;
    changed.plan = candidate.plan;
    changed.training = candidate.training;
    changed.cluster = machine;
    follow_context(scenario_, changed);
    return changed;
  }

  // What the user would write.
  std::vector<Assignment> changes(const SmallerPlan& candidate) const {
    std::vector<Assignment> set = differences(scenario_.plan, candidate.plan);
    // Sequence parallelism from tp.
    const bool follows = !sets_what_follows(scenario_) && !scenario_.named.names.contains("plan/sequence_parallel");
    std::erase_if(set, [=](const Assignment& each) { return follows && each.field == "plan/sequence_parallel"; });
    for (const auto& more :
         {differences(scenario_.training, candidate.training), to_keep_machine(scenario_, candidate.plan)}) {
      set.insert(set.end(), more.begin(), more.end());
    }
    return set;
  }

  // A lower bound of what a plan needs, of microbatches of one sequence of which all is computed again: candidates of
  // the same degrees, shares and weights have the same, and what it is made of is remembered.
  Bytes least_of(const Scenario& changed) const {
    ParallelPlan plan = changed.plan;
    Training training = changed.training;
    training.global_batch = microbatches_of(plan, training) * plan.dp;  // as many microbatches
    training.micro_batch = 1;
    if (plan.passes != Passes::kForward) set_recomputation(plan, {Recompute::kFull});
    constexpr double kRounding = 1e-9;
    return (1 - kRounding) * least_memory(scenario_.model, plan, training, session_.plans());
  }

  Result<Seconds> step_of(const Scenario& changed) {
    if (session_.serves(changed)) return step_time(changed, session_);
    NS_TRY(const std::shared_ptr<const Session> other, others_.of(changed));
    return step_time(changed, *other);
  }

  // On the GPUs that there are, or on more of them; with the optimizer on the GPUs, or on the hosts.
  std::optional<Fitting> fastest_near() {
    std::optional<Fitting> best = on_fewest(Gpus::kNoMore, Optimizer::kStays);
    if (best) {
      const auto now = step_of(scenario_);
      if (!now || !(kFaster * *now < best->step)) return best;
      std::optional<Fitting> offloading = best_of(best->ranks, Optimizer::kOnHost);
      return offloading && kFaster * offloading->step < best->step ? offloading : best;
    }
    std::optional<Fitting> larger = on_fewest(Gpus::kMore, Optimizer::kStays);
    const bool fills = rank_count(scenario_.plan).value_or(0) >= scenario_.cluster.gpu_count();
    if (fills || !larger) best = on_fewest(Gpus::kNoMore, Optimizer::kOnHost);
    const auto spent = [](const Fitting& each) { return static_cast<double>(each.ranks) * each.step; };
    return !best || (larger && kMuchFaster * spent(*larger) < spent(*best)) ? larger : best;
  }

  std::optional<Fitting> on_fewest(Gpus gpus, Optimizer optimizer) {
    for (const auto& [ranks, all] : by_ranks_) {
      if ((ranks > scenario_.cluster.gpu_count()) != (gpus == Gpus::kMore)) continue;
      if (auto best = best_of(ranks, optimizer)) return best;
    }
    return std::nullopt;
  }

  // The fastest plan of so many ranks that fits with fragmentation; where there is none, or where it is much slower,
  // the fastest one whose tensors fit.
  std::optional<Fitting> best_of(std::int64_t ranks, Optimizer optimizer) {
    std::vector<Fitting> fitting, tight;
    for (const Pair& pair : by_cost(ranks, optimizer)) {
      if (fitting.size() == kMostFitting) break;
      std::optional<Fitting> each =
          fit(together(scenario_.model, *pair.degrees, *pair.saving), tight.size() < kMostFitting);
      if (!each) continue;
      each->ranks = ranks;
      (each->device <= scenario_.cluster.gpu.memory ? fitting : tight).push_back(*std::move(each));
    }
    std::optional<Fitting> best = fastest(fitting), other = fastest(tight);
    return !best || (other && kMuchFaster * other->step < best->step) ? other : best;
  }

  // Degrees of so many ranks with each saving, what usually costs least first.
  std::vector<Pair> by_cost(std::int64_t ranks, Optimizer optimizer) {
    std::vector<Pair> order;
    for (const SmallerPlan* degrees : by_ranks_[ranks]) {
      for (const SmallerPlan& saving : savings_) {
        if (offloads(saving) == (optimizer == Optimizer::kOnHost) && go_together(scenario_, *degrees, saving))
          order.push_back({degrees->cost + saving.cost, degrees, &saving});
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Pair& a, const Pair& b) { return a.cost < b.cost; });
    return order;
  }

  // With the step that it takes where nothing is shared. Nothing: it does not fit, or only its tensors fit and it may
  // not be tight.
  std::optional<Fitting> fit(const SmallerPlan& candidate, bool may_be_tight) {
    const Bytes capacity = scenario_.cluster.gpu.memory;
    tried_.plan = candidate.plan;
    tried_.training = candidate.training;
    if (!framework_.has(tried_)) return std::nullopt;
    follow_context(scenario_, tried_);
    if (!check_all_but_schedule(scenario_.model, tried_.plan, candidate.training)) return std::nullopt;
    if (least_of(tried_) > capacity) return std::nullopt;
    const auto memory = memory_budget(scenario_.model, tried_.plan, candidate.training, session_.plans());
    if (!memory || !memory->fits(capacity) || (!may_be_tight && memory->device() > capacity)) return std::nullopt;
    const auto machine = machine_for(scenario_, candidate.plan);
    if (!machine) return std::nullopt;
    const auto step = step_of(without_sharing(changed_to(candidate, *machine)));
    if (!step) return std::nullopt;
    return Fitting{candidate, *machine, memory->peak(), memory->device(), 0, *step};
  }

  // Of plans that are timed without sharing: a few of them are timed with it.
  std::optional<Fitting> fastest(std::vector<Fitting>& all) {
    std::stable_sort(all.begin(), all.end(), faster);
    if (std::ssize(all) > kMostTimed) all.erase(all.begin() + kMostTimed, all.end());
    for (Fitting& each : all) each.step = step_of(changed_to(each.candidate, each.machine)).value_or(each.step);
    const auto best = std::min_element(all.begin(), all.end(), faster);
    return best == all.end() ? std::nullopt : std::optional(std::move(*best));
  }

  // A part of the optimizer stays on the GPU, if that fits and is faster.
  void offload_less(Fitting& best) {
    for (const double part : kOffloadParts) {
      if (part <= scenario_.plan.offload_optimizer.value) continue;
      if (part >= best.candidate.plan.offload_optimizer.value) return;
      Scenario less = changed_to(best.candidate, best.machine);
      less.plan.offload_optimizer = {part};
      if (!framework_.has(less)) continue;
      const auto memory = memory_budget(less.model, less.plan, less.training, session_.plans());
      if (!memory || memory->device() > max(best.device, scenario_.cluster.gpu.memory)) continue;
      const auto step = step_of(less);
      if (!step || *step >= best.step) continue;
      best.candidate.plan = less.plan;
      best.peak = memory->peak(), best.device = memory->device(), best.step = *step;
      return;  // the next one moves more
    }
  }

  // A part of the layers keeps its activations, if that fits and is faster.
  void recompute_less(Fitting& best) {
    Scenario changed = changed_to(best.candidate, best.machine);
    const auto fewer = recomputing_fewer_layers(changed, scenario_, session_);
    if (!fewer) return;
    changed.plan = fewer->plan;
    const auto step = step_of(changed);
    if (!step || *step >= best.step) return;
    best.candidate.plan = fewer->plan;
    best.peak = fewer->memory.peak(), best.device = fewer->memory.device(), best.step = *step;
  }

  const Scenario& scenario_;
  const Session& session_;
  Sessions others_;  // of other machines than the scenario's
  const std::vector<SmallerPlan> degrees_, savings_;
  std::map<std::int64_t, std::vector<const SmallerPlan*>> by_ranks_;  // of degrees_
  const FrameworkLimits framework_;
  Scenario tried_ = scenario_;  // with the plan that is tried, and what follows from it
};

}  // namespace

std::optional<FittingPlan> memory_remedy(const Scenario& scenario, const Session& session) {
  return RemedySearch(scenario, session).find();
}

}  // namespace ns_dist
