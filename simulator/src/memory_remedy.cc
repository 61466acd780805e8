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

// How often `from` can be doubled up to `to`.
int doublings(std::int64_t from, std::int64_t to) {
  int times = 0;
  for (; from <= to / 2; from *= 2) ++times;
  return times;
}

// Each candidate, and each after 1 to `most` steps of one more change.
template <class Change>
std::vector<Remedy> varied(const std::vector<Remedy>& candidates, int most, Change change) {
  std::vector<Remedy> out;
  for (const Remedy& candidate : candidates) {
    out.push_back(candidate);
    for (int steps = 1; steps <= most; ++steps) change(out.emplace_back(candidate), steps);
  }
  return out;
}

// Every plan that changes this one by doubling tp or pp, halving the microbatch, recomputing more or sharding the
// optimizer, and under ZeRO-3 by doubling dp. Data-parallel replicas are given up for the other degrees where they
// divide.
std::vector<Remedy> candidates_for(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<Remedy> all = {{plan, scenario.training, 0}};
  all = varied(all, doublings(plan.tp, scenario.cluster.gpus_per_node()), [&](Remedy& each, int steps) {
    each.plan.tp <<= steps;
    each.plan.sequence_parallel = plan.sequence_parallel || plan.tp == 1;
    each.cost += kDoubleTp * steps;
  });
  all = varied(all, doublings(plan.pp, scenario.model.layers), [](Remedy& each, int steps) {
    each.plan.pp <<= steps;
    each.cost += kDoublePp * steps;
  });
  for (Remedy& each : all) {
    const std::int64_t growth = (each.plan.tp / plan.tp) * (each.plan.pp / plan.pp);
    if (plan.dp % growth == 0) each.plan.dp = plan.dp / growth;
  }
  all = varied(all, doublings(1, scenario.training.micro_batch), [](Remedy& each, int steps) {
    each.training.micro_batch >>= steps;
    each.cost += kHalfMicroBatch * steps;
  });
  const int recompute = static_cast<int>(plan.recompute);
  all = varied(all, static_cast<int>(Recompute::kFull) - recompute, [&](Remedy& each, int steps) {
    each.plan.recompute = static_cast<Recompute>(recompute + steps);
    each.cost += each.plan.recompute == Recompute::kFull ? kFull : kSelective;
  });
  all = varied(all, plan.zero == ZeroStage::kNone ? 1 : 0, [](Remedy& each, int) {
    each.plan.zero = ZeroStage::kOptimizer;
    each.cost += kShard;
  });
  // Replicas that share the weights need the less memory the more they are; others need the same.
  const bool shared = plan.zero == ZeroStage::kParameters && plan.shard == 0;
  return varied(all, shared ? doublings(1, kMostReplicas) : 0, [](Remedy& each, int steps) { each.plan.dp <<= steps; });
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
  for (const Remedy& candidate : candidates_for(scenario)) {
    if (!framework_has(scenario, candidate.plan)) continue;
    if (const auto ranks = rank_count(candidate.plan)) order.emplace_back(*ranks, candidate.cost, candidate);
  }
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
