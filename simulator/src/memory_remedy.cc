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
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "plan_defaults.h"
#include "scenario_fields.h"
#include "step_times.h"

namespace ns_dist {
namespace {

// What a change usually costs, as a share of the step: only their order matters. Full recomputation repeats the
// forward pass, a third of the work; selective about 4 % of it (Korthikanti et al. 2022, s.5), with the MLP about two
// thirds of the forward pass; the others cost efficiency of smaller kernels, or more communication and bubble. What is
// tried first is tried for sure.
constexpr double kFull = 0.33, kRecomputeMlp = 0.2, kSelective = 0.03, kShard = 0.01, kShardGradients = 0.03,
                 kShardWeights = 0.06, kHalfMicroBatch = 0.05, kDoublePp = 0.08, kDoubleTp = 0.10, kDoubleEp = 0.02,
                 kWholeExperts = 0.02, kDoubleCp = 0.04, kContextAcrossNodes = 0.05, kSchedule = 0.04, kOffload = 0.5,
                 kFusedAttention = -0.1, kFrozenIn4Bits = 0.07, kFusedLoss = 0.01, kDoubleDp = 0.01;

// How many plans that fit are compared by the clock without sharing, and how many of these by the clock of the step.
constexpr std::size_t kMostFitting = 128;
constexpr std::ptrdiff_t kMostTimed = 3;
constexpr std::int64_t kMostReplicas = 64;  // times as many
// A plan that fits with nothing to spare is proposed where others take this much longer; more GPUs, where the optimizer
// on the host takes this much more of their time.
constexpr double kMuchFaster = 1.5;
// The optimizer on the host is proposed where all else takes this much longer. It depends on hosts, which are less
// known.
constexpr double kFaster = 1.1;

struct Remedy {
  ParallelPlan plan;
  Training training;
  double cost = 0;
};

std::vector<Assignment> changes(const Scenario& scenario, const Remedy& candidate) {
  std::vector<Assignment> set = differences(scenario.plan, candidate.plan);
  // Sequence parallelism from tp.
  const bool follows = !sets_what_follows(scenario) && !scenario.named.names.contains("plan/sequence_parallel");
  std::erase_if(set, [=](const Assignment& each) { return follows && each.field == "plan/sequence_parallel"; });
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

// Plans that change this one by doubling tp, cp, pp or ep, and by whole experts. Data-parallel replicas are given up
// for the other degrees: as many as leave no GPU idle, or fewer. Or there are more of them, among which the optimizer,
// the weights or the experts are divided.
std::vector<Remedy> other_degrees(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<Remedy> all = {{plan, scenario.training, 0}};
  all = varied(all, doublings(plan.tp, scenario.cluster.gpus_per_node()), [&](Remedy& each, int steps) {
    each.plan.tp <<= steps;
    each.plan.sequence_parallel = usual_sequence_parallel(scenario);
    each.cost += kDoubleTp * steps;
  });
  all = varied(all, doublings(plan.pp, scenario.model.layers), [](Remedy& each, int steps) {
    each.plan.pp <<= steps;
    each.cost += kDoublePp * steps;
  });
  all = varied(all, doublings(plan.cp, std::max(scenario.cluster.gpu_count(), plan.cp)), [&](Remedy& each, int steps) {
    each.plan.cp <<= steps;
    each.cost += kDoubleCp * steps;
    if (each.plan.tp * each.plan.cp > scenario.cluster.gpus_per_node()) each.cost += kContextAcrossNodes;
  });
  std::vector<Remedy> divided;
  for (Remedy& each : all) {
    const std::int64_t growth = (each.plan.tp / plan.tp) * (each.plan.cp / plan.cp) * (each.plan.pp / plan.pp);
    for (std::int64_t times = 1; times <= growth && plan.dp % times == 0; times *= 2) {
      each.plan.dp = plan.dp / times;
      divided.push_back(each);
    }
    for (std::int64_t times = 2; growth * times <= kMostReplicas; times *= 2) {
      each.plan.dp = plan.dp * times;
      each.cost += kDoubleDp;
      divided.push_back(each);
    }
  }
  all = std::move(divided);
  all = varied(all, scenario.model.moe ? doublings(plan.ep, scenario.model.moe->experts) : 0,
               [](Remedy& each, int steps) {
                 each.plan.ep <<= steps;
                 each.cost += kDoubleEp * steps;
               });
  // Experts that tensor parallelism divides may be spread whole instead.
  all = varied(all, scenario.model.moe && plan.etp != 1 ? 1 : 0, [](Remedy& each, int) {
    each.plan.etp = 1;
    each.cost += kWholeExperts;
  });
  std::erase_if(all, [&](const Remedy& each) { return each.plan.etp != plan.etp && each.plan.tp == 1; });
  return all;
}

// What any degrees may have: fused attention, a loss that does not store its logits, frozen weights in 4 bits, a
// smaller microbatch, more recomputation, 1F1B, which keeps few microbatches, the optimizer or the weights shared among
// more replicas, and the optimizer on the host.
std::vector<Remedy> savings_for(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<Remedy> all = {{plan, scenario.training, 0}};
  all = varied(all, can_fuse_attention(scenario) ? 1 : 0, [](Remedy& each, int) {
    each.plan.flash_attention = true;
    each.cost += kFusedAttention;
  });
  const bool may_fuse_loss = loss_library_of(plan) != Library::kLiger && plan.passes == Passes::kTraining;
  all = varied(all, may_fuse_loss ? 1 : 0, [](Remedy& each, int) {
    each.plan.loss_library = Library::kLiger;
    each.cost += kFusedLoss;
  });
  const bool may_freeze = plan.lora_rank > 0 && !freezes_in_4_bits(plan) && !quantizes(scenario.training.precision);
  all = varied(all, may_freeze ? 1 : 0, [](Remedy& each, int) {
    each.plan.frozen_weights = FrozenWeights::kNf4;
    each.cost += kFrozenIn4Bits;
  });
  all = varied(all, doublings(1, scenario.training.micro_batch), [](Remedy& each, int steps) {
    each.training.micro_batch >>= steps;
    each.cost += kHalfMicroBatch * steps;
  });
  std::vector<Recomputation> more = usual_recomputations(scenario);
  const Recomputation now = recomputation_of(plan);
  std::erase_if(more, [&now](const Recomputation& each) { return each == now || recomputes_less(each, now); });
  all = varied(all, static_cast<int>(more.size()), [&](Remedy& each, int steps) {
    const Recomputation& again = more[static_cast<std::size_t>(steps - 1)];
    set_recomputation(each.plan, again);
    constexpr ModuleSet kLayers = set_of(RecomputeModule::kMlp) | set_of(RecomputeModule::kMoe);
    each.cost += again.recompute == Recompute::kFull ? kFull
                 : (again.modules & kLayers) != 0    ? kRecomputeMlp
                                                     : kSelective;
  });
  const std::string usual = ParallelPlan().schedule;
  all = varied(all, plan.pp > 1 && plan.schedule != usual ? 1 : 0, [&](Remedy& each, int) {
    set_stages(scenario.model, each.plan, plan.pp, 1, usual);
    if (traits_of(plan).overlaps_messages) each.plan.overlap_p2p = false;
    each.cost += kSchedule;
  });
  all = varied(all, plan.zero == ZeroStage::kNone ? 1 : 0, [](Remedy& each, int) {
    each.plan.zero = ZeroStage::kOptimizer;
    each.cost += kShard;
  });
  const bool muon = plan.optimizer == OptimizerKind::kMuon;
  all = varied(all, muon && plan.muon_buffers == MuonBuffers::kPadded ? 1 : 0, [](Remedy& each, int) {
    each.plan.muon_buffers = MuonBuffers::kWhole;
    each.cost += kShard;
  });
  const int further = static_cast<int>(ZeroStage::kParameters) -
                      std::max(static_cast<int>(plan.zero), static_cast<int>(ZeroStage::kOptimizer));
  all = varied(all, plan.pp > 1 || muon ? 0 : further, [](Remedy& each, int steps) {
    const int stage = static_cast<int>(ZeroStage::kParameters) + 1 - steps;
    each.plan.zero = static_cast<ZeroStage>(stage);
    each.cost += each.plan.zero == ZeroStage::kParameters ? kShardWeights : kShardGradients;
  });
  // Replicas that share the weights need the less memory the more they are; others need the same.
  const std::int64_t replicas = plan.dp * plan.cp;
  all = varied(all, shards_gradients(plan) && plan.shard > 0 ? doublings(plan.shard, replicas) : 0,
               [replicas](Remedy& each, int steps) {
                 each.plan.shard <<= steps;
                 if (each.plan.shard == replicas) each.plan.shard = 0;
                 each.cost += kShard * steps;
               });
  const bool may_offload = plan.offload_optimizer.value < 1 && plan.passes == Passes::kTraining && !muon;
  return varied(all, may_offload ? 1 : 0, [](Remedy& each, int) {
    each.plan.offload_optimizer = {1};
    each.cost += kOffload;
  });
}

// Whether weights are not shared in a pipeline, unless they were, and no rank has a part of the logits that are never
// stored.
bool go_together(const Scenario& scenario, const Remedy& degrees, const Remedy& saving) {
  if (saving.plan.loss_library != scenario.plan.loss_library && degrees.plan.tp > 1) return false;
  return saving.plan.zero != ZeroStage::kParameters || scenario.plan.zero == ZeroStage::kParameters ||
         degrees.plan.pp == 1;
}

Remedy together(const Model& model, const Remedy& degrees, const Remedy& saving) {
  Remedy both = saving;
  ParallelPlan& plan = both.plan;
  set_stages(model, plan, degrees.plan.pp, plan.vpp, plan.schedule);
  plan.tp = degrees.plan.tp, plan.cp = degrees.plan.cp, plan.ep = degrees.plan.ep;
  plan.etp = degrees.plan.etp, plan.dp = degrees.plan.dp;
  plan.sequence_parallel = degrees.plan.sequence_parallel;
  both.cost += degrees.cost;
  return both;
}

// A lower bound of what a plan needs, of microbatches of one sequence of which all is computed again: candidates of the
// same degrees, shares and weights have the same, and what it is made of is remembered.
Bytes least_of(const Scenario& scenario, const Session& session) {
  ParallelPlan plan = scenario.plan;
  Training training = scenario.training;
  training.global_batch = microbatches_of(plan, training) * plan.dp;  // as many microbatches
  training.micro_batch = 1;
  if (plan.passes != Passes::kForward) set_recomputation(plan, {Recompute::kFull});
  constexpr double kRounding = 1e-9;
  return (1 - kRounding) * least_memory(scenario.model, plan, training, session.plans());
}

Scenario changed_to(const Scenario& from, const Remedy& candidate, const Cluster& machine) {
  Scenario changed = from;
  changed.plan = candidate.plan;
  changed.training = candidate.training;
  changed.cluster = machine;
  follow_context(from, changed);
  return changed;
}

}  // namespace

std::optional<MemoryRemedy> memory_remedy(const Scenario& scenario, const Session& session) {
  const std::int64_t gpus = scenario.cluster.gpu_count();
  const bool fills = rank_count(scenario.plan).value_or(0) >= gpus;
  const std::vector<Remedy> degrees = other_degrees(scenario), savings = savings_for(scenario);
  std::map<std::int64_t, std::vector<const Remedy*>> by_ranks;
  for (const Remedy& each : degrees) {
    if (const auto ranks = rank_count(each.plan)) by_ranks[*ranks].push_back(&each);
  }

  struct Fitting {
    Remedy candidate;
    Cluster machine;
    Bytes peak, device;
    std::int64_t ranks = 0;
    Seconds step;
  };
  const auto faster = [](const Fitting& a, const Fitting& b) { return a.step < b.step; };
  Sessions others;  // of other machines than the scenario's
  const auto step_of = [&](const Scenario& changed) -> Result<Seconds> {
    if (session.serves(changed)) return step_time(changed, session);
    NS_TRY(const std::shared_ptr<const Session> other, others.of(changed));
    return step_time(changed, *other);
  };
  const auto fastest = [&](std::vector<Fitting>& all) -> std::optional<Fitting> {
    std::stable_sort(all.begin(), all.end(), faster);
    if (std::ssize(all) > kMostTimed) all.erase(all.begin() + kMostTimed, all.end());
    for (Fitting& each : all)
      each.step = step_of(changed_to(scenario, each.candidate, each.machine)).value_or(each.step);
    const auto best = std::min_element(all.begin(), all.end(), faster);
    return best == all.end() ? std::nullopt : std::optional(std::move(*best));
  };
  // The fastest plan of so many ranks that fits with fragmentation; where there is none, or where it is much slower,
  // the fastest one whose tensors fit.
  Scenario other_plan = scenario;
  const FrameworkLimits framework(scenario);
  const auto best_of = [&](std::int64_t ranks, bool offloads) -> std::optional<Fitting> {
    struct Pair {
      double cost;
      const Remedy *degrees, *saving;
    };
    std::vector<Pair> order;
    for (const Remedy* degree : by_ranks[ranks]) {
      for (const Remedy& saving : savings) {
        const bool moves = saving.plan.offload_optimizer.value > scenario.plan.offload_optimizer.value;
        if (moves == offloads && go_together(scenario, *degree, saving))
          order.push_back({degree->cost + saving.cost, degree, &saving});
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.cost < b.cost; });
    std::vector<Fitting> fitting, tight;
    for (auto next = order.begin(); next != order.end() && fitting.size() < kMostFitting; ++next) {
      const Remedy candidate = together(scenario.model, *next->degrees, *next->saving);
      other_plan.plan = candidate.plan;
      other_plan.training = candidate.training;
      if (!framework.has(other_plan)) continue;
      follow_context(scenario, other_plan);
      if (!check_all_but_schedule(scenario.model, other_plan.plan, candidate.training)) continue;
      if (least_of(other_plan, session) > scenario.cluster.gpu.memory) continue;
      const auto memory = memory_budget(scenario.model, other_plan.plan, candidate.training, session.plans());
      if (!memory || !memory->fits(scenario.cluster.gpu.memory)) continue;
      const bool fits = memory->device() <= scenario.cluster.gpu.memory;
      if (!fits && tight.size() == kMostFitting) continue;
      const auto machine = machine_for(scenario, candidate.plan);
      if (!machine) continue;
      const auto step = step_of(without_sharing(changed_to(scenario, candidate, *machine)));
      if (step)
        (fits ? fitting : tight).push_back({candidate, *machine, memory->peak(), memory->device(), ranks, *step});
    }
    std::optional<Fitting> best = fastest(fitting), other = fastest(tight);
    return !best || (other && kMuchFaster * other->step < best->step) ? other : best;
  };
  const auto on_fewest = [&](bool more, bool offloads) -> std::optional<Fitting> {
    for (const auto& [ranks, all] : by_ranks) {
      if ((ranks > gpus) != more) continue;
      if (auto best = best_of(ranks, offloads)) return best;
    }
    return std::nullopt;
  };
  std::optional<Fitting> best = on_fewest(false, false);
  if (best) {
    const auto now = step_of(scenario);
    if (now && kFaster * *now < best->step) {
      std::optional<Fitting> offloading = best_of(best->ranks, true);
      if (offloading && kFaster * offloading->step < best->step) best = std::move(offloading);
    }
  } else {
    std::optional<Fitting> larger = on_fewest(true, false);
    if (fills || !larger) best = on_fewest(false, true);
    const auto spent = [](const Fitting& each) { return static_cast<double>(each.ranks) * each.step; };
    if (!best || (larger && kMuchFaster * spent(*larger) < spent(*best))) best = std::move(larger);
  }
  if (!best) return std::nullopt;
  if (best->candidate.plan.offload_optimizer.value > scenario.plan.offload_optimizer.value) {
    for (const double part : {0.25, 0.5, 0.75}) {
      if (part <= scenario.plan.offload_optimizer.value) continue;
      Scenario less = changed_to(scenario, best->candidate, best->machine);
      less.plan.offload_optimizer = {part};
      if (!framework.has(less)) continue;
      const auto memory = memory_budget(less.model, less.plan, less.training, session.plans());
      if (!memory || memory->device() > max(best->device, scenario.cluster.gpu.memory)) continue;
      const auto step = step_of(less);
      if (!step || *step >= best->step) continue;
      best->candidate.plan = less.plan;
      best->peak = memory->peak(), best->device = memory->device(), best->step = *step;
      break;  // the next one moves more
    }
  }
  if (best->candidate.plan.recompute == Recompute::kFull && scenario.plan.recompute != Recompute::kFull) {
    const Scenario whole = changed_to(scenario, best->candidate, best->machine);
    const auto fewer = recomputing_fewer_layers(whole, scenario, session);
    const auto step = fewer ? step_of(fewer->scenario) : Result<Seconds>(best->step);
    if (step && *step < best->step) {
      best->candidate.plan = fewer->scenario.plan;
      best->peak = fewer->memory.peak(), best->device = fewer->memory.device(), best->step = *step;
    }
  }
  std::vector<Assignment> set = changes(scenario, best->candidate);
  const std::vector<Assignment> machine = to_keep_machine(scenario, best->candidate.plan);
  set.insert(set.end(), machine.begin(), machine.end());
  return MemoryRemedy{best->peak, best->device, best->step, best->ranks, std::move(set)};
}

}  // namespace ns_dist
