#include "without_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "ns_dist/layer_division.h"
#include "ns_dist/network_model.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

// ---- Why a field changes nothing; empty where it may change something ----

using Reason = std::string;

Reason no_experts(const Scenario& s) { return s.model.moe ? "" : "the model has no experts"; }

Reason whole_experts(const Scenario& s) {
  if (!s.model.moe) return no_experts(s);
  return s.plan.ep == 1 ? "plan/ep is 1" : "";
}

Reason no_shared_experts(const Scenario& s) {
  if (Reason whole = whole_experts(s); !whole.empty()) return whole;
  return s.model.moe->shared_experts == 0 ? "the model has no shared experts" : "";
}

Reason padded_or_no_experts(const Scenario& s) {
  if (!s.model.moe || !pads_experts(s.plan)) return no_experts(s);
  return "experts are padded to plan/expert_capacity, so ranks have equal shares";
}

Reason one_kernel_of_experts(const Scenario& s) {
  if (!s.model.moe) return no_experts(s);
  return s.plan.expert_products == ExpertProducts::kKernel ? "plan/expert_products is kernel" : "";
}

Reason not_quantized(const Scenario& s) {
  if (quantizes(s.training.precision)) return "";
  return fmt::format("training/dtype is {}", name_of(s.training.precision));
}

Reason not_fp8(const Scenario& s) {
  return s.training.precision == Precision::kFp8 ? "" : "it is of training/dtype=fp8";
}

Reason keeps_casts_or_all(const Scenario& s) {
  if (!quantizes(s.training.precision)) return not_quantized(s);
  if (s.plan.lora_rank > 0) return "layers with adapters keep their inputs as they come";
  return delays_scaling(s.plan, s.training.precision) ? "under plan/delayed_scaling casts are kept" : "";
}

Reason not_quantized_to_experts(const Scenario& s) {
  Reason whole = whole_experts(s);
  return whole.empty() ? not_quantized(s) : whole;
}

Reason fused_attention(const Scenario& s) { return s.plan.flash_attention ? "plan/flash_attention is on" : ""; }
Reason stored_scores(const Scenario& s) { return s.plan.flash_attention ? "" : "plan/flash_attention is off"; }

Reason seen_by_all(const Scenario& s) {
  if (s.training.document_tokens >= s.training.sequence) return "documents fill their sequences";
  const bool masks_scores = !s.plan.flash_attention && !has_sparse_attention(s.model);
  return masks_scores ? "plan/flash_attention is off: all scores are computed, then masked" : "";
}

Reason one_stage(const Scenario& s) { return s.plan.pp == 1 ? "plan/pp is 1" : ""; }
// Chunks of one stage are passes of their own where passes run in pairs, or gather and reduce each.
Reason one_chunk(const Scenario& s) {
  return traits_of(s.plan).pairs_passes || shards_gradients(s.plan) ? "" : one_stage(s);
}
Reason one_replica(const Scenario& s) { return has_replicas(s.plan) ? "" : "plan/dp is 1"; }
Reason no_backward(const Scenario& s) { return s.plan.passes == Passes::kForward ? "no backward pass follows" : ""; }
Reason no_update(const Scenario& s) {
  return s.plan.passes == Passes::kTraining ? ""
                                            : fmt::format("plan/passes={} updates nothing", field_text(s.plan.passes));
}
Reason reduces_by_layers(const Scenario& s) {
  if (s.plan.passes == Passes::kForward) return no_backward(s);
  if (!shards_gradients(s.plan)) return one_replica(s);
  return "under plan/zero=2 and 3 gradients are reduced layer by layer";
}
Reason reduces_beside_layers(const Scenario& s) {
  return may_stop_for_reductions(s.plan) && s.plan.passes != Passes::kForward ? "" : reduces_by_layers(s);
}
Reason gathers_by_layers(const Scenario& s) {
  if (s.plan.zero != ZeroStage::kParameters || gathers_weights_once(s.plan)) return one_replica(s);
  return "under plan/zero=3 weights are gathered layer by layer";
}
Reason exchanges_at_once(const Scenario& s) {
  const bool gathers = s.plan.overlap_param_gather && gathers_weights_once(s.plan);
  const bool reduces = s.plan.overlap_grad_reduce && reduces_gradients_once(s.plan);
  return gathers || reduces ? "" : "replicas exchange nothing beside passes that is not a layer (--overlap)";
}
Reason keeps_no_sums(const Scenario& s) {
  if (s.plan.passes == Passes::kForward) return no_backward(s);
  if (adds_up_gradients(s.plan) || s.plan.grad_accumulation != GradAccumulation::kFp32) return "";
  return "under plan/zero=2 and 3 gradients are reduced as they are made, as with fused";
}
Reason one_tensor_rank(const Scenario& s) { return s.plan.tp == 1 ? "plan/tp is 1" : ""; }

// Under "on" products wait for the exchanges of context parallelism, too.
Reason nothing_blocks(const Scenario& s) {
  return s.plan.cp > 1 && s.plan.blocking_tp == TensorBlocking::kOn ? "" : one_tensor_rank(s);
}

Reason messages_differ(const Scenario& s) {
  if (s.plan.pp == 1) return one_stage(s);
  if (s.plan.tp == 1) return one_tensor_rank(s);
  return s.plan.sequence_parallel ? "under plan/sequence_parallel, tensor-parallel ranks have other parts" : "";
}

Reason no_parts_of_products(const Scenario& s) {
  if (s.plan.tp == 1) return one_tensor_rank(s);
  return s.plan.sequence_parallel ? "" : "only exchanges of sequence parallelism run in parts beside products";
}

Reason whole_context(const Scenario& s) { return s.plan.cp == 1 ? "plan/cp is 1" : ""; }
Reason sparse_attention(const Scenario& s) {
  return has_sparse_attention(s.model) ? "the model's queries read keys that are chosen or compressed" : "";
}
Reason no_choice_of_exchange(const Scenario& s) {
  Reason alone = whole_context(s);
  if (!alone.empty() || has_sparse_attention(s.model)) return alone.empty() ? sparse_attention(s) : alone;
  if (s.plan.cp_comm != ContextExchange::kHierarchical) return "";
  if (s.plan.cp_inner == 1) return "plan/cp_inner is 1: keys and values go around one ring, as under p2p";
  return s.plan.cp_inner == s.plan.cp ? "plan/cp_inner is plan/cp: all is one exchange of heads, as under a2a" : "";
}

Reason whole_weights(const Scenario& s) { return s.plan.zero == ZeroStage::kParameters ? "" : "it is of plan/zero=3"; }
Reason gathers_in_passes(const Scenario& s) {
  if (is_whole_in_passes(s.plan)) return "FSDP2 gathers weights once a step in a pipeline";
  return whole_weights(s);
}

Reason not_muon(const Scenario& s) {
  return s.plan.optimizer == OptimizerKind::kMuon ? "" : "it is of plan/optimizer=muon";
}

Reason not_shared_muon(const Scenario& s) {
  if (s.plan.optimizer != OptimizerKind::kMuon) return not_muon(s);
  return s.plan.zero == ZeroStage::kOptimizer ? "" : "it is of plan/zero=1";
}

Reason not_divided_muon(const Scenario& s) {
  return s.plan.optimizer == OptimizerKind::kMuon ? one_tensor_rank(s) : not_muon(s);
}

Reason no_full_recomputation(const Scenario& s) {
  return s.plan.recompute == Recompute::kFull ? "" : "it is of plan/recompute=full";
}

Reason nothing_launched(const Scenario& s) {
  return s.host.cuda_graphs.step ? "host/cuda_graphs is on: one launch a step" : "";
}

Reason nothing_offloaded(const Scenario& s) {
  const bool offloads = s.plan.offload_optimizer.value > 0 || s.plan.offload_activations > 0;
  return offloads ? "" : "nothing is offloaded";
}

Reason keeps_all(const Scenario& s) {
  return s.plan.passes == Passes::kForward ? "" : "a backward pass follows, which keeps them all the same";
}

Reason offloads_nothing(const Scenario& s) {
  if (s.plan.offload_weights) return "";
  return s.plan.passes == Passes::kGradients && offloads_gradients(s.plan) ? "" : no_update(s);
}

Reason stays_on_gpu(const Scenario& s) {
  if (s.plan.passes == Passes::kForward) return no_backward(s);
  return offloads_gradients(s.plan) ? "" : "it is of plan/zero=2 and 3 with plan/offload_optimizer";
}

Reason copies_nothing(const Scenario& s) {
  return copies_gradients(s.plan) ? "" : "it is of DeepSpeed's plan/zero=1 and 2 with an optimizer";
}

Reason no_adapters(const Scenario& s) { return s.plan.lora_rank == 0 ? "plan/lora_rank is 0" : ""; }

Reason nothing_to_recompute(const Scenario& s) {
  const bool trains = s.plan.frozen_layers < s.model.layers || s.training.mtp;
  return trains ? no_backward(s) : "plan/frozen_layers is all layers, which keep nothing";
}

Reason whole_gradients(const Scenario& s) {
  if (s.plan.passes == Passes::kForward) return no_backward(s);
  if (!has_replicas(s.plan)) return one_replica(s);
  if (is_whole_in_passes(s.plan)) return "FSDP2 in a pipeline reduces gradients once a step";
  return shards_gradients(s.plan) ? "" : "it is of plan/zero=2 and 3";
}
Reason sums_no_shares(const Scenario& s) {
  if (s.plan.passes == Passes::kForward) return no_backward(s);
  if (!has_replicas(s.plan)) return one_replica(s);
  return is_zero_1_or_2(s.plan) ? "" : "it is of plan/zero=1 and 2";
}

struct Condition {
  std::string_view field;
  Reason (*reason)(const Scenario&);
};
constexpr std::array kConditions = std::to_array<Condition>({
    {"training/document_tokens", seen_by_all},
    {"plan/kv_cache", keeps_all},
    {"plan/etp", no_experts},
    {"plan/expert_dispatch", whole_experts},
    {"plan/expert_imbalance", padded_or_no_experts},
    {"plan/expert_capacity", no_experts},
    {"plan/expert_products", no_experts},
    {"plan/fused_permutation", no_experts},
    {"plan/weighted_activation", no_experts},
    {"plan/overlap_ep", no_shared_experts},
    {"host/expert_launch_cost", one_kernel_of_experts},
    {"plan/fp8_params", not_quantized},
    {"plan/fp8_any_layout", not_fp8},
    {"plan/fp8_dispatch", not_quantized_to_experts},
    {"plan/fp8_activations", not_quantized},
    {"plan/fp8_original_inputs", keeps_casts_or_all},
    {"plan/delayed_scaling", not_fp8},
    {"plan/bf16_first_layers", not_quantized},
    {"plan/bf16_last_layers", not_quantized},
    {"plan/recompute", nothing_to_recompute},
    {"plan/separate_adapters", no_adapters},
    {"plan/frozen_layers", no_backward},
    {"plan/attention_library", stored_scores},
    {"plan/split_softmax", fused_attention},
    {"plan/cp_comm", no_choice_of_exchange},
    {"plan/flash_attention", sparse_attention},
    {"plan/vpp", one_chunk},
    {"plan/grad_accumulation", keeps_no_sums},
    {"plan/overlap_p2p", one_stage},
    {"plan/first_stage_layers", one_stage},
    {"plan/last_stage_layers", one_stage},
    {"plan/overlap_grad_reduce", reduces_beside_layers},
    {"plan/average_in_collective", reduces_by_layers},
    {"plan/overlap_param_gather", gathers_by_layers},
    {"plan/grad_buckets", exchanges_at_once},
    {"plan/account_embedding", one_stage},
    {"plan/account_loss", one_stage},
    {"plan/scatter_p2p", messages_differ},
    {"plan/overlap_tp", no_parts_of_products},
    {"plan/blocking_tp", nothing_blocks},
    {"plan/zero_library", whole_weights},
    {"plan/reduce_each", whole_gradients},
    {"plan/gradient_exchange", sums_no_shares},
    {"plan/reshard", gathers_in_passes},
    {"plan/prefetch", gathers_in_passes},
    {"plan/recompute_early_stop", no_full_recomputation},
    {"plan/optimizer", no_update},
    {"plan/optimizer_state", no_update},
    {"plan/offload_optimizer", offloads_nothing},
    {"plan/offload_gradients", stays_on_gpu},
    {"plan/offload_activations", no_backward},
    {"plan/copy_gradients", copies_nothing},
    {"plan/reduce_bucket", no_backward},
    {"plan/muon_steps", not_muon},
    {"plan/muon_tp", not_divided_muon},
    {"plan/muon_buffers", not_shared_muon},
    {"host/blocking_launches", nothing_launched},
    {"host/memory_bandwidth", nothing_offloaded},
});

class Ineffective {
 public:
  void add(std::string_view option, std::string_view why) {
    warnings_.push_back({"without_effect", fmt::format("{} changes nothing: {}", option, why)});
  }
  void add(std::string text) { warnings_.push_back({"without_effect", std::move(text)}); }
  std::vector<Warning> take() { return std::move(warnings_); }

 private:
  std::vector<Warning> warnings_;
};

// Whether a field that stands for others, this one among them, switches all of them on: "plan/overlap=all" means those
// that there are.
bool is_one_of_all(std::string_view field, std::span<const Assignment> set, const NamedFields& named) {
  const auto is_on = [set](std::string_view member) {
    return std::any_of(set.begin(), set.end(), [member](const Assignment& each) {
      return each.field == member && each.text == field_text(true);
    });
  };
  return std::any_of(scenario_fields().begin(), scenario_fields().end(), [&](const FieldDescription& whole) {
    return named.names.contains(whole.field.name) && whole.covers(field) &&
           std::all_of(whole.stands_for.begin(), whole.stands_for.end(), is_on);
  });
}

// Fields that the user named, whose conditions the plan does not meet. What a framework sets is no mistake.
template <class Table>
void add_unmet(const Scenario& scenario, const Table& table, Ineffective& found) {
  const std::vector<Assignment> usual = assignments_of(Table());
  const std::vector<Assignment> set = assignments_of(table);
  for (const Condition& condition : kConditions) {
    const auto at =
        std::find_if(set.begin(), set.end(), [&](const auto& each) { return each.field == condition.field; });
    if (at == set.end() || *at == usual[static_cast<std::size_t>(at - set.begin())]) continue;
    const NamedFields& named = scenario.named;
    if (!named.names.contains(condition.field) || named.chosen.contains(condition.field)) continue;
    if (is_one_of_all(condition.field, set, named)) continue;
    const Reason reason = condition.reason(scenario);
    if (!reason.empty()) found.add(fmt::format("{}={}", at->field, at->text), reason);
  }
}

void add_experts(const Scenario& scenario, Ineffective& found) {
  const ParallelPlan& plan = scenario.plan;
  if (!scenario.model.moe) return;
  const double most = most_over_mean(scenario.model, plan);
  if (plan.expert_imbalance.value <= most || pads_experts(plan)) return;
  found.add(fmt::format("plan/expert_imbalance above {:.4g}", most),
            most < static_cast<double>(plan.ep)
                ? "a token goes to an expert once"
                : fmt::format("plan/ep is {}, and no rank has more than all tokens", plan.ep));
}

void add_graphs(const Scenario& scenario, Ineffective& found) {
  CudaGraphs known = graphs_of_layers(scenario.model);
  if (scenario.model.moe) known.modules |= set_of(LayerModule::kMoe);
  if (const CudaGraphs none{.modules = scenario.host.cuda_graphs.modules & ~known.modules}; none.any()) {
    found.add(fmt::format("host/cuda_graphs={}", field_text(none)), "the model has no such modules");
  }
}

void add_schedule(const Scenario& scenario, Ineffective& found) {
  const ParallelPlan& plan = scenario.plan;
  const PipelineSchedule& schedule = traits_of(plan);
  if (schedule.hides_tokens) {
    if (microbatches_of(plan, scenario.training) == 1) {
      found.add(fmt::format("plan/schedule={}", plan.schedule), "with one microbatch no passes run in pairs");
    } else if (exchanges_by_layer(plan) && scenario.model.moe && plan.ep > 1) {
      found.add(
          fmt::format("plan/schedule={} hides no tokens of experts under plan/zero={}, whose layers gather weights or "
                      "reduce gradients in turn; plan/zero=1 lets it",
                      plan.schedule, name_of(plan.zero)));
    }
  } else if (schedule.most_chunks == 0 && plan.vpp == 1 && plan.pp > 1) {
    found.add(
        fmt::format("plan/schedule={} with plan/vpp=1 has one chunk a stage: its bubble is not shorter than with "
                    "plan/schedule={}; plan/vpp=2 or more shortens it",
                    plan.schedule, ParallelPlan().schedule));
  }
}

void add_rounds(const Scenario& scenario, Ineffective& found) {
  const ParallelPlan& plan = scenario.plan;
  // FSDP's no_sync has whole gradients, too, but shares the weights.
  if (plan.zero != ZeroStage::kGradients || !reduces_each_round(plan)) return;
  if (plan.vpp > 1 || plan.passes == Passes::kForward) return;
  found.add(
      "with one model chunk a stage, plan/reduce_each=round keeps all gradients whole until the last backward pass, as "
      "plan/zero=1 does, and their shares beside them; plan/vpp=2 or more makes shorter rounds");
}

constexpr std::array kRecomputeModules = std::to_array<std::pair<RecomputeModule, Reason (*)(const Scenario&)>>({
    {RecomputeModule::kMoeActivation, no_experts},
    {RecomputeModule::kMoe, no_experts},
    {RecomputeModule::kSharedExperts,
     [](const Scenario& s) -> Reason {
       if (!s.model.moe) return no_experts(s);
       return s.model.moe->shared_experts == 0 ? "the model has no shared experts" : "";
     }},
    {RecomputeModule::kMlp,
     [](const Scenario& s) -> Reason {
       return has_layers(s.model, &LayerKind::feed_forward, FeedForward::kDense) ? "" : "all layers have experts";
     }},
    {RecomputeModule::kLatentUpProjection,
     [](const Scenario& s) -> Reason { return s.model.mla ? "" : "the model has no latent attention"; }},
});

void add_recomputation(const Scenario& scenario, Ineffective& found) {
  const ParallelPlan& plan = scenario.plan;
  if (plan.recompute != Recompute::kSelective || plan.passes == Passes::kForward) return;
  const auto has = [&](RecomputeModule module) { return (plan.recompute_modules & set_of(module)) != 0; };
  for (const auto& [module, reason] : kRecomputeModules) {
    if (!has(module)) continue;
    const Reason why = reason(scenario);
    if (!why.empty()) found.add(fmt::format("{} in plan/recompute", name_of(module)), why);
  }
  // With delayed scaling the projection keeps a cast of the output, and the core keeps the output itself.
  const bool frees_output = delays_scaling(plan, scenario.training.precision);
  if (has(RecomputeModule::kCoreAttention) && plan.flash_attention && !frees_output) {
    found.add("core_attn in plan/recompute takes time and frees next to nothing: fused attention stores no scores");
  }
}

void add_layers(const Scenario& scenario, std::span<const std::int64_t> layers, Ineffective& found) {
  const ParallelPlan& plan = scenario.plan;
  std::int64_t most = 0;  // that are trained
  LayerRange range;
  for (const std::int64_t count : layers) {
    range.count = count;
    most = std::max(most, count - frozen_layers_of(plan, range));
    range.first += count;
  }
  const std::string held = fmt::format("a {} holds at most {}{} layers",
                                       static_cast<std::int64_t>(layers.size()) > plan.pp ? "model chunk" : "stage",
                                       most, frozen_layers_of(plan) > 0 ? " trained" : "");
  if (plan.offload_activations > most) found.add(fmt::format("a plan/offload_activations above {}", most), held);
  if (quantizes(scenario.training.precision) &&
      plan.bf16_first_layers + plan.bf16_last_layers >= scenario.model.layers) {
    found.add(fmt::format("training/dtype={}", name_of(scenario.training.precision)),
              "plan/bf16_first_layers and plan/bf16_last_layers are all layers");
  }
  if (plan.recompute == Recompute::kFull && most > 0 && plan.recompute_layers > most) {
    found.add(fmt::format("a number of layers above {} in plan/recompute", most), held);
  }
  if (plan.recompute == Recompute::kFull && plan.recompute_together > std::max<std::int64_t>(1, most)) {
    found.add(fmt::format("more than {} layers of full:uniform in plan/recompute", most), held);
  }
}

// What a user says of the network between nodes, of a plan within one, or beyond what a GPU reaches of it.
void add_network(const Scenario& scenario, Ineffective& found) {
  if (rank_count(scenario.plan).value_or(0) > scenario.cluster.gpus_per_node()) {
    const auto limit = pcie_limit(scenario.cluster);
    if (!limit || !warning_of(scenario.cluster).empty()) return;  // that tells it, too
    for (const std::string_view field : {"machine/inter", "machine/inter_bandwidth", "machine/nics_per_node"}) {
      if (!scenario.named.names.contains(field)) continue;
      return found.add(
          fmt::format("{} has no more effect than {} for each GPU: a GPU's PCIe port passes no more to the "
                      "network",
                      field, to_text(*limit)));
    }
    return;
  }
  for (const std::string_view field : {"machine/inter", "machine/inter_bandwidth"}) {
    if (scenario.named.names.contains(field)) found.add(field, "the plan lies in one node");
  }
}

}  // namespace

bool changes_nothing(std::string_view field, const Scenario& scenario) {
  const auto known = std::find_if(kConditions.begin(), kConditions.end(),
                                  [field](const Condition& each) { return each.field == field; });
  return known != kConditions.end() && !known->reason(scenario).empty();
}

std::vector<Warning> without_effect(const Scenario& scenario, std::span<const std::int64_t> layers) {
  Ineffective found;
  add_unmet(scenario, scenario.plan, found);
  add_unmet(scenario, scenario.training, found);
  add_unmet(scenario, scenario.host, found);
  add_network(scenario, found);
  add_experts(scenario, found);
  add_graphs(scenario, found);
  add_schedule(scenario, found);
  add_rounds(scenario, found);
  add_layers(scenario, layers, found);
  add_recomputation(scenario, found);
  return found.take();
}

}  // namespace ns_dist
