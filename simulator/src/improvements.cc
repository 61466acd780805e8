#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>

#include "fewer_layers.h"
#include "machine.h"
#include "memory_savings.h"
#include "ns_dist/balanced_layout.h"
#include "ns_dist/internal/offload_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "plan_defaults.h"
#include "scenario_fields.h"
#include "step_difference.h"
#include "step_times.h"

namespace ns_dist {
namespace {

constexpr double kWorthwhile = 0.002;  // of the step; less is not proposed. Chosen, not fitted

struct Candidate {
  std::string change;
  std::vector<Assignment> set;  // what a user changes; the rest of `plan` follows from it
  ParallelPlan plan;
  Training training;
  Host host = {};
  bool elaborate = false;  // proposed where it saves more than the simpler ones before it by what is worthwhile
};

// Another plan, of which a user changes all that is different.
Candidate with_plan(const Scenario& from, std::string change, ParallelPlan plan) {
  std::vector<Assignment> set = differences(from.plan, plan);
  return {std::move(change), std::move(set), std::move(plan), from.training, from.host};
}

Assignment assignment(std::string_view field, std::int64_t value) {
  return {std::string(field), std::to_string(value)};
}

// Adds to `set` what does not follow from it, and mends what contradicts: whoever sets all of it has `plan`.
void complete(std::vector<Assignment>& set, const Scenario& from, const ParallelPlan& plan) {
  for (Assignment& each : differences(with_fields(from.plan, set), plan)) set_again(set, std::move(each));
  const bool all = sets_what_follows(from);
  for (Assignment& each : differences(from.plan, plan)) {
    const bool said = std::find(set.begin(), set.end(), each) != set.end();
    if (all || (!said && from.named.names.contains(each.field))) set_again(set, std::move(each));
  }
  // Who types the change has the schedule's own chunks, not those that `from` had of another schedule.
  FieldNames given = from.named.names;
  for (const Assignment& each : set) given.insert(each.field);
  ParallelPlan typed = plan;
  follow_fields(typed, given, given, nullptr);
  if (typed.vpp != plan.vpp) set_again(set, assignment("plan/vpp", plan.vpp));
  // One stage sends no messages.
  if (plan.pp == 1) std::erase_if(set, [](const Assignment& each) { return each.field == "plan/overlap_p2p"; });
}

// What a user sets who makes one change after another.
std::vector<Assignment> both(std::vector<Assignment> before, const std::vector<Assignment>& after) {
  for (const Assignment& each : after) set_again(before, each);
  return before;
}

// Whether no switch of `fields` is on.
bool none_of(std::span<const std::string_view> fields, const ParallelPlan& plan) {
  const std::vector<Assignment> all = assignments_of(plan);
  return std::none_of(all.begin(), all.end(), [&](const Assignment& each) {
    return each.text == field_text(true) && std::find(fields.begin(), fields.end(), each.field) != fields.end();
  });
}

// What of `set` a user had switched to the contrary: " (you set plan/overlap_p2p=off)", and of a field that stands for
// others " (you set plan/overlap without p2p,tp)", or " (you set plan/overlap=none)". "": nothing.
std::string against_the_user(const std::vector<Assignment>& set, const Scenario& from) {
  std::vector<std::string> yours;
  std::map<std::string, std::vector<std::string_view>> within;  // by "plan/overlap without"
  for (const Assignment& each : set) {
    const FieldDescription* field = find_field(each.field);
    if (field == nullptr || !field->is_switch || !from.named.names.contains(each.field) ||
        from.named.chosen.contains(each.field)) {
      continue;
    }
    const bool on = each.text == field_text(true);
    const auto all =
        std::find_if(scenario_fields().begin(), scenario_fields().end(), [&](const FieldDescription& some) {
          return from.named.names.contains(some.field.name) && some.covers(each.field);
        });
    if (all == scenario_fields().end()) {
      yours.push_back(fmt::format("{}={}", each.field, field_text(!on)));
    } else if (on && none_of(all->stands_for, from.plan)) {
      const std::string none = fmt::format("{}=none", all->field.name);
      if (std::find(yours.begin(), yours.end(), none) == yours.end()) yours.push_back(none);
    } else {  // "tp" of --overlap-tp
      within[fmt::format("{} {}", all->field.name, on ? "without" : "with")].push_back(
          std::string_view(field->flag).substr(all->flag.size() + 1));
    }
  }
  for (const auto& [how, names] : within) yours.push_back(fmt::format("{} {}", how, fmt::join(names, ",")));
  return yours.empty() ? "" : fmt::format(" (you set {})", fmt::join(yours, ", "));
}

// With the schedule of a user who names none.
void use_chunks(const Model& model, ParallelPlan& plan, std::int64_t chunks) {
  const PipelineSchedule& schedule = schedule_for(chunks);
  set_stages(model, plan, plan.pp, chunks, schedule.name);
  plan.overlap_p2p |= schedule.overlaps_messages;
}

std::vector<Candidate> pipelines(const Scenario& from) {
  std::vector<Candidate> found;
  const ParallelPlan& plan = from.plan;
  if (plan.pp == 1) return found;
  const std::int64_t layers = from.model.layers / plan.pp;
  const bool even = from.model.layers % plan.pp == 0;
  for (std::int64_t chunks = 2; chunks <= layers; ++chunks) {
    // All would be many for deep models: the smallest and those that leave few layers a chunk tell enough.
    if ((even && layers % chunks != 0) || chunks == plan.vpp || (!found.empty() && layers / chunks > 2)) continue;
    Candidate candidate{fmt::format("interleave {} model chunks a stage", chunks),
                        {assignment("plan/vpp", chunks)},
                        plan,
                        from.training,
                        from.host};
    use_chunks(from.model, candidate.plan, chunks);
    // A schedule that the user named does not give way to a number of chunks.
    if (plan.schedule != candidate.plan.schedule) candidate.set.push_back({"plan/schedule", candidate.plan.schedule});
    found.push_back(std::move(candidate));
  }
  return found;
}

// The loss, with the logits and what predicts further tokens, is as much as some layers: a stage that has fewer of them
// keeps the others from waiting.
std::vector<Candidate> divisions(const Scenario& from, const Session& session) {
  std::vector<Candidate> found;
  const ParallelPlan& plan = from.plan;
  if (plan.pp == 1) return found;
  if (const auto last = last_stage(from.model, plan); last && plan.pipeline_layout.is_even()) {
    constexpr std::int64_t kMostFewer = 6;
    for (std::int64_t fewer = 1; fewer <= kMostFewer && last->layers - fewer >= last->chunks; ++fewer) {
      ParallelPlan changed = plan;
      changed.last_stage_layers = last->layers - fewer;
      changed.account_loss = false;
      if (!divides_without_rest(from.model, changed)) continue;
      found.push_back(with_plan(from, "give the stage of the loss fewer layers", changed));
    }
    if (plan.first_stage_layers == 0 && plan.last_stage_layers == 0) {
      ParallelPlan changed = plan;
      changed.account_embedding = changed.account_loss = true;
      if (changed != plan && divides_without_rest(from.model, changed)) {
        found.push_back(with_plan(from, "count the embedding and the loss as layers", changed));
      }
    }
  }
  // Behind the simpler ones, against which they are judged.
  for (std::string& layout : balanced_layouts(from, session)) {
    if (layout == plan.pipeline_layout.text) continue;
    ParallelPlan changed = plan;
    divide_evenly(changed);
    changed.pipeline_layout = {std::move(layout)};
    found.push_back(with_plan(from, "divide the layers by the time that they take", std::move(changed)));
    found.back().elaborate = true;
  }
  return found;
}

// Larger ones may need that all is recomputed, which pays where each pass gathers the weights.
std::vector<Candidate> microbatches(const Scenario& from) {
  std::vector<Candidate> found;
  const auto add = [&](std::int64_t size, std::string change, const ParallelPlan& plan) {
    Candidate candidate = with_plan(from, std::move(change), plan);
    candidate.set.push_back(assignment("training/micro_batch", size));
    candidate.training.micro_batch = size;
    found.push_back(std::move(candidate));
  };
  const std::int64_t now = from.training.micro_batch;
  for (const std::int64_t size : {2 * now, now / 2}) {
    if (size >= 1) add(size, fmt::format("microbatches of {} sequences", size), from.plan);
  }
  ParallelPlan again = from.plan;
  set_recomputation(again, {Recompute::kFull});
  if (!shards_weights(from.plan) || again == from.plan || from.plan.passes == Passes::kForward) return found;
  for (const std::int64_t size : {2 * now, 4 * now, 8 * now}) {
    add(size, fmt::format("microbatches of {} sequences, and compute all activations again", size), again);
    found.back().elaborate = true;
  }
  return found;
}

// What is not computed again needs memory: ranks that share more, or that divide a context among more, have it.
std::vector<Candidate> recomputations(const Scenario& from, const Session& session) {
  std::vector<Candidate> found;
  const Recomputation now = recomputation_of(from.plan);
  std::vector<Recomputation> less = usual_recomputations(from);
  std::erase_if(less, [&now](const Recomputation& each) { return !recomputes_less(each, now); });
  const auto add = [&](const Recomputation& again, ParallelPlan plan, std::string_view and_more) {
    set_recomputation(plan, again);
    const char* change = again.recompute == Recompute::kNone ? "keep the activations" : "recompute less";
    found.push_back(with_plan(from, fmt::format("{}{}", change, and_more), std::move(plan)));
    found.back().elaborate = !and_more.empty();
  };
  for (const Recomputation& each : less) add(each, from.plan, "");
  if (now == Recomputation{Recompute::kFull}) {
    if (const auto fewer = recomputing_fewer_layers(from, from, session)) {
      found.push_back(with_plan(from, "recompute fewer layers", fewer->plan));
    }
  }
  const bool may_share = from.plan.dp * from.plan.cp > 1;
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
    const bool by_layer = stage == ZeroStage::kParameters;
    if (!may_share || stage <= from.plan.zero || (by_layer && from.plan.pp > 1)) continue;
    ParallelPlan plan = from.plan;
    plan.zero = stage;
    if (!can_update(plan)) continue;
    for (const Recomputation& each : less) add(each, plan, ", and share more among the replicas");
  }
  for (std::int64_t times = 2; from.plan.dp % times == 0; times *= 2) {
    ParallelPlan plan = from.plan;
    plan.cp *= times, plan.dp /= times;
    for (const Recomputation& each : less) add(each, plan, ", and divide the context among more ranks");
  }
  return found;
}

// How many replicas share the weights, in a node or in several: gathers among fewer reach less far.
std::vector<Candidate> sharings(const Scenario& from) {
  std::vector<Candidate> found;
  if (!shards_weights(from.plan)) return found;
  std::vector<std::int64_t> sizes = usual_shards(from, 2);
  sizes.push_back(0);
  const auto sharing = [](const ParallelPlan& plan) { return plan.shard > 0 ? plan.shard : plan.dp * plan.cp; };
  for (const std::int64_t size : sizes) {
    if (size == from.plan.shard) continue;
    ParallelPlan plan = from.plan;
    plan.shard = size;
    const bool fewer = sharing(plan) < sharing(from.plan);
    found.push_back(
        with_plan(from, fmt::format("share the weights among {} replicas", fewer ? "fewer" : "more"), plan));
  }
  return found;
}

// Weights that stay until the backward pass are gathered once.
std::vector<Candidate> kept_weights(const Scenario& from) {
  if (!shards_weights(from.plan) || !from.plan.reshard) return {};
  ParallelPlan plan = from.plan;
  plan.reshard = false;
  return {with_plan(from, "keep gathered weights until the backward pass", plan)};
}

// Weights or gradients that every replica holds whole are gathered or reduced less often.
std::vector<Candidate> less_sharing(const Scenario& from) {
  std::vector<Candidate> found;
  if (from.plan.zero < ZeroStage::kGradients) return found;
  for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients}) {
    if (stage >= from.plan.zero || !runs_by_layer(from.plan)) continue;
    ParallelPlan plan = from.plan;
    plan.zero = stage;
    if (stage == ZeroStage::kNone) plan.shard = 0;
    found.push_back(with_plan(from, "share less among the replicas", plan));
  }
  return found;
}

// What the GPUs' memory may hold instead of the hosts'.
std::vector<Candidate> less_offloading(const Scenario& from) {
  std::vector<Candidate> found;
  const double now = from.plan.offload_optimizer.value;
  if (now == 0) return found;
  const auto add = [&](double part, bool weights) {
    ParallelPlan plan = from.plan;
    plan.offload_optimizer = {part};
    plan.offload_weights = weights;
    found.push_back(with_plan(from, "keep more in the GPUs' memory", plan));
  };
  if (from.plan.offload_weights) add(now, false);
  add(0, false);
  for (const double part : kOffloadParts) {
    if (part < now) add(part, false);
  }
  return found;
}

// Gradients of a round of backward passes are reduced at once.
std::vector<Candidate> fewer_reductions(const Scenario& from) {
  ParallelPlan plan = from.plan;
  if (plan.zero != ZeroStage::kGradients || adds_up_gradients(plan) || !takes_turns(plan)) return {};
  plan.reduce_each = ReduceEach::kRound;
  return {with_plan(from, "reduce gradients once a round of backward passes", plan)};
}

std::vector<Candidate> overlaps(const Scenario& from) {
  std::vector<Candidate> found;
  ParallelPlan plan = from.plan;
  plan.overlap_grad_reduce |= reduces_beside_passes(plan);
  plan.overlap_param_gather |= gathers_weights_once(plan);
  plan.overlap_p2p |= plan.pp > 1 && traits_of(plan).overlaps_messages;
  if (plan != from.plan) found.push_back(with_plan(from, "communicate while computing", plan));
  // What overlaps shares SMs and memory, and in parts it waits for the latency of each.
  if (from.plan.overlap_grad_reduce || from.plan.overlap_param_gather) {
    ParallelPlan apart = from.plan;
    apart.overlap_grad_reduce = apart.overlap_param_gather = false;
    found.push_back(with_plan(from, "exchange gradients and weights at once, behind the passes", apart));
  }
  // The exchanges of sequence parallelism alone run in parts.
  if (plan.tp > 1 && !(plan.sequence_parallel && plan.overlap_tp)) {
    plan.sequence_parallel = plan.overlap_tp = true;
    found.push_back(with_plan(from, "communicate while computing, in parts beside each product", plan));
  }
  // Each part is launched apart.
  if (from.plan.overlap_tp) {
    ParallelPlan whole = from.plan;
    whole.overlap_tp = false;
    found.push_back(with_plan(from, "communicate before and behind each product, not in parts beside it", whole));
  }
  return found;
}

// Norms of a part of the tokens take less time. Where latencies are long, one all-reduce may take less time than a
// reduce-scatter and an all-gather.
std::vector<Candidate> divided_sequences(const Scenario& from) {
  if (from.plan.tp == 1) return {};
  ParallelPlan plan = from.plan;
  plan.sequence_parallel = !from.plan.sequence_parallel;
  if (plan.sequence_parallel) return {with_plan(from, "divide sequences among tensor-parallel ranks", plan)};
  plan.overlap_tp = false;
  return {with_plan(from, "keep whole activations on each tensor-parallel rank", plan)};
}

// How tokens travel to their experts.
std::vector<Candidate> exchanges(const Scenario& from) {
  std::vector<Candidate> found;
  if (!from.model.moe || from.plan.ep == 1) return found;
  for (const bool beside : {false, true}) {
    for (const ExpertDispatch dispatch : {ExpertDispatch::kAllToAll, ExpertDispatch::kDeepEp}) {
      ParallelPlan plan = from.plan;
      plan.overlap_ep |= beside && from.model.moe->shared_experts > 0;
      if (dispatch == ExpertDispatch::kDeepEp) {
        if (from.cluster.gpu.vendor != "nvidia" && from.plan.expert_dispatch != dispatch) continue;
        plan.expert_dispatch = dispatch;
        if (plan.tp > 1) plan.etp = 1;  // it sends a token to one rank of an expert
      }
      if (plan == from.plan || (!found.empty() && plan == found.back().plan)) continue;
      const char* change = plan.overlap_ep == from.plan.overlap_ep ? "send each node one copy of a token"
                           : plan.expert_dispatch == from.plan.expert_dispatch
                               ? "compute shared experts while tokens travel"
                               : "send each node one copy of a token, while shared experts compute";
      found.push_back(with_plan(from, change, plan));
    }
  }
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    if (!schedule->hides_tokens || !schedule->has_chunks(from.plan.vpp) || from.plan.schedule == schedule->name)
      continue;
    ParallelPlan plan = from.plan;
    plan.schedule = std::string(schedule->name);
    plan.overlap_p2p |= plan.pp > 1 && schedule->overlaps_messages;
    plan.overlap_ep = false;  // tokens travel beside another microbatch, not beside their own shared experts
    found.push_back(with_plan(from, "compute another microbatch while tokens travel", plan));
  }
  if (from.plan.tp > 1 && from.plan.etp != 1) {
    ParallelPlan plan = from.plan;
    plan.etp = 1;
    found.push_back(with_plan(from, "keep each expert on one rank", plan));
  }
  return found;
}

// Each rank holds fewer experts, and tokens travel to them.
std::vector<Candidate> experts(const Scenario& from) {
  std::vector<Candidate> found;
  if (!from.model.moe) return found;
  for (std::int64_t ranks = 2 * from.plan.ep; ranks <= from.model.moe->experts; ranks *= 2) {
    ParallelPlan plan = from.plan;
    plan.ep = ranks;
    found.push_back(with_plan(from, "spread the experts over more ranks", plan));
  }
  if (from.plan.ep % 2 == 0) {
    ParallelPlan plan = from.plan;
    plan.ep /= 2;
    found.push_back(with_plan(from, "spread the experts over fewer ranks", plan));
  }
  return found;
}

// How ranks of a context exchange keys and values.
std::vector<Candidate> contexts(const Scenario& from) {
  std::vector<Candidate> found;
  if (from.plan.cp == 1) return found;
  for (const ContextExchange exchange : {ContextExchange::kRing, ContextExchange::kAllGather,
                                         ContextExchange::kAllToAll, ContextExchange::kHierarchical}) {
    const bool ring = exchange == ContextExchange::kRing || exchange == ContextExchange::kHierarchical;
    if (exchange == from.plan.cp_comm || (ring && usual_cp_comm(from.model) != ContextExchange::kRing)) continue;
    Scenario changed = from;
    changed.plan.cp_comm = exchange;
    follow_context(from, changed);
    found.push_back(with_plan(from, "exchange a context otherwise", changed.plan));
  }
  return found;
}

// A recorded graph has one shape: not that of experts whose numbers of tokens change.
std::vector<Candidate> launches(const Scenario& from) {
  if (from.host.cuda_graphs.any() || from.host.blocking_launches) return {};
  Candidate candidate{"launch the kernels by CUDA graphs", {}, from.plan, from.training, from.host};
  const bool changes = from.model.moe && !pads_experts(from.plan);
  candidate.host.cuda_graphs = changes ? graphs_of_layers(from.model) : CudaGraphs{.step = true};
  candidate.set = differences(from.host, candidate.host);
  return {candidate};
}

// Products of the logits are slow where a row of them is no multiple of 16 bytes.
std::vector<Candidate> vocabularies(const Scenario& from) {
  constexpr std::int64_t kMultiple = 64;  // 128 bytes in half precision
  if (padded_vocabulary(from.model.vocabulary, from.plan) / from.plan.tp % kMultiple == 0) return {};
  ParallelPlan plan = from.plan;
  plan.vocabulary_multiple = kMultiple;
  return {with_plan(from, "pad the vocabulary", plan)};
}

std::vector<Candidate> kernels(const Scenario& from) {
  if (!can_fuse_attention(from)) return {};
  ParallelPlan plan = from.plan;
  plan.flash_attention = true;
  return {with_plan(from, "fused attention", plan)};
}

// The same GPUs, divided otherwise.
std::vector<Candidate> degrees(const Scenario& from) {
  std::vector<Candidate> found;
  const auto add = [&](std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t dp) {
    if (tp > std::max(from.plan.tp, from.cluster.gpus_per_node())) return;
    Candidate candidate{"divide the GPUs otherwise",
                        {assignment("plan/tp", tp), assignment("plan/pp", pp), assignment("plan/dp", dp)},
                        from.plan,
                        from.training,
                        from.host};
    if (cp != from.plan.cp) candidate.set.push_back(assignment("plan/cp", cp));
    candidate.plan.tp = tp;
    set_stages(from.model, candidate.plan, pp, from.plan.vpp, from.plan.schedule);
    candidate.plan.cp = cp;
    candidate.plan.dp = dp;
    candidate.plan.sequence_parallel = tp > 1 && usual_sequence_parallel(from);
    candidate.plan.overlap_tp = tp > 1 && from.plan.overlap_tp;
    if (pp == 1 && from.plan.pp > 1) use_chunks(from.model, candidate.plan, 1);
    found.push_back(std::move(candidate));
  };
  const auto [tp, pp, cp, dp] = std::tuple(from.plan.tp, from.plan.pp, from.plan.cp, from.plan.dp);
  if (tp % 2 == 0) {
    add(tp / 2, pp, cp, dp * 2);
    add(tp / 2, pp * 2, cp, dp);
    add(tp / 2, pp, cp * 2, dp);
  }
  if (pp % 2 == 0) {
    add(tp, pp / 2, cp, dp * 2);
    add(tp * 2, pp / 2, cp, dp);
    add(tp, pp / 2, cp * 2, dp);
  }
  if (cp % 2 == 0) {
    add(tp, pp, cp / 2, dp * 2);
    add(tp * 2, pp, cp / 2, dp);
    add(tp, pp * 2, cp / 2, dp);
  }
  if (dp % 2 == 0) {
    add(tp * 2, pp, cp, dp / 2);
    add(tp, pp * 2, cp, dp / 2);
    add(tp, pp, cp * 2, dp / 2);
  }
  return found;
}

template <std::vector<Candidate> (*kCandidates)(const Scenario&)>
std::vector<Candidate> of_plan(const Scenario& from, const Session&) {
  return kCandidates(from);
}
// What changes the plan, in the order of advice of equal worth. Candidates of one kind exclude each other.
constexpr std::vector<Candidate> (*kKinds[])(const Scenario&, const Session&) = {
    of_plan<pipelines>,         divisions,
    of_plan<microbatches>,      recomputations,
    of_plan<sharings>,          of_plan<kept_weights>,
    of_plan<less_sharing>,      of_plan<less_offloading>,
    of_plan<fewer_reductions>,  of_plan<overlaps>,
    of_plan<divided_sequences>, of_plan<exchanges>,
    of_plan<experts>,           of_plan<contexts>,
    of_plan<launches>,          of_plan<vocabularies>,
    of_plan<kernels>,           of_plan<degrees>};
constexpr std::size_t kDegreesKind = std::size(kKinds) - 1;

// What a change may need beside fragmentation and communicators. A plan that is tight may stay about as tight; one that
// does not fit needs a change that fits.
Bytes room_of(const MemoryBudget& memory, Bytes capacity) {
  constexpr double kAsTight = 0.001;  // of the capacity; chosen, not fitted
  return memory.fits(capacity) ? max(capacity, memory.device() + kAsTight * capacity) : capacity;
}

class Adviser {
 public:
  Adviser(const Scenario& scenario, const Prediction& prediction, const Session& session)
      : scenario_(scenario),
        prediction_(prediction),
        session_(session),
        framework_(scenario),
        capacity_(scenario.cluster.gpu.memory),
        room_(room_of(prediction.memory, capacity_)),
        unshared_(step_time(without_sharing(scenario), session).value_or(prediction.step)) {}

  // A change of the plan. `saves` is what it saves by the clock without sharing, which is fast.
  struct Choice {
    Scenario scenario;
    Improvement improvement;
    std::size_t kind = 0;  // in kKinds
  };
  // The best change of a kind, of the plan as it is or beside another choice. Degrees go as far as they help.
  std::optional<Choice> best_of(std::size_t kind, const Choice* from = nullptr) const {
    std::optional<Choice> best;
    const Seconds worthwhile = kWorthwhile * unshared_;
    const Seconds least = from != nullptr ? from->improvement.saves + worthwhile : Seconds();
    for (Candidate& candidate : kKinds[kind](from != nullptr ? from->scenario : scenario_, session_)) {
      Scenario changed = scenario_;
      changed.plan = std::move(candidate.plan);
      changed.training = candidate.training;
      changed.host = candidate.host;
      follow_context(scenario_, changed);
      if (!framework_.has(changed)) continue;
      const auto memory = memory_budget(changed.model, changed.plan, changed.training, session_.plans());
      if (!memory || memory->device() > room_ || !memory->fits(capacity_)) continue;
      const auto step = step_time(without_sharing(changed), session_);
      const Seconds more = candidate.elaborate && best ? worthwhile : Seconds();
      if (!step || unshared_ - *step <= (best ? best->improvement.saves : least) + more) continue;
      Improvement improvement;
      improvement.change = std::move(candidate.change);
      improvement.set = from != nullptr ? both(from->improvement.set, candidate.set) : std::move(candidate.set);
      improvement.saves = unshared_ - *step;
      best = Choice{std::move(changed), std::move(improvement), kind};
    }
    if (best && kind == kDegreesKind) {
      if (auto further = best_of(kind, &*best)) return further;
    }
    return best;
  }

  // Another plan as a choice, where it has as many ranks on the same machine.
  std::optional<Choice> choice_of(const Scenario& changed) const {
    if (!session_.serves(changed) || !has_as_many_ranks(changed.plan)) return std::nullopt;
    const auto step = step_time(without_sharing(changed), session_);
    if (!step) return std::nullopt;
    Improvement improvement;
    improvement.set = differences(scenario_.plan, changed.plan);
    for (Assignment& each : differences(scenario_.training, changed.training))
      improvement.set.push_back(std::move(each));
    improvement.saves = unshared_ - *step;
    return Choice{changed, std::move(improvement), std::size(kKinds)};
  }

  // Leaves out of a choice what changes neither the step nor the memory: a later change may leave nothing to do for an
  // earlier one.
  void leave_out_idle(Choice& choice) const {
    const Outcome outcome = outcome_of(choice.scenario);
    std::vector<Assignment>& set = choice.improvement.set;
    for (std::size_t i = set.size(); i-- > 0;) {
      std::vector<Assignment> fewer = set;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      Scenario changed = with(fewer);
      complete(fewer, scenario_, changed.plan);
      const bool is_fewer = fewer.size() < set.size() && has_as_many_ranks(changed.plan);
      if (!is_fewer || outcome_of(changed) != outcome) continue;
      set = std::move(fewer);
      choice.scenario = std::move(changed);
    }
  }

  // What the change saves when what overlaps shares. Nothing where it saves nothing.
  std::optional<Improvement> timed(Choice choice) const {
    const auto changed = predict(choice.scenario, session_);
    if (!changed) return std::nullopt;
    const StepDifference difference = compare(scenario_, prediction_, choice.scenario, *changed);
    choice.improvement.saves = -difference.longer;
    const Seconds step = prediction_.step;
    choice.improvement.interval = {-difference.high,
                                   most_saved(step, choice.improvement.saves, -difference.low) * step};
    complete(choice.improvement.set, scenario_, choice.scenario.plan);
    choice.improvement.change += against_the_user(choice.improvement.set, scenario_);
    const std::vector<Assignment> machine = to_keep_machine(scenario_, choice.scenario.plan);
    choice.improvement.set.insert(choice.improvement.set.end(), machine.begin(), machine.end());
    return std::move(choice.improvement);
  }

  template <class Latency>
  Seconds step(Latency latency) const {
    return step_with(prediction_, scenario_, session_, latency).value_or(prediction_.step);
  }

  Improvement without(Category category, std::string change) const {
    const Seconds rest = step([category](const WorkItem& item, const Forecast& forecast) {
      return item.category == category ? Seconds() : forecast.latency;
    });
    return {std::move(change), prediction_.step - rest, {}, true, {}};
  }

  // The operator family that would save most if its kernels reached their floor: the one that is above it longest on
  // the critical path.
  std::optional<Improvement> faster_kernels() const {
    std::map<std::string_view, Seconds> above_floor;
    for (const PathEntry& entry : prediction_.critical_path) {
      if (find_operator_form(entry.kind) == nullptr) continue;  // a collective or a message
      if (!(entry.forecast.floor > Seconds())) continue;        // the host's: no GPU makes it shorter
      above_floor[entry.kind] += static_cast<double>(entry.count) * (entry.forecast.latency - entry.forecast.floor);
    }
    const auto worst = std::max_element(above_floor.begin(), above_floor.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    if (worst == above_floor.end()) return std::nullopt;
    const std::string_view family = worst->first;
    const Seconds rest = step([family](const WorkItem& item, const Forecast& forecast) {
      return std::holds_alternative<Operator>(item.work) && kind_of(item) == family ? forecast.floor : forecast.latency;
    });
    return Improvement{
        fmt::format("{} kernels at the GPU's peak rates", family), prediction_.step - rest, {}, true, {}};
  }

 private:
  bool has_as_many_ranks(const ParallelPlan& plan) const {
    return rank_count(plan).value_or(0) == rank_count(scenario_.plan).value_or(0);
  }

  // Peak and reserved memory, and the step without and with sharing; nothing of a plan that is not possible.
  using Outcome = std::optional<std::tuple<Bytes, Bytes, Seconds, Seconds>>;
  Outcome outcome_of(const Scenario& scenario) const {
    const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training, session_.plans());
    const auto alone = step_time(without_sharing(scenario), session_), step = step_time(scenario, session_);
    if (!memory || !alone || !step) return std::nullopt;
    return std::tuple(memory->peak(), memory->device(), *alone, *step);
  }

  // The scenario with what a user sets, and what follows from it.
  Scenario with(const std::vector<Assignment>& set) const {
    Scenario changed = scenario_;
    FieldNames given;
    for (const Assignment& each : set) {
      const auto done = assign(changed, each);
      NS_EXPECTS(done.has_value());
      given.insert(each.field);
    }
    follow_fields(changed.plan, given, given, &scenario_.plan);
    follow_context(scenario_, changed);
    return changed;
  }

  const Scenario& scenario_;
  const Prediction& prediction_;
  const Session& session_;
  FrameworkLimits framework_;
  Bytes capacity_;
  Bytes room_;
  Seconds unshared_;
};

template <class T>
void sort_by_saving(std::vector<T>& changes, auto saves) {
  std::stable_sort(changes.begin(), changes.end(), [&](const T& a, const T& b) { return saves(a) > saves(b); });
}

// Changes that are made one after the other: beyond that the plan is another one, for a search to find.
constexpr std::size_t kMostChanges = 4;

// From one change on, the best change of what came out, and so on. Nothing where no other change helps.
std::optional<Adviser::Choice> several(const Adviser& adviser, Adviser::Choice now) {
  std::vector<std::size_t> made = {now.kind};  // each kind once, but degrees may go further in the same direction
  while (made.size() < kMostChanges) {
    std::optional<Adviser::Choice> next;
    for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
      if (kind != kDegreesKind && std::find(made.begin(), made.end(), kind) != made.end()) continue;
      auto best = adviser.best_of(kind, &now);
      if (best && (!next || best->improvement.saves > next->improvement.saves)) next = std::move(best);
    }
    if (!next) break;
    now = *std::move(next);
    made.push_back(now.kind);
  }
  if (made.size() == 1) return std::nullopt;
  return now;
}

// What a user sets for several changes that were made one after the other.
void name_several(const Adviser& adviser, Adviser::Choice& now, const Scenario& scenario) {
  now.improvement.change = "several changes at once";
  std::vector<Assignment>& set = now.improvement.set;
  std::vector<Assignment> as_it_is = assignments_of(scenario.plan);
  for (const auto& more : {assignments_of(scenario.training), assignments_of(scenario.host)}) {
    as_it_is.insert(as_it_is.end(), more.begin(), more.end());
  }
  complete(set, scenario, now.scenario.plan);
  std::erase_if(
      set, [&](const Assignment& each) { return std::find(as_it_is.begin(), as_it_is.end(), each) != as_it_is.end(); });
  adviser.leave_out_idle(now);
}

}  // namespace

std::vector<Improvement> advise(const Scenario& scenario, const Prediction& prediction, const Session& session,
                                std::size_t most, const Scenario* fitting) {
  const Seconds least = kWorthwhile * prediction.step;
  const Adviser adviser(scenario, prediction, session);
  std::vector<Adviser::Choice> choices;
  for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
    if (auto best = adviser.best_of(kind)) choices.push_back(*std::move(best));
  }
  sort_by_saving(choices, [](const Adviser::Choice& choice) { return choice.improvement.saves; });
  // Also from other degrees: a change that saves more alone, as a division of the layers, may suit these degrees only.
  std::vector<Adviser::Choice> starts;
  if (auto near = fitting != nullptr ? adviser.choice_of(*fitting) : std::nullopt) starts.push_back(*std::move(near));
  for (const Adviser::Choice& each : choices) {
    if (&each == &choices.front() || each.kind == kDegreesKind) starts.push_back(each);
  }
  std::optional<Adviser::Choice> best;
  for (Adviser::Choice& start : starts) {
    auto more = several(adviser, std::move(start));
    if (more && (!best || more->improvement.saves > best->improvement.saves)) best = std::move(more);
  }
  if (best) {
    name_several(adviser, *best, scenario);
    const bool is_one = std::any_of(choices.begin(), choices.end(), [&](const Adviser::Choice& each) {
      return each.scenario == best->scenario;  // what else was changed has no effect beside it
    });
    if (!is_one) choices.insert(choices.begin(), *std::move(best));
  }
  std::vector<Improvement> changes;
  for (Adviser::Choice& choice : choices) {
    if (changes.size() == most) break;
    auto improvement = adviser.timed(std::move(choice));
    if (improvement && improvement->saves > least) changes.push_back(*std::move(improvement));
  }
  const auto saves = [](const Improvement& improvement) { return improvement.saves; };
  sort_by_saving(changes, saves);
  if (changes.size() >= most) return changes;

  constexpr std::array<std::pair<Category, const char*>, 5> kFree = {
      {{Category::kTensorParallel, "free tensor-parallel links"},
       {Category::kContextParallel, "free context-parallel links"},
       {Category::kExpertParallel, "free expert all-to-alls"},
       {Category::kDataParallel, "free data-parallel links"},
       {Category::kPipelineParallel, "free pipeline messages"}}};
  std::vector<Improvement> limits;
  for (const auto& [category, change] : kFree) {
    if (prediction.breakdown.*part_of(category) > least) limits.push_back(adviser.without(category, change));
  }
  if (auto faster = adviser.faster_kernels()) limits.push_back(*std::move(faster));
  std::erase_if(limits, [least](const Improvement& found) { return found.saves <= least; });
  sort_by_saving(limits, saves);
  limits.resize(std::min(limits.size(), most - changes.size()));
  changes.insert(changes.end(), limits.begin(), limits.end());
  return changes;
}

}  // namespace ns_dist
