// A model under a plan: one step as a program, or as an execution graph.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/collective.h"
#include "ns_dist/memory.h"
#include "ns_dist/mesh.h"
#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/result.h"
#include "ns_dist/step_program.h"
#include "ns_dist/units.h"

namespace ns_dist {

// The dimensions that ParallelPlan::order names, innermost first: tp, cp, dp and pp once each, and ep beside dp, of
// which it is a part. Missing ones follow at the end (ep inside dp), as in Megatron-LM (core/parallel_state.py,
// RankGenerator). Errors: an unknown, repeated or misplaced dimension; a missing one whose degree is above 1.
Result<std::vector<std::string_view>> rank_order(const ParallelPlan& plan);

// Rank grid: the plan's order without ep. The order is one that rank_order accepts.
Mesh mesh_of(const ParallelPlan& plan);

// For each dimension, the number of ranks from the first rank of a group to the first rank of the next group. If this
// divides the GPUs of a node, no group lies in two nodes. 1 if there is no such dimension, or no valid order.
struct GroupReach {
  std::int64_t tensor = 1, context = 1, expert = 1, expert_tensor = 1;
};
GroupReach group_reach(const ParallelPlan& plan);

// Of a2a+p2p: the most neighbors among the context-parallel ranks that lie in a node of `node` GPUs and divide the
// key-value heads of a tensor-parallel rank. 0 for other plans, and those that check_plan refuses.
std::int64_t usual_cp_inner(const Model& model, const ParallelPlan& plan, std::int64_t node);

// Checks whether the plan can be built. Errors, all of them at once: degrees that are not positive, or that do not
// divide heads, layers, experts, sequence or batch.
Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training);
Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache);

// The same without what depends on the schedule, on its chunks or on what runs beside passes: plans that differ in
// nothing else have these errors in common.
Result<void> check_all_but_schedule(const Model& model, const ParallelPlan& plan, const Training& training);

// A plan of the same ranks with one stage: with one microbatch it runs the kernels that all stages of `plan` together
// run for a microbatch. `collectives`: and the collectives of tensor, context and expert parallelism, among the ranks
// among which the first stage runs them. Those of weights and gradients are among other ranks. A plan whose
// recomputation or offloading depends on the place of a layer does less of it on one stage.
struct OnOneStage {
  ParallelPlan plan;
  bool collectives = false;
};
OnOneStage on_one_stage(const ParallelPlan& plan);

// What data-parallel ranks do together. Of plans whose degrees are positive.
//
// Whether weights are gathered once a step, after an update, before the first forward passes or beside them
// (overlap_param_gather); and gradients reduced once, behind the last backward passes or beside them
// (overlap_grad_reduce).
bool gathers_weights_once(const ParallelPlan& plan);
bool reduces_gradients_once(const ParallelPlan& plan);
// Whether these reductions can run beside the last backward passes. FSDP2 in a pipeline reduces behind them.
bool reduces_beside_passes(const ParallelPlan& plan);

// What replicas exchange beside the passes of one microbatch through a layer (ZeRO 2 and 3): collectives of rank 0 that
// run one after the other.
struct LayerExchange {
  std::vector<Collective> forward, backward;
};
struct LayerExchanges {
  std::vector<LayerExchange> kinds;
  std::vector<std::uint16_t> of_layer;  // indexes of kinds; layers for multi-token prediction are left out
};
// Of a plan that check_plan accepts. Nothing where replicas exchange once a step; under Muon, whose buffers depend on
// the stages; and where some layers have products in another format than others.
LayerExchanges layer_exchanges(const Model& model, const ParallelPlan& plan, const Training& training,
                               PlanCache& cache);

// Passes of one replica through the model in a step. Of positive degrees and batches; check_plan refuses those that do
// not divide.
std::int64_t microbatches_of(const ParallelPlan& plan, const Training& training);

// FLOPs of the model's mathematics in one step on all ranks, without recomputation (Narayanan et al. 2021, eq. 3,
// generalized: 2 FLOPs a multiply-add, backward twice the forward if the plan has it, attention scores in full as
// Megatron counts them). Tokens that experts drop (ParallelPlan::expert_capacity) are not counted. `hardware` adds
// recomputation and the rows to which experts are padded. `causal` and `causal_hardware` are without the scores that a
// causal mask hides: s (s - 1) / 2 of s^2. FlashAttention counts half of all (Dao 2023, arXiv 2307.08691, s.4.1).
// `losses`: of `model`, what makes logits.
struct StepFlops {
  Flops model, hardware, causal, causal_hardware, losses;
};
StepFlops step_flops(const Model& model, const ParallelPlan& plan, const Training& training);

// The step: pipeline passes, tensor-parallel collectives, pipeline messages, gradient reduction, optimizer, parameter
// gathering, as far as ParallelPlan::passes has them. Errors: those of check_plan, or a schedule that cannot run this
// shape.
Result<StepProgram> plan_program(const Model& model, const ParallelPlan& plan, const Training& training);
Result<StepProgram> plan_program(const Model& model, const ParallelPlan& plan, const Training& training,
                                 PlanCache& cache);

}  // namespace ns_dist
