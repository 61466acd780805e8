#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "checker.h"
#include "ns_dist/internal/with_commas.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "pipeline.h"
#include "shape.h"

namespace ns_dist {
namespace {

constexpr double kMostScores = 1e18;
constexpr std::int64_t kMostMicrobatches = 10'000'000;
// Passes that are written out, of all stages: those of warm-up and cool-down and of one round between them. Each takes
// some 40 bytes with its loops; 256 stages of 16 chunks have 4 million.
constexpr double kMostPasses = 6e6;
// What a pass through one part of the model writes out one by one: three nodes for each part of the keys in the ring of
// context parallelism, five for each cross-entropy of the log. The clocks keep their states for every node.
constexpr std::int64_t kMostRing = 1'024;
constexpr std::int64_t kMostMetrics = 1'000;
constexpr std::int64_t kMostMuonSteps = 100;  // four nodes for each matrix of a layer

void check_microbatch(const Model&, const ParallelPlan&, const Training& training, Checker& check) {
  if (training.sequence < 1 || training.micro_batch <= kMostOfTraining / training.sequence) return;
  check.fail_at("training/micro_batch, training/sequence",
                fmt::format("a microbatch of {} sequences of {} tokens is too large to be forecast",
                            training.micro_batch, training.sequence),
                fmt::format("at most {} tokens a microbatch", kMostOfTraining),
                "write a smaller training/micro_batch or training/sequence");
}

void check_scores(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (plan.flash_attention) return;
  std::int64_t heads = 0;
  for (const AttentionHeads& of : all_heads(model)) heads = std::max(heads, of.heads);
  const double scores = static_cast<double>(heads) * static_cast<double>(training.micro_batch) *
                        static_cast<double>(training.sequence) * static_cast<double>(training.sequence);
  if (scores <= kMostScores) return;
  check.fail_at("training/sequence",
                fmt::format("{} sequences of {} tokens have too many scores of unfused attention to be forecast",
                            training.micro_batch, training.sequence),
                fmt::format("at most {:.0e}, of {} heads", kMostScores, heads),
                "write a smaller training/sequence, or plan/flash_attention=on");
}

// Whether sizes are in range: where they are not, nothing else is looked at.
bool check_sizes(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  check.in_range("model, layers", model.layers, kMostLayers);
  check.in_range("plan/tp", plan.tp, kMostRanks);
  check.in_range("plan/pp", plan.pp, kMostRanks);
  check.in_range("plan/dp", plan.dp, kMostRanks);
  check.in_range("plan/cp", plan.cp, kMostRanks);
  check.in_range("plan/ep", plan.ep, kMostRanks);
  check.in_range("plan/vpp", plan.vpp, kMostRanks);
  check.in_range("training/micro_batch", training.micro_batch, kMostOfTraining);
  check.in_range("training/global_batch", training.global_batch, kMostOfTraining);
  check.in_range("training/sequence", training.sequence, kMostOfTraining);
  check_microbatch(model, plan, training, check);
  check_scores(model, plan, training, check);
  if (plan.etp != 0) check.in_range("plan/etp", plan.etp, kMostRanks);
  if (plan.shard != 0) check.in_range("plan/shard", plan.shard, kMostRanks);
  if (!check.errors.empty()) return false;

  const double ranks = static_cast<double>(plan.tp) * static_cast<double>(plan.pp) * static_cast<double>(plan.dp) *
                       static_cast<double>(plan.cp);
  if (ranks > static_cast<double>(kMostRanks)) {
    check.fail_at("plan/dp", fmt::format("tp x cp x pp x dp is {:.3g} ranks", ranks),
                  fmt::format("at most {} ranks", kMostRanks));
    return false;
  }
  return true;
}

void check_order(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  check.note(rank_order(plan));
}

void check_batch(const Model&, const ParallelPlan& plan, const Training& training, Checker& check) {
  const std::int64_t sequences = training.micro_batch * plan.dp;
  if (training.global_batch % sequences == 0) return;
  const std::int64_t below = training.global_batch / sequences * sequences, above = below + sequences;
  check.fail_at("training/global_batch",
                fmt::format("{} sequences are not divisible by micro-batch {} x dp {}", training.global_batch,
                            training.micro_batch, plan.dp),
                fmt::format("a multiple of {}", sequences),
                below > 0 ? fmt::format("use training/global_batch={} or training/global_batch={}", below, above)
                          : fmt::format("use training/global_batch={}", above));
}

void check_experts_to_split(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (model.moe || plan.etp == 0 || plan.etp == plan.tp) return;
  check.fail_at("plan/etp", fmt::format("{} has no experts to split over {} ranks", model.name, plan.etp), "0",
                "use plan/etp=0");
}

// Over how many ranks experts are spread.
void check_expert_ranks(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.ep == 1) return;
  if (!model.moe) {
    check.fail_at("plan/ep", fmt::format("{} has no experts to spread over {} ranks", model.name, plan.ep), "1",
                  "use plan/ep=1");
    return;
  }
  const std::int64_t etp = expert_tp(plan), ranks = plan.dp * plan.cp * plan.tp;
  const std::int64_t over = std::max<std::int64_t>(1, ranks / etp);
  check.divides(
      "plan/ep", plan.ep, model.moe->experts,
      [&] {
        return fmt::format("ep {} does not divide the {} experts of {}", plan.ep, model.moe->experts, model.name);
      },
      over);
  if (ranks % etp != 0) return;  // check_parts_of_experts tells
  const std::int64_t needed = plan.ep * etp, own = plan.tp * plan.cp;
  const bool whole_experts = etp > 1 && ranks % plan.ep == 0;
  check.divides(
      "plan/ep", plan.ep, over,
      [&] {
        return fmt::format("ep {} does not divide the {} over which experts are spread (dp x cp x tp / etp)", plan.ep,
                           counted(over, "rank"));
      },
      model.moe->experts,
      fmt::format("{}, or a multiple of {} for plan/dp", whole_experts ? ", or 1 for plan/etp" : "",
                  needed / std::gcd(needed, own)));
}

void check_capacity(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.moe || plan.expert_capacity.value <= 0 || plan.expert_dispatch == ExpertDispatch::kAllToAll) return;
  check.fail_at("plan/expert_capacity",
                fmt::format("{} sends the tokens that there are; padded experts have rows of their own",
                            field_text(plan.expert_dispatch)),
                "0", "use plan/expert_dispatch=a2a, or plan/expert_capacity=0");
}

// Copies for nodes and ranks: how many follows from the model's groups of experts.
void check_dispatch(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.moe || plan.expert_dispatch != ExpertDispatch::kDeepEp) return;
  if (expert_tp(plan) > 1) {
    check.fail_at("plan/expert_dispatch", "deepep sends a token to one rank of each expert; here experts are divided",
                  "a2a", "use plan/etp=1, or plan/expert_dispatch=a2a");
  }
  const Experts& moe = *model.moe;
  if (!is_possible(moe.routing())) {
    check.fail_at("model/moe/top_groups",
                  fmt::format("{} experts of a token in {} of {} groups of {} experts", moe.top_k, moe.top_groups,
                              moe.groups, moe.experts),
                  "groups that divide the experts, and top groups that hold those of a token");
  }
}

void check_width_of_experts(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.moe || plan.etp == 0) return;
  check.divides(
      "plan/etp", plan.etp, model.moe->expert_ffn,
      [&] { return fmt::format("etp {} does not divide the experts' width {}", plan.etp, model.moe->expert_ffn); },
      plan.tp);
}

// Mamba-2 layers: context-parallel ranks exchange their tokens for heads, and have a group of them or a copy of one
// (Megatron-Core, mamba_context_parallel.py).
void check_state_space(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.state_space || !has_layers(model, &LayerKind::mixer, Mixer::kStateSpace)) return;
  const std::int64_t heads = model.state_space->heads;
  if (plan.cp == 1 || heads % plan.tp != 0) return;  // tp is refused
  check.divides("plan/cp", plan.cp, heads / plan.tp, [&] {
    return fmt::format("cp {} does not divide the {} Mamba-2 heads that a rank of {} has", plan.cp, heads / plan.tp,
                       model.name);
  });
  const std::int64_t groups = std::max<std::int64_t>(1, model.state_space->groups / plan.tp);
  if (groups % plan.cp != 0 && plan.cp % groups != 0) {
    check.fail_at("plan/cp",
                  fmt::format("{} groups of Mamba-2 heads cannot be exchanged among {} ranks", groups, plan.cp),
                  "a divisor or a multiple of the groups", fmt::format("use plan/cp={}", std::gcd(groups, plan.cp)));
  }
}

// Layers with the gated delta rule: context-parallel ranks exchange their tokens for heads.
void check_delta_net(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.delta_net || !has_layers(model, &LayerKind::mixer, Mixer::kDeltaNet)) return;
  const std::int64_t heads = model.delta_net->key_heads;
  if (plan.cp == 1 || heads % plan.tp != 0) return;  // tp is refused
  check.divides("plan/cp", plan.cp, heads / plan.tp, [&] {
    return fmt::format("cp {} does not divide the {} key heads of the delta rule that a rank of {} has", plan.cp,
                       heads / plan.tp, model.name);
  });
}

// Layers that read what other layers made, beside hidden states: no framework sends these from stage to stage.
void check_shared_inputs(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.pp == 1 || (!model.per_layer_embeddings && model.shared_keys_layers <= 0)) return;
  const char* what = model.per_layer_embeddings ? "embeddings that the first stage makes for it"
                                                : "keys of a layer that may be on another stage";
  check.fail_at("plan/pp", fmt::format("a layer of {} reads {}", model.name, what), "1", "use plan/pp=1");
}

void check_mtp(const Model& model, const ParallelPlan&, const Training& training, Checker& check) {
  if (!training.mtp || model.prediction_layers != 0) return;
  check.fail_at("training/mtp", fmt::format("{} has no layers for multi-token prediction", model.name), "off",
                "use training/mtp=off, or give its \"prediction_layers\"");
}

void check_lora(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.lora_rank <= model.hidden) return;
  check.fail_at("plan/lora_rank", fmt::format("{} is more than the rank of a layer of {}", plan.lora_rank, model.name),
                fmt::format("at most the hidden size {}", model.hidden), "use plan/lora_rank=16");
}

void check_frozen_weights(const Model&, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (plan.frozen_weights == FrozenWeights::kPlain) return;
  if (plan.lora_rank == 0) {
    check.fail_at("plan/frozen_weights", "only layers with adapters are kept in 4 bits", "plain",
                  "use plan/lora_rank=16, or leave plan/frozen_weights out");
  } else if (quantizes(training.precision)) {
    check.fail_at("plan/frozen_weights", "weights in 4 bits are cast to 16 bits, not to 8", "plain",
                  "use training/dtype=bf16, or leave plan/frozen_weights out");
  }
}

// Layers from the first on, up to all: then the loss alone is trained.
void check_frozen_layers(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.frozen_layers <= 0) return;
  if (plan.frozen_layers > model.layers) {
    check.fail_at("plan/frozen_layers", fmt::format("{} has {} layers to freeze", model.name, model.layers),
                  fmt::format("at most {}", model.layers), fmt::format("use plan/frozen_layers={}", model.layers / 2));
  }
  if (plan.lora_rank > 0) {
    check.fail_at("plan/frozen_layers", "with adapters all layers are frozen, and each has its adapters", "0",
                  "leave out plan/frozen_layers, or plan/lora_rank");
  }
}

void check_metrics(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.loss_metrics <= kMostMetrics) return;
  check.fail_at("plan/loss_metrics", fmt::format("{} cross-entropies after each microbatch", plan.loss_metrics),
                fmt::format("at most {}", kMostMetrics));
}

void check_unused_inner(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.cp_inner <= 0 || plan.cp_comm == ContextExchange::kHierarchical) return;
  check.fail_at("plan/cp_inner", fmt::format("{} exchanges no heads among some of the ranks", name_of(plan.cp_comm)),
                "0", "use plan/cp_comm=a2a+p2p, or plan/cp_inner=0");
}

// Each context-parallel rank has a part from the beginning of the sequence and one from its end.
void check_sequence_parts(const Model&, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (plan.cp == 1) return;
  if (training.sequence % 2 != 0) {
    check.fail_at("training/sequence", fmt::format("{} tokens have no two equal parts", training.sequence),
                  "an even number of tokens", fmt::format("use training/sequence={}", training.sequence + 1));
    return;
  }
  check.divides("plan/cp", plan.cp, training.sequence / 2, [&] {
    return fmt::format("cp {} does not divide {} tokens into two parts a rank", plan.cp, training.sequence);
  });
}

void check_fused_attention(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.cp == 1 || plan.flash_attention) return;
  check.fail_at("plan/flash_attention", "context parallelism needs attention that is computed in parts", "on",
                "use plan/flash_attention=on");
}

// Heads of a tensor-parallel rank: what divides those of all layers.
std::int64_t rank_heads(const Model& model, const ParallelPlan& plan) {
  std::int64_t all_layers = model.heads;
  for (const AttentionHeads& of : all_heads(model)) all_layers = std::gcd(all_layers, of.heads);
  return all_layers / std::max<std::int64_t>(1, plan.tp);
}

void check_exchanged_heads(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.cp == 1 || plan.cp_comm != ContextExchange::kAllToAll || has_sparse_attention(model)) return;
  const std::int64_t heads = rank_heads(model, plan);
  check.divides("plan/cp", plan.cp, heads, [&] {
    return fmt::format("cp {} does not divide the {} heads of a tensor-parallel rank, which a2a exchanges", plan.cp,
                       heads);
  });
}

// Whether plan/cp_inner says among how many ranks heads are exchanged.
bool has_inner(const ParallelPlan& plan) {
  return plan.cp > 1 && plan.cp_comm == ContextExchange::kHierarchical && plan.cp_inner > 0;
}

// Keys and values of a head go to one rank, or copies of it to as many ranks each.
void check_exchanged_keys(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.cp == 1 || model.mla) return;
  if (has_inner(plan) && std::gcd(plan.cp, rank_heads(model, plan)) % plan.cp_inner != 0) return;  // check_inner
  const std::int64_t inner = context_inner_ranks(model, plan);
  if (inner <= 1) return;
  for (const AttentionHeads& of : all_heads(model)) {
    const std::int64_t heads = std::max<std::int64_t>(1, of.kv_heads / std::max<std::int64_t>(1, plan.tp));
    if (heads % inner == 0 || inner % heads == 0) continue;
    check.fail_at(
        plan.cp_comm == ContextExchange::kAllToAll ? "plan/cp" : "plan/cp_inner",
        fmt::format("{} key-value heads of a tensor-parallel rank cannot be exchanged among {} ranks", heads, inner),
        "a divisor or a multiple of the heads",
        has_inner(plan) ? "leave plan/cp_inner out" : "use plan/cp_comm=p2p or all-gather");
  }
}

void check_inner(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!has_inner(plan)) return;
  const std::int64_t heads = rank_heads(model, plan);
  check.divides("plan/cp_inner", plan.cp_inner, std::gcd(plan.cp, heads), [&] {
    return fmt::format("{} ranks do not divide cp {} and the {} heads of a tensor-parallel rank", plan.cp_inner,
                       plan.cp, heads);
  });
}

void check_ring(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.cp == 1 || plan.cp_comm == ContextExchange::kAllGather) return;
  const std::int64_t ring = plan.cp / context_inner_ranks(model, plan);
  if (ring <= kMostRing) return;
  check.fail_at("plan/cp", fmt::format("keys and values travel around a ring of {} ranks", ring),
                fmt::format("rings of at most {} ranks", kMostRing), "use plan/cp_comm=all-gather");
}

void check_parts_of_experts(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!model.moe) return;
  const std::int64_t etp = expert_tp(plan), ranks = plan.tp * plan.cp * plan.dp;
  if (etp <= plan.tp) {
    check.divides(
        "plan/etp", etp, plan.tp, [&] { return fmt::format("etp {} does not divide tp {}", plan.etp, plan.tp); },
        model.moe->expert_ffn);
  } else if (etp % plan.tp != 0 || ranks % etp != 0) {
    check.fail_at("plan/etp",
                  fmt::format("etp {} is no multiple of tp {} that divides the {} of a stage (tp x cp x dp)", etp,
                              plan.tp, counted(ranks, "rank")),
                  "ranks of an expert that are tensor-parallel ranks of whole replicas", "use plan/etp=0");
  }
  if (etp != plan.tp && plan.tp > 1 && !plan.sequence_parallel) {
    check.fail_at("plan/etp", "ranks that share an expert's tokens need sequence parallelism",
                  fmt::format("{}", plan.tp), "use plan/sequence_parallel=on");
  }
}

// Sets of replicas that share what ZeRO spreads.
void check_shard(const Model& model, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.shard == 0) return;
  if (plan.zero == ZeroStage::kNone) {
    const bool shares = plan.weights == WeightStorage::kMaster;  // PyTorch's replicas have all (check_weights)
    check.fail_at("plan/shard", "nothing is shared under ZeRO 0", "0",
                  shares ? "use plan/zero=1, or leave plan/shard out" : "leave plan/shard out");
    return;
  }
  check.divides("plan/shard", plan.shard, plan.dp * plan.cp, [&] {
    return fmt::format("{} ranks are no whole part of dp {} x cp {}", plan.shard, plan.dp, plan.cp);
  });
  // There are as many sets of experts as of all else (Megatron-Core, parallel_state.py: the expert-data-parallel ranks
  // must be divisible by num_distributed_optimizer_instances).
  const std::int64_t sets = plan.dp * plan.cp / plan.shard;
  if (const std::int64_t all = replicas(plan, true); model.moe && all % std::max<std::int64_t>(1, sets) != 0) {
    check.fail_at("plan/shard", fmt::format("{} replicas of the experts make no {} sets", all, sets),
                  fmt::format("a set for each of at most {} replicas", all),
                  fmt::format("use plan/shard={} or more", plan.dp * plan.cp / std::gcd(all, sets)));
  }
}

// Weights on the host: those that no pass keeps, and that the CPU updates.
void check_offloaded_weights(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (!plan.offload_weights) return;
  const bool updated_on_gpu = plan.passes == Passes::kTraining && plan.offload_optimizer.value < 1;
  if (plan.zero != ZeroStage::kParameters) {
    check.fail_at("plan/offload_weights", "the passes read weights on the GPU, unless ZeRO 3 gathers them", "off",
                  fmt::format("use plan/zero=3{}, or plan/offload_weights=off",
                              updated_on_gpu ? " and plan/offload_optimizer=1" : ""));
  } else if (is_whole_in_passes(plan)) {
    check.fail_at("plan/offload_weights", "FSDP2 gathers the weights of a pipeline once a step", "off",
                  "use plan/offload_weights=off");
  } else if (updated_on_gpu) {
    check.fail_at("plan/offload_weights",
                  "weights on the host are updated there, and so are all of the optimizer's states",
                  "plan/offload_optimizer=1", "use plan/offload_optimizer=1, or plan/offload_weights=off");
  }
}

// Newton-Schulz iterations read whole matrices, and no framework runs them on the CPU. DeepSpeed's ZeRO-3 updates by
// the gradients of one microbatch (August 2026, stage3.py, _apply_distributed_muon_update).
void check_muon(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.optimizer != OptimizerKind::kMuon) return;
  check.in_range("plan/muon_steps", plan.muon_steps, kMostMuonSteps);
  if (!can_update(plan)) {
    check.fail_at("plan/zero", "Muon needs whole matrices, and ZeRO 3 splits them; FSDP2 alone brings them together",
                  "0, 1 or 2, or 3 of FSDP2", "use plan/zero=2, plan/zero_library=fsdp2, or plan/optimizer=adam");
  }
  if (plan.offload_optimizer.value > 0) {
    check.fail_at("plan/offload_optimizer", "Muon updates matrices on the GPU alone", "0",
                  "leave plan/offload_optimizer out, or use plan/optimizer=adam");
  }
}

// Megatron-LM has one method of full recomputation, and no text says two.
void check_recomputation(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.recompute != Recompute::kFull || plan.recompute_layers == 0 || plan.recompute_together == 1) return;
  check.fail_at("plan/recompute",
                fmt::format("{} of each chunk, and groups of {}", counted(plan.recompute_layers, "layer"),
                            plan.recompute_together),
                "one of both",
                fmt::format("use plan/recompute=full:{}, or plan/recompute=full:uniform:{}", plan.recompute_layers,
                            plan.recompute_together));
}

void check_weights(const Model&, const ParallelPlan& plan, const Training&, Checker& check) {
  if (plan.weights == WeightStorage::kMaster) return;
  const bool sharded = plan.weights == WeightStorage::kLow && is_fsdp(plan);
  if (plan.zero != ZeroStage::kNone && !sharded) {
    check.fail_at("plan/zero", fmt::format("weights in {} are those of PyTorch alone", name_of(plan.weights)),
                  plan.weights == WeightStorage::kLow ? "0, or 3 of PyTorch's FSDP (plan/zero_library)" : "0",
                  "use plan/zero=0, or plan/weights=master");
  }
  if (plan.grad_accumulation != GradAccumulation::kLow) {
    check.fail_at("plan/grad_accumulation", "autograd adds up gradients in the format of the weights",
                  std::string(name_of(GradAccumulation::kLow)),
                  "use plan/grad_accumulation=low, or plan/weights=master");
  }
}

// A rule adds its errors. It may rely on check_sizes, on no other rule.
using Rule = void (*)(const Model&, const ParallelPlan&, const Training&, Checker&);
// All that does not depend on the schedule, on its chunks or on what runs beside passes; errors come in this order.
constexpr Rule kRules[] = {
    check_order, check_tensor_parts, check_batch,
    // experts
    check_experts_to_split, check_expert_ranks, check_capacity, check_dispatch, check_width_of_experts,
    // single kinds of layers
    check_state_space, check_delta_net, check_shared_inputs, check_mtp,
    // frozen weights, and the log
    check_lora, check_frozen_weights, check_frozen_layers, check_metrics,
    // context parallelism
    check_unused_inner, check_sequence_parts, check_fused_attention, check_exchanged_heads, check_exchanged_keys,
    check_inner, check_ring,
    // what ranks share, and the optimizer
    check_parts_of_experts, check_shard, check_offloaded_weights, check_muon, check_recomputation, check_weights};

// Asks all rules. Returns whether sizes are in range: where they are not, no rule is asked.
bool check_but_schedule(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (!check_sizes(model, plan, training, check)) return false;
  for (const Rule rule : kRules) rule(model, plan, training, check);
  return true;
}

// An even division has a layer, or what counts as one, for every part of the pipeline: of `chunks` chunks a stage under
// this schedule. Proposes what it can run.
void check_parts(const Model& model, const ParallelPlan& plan, const PipelineSchedule& schedule, std::int64_t chunks,
                 Checker& check) {
  const std::int64_t layers = counted_layers(model, plan);
  if (!plan.pipeline_layout.is_even() || plan.pp * chunks <= layers) return;
  // Chunks of two directions hold the same parts. No schedule has more directions: nothing is written out for more.
  const auto each = chunks > 2 * layers ? chunks : static_cast<std::int64_t>(schedule.seats({1, 1, chunks})[0].size());
  if (plan.pp * each <= layers) return;
  const std::int64_t fewer = layers / plan.pp;
  std::int64_t most = layers / each;
  if (schedule.pairs_stages) most -= most % 2;
  const char* field = "plan/pp";
  std::string use = fmt::format("plan/pp={}", most);
  if (schedule.most_chunks == 0 && plan.vpp > 1 && (fewer > 1 || (fewer == 1 && most == 0))) {
    field = "plan/vpp", most = fewer, use = fmt::format("plan/vpp={}", fewer);
  } else if (most == 0 && schedule.most_chunks == 0) {
    field = "plan/pp, plan/vpp", most = layers, use = fmt::format("plan/pp={} and plan/vpp=1", layers);
  } else if (most == 0) {
    field = "plan/schedule", use = fmt::format("plan/schedule={}", ParallelPlan().schedule);
    if (plan.pp > layers) use += fmt::format(" and plan/pp={}", layers);
  }
  const int more = (plan.account_embedding ? 0 : 1) + (plan.account_loss ? 0 : 1);
  if (most > 0 && plan.pp * each <= layers + more) {
    use += "; with plan/account_embedding=on and plan/account_loss=on these two count as layers";
  }
  check.fail_at(field,
                fmt::format("{} parts of the pipeline are more than the {} of {}", plan.pp * each,
                            counted_layers_text(model, plan), model.name),
                most == 0 ? "a schedule with fewer chunks" : fmt::format("at most {}", most), "use " + use);
}

// A layout has the layers for multi-token prediction that are trained.
void check_predictions(const Model& model, const ParallelPlan& plan, const Training& training,
                       const std::vector<LayerRange>& layers, Checker& check) {
  if (plan.pipeline_layout.is_even() || layers.empty()) return;
  std::int64_t written = 0;
  for (const LayerRange& each : layers) written += each.predictions;
  const std::int64_t trained = training.mtp ? model.prediction_layers : 0;
  if (written == trained) return;
  check.fail_at(
      "plan/pipeline_layout",
      fmt::format("{} for multi-token prediction, and the step trains {}", counted(written, "layer"), trained),
      fmt::format("{} times m", trained),
      written == model.prediction_layers ? "use training/mtp=on" : fmt::format("write {} m", trained));
}

// All microbatches and passes can be written out.
void check_length(const ParallelPlan& plan, std::int64_t microbatches, Checker& check) {
  if (microbatches > kMostMicrobatches) {
    check.fail_at("training/global_batch", fmt::format("{} microbatches", microbatches),
                  fmt::format("at most {} microbatches", kMostMicrobatches),
                  "use a larger training/micro_batch or plan/dp");
    return;
  }
  const double written =
      2.0 * static_cast<double>(plan.pp * plan.vpp) * static_cast<double>(std::min(microbatches, 2 * plan.pp));
  if (written <= kMostPasses) return;
  check.fail_at("plan/pp", fmt::format("{} stages of {} chunks have {:.3g} passes", plan.pp, plan.vpp, written),
                fmt::format("at most {:.0e} passes", kMostPasses), "use a smaller plan/pp or plan/vpp");
}

}  // namespace

std::int64_t microbatches_of(const ParallelPlan& plan, const Training& training) {
  return training.global_batch / (training.micro_batch * plan.dp);
}

Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training) {
  PlanCache cache;
  return check_plan(model, plan, training, cache);
}

Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache) {
  NS_TRY_VOID(pipeline_of(model, plan, training, cache));
  return {};
}

Result<void> check_all_but_schedule(const Model& model, const ParallelPlan& plan, const Training& training) {
  Checker check;
  // One chunk a stage is the least of all schedules.
  if (check_but_schedule(model, plan, training, check)) check_parts(model, plan, traits_of(ParallelPlan()), 1, check);
  return check.done();
}

Result<Pipeline> pipeline_of(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache) {
  Checker check;
  if (!check_but_schedule(model, plan, training, check)) return fail(join(std::move(check.errors)));
  check.note(check_layout(model, plan));
  const auto found = pipeline_schedule(plan.schedule);
  check.note(found);
  if (!found) return fail(join(std::move(check.errors)));
  const PipelineSchedule& schedule = **found;
  check_parts(model, plan, schedule, schedule.has_chunks(plan.vpp) ? plan.vpp : schedule.least_chunks, check);
  if (schedule.hides_tokens && plan.ep == 1) {
    check.fail_at(
        "plan/schedule", fmt::format("{} hides the exchange of tokens, and ep 1 has none", plan.schedule),
        "a plan with experts on several ranks",
        fmt::format("use plan/schedule={}{}", plan.vpp > 1 ? "interleaved" : "1f1b", model.moe ? ", or plan/ep" : ""));
  }
  NS_TRY_VOID(check.done());
  const std::int64_t microbatches = microbatches_of(plan, training);
  check_length(plan, microbatches, check);
  NS_TRY_VOID(check.done());
  std::int64_t frozen = 0;
  if (frozen_layers_of(plan) > 0) {
    if (const auto layers = divide_layers(model, plan)) frozen = frozen_positions(plan, *layers);
  }
  auto passes = stage_passes({.schedule = &schedule,
                              .shape = {plan.pp, microbatches, plan.vpp},
                              .gathers = plan.overlap_param_gather && gathers_weights_once(plan),
                              .reduces = reduces_each_round(plan) ? Reduces::kRoundEnds
                                         : plan.overlap_grad_reduce && reduces_gradients_once(plan) ? Reduces::kLast
                                                                                                    : Reduces::kAlike,
                              .forward = plan.passes == Passes::kForward,
                              .frozen = frozen},
                             cache);
  if (!passes) {
    Error error = std::move(passes.error());
    // A schedule counts microbatches. Those that ask for another number ask for one more.
    if (error.where == "training/global_batch") {
      error.hint = fmt::format("use training/global_batch={}", (microbatches + 1) * training.micro_batch * plan.dp);
    }
    return fail(std::move(error));
  }
  Pipeline pipeline{.passes = *std::move(passes), .layers = {}};
  NS_TRY(pipeline.layers, divide_layers(model, plan, pipeline.passes->seats));
  check_predictions(model, plan, training, pipeline.layers, check);
  NS_TRY_VOID(check.done());
  return pipeline;
}

}  // namespace ns_dist
