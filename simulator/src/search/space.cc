#include "search/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ns_dist/internal/divisors.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "plan_defaults.h"
#include "scenario_fields.h"

namespace ns_dist {
namespace {

using Texts = std::vector<std::string>;
using Common = SearchSpace::Contents::Common;

template <class Enum>
Texts texts_of() {
  return {names_of<Enum>().begin(), names_of<Enum>().end()};
}

// Divisors of `whole` up to `most` that `use` accepts.
template <class Use>
Texts divisors(std::int64_t whole, std::int64_t most, const Use& use) {
  Texts all;
  for (const std::int64_t each : divisors_of(whole, most)) {
    if (use(each)) all.push_back(std::to_string(each));
  }
  return all;
}

// ---- What a search varies when nothing is said: values by field. `scenario` has the fields that come before. ----

// Within a node: a fabric between nodes is an order of magnitude slower, and no published run goes beyond.
Texts tensor_parallel(const Scenario& scenario, const Common& all_plans) {
  const std::int64_t gpus = all_plans.gpus;
  const Model& model = scenario.model;
  return divisors(gpus, std::min(model.heads, scenario.cluster.gpus_per_node()), [&](std::int64_t tp) {
    const std::vector<AttentionHeads> all = all_heads(model);
    return std::all_of(all.begin(), all.end(), [&](const AttentionHeads& of) {
      return of.heads % tp == 0 && (model.mla || of.kv_heads % tp == 0 || tp % of.kv_heads == 0);
    });
  });
}

// A rank has two pieces of each sequence, for causal balance. A piece is not smaller than the 128 queries of a tile of
// attention (Dao 2023, arXiv 2307.08691, s.3.3): beyond, ranks only exchange more.
Texts context_parallel(const Scenario& scenario, const Common& all_plans) {
  const std::int64_t gpus = all_plans.gpus;
  constexpr std::int64_t kTile = 128;
  const std::int64_t left = gpus / scenario.plan.tp, sequence = scenario.training.sequence;
  if (gpus % scenario.plan.tp != 0) return {"1"};
  return divisors(left, std::max<std::int64_t>(1, sequence / (2 * kTile)),
                  [&](std::int64_t cp) { return cp == 1 || sequence % (2 * cp) == 0; });
}

Texts pipeline_stages(const Scenario& scenario, const Common& all_plans) {
  const std::int64_t gpus = all_plans.gpus;
  const std::int64_t others = scenario.plan.tp * scenario.plan.cp;
  if (gpus % others != 0) return {};
  return divisors(gpus / others, counted_layers(scenario.model, scenario.plan), [](std::int64_t) { return true; });
}

Texts replicas(const Scenario& scenario, const Common& all_plans) {
  const std::int64_t gpus = all_plans.gpus;
  const ParallelPlan& plan = scenario.plan;
  const std::int64_t others = plan.tp * plan.cp * plan.pp;
  return gpus % others == 0 ? Texts{std::to_string(gpus / others)} : Texts{};
}

// As many as tp (0), or one.
Texts expert_tensor_parallel(const Scenario& scenario, const Common&) {
  return scenario.model.moe && scenario.plan.tp > 1 ? Texts{"0", "1"} : Texts{"0"};
}

Texts expert_parallel(const Scenario& scenario, const Common&) {
  if (!scenario.model.moe) return {"1"};
  const ParallelPlan& plan = scenario.plan;
  const std::int64_t experts = scenario.model.moe->experts;
  const std::int64_t ranks = std::max<std::int64_t>(1, plan.dp * plan.cp * plan.tp / expert_tp(plan));
  return divisors(ranks, experts, [&](std::int64_t ep) { return experts % ep == 0; });
}

Texts micro_batches(const Scenario& scenario, const Common&) {
  const std::int64_t batch = scenario.training.global_batch, dp = scenario.plan.dp;
  if (batch % dp != 0) return {"1"};  // check_plan says why there is none
  return divisors(batch / dp, batch, [](std::int64_t) { return true; });
}

Texts sequence_parallel(const Scenario& scenario, const Common&) {
  return scenario.plan.tp > 1 ? Texts{"on", "off"} : Texts{"off"};
}

// Forward passes alone keep and sum nothing.
bool forward_alone(const Scenario& scenario) { return scenario.plan.passes == Passes::kForward; }

// What replicas do is nothing where there are none. A level that was listed may hold what check_plan refuses.
bool may_share(const Scenario& scenario) { return scenario.plan.ep > 0 && has_replicas(scenario.plan); }

Texts zero_stages(const Scenario& scenario, const Common& all_plans) {
  if (!may_share(scenario)) {  // all are one, but FSDP casts its shards even so: beside it whole weights
    const std::string weights = field_text(ZeroStage::kParameters);
    return all_plans.zero == weights ? Texts{"0", weights} : Texts{all_plans.zero};
  }
  return forward_alone(scenario) ? Texts{"0", "3"} : texts_of<ZeroStage>();
}

// Beside the usual ones that of the framework, or of the plan that the search starts from.
Texts recomputations(const Scenario& scenario, const Common& all_plans) {
  Texts all;
  for (const Recomputation& each : usual_recomputations(scenario)) all.push_back(field_text(each));
  const bool known = std::find(all.begin(), all.end(), all_plans.recompute) != all.end();
  if (!known && !forward_alone(scenario)) all.push_back(all_plans.recompute);
  return all;
}

// Sets of replicas that share the weights among them (HSDP): all in one, or as many in each as a node has, four times
// as many, and so on. Beside them that of the plan that the search starts from.
Texts shards(const Scenario& scenario, const Common& all_plans) {
  if (scenario.plan.zero == ZeroStage::kNone || !may_share(scenario)) return {"0"};
  Texts all = {std::to_string(all_plans.shard)};
  if (all_plans.shard != 0) all.emplace_back("0");
  if (scenario.plan.zero != ZeroStage::kParameters) return all;
  for (const std::int64_t size : usual_shards(scenario, 4)) {
    if (size != all_plans.shard) all.push_back(std::to_string(size));
  }
  return all;
}

// One stage has nothing to schedule: the schedule that runs as many chunks as were given.
Texts schedules(const Scenario& scenario, const Common& all_plans) {
  Texts all;
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    const bool one_stage = schedule->name == schedule_for(all_plans.chunks).name;
    const bool is_of_use = schedule->hides_tokens ? scenario.plan.ep > 1 : scenario.plan.pp > 1 || one_stage;
    if (is_of_use) all.emplace_back(schedule->name);
  }
  return all;
}

// Of those that were listed, one stage has the first that runs its chunks, and those that hide tokens of experts.
Texts listed_schedules(const Texts& listed, const Scenario& scenario, const Common& all_plans) {
  if (scenario.plan.pp > 1) return listed;
  Texts all;
  bool found = false;
  for (const std::string& name : listed) {
    ParallelPlan plan;
    plan.schedule = name;
    const PipelineSchedule& schedule = traits_of(plan);
    const bool is_first = !found && !schedule.hides_tokens && schedule.has_chunks(all_plans.chunks);
    found |= is_first;
    if (is_first || (schedule.hides_tokens && scenario.plan.ep > 1)) all.push_back(name);
  }
  return found ? all : listed;
}

// What lies behind the last layer, in layers: by FLOPs.
std::int64_t loss_in_layers(const Model& model, const Training& training) {
  const StepFlops flops = step_flops(model, ParallelPlan(), training);
  const double further = training.mtp ? static_cast<double>(model.prediction_layers) : 0;
  const Flops layer = (flops.model - flops.losses) / (static_cast<double>(model.layers) + further);
  return std::llround(flops.losses / layer + further);
}

// Where the loss takes as long as two layers and more, its stage may have about as many layers less, so that the others
// share the rest evenly. Whoever divides the layers in a way of his own keeps that.
std::optional<std::int64_t> shorter_last_stage(const Model& model, const ParallelPlan& plan, const Common& all_plans) {
  if (plan.pp == 1 || all_plans.loss_layers < 2 || all_plans.last_stage_layers > 0) return std::nullopt;
  ParallelPlan even = plan;
  even.last_stage_layers = 0;
  if (!divides_evenly(even)) return std::nullopt;
  const std::optional<LastStage> last = last_stage(model, even);
  if (!last) return std::nullopt;
  // Whether the other positions can have equally many layers: what divides_without_rest asks, too, but at once.
  const auto suits_others = [&](std::int64_t size) {
    return plan.first_stage_layers > 0 || (counted_layers(model, plan) - size) % (last->positions - last->chunks) == 0;
  };
  const std::int64_t wanted = std::max(last->chunks, last->layers - all_plans.loss_layers);
  for (std::int64_t away = 0; away < last->layers; ++away) {
    for (const std::int64_t size : {wanted + away, wanted - away}) {
      if (size < last->chunks || size >= last->layers || !suits_others(size)) continue;
      even.last_stage_layers = size;
      if (divides_without_rest(model, even)) return size;
    }
  }
  return std::nullopt;
}

// Whether all chunks of all stages can have equally many layers, or those of a stage cannot.
bool chunks_are_alike(std::int64_t layers, const ParallelPlan& plan) {
  return layers % plan.pp != 0 || layers / plan.pp % plan.vpp == 0;
}

Texts last_stage_sizes(const Scenario& scenario, const Common& all_plans) {
  Texts all = {std::to_string(all_plans.last_stage_layers)};
  const auto shorter = shorter_last_stage(scenario.model, scenario.plan, all_plans);
  if (!shorter) return all;
  const bool chunks_for_its_sake = all_plans.varies_chunks && traits_of(scenario.plan).most_chunks == 0 &&
                                   !chunks_are_alike(counted_layers(scenario.model, scenario.plan), scenario.plan);
  if (chunks_for_its_sake) all.clear();
  all.push_back(std::to_string(*shorter));
  return all;
}

// Chunks with equally many layers, maybe beside a shorter last stage; where the layers of a stage are not equally many,
// any number.
Texts model_chunks(const Scenario& scenario, const Common& all_plans) {
  const PipelineSchedule& schedule = traits_of(scenario.plan);
  const std::int64_t counted = counted_layers(scenario.model, scenario.plan);
  const std::int64_t layers = counted / scenario.plan.pp;
  const std::int64_t least = schedule.least_chunks, most = schedule.most_chunks;
  Texts all;
  if (most > 0) {
    for (std::int64_t chunks = least; chunks <= most; ++chunks) all.push_back(std::to_string(chunks));
    return all;
  }
  if (scenario.plan.pp == 1) return {"1"};
  // With one chunk, a schedule of any number of chunks is 1f1b or gpipe, unless it runs passes in pairs.
  ParallelPlan divided = scenario.plan;
  for (std::int64_t chunks = schedule.hides_tokens ? 1 : 2; chunks <= layers; ++chunks) {
    divided.vpp = chunks;
    const bool suits = chunks_are_alike(counted, divided) ||
                       (all_plans.varies_last_stage && shorter_last_stage(scenario.model, divided, all_plans));
    if (suits) all.push_back(std::to_string(chunks));
  }
  return all;
}

// Where a switch has no effect it stays as it is.
Texts grad_reduce_overlap(const Scenario& scenario, const Common& all_plans) {
  if (!may_share(scenario) || !reduces_beside_passes(scenario.plan)) return {all_plans.overlap_grad_reduce};
  return {"on", "off"};
}

Texts param_gather_overlap(const Scenario& scenario, const Common& all_plans) {
  if (!may_share(scenario) || !gathers_weights_once(scenario.plan)) return {all_plans.overlap_param_gather};
  return {"on", "off"};
}

// ---- How a value that can be read is set: a search sets the same ones millions of times. ----

template <class Table, class T>
void set_field(Table Scenario::*table, T Table::*field, Scenario& scenario, std::string_view text) {
  const auto done = read_field(Field{.name = "", .least = 0}, text, scenario.*table.*field);
  NS_EXPECTS(done.has_value());
}
template <auto field>
void set_plan(Scenario& scenario, std::string_view text) {
  set_field(&Scenario::plan, field, scenario, text);
}
template <auto field>
void set_training(Scenario& scenario, std::string_view text) {
  set_field(&Scenario::training, field, scenario, text);
}
void set_recompute(Scenario& scenario, std::string_view text) {
  Recomputation again;
  const auto done = read_field(Field{.name = ""}, text, again);
  NS_EXPECTS(done.has_value());
  set_recomputation(scenario.plan, again);
}

// The table: a line for each field that a search varies, outermost first, and over which values. Fields that change the
// kernels of a step (their shapes or their number) come first, then those that change what a stage holds, then those
// that change only when data-parallel collectives run.
enum class Changes { kKernels, kMemory, kDataParallel };
struct Searched {
  std::string_view field;
  Texts (*values)(const Scenario&, const Common&);
  void (*set)(Scenario&, std::string_view text);
  Changes changes;
  std::array<std::string_view, 9> needs = {};  // the fields before it that `values` reads
};
constexpr Searched kSearched[] = {
    {"plan/tp", tensor_parallel, set_plan<&ParallelPlan::tp>, Changes::kKernels},
    {"plan/cp", context_parallel, set_plan<&ParallelPlan::cp>, Changes::kKernels, {"plan/tp", "training/sequence"}},
    {"plan/pp",
     pipeline_stages,
     set_plan<&ParallelPlan::pp>,
     Changes::kKernels,
     {"plan/tp", "plan/cp", "plan/account_embedding", "plan/account_loss"}},
    {"plan/dp", replicas, set_plan<&ParallelPlan::dp>, Changes::kKernels, {"plan/tp", "plan/cp", "plan/pp"}},
    {"plan/etp", expert_tensor_parallel, set_plan<&ParallelPlan::etp>, Changes::kKernels, {"plan/tp"}},
    {"plan/ep",
     expert_parallel,
     set_plan<&ParallelPlan::ep>,
     Changes::kKernels,
     {"plan/tp", "plan/cp", "plan/dp", "plan/etp"}},
    {"training/micro_batch",
     micro_batches,
     set_training<&Training::micro_batch>,
     Changes::kKernels,
     {"plan/dp", "training/global_batch"}},
    {"plan/sequence_parallel",
     sequence_parallel,
     set_plan<&ParallelPlan::sequence_parallel>,
     Changes::kKernels,
     {"plan/tp"}},
    {"plan/zero",
     zero_stages,
     set_plan<&ParallelPlan::zero>,
     Changes::kKernels,
     {"plan/tp", "plan/cp", "plan/dp", "plan/etp", "plan/ep", "plan/passes"}},
    {"plan/shard",
     shards,
     set_plan<&ParallelPlan::shard>,
     Changes::kKernels,
     {"plan/tp", "plan/cp", "plan/dp", "plan/etp", "plan/ep", "plan/zero"}},
    {"plan/recompute",
     recomputations,
     set_recompute,
     Changes::kKernels,
     {"plan/flash_attention", "plan/delayed_scaling", "plan/passes", "training/dtype"}},
    {"plan/schedule", schedules, set_plan<&ParallelPlan::schedule>, Changes::kMemory, {"plan/pp", "plan/ep"}},
    {"plan/vpp",
     model_chunks,
     set_plan<&ParallelPlan::vpp>,
     Changes::kMemory,
     {"plan/pp", "plan/schedule", "plan/first_stage_layers", "plan/account_embedding", "plan/account_loss",
      "plan/pipeline_layout"}},
    {"plan/last_stage_layers",
     last_stage_sizes,
     set_plan<&ParallelPlan::last_stage_layers>,
     Changes::kMemory,
     {"plan/pp", "plan/schedule", "plan/vpp", "plan/first_stage_layers", "plan/account_embedding", "plan/account_loss",
      "plan/pipeline_layout"}},
    {"plan/overlap_grad_reduce",
     grad_reduce_overlap,
     set_plan<&ParallelPlan::overlap_grad_reduce>,
     Changes::kDataParallel,
     {"plan/tp", "plan/cp", "plan/pp", "plan/dp", "plan/etp", "plan/ep", "plan/zero", "plan/zero_library",
      "plan/passes"}},
    {"plan/overlap_param_gather",
     param_gather_overlap,
     set_plan<&ParallelPlan::overlap_param_gather>,
     Changes::kDataParallel,
     {"plan/tp", "plan/cp", "plan/pp", "plan/dp", "plan/etp", "plan/ep", "plan/zero", "plan/zero_library",
      "plan/passes"}},
};

constexpr std::string_view kDegreeFields[] = {"plan/tp", "plan/cp", "plan/pp", "plan/dp"};
constexpr std::string_view kOverlapP2p = "plan/overlap_p2p", kOverlapEp = "plan/overlap_ep";

// What to write fewer values of: the fields with most of them.
std::string narrow(const SearchSpace::Contents& space) {
  std::vector<std::pair<std::size_t, std::string>> sizes;
  for (const SearchSpace::Contents::Level& level : space.levels) {
    if (!level.given.empty()) sizes.emplace_back(level.given.size(), level.field);
  }
  std::sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (sizes.empty() || sizes.front().first == 1)
    return "give some of plan/schedule, plan/recompute and training/micro_batch one value";
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, sizes.size()) && sizes[i].first > 1; ++i) {
    text += fmt::format("{}{} ({} values)", i == 0 ? "" : ", ", sizes[i].second, sizes[i].first);
  }
  return "write fewer values of " + text;
}

Error no_product(std::string_view where, std::int64_t gpus) {
  return {ErrorCode::kInfeasible, fmt::format("no product of the degrees that may be tried is {} GPUs", gpus),
          std::string(where), fmt::format("tp x cp x pp x dp = {}", gpus),
          fmt::format("give divisors of {}, or leave it out", gpus)};
}

Result<void> check_size(SearchSpace::Contents& space, const SearchWatch& watch) {
  Scenario scenario = space.base;
  constexpr int kOften = 1 << 14;  // a few milliseconds
  int left = 0;
  bool stopped = false;
  const double plans = space.count(0, scenario, [&] {
    if (--left > 0) return !stopped;
    left = kOften;
    stopped = watch.stop != nullptr && watch.stop->load(std::memory_order_relaxed);
    if (watch.progress) watch.progress({});
    return !stopped;
  });
  if (stopped) return {};
  if (plans > kMostPlans) {
    return fail({ErrorCode::kUsage, fmt::format("the search has {:.0e} plans or more", plans), "",
                 fmt::format("at most {:.0e}", kMostPlans), narrow(space)});
  }
  if (plans == 0) {
    return fail(no_product("plan/tp, plan/cp, plan/pp, plan/dp", space.common.gpus));
  }
  space.size = static_cast<std::uint64_t>(plans);
  return {};
}

// The request's fields without those that levels set, with a machine of known size.
Result<ScenarioSpec> base_spec(const SearchRequest& request) {
  ScenarioSpec spec;
  bool nodes = false;
  for (const Assignment& assignment : request.fixed.assignments) {
    nodes |= assignment.field == "machine/nodes" || assignment.field == "machine/gpus";
    if (is_degree(assignment.field)) continue;
    if (assignment.field == "plan/ep" || assignment.field == "plan/etp" || assignment.field.starts_with("stragglers/"))
      continue;
    spec.assignments.push_back(assignment);
  }
  for (const std::string_view degree : kDegreeFields) {
    if (degree != "plan/dp") spec.set(degree, 1);
  }
  spec.set("plan/ep", 1);
  if (nodes && request.gpus) {
    return fail({ErrorCode::kUsage, "the number of GPUs is given twice", "--gpus, machine/nodes", "one of them",
                 "leave machine/nodes out"});
  }
  return spec;
}

}  // namespace

bool SearchRequest::lists(std::string_view field) const {
  return std::any_of(listed.begin(), listed.end(), [field](const FieldValues& each) { return each.field == field; });
}

bool SearchRequest::gives(std::string_view field) const {
  return lists(field) || std::any_of(fixed.assignments.begin(), fixed.assignments.end(),
                                     [field](const Assignment& each) { return each.field == field; });
}

bool is_degree(std::string_view field) {
  return std::find(std::begin(kDegreeFields), std::end(kDegreeFields), field) != std::end(kDegreeFields);
}

std::vector<std::string_view> searched_fields() {
  std::vector<std::string_view> names;
  for (const Searched& searched : kSearched) names.push_back(searched.field);
  return names;
}

bool decides_machine(std::string_view field) {
  return field == "model" || field == "framework" || field.starts_with("machine/");
}

bool can_be_searched(std::string_view field) {
  const FieldDescription* description = find_field(field);
  if (description == nullptr || !description->stands_for.empty()) return false;
  // Another model, or another task: the fastest plan of a shorter sequence is no answer for a longer one.
  if (field == "training/layers" || field == "training/sequence" || field == "training/document_tokens") return false;
  return field.starts_with("plan/") || field.starts_with("training/");
}

Result<FieldValues> read_values(std::string_view field, std::string_view text) {
  const auto refuse = [&](std::string message, std::string expected, std::string hint) {
    return fail({ErrorCode::kUsage, std::move(message), std::string(field), std::move(expected), std::move(hint)});
  };
  FieldValues found{std::string(field), {}};
  std::set<std::string> known;
  const auto is_value = [&](const std::string& value) {
    return check_values(ScenarioSpec().set(field, std::string_view(value))).has_value();
  };
  // A name in another case becomes the name itself: plans are compared by their texts.
  const auto spelled = [&](std::string value) {
    const std::string lower = lower_case(value);
    Scenario scenario;
    return lower != value && assign(scenario, {found.field, value}) && value_of(scenario, field) == lower ? lower
                                                                                                          : value;
  };
  const auto add = [&](std::string value) {
    // What is no value by itself may be the rest of the one before: "selective:core_attn,mlp".
    if (!found.values.empty() && found.values.back().find(':') != std::string::npos && !is_value(value)) {
      const std::string whole = found.values.back() + "," + value;
      if (is_value(whole)) {
        known.insert(whole);
        found.values.back() = whole;
        return;
      }
    }
    value = spelled(std::move(value));
    if (known.insert(value).second) found.values.push_back(std::move(value));
  };
  // Names and files have no ranges: "../my_gpu.json" is one.
  const FieldDescription* description = find_field(field);
  const bool named = description != nullptr && (description->values.find("ID") != std::string::npos ||
                                                description->values.find("FILE") != std::string::npos);
  const bool is_list = description != nullptr && description->is_list();
  for (const std::string_view part : split_at(text, is_list ? "" : ",")) {
    const std::string_view item = trimmed(part);
    const std::size_t dots = named ? std::string_view::npos : item.find("..");
    if (item.empty()) {
      return refuse(fmt::format("\"{}\" has an empty value", text), "values with a comma between them",
                    "write, for example, 1,2,4");
    }
    if (dots == std::string_view::npos) {
      add(std::string(item));
    } else {
      const auto first = read_whole_number(trimmed(item.substr(0, dots)), 0, kMostOfAField);
      const auto last = read_whole_number(trimmed(item.substr(dots + 2)), 0, kMostOfAField);
      if (!first || !last) {
        return refuse(fmt::format("\"{}\" is no range", item), "whole numbers on both sides of ..",
                      "write, for example, 1..8");
      }
      if (*first > *last) {
        return refuse(fmt::format("the range {} is empty", item), "the smaller number first",
                      fmt::format("write {}..{}", *last, *first));
      }
      if (*last - *first >= kMostValues) {
        return refuse(fmt::format("{} has {} values", item, *last - *first + 1),
                      fmt::format("at most {} values of a field", kMostValues), "write a shorter range");
      }
      for (std::int64_t value = *first; value <= *last; ++value) add(std::to_string(value));
    }
  }
  ScenarioSpec spec;
  // A range has values of one kind: its ends tell whether they can be read.
  const std::size_t count = found.values.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (i < 100 || i + 1 == count) spec.set(field, std::string_view(found.values[i]));
  }
  if (auto readable = check_values(spec); !readable) {
    readable.error().code = ErrorCode::kUsage;
    return fail(std::move(readable.error()));
  }
  return found;
}

std::vector<std::string> SearchSpace::Contents::values(const Level& level, const Scenario& scenario) const {
  if (!level.given.empty()) {
    return level.field == "plan/schedule" ? listed_schedules(level.given, scenario, common) : level.given;
  }
  Texts all = level.free(scenario, common);
  std::map<std::string_view, std::string> others;  // values of other fields, which are the same for all of the level's
  for (const std::size_t number : level.limits) {
    const FieldLimit& limit = base.framework_only[number];
    Texts offered;
    for (const std::string& text : all) {
      const auto value = [&](std::string_view field) {
        if (field == level.field) return text;
        if (depends_on(field, level.field)) {
          Scenario with = scenario;
          return set(with, level, text) ? value_of(with, field) : "";
        }
        const auto [known, is_new] = others.try_emplace(field);
        if (is_new) known->second = value_of(scenario, field);
        return known->second;
      };
      if (!breaks(limit, value)) offered.push_back(text);
    }
    // Where a plan has no choice, it keeps what it has.
    if (!offered.empty() || !limit.when.empty()) all = std::move(offered);
  }
  return all;
}

bool SearchSpace::Contents::set(Scenario& scenario, const Level& level, const std::string& text) const {
  if (level.set != nullptr) {
    level.set(scenario, text);
  } else {
    const auto done = assign(scenario, {level.field, text});
    NS_EXPECTS(done.has_value());
  }
  if (level.field != "plan/dp") return true;
  const auto ranks = rank_count(scenario.plan);
  return ranks && *ranks == common.gpus;
}

void SearchSpace::Contents::finish(Scenario& scenario) const {
  if (follows_context) follow_context(base, scenario);
  const PipelineSchedule& schedule = traits_of(scenario.plan);
  if (follows_schedule) scenario.plan.overlap_p2p = schedule.overlaps_messages && scenario.plan.pp > 1;
  if (follows_tokens) scenario.plan.overlap_ep = base.plan.overlap_ep && !schedule.hides_tokens;
}

Result<void> SearchSpace::Contents::check(const Scenario& plan) const {
  if (names_schedule) return {};
  for (const FieldLimit& limit : plan.framework_only) {
    if (!asks_for_microbatches(limit) || !breaks(limit, plan)) continue;
    const std::int64_t microbatches = microbatches_of(plan.plan, plan.training);
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} has {} microbatch{} on {} stages", plan.plan.schedule, microbatches,
                             microbatches == 1 ? "" : "es", plan.plan.pp),
                 "plan/schedule", "more microbatches"});
  }
  return {};
}

namespace {

// The machine gets as many nodes, and of each as many GPUs, as the request's number of GPUs fills; in `spec`, too.
Result<void> size_machine(SearchRequest& request, ScenarioSpec& spec, const Catalog& catalog) {
  if (request.gives("machine/nodes") || request.gives("machine/gpus")) return {};
  // A sized machine is filled with replicas; an open one has one rank.
  NS_TRY(const Scenario machine, resolve(spec, catalog, request.from.get()));
  const std::int64_t node = std::max<std::int64_t>(1, machine.cluster.gpus_per_node());
  std::int64_t gpus = 0;
  const bool names_machine = request.gives("machine/gpu") || request.gives("machine/cluster");
  if (request.gpus) {
    gpus = *request.gpus;
  } else if (request.from && !names_machine) {
    NS_TRY(gpus, rank_count(request.from->plan));
  } else {
    gpus = machine.plan.dp > 1 ? machine.plan.dp : 0;
  }
  if (gpus == 0) {
    return fail({ErrorCode::kUsage, "the size of the cluster is not given", "--gpus, machine/nodes",
                 "a number of GPUs, or of nodes", "write, for example, --gpus 256"});
  }
  NS_TRY(const std::int64_t used, gpus_of_each_node(node, gpus));
  for (ScenarioSpec* sized : {&spec, &request.fixed}) {
    if (used != node) sized->set("machine/gpus_per_node", used);
    sized->set("machine/nodes", gpus / used);
  }
  return {};
}

Texts values_given(const SearchRequest& request, std::string_view field) {
  Texts given;
  for (const Assignment& each : request.fixed.assignments) {
    if (each.field == field) given = {each.text};
  }
  for (const FieldValues& each : request.listed) {
    if (each.field == field) given = each.values;
  }
  return given;
}

// What no plan can have is a mistake, not a reason against some plans.
Result<void> check_given(const SearchRequest& request) {
  for (const std::string_view field : {"plan/schedule", "plan/order", "plan/pipeline_layout"}) {
    for (const std::string& text : values_given(request, field)) {
      NS_TRY_VOID(check_values(ScenarioSpec().set(field, std::string_view(text))));
    }
  }
  for (const FieldValues& listed : request.listed) {
    if (!can_be_searched(listed.field)) {
      return fail({ErrorCode::kUsage, "a list of values is not tried in one search", listed.field, "one value",
                   "lists are for fields of the plan and of the training"});
    }
    if (listed.values.empty()) {
      return fail({ErrorCode::kUsage, "there is no value to try", listed.field, "one value or more"});
    }
  }
  return {};
}

}  // namespace

Result<void> SearchSpace::Contents::add_levels(const SearchRequest& request) {
  // Listed fields that are in no table come first, since free values may depend on them.
  const auto names = searched_fields();
  for (const FieldValues& listed : request.listed) {
    if (std::find(names.begin(), names.end(), listed.field) == names.end()) {
      levels.push_back({listed.field, listed.values});
      levels.back().is_read_below = true;  // maybe
    }
  }
  for (const Searched& searched : kSearched) {
    Level level{std::string(searched.field), values_given(request, searched.field), searched.values, searched.set,
                searched.field == "plan/dp"};
    if (is_degree(searched.field)) {  // what does not divide the GPUs is in no product
      const bool given = !level.given.empty();
      std::erase_if(level.given, [&](const std::string& text) {
        const auto degree = read_whole_number(text, 1, kMostOfAField);
        return !degree || common.gpus % *degree != 0;
      });
      if (given && level.given.empty()) return fail(no_product(searched.field, common.gpus));
    }
    if (level.given.empty() || searched.field == "plan/dp" || searched.field == "plan/schedule") {
      for (Level& before : levels) {
        before.is_read |= std::find(searched.needs.begin(), searched.needs.end(), before.field) != searched.needs.end();
      }
    }
    levels.push_back(std::move(level));
    if (searched.changes == Changes::kKernels) groups = levels.size();
    if (searched.changes != Changes::kDataParallel) budgets = levels.size();
  }
  for (const Searched& searched : kSearched) {
    if (searched.changes == Changes::kKernels) continue;
    for (Level& above : levels) {
      above.is_read_below |=
          std::find(searched.needs.begin(), searched.needs.end(), above.field) != searched.needs.end();
    }
  }
  return {};
}

void SearchSpace::Contents::attach_limits() {
  for (std::size_t number = 0; number < base.framework_only.size(); ++number) {
    const FieldLimit& limit = base.framework_only[number];
    // What follows from the schedule is set behind all levels; any division can be written as a layout.
    const bool follows = (limit.field == kOverlapP2p && follows_schedule) ||
                         (limit.field == kOverlapEp && follows_tokens) || wants_layout(limit) ||
                         asks_for_microbatches(limit);  // check() does
    if (follows) continue;
    const auto reads = [&](const Level& level) {
      const bool has_one = level.given.size() == 1 && value_of(base, level.field) == level.given.front();
      return !has_one && (level.field == limit.field ||
                          std::any_of(limit.when.begin(), limit.when.end(),
                                      [&](const FieldLimit& each) { return depends_on(each.field, level.field); }));
    };
    const auto last = std::find_if(levels.rbegin(), levels.rend(), reads);
    if (last == levels.rend()) continue;
    last->limits.push_back(number);
    const bool is_below = levels.rend() - last > static_cast<std::ptrdiff_t>(groups);
    std::for_each(std::next(last), levels.rend(), [&](Level& before) {
      before.is_read |= reads(before);
      before.is_read_below |= is_below && reads(before);
    });
  }
}

Result<SearchSpace> SearchSpace::make(SearchRequest request, const Catalog& catalog, const SearchWatch& watch) {
  auto space = std::make_unique<Contents>();
  const ScenarioSpec said = request.fixed;
  NS_TRY(request.fixed, spelled_out(said));
  NS_TRY(ScenarioSpec spec, base_spec(request));
  NS_TRY_VOID(size_machine(request, spec, catalog));
  auto base = resolve(spec, catalog, request.from.get());
  if (!base) {  // the nodes follow from the GPUs
    if (request.gpus && base.error().where == "machine/nodes") base.error().where = "machine/gpus";
    return fail(std::move(base).error());
  }
  space->base = *std::move(base);
  for (const Assignment& each : said.assignments) {  // --overlap was said, not the flags that it stands for alone
    if (!find_field(each.field)->stands_for.empty()) space->base.named.names.insert(each.field);
  }
  NS_TRY(space->common.gpus, rank_count(space->base.plan));
  space->common.loss_layers = loss_in_layers(space->base.model, space->base.training);
  space->common.last_stage_layers = space->base.plan.last_stage_layers;
  space->common.varies_last_stage = !request.gives("plan/last_stage_layers");
  space->common.varies_chunks = !request.gives("plan/vpp");
  space->common.zero = field_text(space->base.plan.zero);
  space->common.shard = space->base.plan.shard;
  space->common.chunks = request.gives("plan/vpp") ? space->base.plan.vpp : 1;
  space->common.overlap_grad_reduce = field_text(space->base.plan.overlap_grad_reduce);
  space->common.overlap_param_gather = field_text(space->base.plan.overlap_param_gather);
  space->common.recompute = field_text(recomputation_of(space->base.plan));
  for (const Assignment& assignment : request.fixed.assignments) {
    if (!assignment.field.starts_with("stragglers/")) continue;
    NS_TRY_VOID(assign(space->base, assignment));
  }
  NS_TRY_VOID(check_given(request));
  NS_TRY_VOID(space->add_levels(request));
  space->follows_schedule = !request.gives(kOverlapP2p);
  space->follows_tokens = !request.gives(kOverlapEp);
  space->attach_limits();
  space->follows_context = !request.gives("plan/cp_inner");
  space->names_schedule = request.gives("plan/schedule");
  space->fixed = std::move(request.fixed);
  space->from = std::move(request.from);
  space->catalog.emplace(catalog);
  NS_TRY_VOID(check_size(*space, watch));
  return SearchSpace(std::move(space));
}

SearchSpace::SearchSpace(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
SearchSpace::~SearchSpace() = default;
SearchSpace::SearchSpace(SearchSpace&&) noexcept = default;
SearchSpace& SearchSpace::operator=(SearchSpace&&) noexcept = default;

const Scenario& SearchSpace::base() const { return contents_->base; }
const Scenario* SearchSpace::from() const { return contents_->from.get(); }
std::int64_t SearchSpace::gpus() const { return contents_->common.gpus; }
std::uint64_t SearchSpace::size() const { return contents_->size; }

bool SearchSpace::may_share_batch() const {
  const auto level = [this](std::string_view field) {
    return std::find_if(contents_->levels.begin(), contents_->levels.end(),
                        [field](const Contents::Level& each) { return each.field == field; });
  };
  std::vector<std::int64_t> micro_batches;  // 1 is a divisor of all others
  for (const std::string& text : level("training/micro_batch")->given) {
    micro_batches.push_back(read_whole_number(text, 1, kMostOfAField).value_or(1));
  }
  if (micro_batches.empty()) micro_batches = {1};
  Scenario scenario = contents_->base;
  Texts texts;
  const auto degrees = static_cast<std::size_t>(std::next(level("plan/dp")) - contents_->levels.begin());
  return !contents_->walk(0, degrees, scenario, texts, [&](const Scenario& each, const Texts&) {
    return std::none_of(micro_batches.begin(), micro_batches.end(),
                        [&](std::int64_t size) { return each.training.global_batch % (each.plan.dp * size) == 0; });
  });
}

Result<void> SearchSpace::check(const Scenario& plan) const { return contents_->check(plan); }

void SearchSpace::for_each(const std::function<bool(const Scenario&)>& visit) const {
  Scenario scenario = contents_->base;
  Texts texts;
  contents_->walk(0, contents_->levels.size(), scenario, texts,
                  [&](const Scenario& each, const Texts&) { return visit(each); });
}

}  // namespace ns_dist
