#include "memory_savings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ns_dist/pipeline_schedule.h"
#include "scenario_fields.h"

namespace ns_dist {
namespace {

// What a change usually costs, as a share of the step: only their order matters. Full recomputation repeats the
// forward pass, a third of the work; selective about 4 % of it (Korthikanti et al. 2022, s.5), with the MLP about two
// thirds of the forward pass; the others cost efficiency of smaller kernels, or more communication and bubble. What is
// tried first is tried for sure.
constexpr double kFull = 0.33, kRecomputeMlp = 0.2, kRecomputeOperators = 0.12, kSelective = 0.03, kShard = 0.01,
                 kShardGradients = 0.03, kShardWeights = 0.06, kHalfMicroBatch = 0.05, kDoublePp = 0.08,
                 kDoubleTp = 0.10, kDoubleEp = 0.02, kWholeExperts = 0.02, kDoubleCp = 0.04, kContextAcrossNodes = 0.05,
                 kSchedule = 0.04, kOffload = 0.5, kFusedAttention = -0.1, kFrozenIn4Bits = 0.07, kFusedLoss = 0.01,
                 kDoubleDp = 0.01, kSequenceParallel = 0.01;

constexpr std::int64_t kMostReplicas = 64;  // times as many

// How often `from` can be doubled up to `to`.
int doublings(std::int64_t from, std::int64_t to) {
  int times = 0;
  for (; from <= to / 2; from *= 2) ++times;
  return times;
}

// Each candidate, and each after 1 to `most` steps of one more change.
template <class Change>
std::vector<SmallerPlan> varied(const std::vector<SmallerPlan>& candidates, int most, Change change) {
  std::vector<SmallerPlan> out;
  for (const SmallerPlan& candidate : candidates) {
    out.push_back(candidate);
    for (int steps = 1; steps <= most; ++steps) change(out.emplace_back(candidate), steps);
  }
  return out;
}

// ZeRO-3 gathers weights in each pass of a pipeline: not without need. FSDP is made for nothing else.
bool may_share_weights(const ParallelPlan& plan, std::int64_t pp) {
  return pp == 1 || plan.zero == ZeroStage::kParameters || plan.zero_library != ZeroLibrary::kDefault;
}

}  // namespace

std::vector<SmallerPlan> other_degrees(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<SmallerPlan> all = {{plan, scenario.training, 0}};
  all = varied(all, doublings(plan.tp, scenario.cluster.gpus_per_node()), [&](SmallerPlan& each, int steps) {
    each.plan.tp <<= steps;
    each.plan.sequence_parallel = usual_sequence_parallel(scenario);
    each.cost += kDoubleTp * steps;
  });
  const bool divides_sequences = usual_sequence_parallel(scenario) || plan.passes == Passes::kForward;
  all = varied(all, divides_sequences ? 0 : 1, [](SmallerPlan& each, int) {
    each.plan.sequence_parallel = true;
    each.cost += kSequenceParallel;
  });
  std::erase_if(all, [&](const SmallerPlan& each) {
    return each.plan.sequence_parallel != plan.sequence_parallel && each.plan.tp == 1;
  });
  all = varied(all, doublings(plan.pp, scenario.model.layers), [](SmallerPlan& each, int steps) {
    each.plan.pp <<= steps;
    each.cost += kDoublePp * steps;
  });
  all = varied(all, doublings(plan.cp, std::max(scenario.cluster.gpu_count(), plan.cp)),
               [&](SmallerPlan& each, int steps) {
                 each.plan.cp <<= steps;
                 each.cost += kDoubleCp * steps;
                 if (each.plan.tp * each.plan.cp > scenario.cluster.gpus_per_node()) each.cost += kContextAcrossNodes;
               });
  std::vector<SmallerPlan> divided;
  for (SmallerPlan& each : all) {
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
               [](SmallerPlan& each, int steps) {
                 each.plan.ep <<= steps;
                 each.cost += kDoubleEp * steps;
               });
  // Experts that tensor parallelism divides may be spread whole instead.
  all = varied(all, scenario.model.moe && plan.etp != 1 ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.etp = 1;
    each.cost += kWholeExperts;
  });
  std::erase_if(all, [&](const SmallerPlan& each) { return each.plan.etp != plan.etp && each.plan.tp == 1; });
  return all;
}

bool takes_turns(const ParallelPlan& plan) { return plan.pp > 1 && plan.vpp > 1 && traits_of(plan).most_chunks == 0; }

namespace {

// Each adds plans that save in one way, alone and with what was added before.

void fuse_kernels(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  all = varied(all, can_fuse_attention(scenario) ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.flash_attention = true;
    each.cost += kFusedAttention;
  });
  const bool may_fuse_loss = loss_library_of(plan) != Library::kLiger && plan.passes == Passes::kTraining;
  all = varied(all, may_fuse_loss ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.loss_library = Library::kLiger;
    each.cost += kFusedLoss;
  });
}

void quantize_frozen_weights(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  const bool may_freeze = plan.lora_rank > 0 && !freezes_in_4_bits(plan) && !quantizes(scenario.training.precision);
  all = varied(all, may_freeze ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.frozen_weights = FrozenWeights::kNf4;
    each.cost += kFrozenIn4Bits;
  });
}

void halve_micro_batch(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  all = varied(all, doublings(1, scenario.training.micro_batch), [](SmallerPlan& each, int steps) {
    each.training.micro_batch >>= steps;
    each.cost += kHalfMicroBatch * steps;
  });
}

void recompute_more(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<Recomputation> more = usual_recomputations(scenario);
  const Recomputation now = recomputation_of(plan);
  std::erase_if(more, [&now](const Recomputation& each) { return each == now || recomputes_less(each, now); });
  all = varied(all, static_cast<int>(more.size()), [&](SmallerPlan& each, int steps) {
    const Recomputation& again = more[static_cast<std::size_t>(steps - 1)];
    set_recomputation(each.plan, again);
    constexpr ModuleSet kLayers = set_of(RecomputeModule::kMlp) | set_of(RecomputeModule::kMoe);
    each.cost += again.recompute == Recompute::kFull        ? kFull
                 : again.recompute == Recompute::kOperators ? kRecomputeOperators
                 : (again.modules & kLayers) != 0           ? kRecomputeMlp
                                                            : kSelective;
  });
}

void take_usual_schedule(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  const std::string usual = ParallelPlan().schedule;
  all = varied(all, plan.pp > 1 && plan.schedule != usual ? 1 : 0, [&](SmallerPlan& each, int) {
    set_stages(scenario.model, each.plan, plan.pp, 1, usual);
    if (traits_of(plan).overlaps_messages) each.plan.overlap_p2p = false;
    each.cost += kSchedule;
  });
}

// And what Muon gathers.
void shard_optimizer(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  all = varied(all, plan.zero == ZeroStage::kNone ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.zero = ZeroStage::kOptimizer;
    each.cost += kShard;
  });
  const bool pads = plan.optimizer == OptimizerKind::kMuon && plan.zero <= ZeroStage::kOptimizer &&
                    plan.muon_buffers == MuonBuffers::kPadded;
  all = varied(all, pads ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.muon_buffers = MuonBuffers::kWhole;
    each.cost += kShard;
  });
}

void shard_gradients_and_weights(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  const int further = static_cast<int>(ZeroStage::kParameters) -
                      std::max(static_cast<int>(plan.zero), static_cast<int>(ZeroStage::kOptimizer));
  all = varied(all, may_share_weights(plan, plan.pp) ? further : 0, [](SmallerPlan& each, int steps) {
    const int stage = static_cast<int>(ZeroStage::kParameters) + 1 - steps;
    each.plan.zero = static_cast<ZeroStage>(stage);
    if (each.plan.zero == ZeroStage::kParameters) each.plan.reduce_each = ReduceEach::kMicrobatch;
    each.cost += each.plan.zero == ZeroStage::kParameters ? kShardWeights : kShardGradients;
  });
  // In a pipeline whose chunks take turns, gradients of one chunk at a time are whole; or none.
  const bool may_shard = plan.zero < ZeroStage::kGradients && plan.passes != Passes::kForward;
  all = varied(all, takes_turns(plan) && may_shard ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.zero = ZeroStage::kGradients;
    each.plan.reduce_each = ReduceEach::kRound;
    each.cost += kShardGradients;
  });
  std::erase_if(all, [&](const SmallerPlan& each) {
    return each.plan.zero != plan.zero &&
           (!can_update(each.plan) || (reduces_each_round(each.plan) && !takes_turns(each.plan) && plan.pp > 1));
  });
  all = varied(all, reduces_each_round(plan) ? 1 : 0, [](SmallerPlan& each, int) {
    each.plan.reduce_each = ReduceEach::kMicrobatch;
    each.cost += kShardGradients;
  });
}

void shard_over_more_replicas(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  // Replicas that share the weights need the less memory the more they are; others need the same.
  const std::int64_t replicas = plan.dp * plan.cp;
  all = varied(all, shards_gradients(plan) && plan.shard > 0 ? doublings(plan.shard, replicas) : 0,
               [replicas](SmallerPlan& each, int steps) {
                 each.plan.shard <<= steps;
                 if (each.plan.shard == replicas) each.plan.shard = 0;
                 each.cost += kShard * steps;
               });
}

void offload_to_host(const Scenario& scenario, std::vector<SmallerPlan>& all) {
  const ParallelPlan& plan = scenario.plan;
  const bool may_offload =
      plan.offload_optimizer.value < 1 && plan.passes == Passes::kTraining && plan.optimizer != OptimizerKind::kMuon;
  all = varied(all, may_offload ? 2 : 0, [](SmallerPlan& each, int steps) {
    each.plan.offload_optimizer = {1};
    each.plan.offload_weights = steps > 1;
    each.cost += kOffload * steps;
  });
  std::erase_if(all, [&](const SmallerPlan& each) {
    return each.plan.offload_weights && (each.plan.zero != ZeroStage::kParameters || is_whole_in_passes(each.plan));
  });
}

}  // namespace

std::vector<SmallerPlan> savings_for(const Scenario& scenario) {
  std::vector<SmallerPlan> all = {{scenario.plan, scenario.training, 0}};
  for (const auto add : {fuse_kernels, quantize_frozen_weights, halve_micro_batch, recompute_more, take_usual_schedule,
                         shard_optimizer, shard_gradients_and_weights, shard_over_more_replicas, offload_to_host}) {
    add(scenario, all);
  }
  return all;
}

bool go_together(const Scenario& scenario, const SmallerPlan& degrees, const SmallerPlan& saving) {
  if (saving.plan.loss_library != scenario.plan.loss_library && degrees.plan.tp > 1) return false;
  return saving.plan.zero != ZeroStage::kParameters || may_share_weights(scenario.plan, degrees.plan.pp);
}

SmallerPlan together(const Model& model, const SmallerPlan& degrees, const SmallerPlan& saving) {
  SmallerPlan both = saving;
  ParallelPlan& plan = both.plan;
  set_stages(model, plan, degrees.plan.pp, plan.vpp, plan.schedule);
  plan.tp = degrees.plan.tp, plan.cp = degrees.plan.cp, plan.ep = degrees.plan.ep;
  plan.etp = degrees.plan.etp, plan.dp = degrees.plan.dp;
  plan.sequence_parallel = degrees.plan.sequence_parallel;
  both.cost += degrees.cost;
  return both;
}

}  // namespace ns_dist
