#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <vector>

#include "advice.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "scenario_fields.h"

namespace ns_dist {
namespace {

// What a change usually costs, as a share of the step: only their order matters. Full recomputation repeats the
// forward pass, a third of the work; selective about 4 % of it (Korthikanti et al. 2022, s.5); the others cost
// efficiency of smaller kernels, or more communication and bubble. What is tried first is tried for sure.
constexpr double kFull = 0.33, kSelective = 0.03, kShard = 0.01, kHalfMicroBatch = 0.05, kDoublePp = 0.08,
                 kDoubleTp = 0.10;

// How many plans that fit are compared by the clock without sharing, and how many of these by the clock of the step.
constexpr std::size_t kMostFitting = 24;
constexpr std::ptrdiff_t kMostTimed = 3;
constexpr std::int64_t kMostReplicas = 64;  // times as many

struct Remedy {
  ParallelPlan plan;
  Training training;
  double cost = 0;
};

std::vector<Assignment> changes(const Scenario& scenario, const Remedy& candidate) {
  std::vector<Assignment> set = differences(scenario.plan, candidate.plan);
  std::erase_if(set, [](const Assignment& each) { return each.field == "plan/sequence_parallel"; });  // follows from tp
  const auto more = differences(scenario.training, candidate.training);
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

// Calls `visit` for every plan that changes this one by doubling tp or pp, halving the microbatch, recomputing more or
// sharding the optimizer, and under ZeRO-3 by doubling dp. Data-parallel replicas are given up for the other degrees
// where they divide.
template <class Visit>
void for_each_candidate(const Scenario& scenario, Visit visit) {
  const ParallelPlan& plan = scenario.plan;
  // Replicas that share the weights need the less memory the more they are; others need the same.
  const std::int64_t most_replicas = plan.zero == ZeroStage::kParameters && plan.shard == 0 ? kMostReplicas : 1;
  int tp_doublings = 0;
  for (std::int64_t tp = plan.tp; tp <= std::max(plan.tp, scenario.cluster.gpus_per_node()); tp *= 2, ++tp_doublings) {
    int pp_doublings = 0;
    for (std::int64_t pp = plan.pp; pp <= std::max(plan.pp, scenario.model.layers); pp *= 2, ++pp_doublings) {
      int halvings = 0;
      for (std::int64_t micro = scenario.training.micro_batch; micro >= 1; micro /= 2, ++halvings) {
        for (int recompute = static_cast<int>(plan.recompute); recompute <= static_cast<int>(Recompute::kFull);
             ++recompute) {
          for (const bool shard : {false, true}) {
            if (shard && plan.zero != ZeroStage::kNone) continue;
            for (std::int64_t more = 1; more <= most_replicas; more *= 2) {
              Remedy candidate{plan, scenario.training, 0};
              candidate.plan.tp = tp;
              candidate.plan.pp = pp;
              candidate.plan.sequence_parallel = tp > 1 && (plan.sequence_parallel || plan.tp == 1);
              const std::int64_t growth = (tp / plan.tp) * (pp / plan.pp);
              candidate.plan.dp = more * (plan.dp % growth == 0 ? plan.dp / growth : plan.dp);
              candidate.training.micro_batch = micro;
              candidate.plan.recompute = static_cast<Recompute>(recompute);
              if (shard) candidate.plan.zero = ZeroStage::kOptimizer;
              candidate.cost = kDoubleTp * tp_doublings + kDoublePp * pp_doublings + kHalfMicroBatch * halvings +
                               (shard ? kShard : 0);
              if (candidate.plan.recompute != plan.recompute) {
                candidate.cost += candidate.plan.recompute == Recompute::kFull ? kFull : kSelective;
              }
              visit(candidate);
            }
          }
        }
      }
    }
  }
}

// The scenario with another plan, on as many more nodes as it needs.
Scenario changed_to(const Scenario& from, const Remedy& candidate, std::int64_t ranks) {
  Scenario changed = from;
  changed.plan = candidate.plan;
  changed.training = candidate.training;
  std::vector<FabricLevel>& levels = changed.cluster.levels;
  if (const std::int64_t gpus = changed.cluster.gpu_count(); levels.size() > 1 && ranks > gpus && gpus > 0) {
    const std::int64_t node = gpus / levels.back().size;
    levels.back().size = (ranks + node - 1) / node;
  }
  return changed;
}

}  // namespace

std::optional<MemoryRemedy> memory_remedy(const Scenario& scenario, const Session& session) {
  std::vector<std::tuple<std::int64_t, double, Remedy>> order;  // by ranks, then by usual cost
  for_each_candidate(scenario, [&](const Remedy& candidate) {
    if (!framework_has(scenario, candidate.plan)) return;
    if (const auto ranks = rank_count(candidate.plan)) order.emplace_back(*ranks, candidate.cost, candidate);
  });
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });

  struct Fitting {
    Remedy candidate;
    Bytes peak;
    std::int64_t ranks = 0;
    Seconds step;
  };
  std::vector<Fitting> fitting;
  std::optional<Session> larger;  // of as many nodes as plans of so many ranks need, where the machine has fewer
  std::int64_t larger_ranks = 0;
  const auto step_of = [&](const Scenario& changed, std::int64_t ranks) -> Result<Seconds> {
    if (changed.cluster == scenario.cluster || !session.has_own_models()) return step_time(changed, session);
    if (ranks != larger_ranks) {
      NS_TRY(larger, Session::make(changed));
      larger_ranks = ranks;
    }
    return step_time(changed, *larger);
  };
  // Plans that fit with fragmentation, too; where there are none, those whose tensors fit.
  for (const bool tight : {false, true}) {
    for (const auto& [ranks, cost, candidate] : order) {
      if (fitting.size() == kMostFitting || (!fitting.empty() && ranks > fitting.front().ranks)) break;
      const auto memory = memory_budget(scenario.model, candidate.plan, candidate.training, session.plans());
      if (!memory || (tight ? memory->peak() : memory->device()) > scenario.cluster.gpu.memory) continue;
      const auto step = step_of(without_sharing(changed_to(scenario, candidate, ranks)), ranks);
      if (step) fitting.push_back({candidate, memory->peak(), ranks, *step});
    }
    if (!fitting.empty()) break;
  }
  const auto faster = [](const Fitting& a, const Fitting& b) { return a.step < b.step; };
  std::stable_sort(fitting.begin(), fitting.end(), faster);
  if (std::ssize(fitting) > kMostTimed) fitting.erase(fitting.begin() + kMostTimed, fitting.end());
  for (Fitting& each : fitting)
    each.step = step_of(changed_to(scenario, each.candidate, each.ranks), each.ranks).value_or(each.step);
  const auto best = std::min_element(fitting.begin(), fitting.end(), faster);
  if (best == fitting.end()) return std::nullopt;
  return MemoryRemedy{best->peak, best->step, changes(scenario, best->candidate)};
}

}  // namespace ns_dist
