#include "plan_defaults.h"

#include "ns_dist/internal/number_from.h"
#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

// A layout says how many model chunks a stage has, where it is one of this pipeline: what is wrong with it is an error
// of the plan. Returns whether these are others than before.
bool chunks_of_layout(ParallelPlan& plan, bool schedule_is_given) {
  if (plan.pipeline_layout.is_even()) return false;
  const auto positions = read_pipeline_layout(plan.pipeline_layout.text);
  if (!positions || plan.pp < 1) return false;
  const auto all = static_cast<std::int64_t>(positions->size());
  if (all % plan.pp != 0) return false;
  // A stage may hold chunks of two directions (DualPipe).
  const PipelineSchedule& traits = traits_of(plan);
  const auto fit = [&](std::int64_t chunks) {
    return chunks >= traits.least_chunks && chunks <= all &&
           traits.seats({plan.pp, 1, chunks})[0].size() == positions->size();
  };
  if (!schedule_is_given && fit(plan.vpp)) return false;
  const std::int64_t chunks = all / plan.pp;
  if (schedule_is_given && (fit(traits.least_chunks) || (traits.most_chunks != 0 && chunks > traits.most_chunks))) {
    return false;  // the schedule's own
  }
  plan.vpp = chunks;
  return true;
}

// Whether the schedule of `plan` runs as many chunks as it has. With one, a schedule of any number is one of its own.
bool runs_its_chunks(const ParallelPlan& plan) {
  const PipelineSchedule& traits = traits_of(plan);
  return traits.has_chunks(plan.vpp) && (plan.vpp > 1 || traits.most_chunks != 0);
}

// What the schedule, the model chunks and the overlap of messages say of each other when not all are given. `before`:
// the plan that is changed, if any; what the change leaves possible stays.
void follow_schedule(ParallelPlan& plan, const FieldNames& given, const ParallelPlan* before) {
  const bool schedule = given.contains("plan/schedule");
  const bool given_chunks = given.contains("plan/vpp");
  const bool laid_out = !given_chunks && given.contains("plan/pipeline_layout") && chunks_of_layout(plan, schedule);
  const bool chunks = given_chunks || laid_out;
  if (!schedule && (before == nullptr || laid_out || (chunks && !runs_its_chunks(plan)))) {
    plan.schedule = schedule_for(plan.vpp).name;
  }
  const PipelineSchedule& traits = traits_of(plan);
  const bool other_schedule = before == nullptr || plan.schedule != before->schedule;
  const bool keeps_chunks = before != nullptr && traits.has_chunks(plan.vpp);
  if (!chunks && schedule && other_schedule && !keeps_chunks) plan.vpp = traits.least_chunks;
  // Megatron-LM overlaps messages with computation in the interleaved schedule unless told otherwise
  // (arguments.py, --no-overlap-p2p-communication), and cannot in the others.
  const bool chosen = before != nullptr && before->overlap_p2p != traits_of(*before).overlaps_messages;
  if (!given.contains("plan/overlap_p2p") && other_schedule && !chosen) plan.overlap_p2p = traits.overlaps_messages;
}

// Sequence parallelism comes with tensor parallelism.
void follow_tp(ParallelPlan& plan, const FieldNames& given, const ParallelPlan* before) {
  if (given.contains("plan/sequence_parallel")) return;
  if (before == nullptr) {
    plan.sequence_parallel = plan.tp > 1;
  } else if (given.contains("plan/tp")) {
    plan.sequence_parallel = plan.tp > 1 && (before->tp == 1 || plan.sequence_parallel);
  }
}

// Who names the layers of a stage does not mean that the embedding or the loss, which a framework counts, is one.
void follow_division(ParallelPlan& plan, const FieldNames& named) {
  const bool layout = named.contains("plan/pipeline_layout") && !plan.pipeline_layout.is_even();
  const bool first = named.contains("plan/first_stage_layers") && plan.first_stage_layers > 0;
  const bool last = named.contains("plan/last_stage_layers") && plan.last_stage_layers > 0;
  if ((layout || first) && !named.contains("plan/account_embedding")) plan.account_embedding = false;
  if ((layout || last) && !named.contains("plan/account_loss")) plan.account_loss = false;
}

// Autograd adds up gradients in the format of the weights, whatever else a framework sets.
void follow_weights(ParallelPlan& plan, const FieldNames& named) {
  if (!named.contains("plan/weights") || named.contains("plan/grad_accumulation")) return;
  if (plan.weights != WeightStorage::kMaster) plan.grad_accumulation = GradAccumulation::kLow;
}

}  // namespace

void follow_fields(ParallelPlan& plan, const FieldNames& named, const FieldNames& given, const ParallelPlan* before) {
  follow_division(plan, named);
  follow_weights(plan, named);
  follow_schedule(plan, given, before);
  follow_tp(plan, given, before);
}

void follow_machine(Scenario& scenario, const FieldNames& given, const Scenario* base) {
  if (!given.contains("plan/cp_comm") && (base == nullptr || base->plan.cp_comm == usual_cp_comm(base->model))) {
    scenario.plan.cp_comm = usual_cp_comm(scenario.model);
  }
  if (!given.contains("plan/cp_inner")) {
    if (base == nullptr)
      scenario.plan.cp_inner = usual_cp_inner(scenario);
    else
      follow_context(*base, scenario);
  }
  if (!given.contains("plan/fp8_any_layout") &&
      (base == nullptr || base->plan.fp8_any_layout == usual_fp8_any_layout(*base))) {
    scenario.plan.fp8_any_layout = usual_fp8_any_layout(scenario);
  }
}

ParallelPlan with_fields(const ParallelPlan& before, std::span<const Assignment> assignments) {
  ParallelPlan plan = before;
  FieldNames given;
  for (const Assignment& each : assignments) {
    assign_field(plan, each);
    given.insert(each.field);
  }
  follow_fields(plan, given, given, &before);
  return plan;
}

ContextExchange usual_cp_comm(const Model& model) {
  return model.sliding_window > 0 ? ContextExchange::kAllGather : ContextExchange::kRing;
}

void follow_context(const Scenario& before, Scenario& after) {
  if (after.plan.cp_comm != before.plan.cp_comm || before.plan.cp_inner == usual_cp_inner(before)) {
    after.plan.cp_inner = usual_cp_inner(after);
  }
}

std::int64_t usual_cp_inner(const Scenario& scenario) {
  return usual_cp_inner(scenario.model, scenario.plan, scenario.cluster.gpus_per_node());
}

bool usual_fp8_any_layout(const Scenario& scenario) {
  const Gpu& gpu = scenario.cluster.gpu;
  const double capability = gpu.vendor == "nvidia" ? number_from<double>(gpu.compute_capability).value_or(0) : 0;
  return capability >= 10 && capability < 12;
}

}  // namespace ns_dist
