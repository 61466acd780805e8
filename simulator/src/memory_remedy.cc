#include <fmt/format.h>

#include <tuple>

#include "advice.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

// What a change usually costs, as a share of the step: only their order matters. Full recomputation repeats the
// forward pass, a third of the work; selective about 4 % of it (Korthikanti et al. 2022, s.5); the others cost
// efficiency of smaller kernels, or more communication and bubble.
constexpr double kFull = 0.33, kSelective = 0.03, kShard = 0.01, kHalfMicroBatch = 0.05, kDoublePp = 0.08,
                 kDoubleTp = 0.10;

struct Candidate {
  ParallelPlan plan;
  Training training;
  double cost = 0;
};

std::vector<Assignment> changes(const Scenario& scenario, const Candidate& candidate) {
  std::vector<Assignment> set = differences(scenario.plan, candidate.plan);
  std::erase_if(set, [](const Assignment& each) { return each.field == "plan/sequence_parallel"; });  // follows from tp
  const auto more = differences(scenario.training, candidate.training);
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

// Calls `visit` for every plan that changes this one by doubling tp or pp, halving the microbatch, recomputing more or
// sharding the optimizer. Data-parallel replicas are given up for the other degrees where they divide.
template <class Visit>
void for_each_candidate(const Scenario& scenario, Visit visit) {
  const ParallelPlan& plan = scenario.plan;
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
            Candidate candidate{plan, scenario.training, 0};
            candidate.plan.tp = tp;
            candidate.plan.pp = pp;
            candidate.plan.sequence_parallel = tp > 1 && (plan.sequence_parallel || plan.tp == 1);
            const std::int64_t growth = (tp / plan.tp) * (pp / plan.pp);
            candidate.plan.dp = plan.dp % growth == 0 ? plan.dp / growth : plan.dp;
            candidate.training.micro_batch = micro;
            candidate.plan.recompute = static_cast<Recompute>(recompute);
            if (shard) candidate.plan.zero = ZeroStage::kOptimizer;
            candidate.cost =
                kDoubleTp * tp_doublings + kDoublePp * pp_doublings + kHalfMicroBatch * halvings + (shard ? kShard : 0);
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

}  // namespace

std::optional<MemoryRemedy> memory_remedy(const Scenario& scenario) {
  std::optional<MemoryRemedy> best;
  std::tuple<std::int64_t, double> best_cost;
  for_each_candidate(scenario, [&](const Candidate& candidate) {
    const auto ranks = rank_count(candidate.plan);
    if (!ranks) return;
    const std::tuple cost{*ranks, candidate.cost};
    if (best && cost >= best_cost) return;
    const auto memory = memory_budget(scenario.model, candidate.plan, candidate.training);
    if (!memory || memory->peak() > scenario.cluster.gpu.memory) return;
    best = MemoryRemedy{memory->peak(), changes(scenario, candidate)};
    best_cost = cost;
  });
  return best;
}

}  // namespace ns_dist
