#include "scenario_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/printable.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/network_model.h"
#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "plan_defaults.h"
#include "without_effect.h"

namespace ns_dist {
namespace {

template <class T>
std::string values_of(const Field& field, const T&) {
  if (!field.values.empty()) return std::string(field.values);
  if constexpr (std::is_same_v<T, bool>) {
    return "on|off";
  } else if constexpr (std::is_enum_v<T>) {
    return fmt::format("{}", fmt::join(field.names.empty() ? names_of<T>() : field.names, "|"));
  } else {
    return "N";
  }
}

constexpr std::string_view kOverlap = "plan/overlap";

// "grad-reduce" of --overlap-grad-reduce; "" of a flag that --overlap does not set.
std::string_view overlap_name(const FieldDescription& description) {
  const std::string_view flag = description.flag;
  return flag.starts_with(kOverlapFlags) ? flag.substr(kOverlapFlags.size()) : std::string_view();
}

// Fields of texts that are names, and the names that the modules which read them know.
struct NamedField {
  std::string_view field;
  std::vector<std::string_view> (*names)();
};
template <class Rows>
std::vector<std::string_view> with_auto(const Rows& rows) {
  std::vector<std::string_view> names = {"auto"};
  for (const auto& row : rows) names.push_back(row.name);
  return names;
}
std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const PipelineSchedule* schedule : pipeline_schedules()) names.push_back(schedule->name);
  return names;
}
constexpr NamedField kNamedFields[] = {{"plan/schedule", schedule_names},
                                       {"network/algorithm", [] { return with_auto(network_algorithms()); }},
                                       {"network/protocol", [] { return with_auto(network_protocols()); }}};

// The text of an assignment as the modules know it. Errors: a name that there is not, no order of ranks, no layout.
Result<std::string> known_text(const Assignment& assignment) {
  const auto& [field, text] = assignment;
  for (const NamedField& named : kNamedFields) {
    if (named.field != field) continue;
    const std::vector<std::string_view> names = named.names();
    auto which = read_name(text, names);
    if (which) return std::string(names[*which]);
    which.error().where = field;
    return fail(std::move(which.error()));
  }
  if (field == "plan/order") {
    ParallelPlan plan;
    plan.order = lower_case(text);
    NS_TRY_VOID(rank_order(plan));
    return plan.order;
  }
  if (field == kLayoutField) {
    PipelineLayout layout;
    NS_TRY_VOID(read_field(Field{.name = kLayoutField}, text, layout));
    if (!layout.is_even()) NS_TRY_VOID(read_pipeline_layout(layout.text));
  }
  return text;
}

// Before those that it stands for: they hold where both are given.
void add_overlap(std::vector<FieldDescription>& all) {
  FieldDescription overlap{{.name = kOverlap}, "--overlap", "LIST", "each as below"};
  std::vector<std::string_view> names;
  for (const FieldDescription& each : all) {
    if (overlap_name(each).empty()) continue;
    overlap.stands_for.push_back(each.field.name);
    names.push_back(overlap_name(each));
  }
  static const std::string kHelp =
      fmt::format("all of the following at once: none, all, or some of {}", fmt::join(names, ","));
  overlap.field.help = kHelp;
  const auto first = std::find_if(all.begin(), all.end(), [](const auto& each) { return !overlap_name(each).empty(); });
  all.insert(first, std::move(overlap));
}

// Whether "on" may be left out.
template <class T>
constexpr bool kIsSwitch = std::is_same_v<T, bool> || std::is_same_v<T, CudaGraphs>;

// What the framework that holds without --framework sets in place of a default.
void add_defaults_of_framework(std::vector<FieldDescription>& all) {
  const auto named = [&all](std::string_view field) {
    return std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.field.name == field; });
  };
  const auto framework = Catalog::built_in().framework(named("framework")->default_text);
  if (!framework) return;
  for (const Assignment& set : framework->set) {
    const auto found = named(set.field);
    if (found == all.end() || found->default_text == set.text) continue;
    found->default_text += fmt::format("; {}: {}", framework->id, set.text);
  }
}

std::vector<FieldDescription> describe() {
  std::vector<FieldDescription> all;
  const auto add = [&all](const Field& field, const auto& value) {
    all.push_back({field, flag_of(field), values_of(field, value),
                   field.default_text.empty() ? field_text(value) : std::string(field.default_text),
                   kIsSwitch<std::remove_cvref_t<decltype(value)>>});
  };
  const References references;
  const Scenario scenario;
  visit_fields(add, references);
  visit_tables([&](const auto& table) { visit_fields(add, table); }, scenario);
  add_overlap(all);
  add_defaults_of_framework(all);
  return all;
}

// What `text`, of kOverlap, the one field that stands for others, sets.
Result<std::vector<Assignment>> read_overlap(std::string_view said) {
  const std::string text = lower_case(said);
  const FieldDescription& overlap = *find_field(kOverlap);
  std::vector<std::string_view> names;
  for (const std::string_view field : overlap.stands_for) names.push_back(overlap_name(*find_field(field)));
  const auto refuse = [&](std::string message, std::string hint) {
    return fail({ErrorCode::kInvalidInput, std::move(message), std::string(overlap.field.name),
                 fmt::format("none, all, or some of {}", fmt::join(names, ",")), std::move(hint)});
  };
  std::vector<bool> on(names.size(), text == "all");
  const bool alone = text == "none" || text == "all";
  for (const std::string_view part : alone ? std::vector<std::string_view>() : split_at(text, ",")) {
    const std::string_view name = trimmed(part);
    if (name == "none" || name == "all") {
      return refuse(fmt::format("\"{}\" stands alone, and \"{}\" is a list", name, text),
                    "ns-dist search tries both with --overlap-grad-reduce on,off and its like");
    }
    const auto which = read_name(name, names);
    if (!which) return refuse(which.error().message, which.error().hint);
    on[*which] = true;
  }
  std::vector<Assignment> set;
  for (std::size_t i = 0; i < names.size(); ++i) set.push_back({std::string(overlap.stands_for[i]), field_text(on[i])});
  return set;
}

Result<void> refuse(const Assignment& assignment) {
  constexpr std::string_view kExpected = "a field of the plan, the training, the host or the network, as plan/tp";
  if (find_field(assignment.field) != nullptr) {
    return fail({ErrorCode::kInvalidInput, "cannot be set here", assignment.field, std::string(kExpected)});
  }
  std::vector<std::string> names;
  for (const FieldDescription& description : scenario_fields()) names.emplace_back(description.field.name);
  const std::string whole = "/" + assignment.field;  // "tp" for plan/tp
  const auto named = std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.ends_with(whole); });
  const std::string near = named == names.end() ? nearest_name(assignment.field, names) : *named;
  return fail({ErrorCode::kInvalidInput, "there is no such field", assignment.field, std::string(kExpected),
               did_you_mean(near)});
}

}  // namespace

const FieldDescription* find_field(std::string_view name) {
  for (const FieldDescription& description : scenario_fields()) {
    if (description.field.name == name) return &description;
  }
  return nullptr;
}

std::span<const FieldDescription> scenario_fields() {
  static const std::vector<FieldDescription> kFields = describe();
  return kFields;
}

Result<void> assign(Scenario& scenario, const Assignment& assignment) {
  NS_TRY(std::string text, known_text(assignment));
  const Assignment known{assignment.field, std::move(text)};
  std::optional<Result<void>> done;
  visit_tables(
      [&](auto& table) {
        if (!done) done = assign_field(table, known);
      },
      scenario);
  return done ? *std::move(done) : refuse(assignment);
}

Result<ScenarioSpec> spelled_out(const ScenarioSpec& spec) {
  ScenarioSpec out;
  std::vector<Error> errors;
  for (const Assignment& assignment : spec.assignments) {
    if (assignment.field != kOverlap) {
      out.assignments.push_back(assignment);
    } else if (auto set = read_overlap(assignment.text); !set) {
      errors.push_back(std::move(set.error()));
    } else {
      std::move(set->begin(), set->end(), std::back_inserter(out.assignments));
    }
  }
  if (errors.empty()) return out;
  return fail(join(std::move(errors)));
}

Result<void> assign_all(const ScenarioSpec& spec, Scenario& scenario, References& references) {
  std::vector<Error> errors;
  const auto add = [&](const auto& done) {
    if (!done) errors.push_back(done.error());
  };
  for (const Assignment& assignment : spec.assignments) {
    if (assignment.field == kOverlap) {
      const auto several = spelled_out({{assignment}});
      if (several) {
        add(assign_all(*several, scenario, references));
      } else {
        add(several);
      }
    } else if (const auto looked_up = assign_field(references, assignment)) {
      add(*looked_up);
    } else {
      add(assign(scenario, assignment));
    }
  }
  if (errors.empty()) return {};
  return fail(join(std::move(errors)));
}

Result<void> check_values(const ScenarioSpec& spec) {
  Scenario scenario;
  References references;
  return assign_all(spec, scenario, references);
}

void set_again(std::vector<Assignment>& set, Assignment each) {
  std::erase_if(set, [&](const Assignment& other) { return other.field == each.field; });
  set.push_back(std::move(each));
}

std::string to_flags(std::span<const Assignment> assignments, const Scenario& scenario, const NamedFields& named) {
  std::string flags;
  bool overlaps = false;
  // One of them alone: the list would repeat what the framework sets. Where the user wrote the list, it is the list.
  std::size_t changed_overlaps = 0;
  bool each_its_own = false;
  for (const Assignment& assignment : assignments) {
    const FieldDescription* description = find_field(assignment.field);
    if (description == nullptr || overlap_name(*description).empty()) continue;
    ++changed_overlaps;
    each_its_own |= named.names.contains(assignment.field);
  }
  each_its_own |= changed_overlaps == 1 && !named.names.contains(kOverlap);
  for (const Assignment& assignment : assignments) {
    const FieldDescription* description = find_field(assignment.field);
    const std::string flag = description != nullptr ? description->flag : assignment.field;
    if (!each_its_own && flag.starts_with(kOverlapFlags)) {
      overlaps = true;
    } else {
      flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", flag, shell_word(assignment.text));
    }
  }
  if (!overlaps) return flags;
  Scenario changed = scenario;
  changed.plan = with_fields(scenario.plan, assignments);
  const auto is_idle = [&](std::string_view field) {
    const bool is_set = std::any_of(assignments.begin(), assignments.end(),
                                    [field](const Assignment& each) { return each.field == field; });
    return !is_set && !named.names.contains(field) && changes_nothing(field, changed);
  };
  std::string which;
  visit_fields(
      [&](const Field& field, const auto& value) {
        const std::string flag = flag_of(field);
        if (!flag.starts_with(kOverlapFlags) || field_text(value) != field_text(true) || is_idle(field.name)) return;
        which += fmt::format("{}{}", which.empty() ? "" : ",", flag.substr(kOverlapFlags.size()));
      },
      changed.plan);
  return fmt::format("{}{}--overlap {}", flags, flags.empty() ? "" : " ", which.empty() ? "none" : which);
}

ScenarioSpec spec_of(const PublishedRun& run) {
  ScenarioSpec spec;
  spec.set("model", run.model);
  if (!run.cluster.empty()) spec.set("machine/cluster", run.cluster);
  if (!run.gpu.empty()) spec.set("machine/gpu", run.gpu);
  if (!run.framework.empty()) spec.set("framework", run.framework);
  if (run.gpus_per_node > 0) spec.set("machine/gpus_per_node", run.gpus_per_node);
  spec.assignments.insert(spec.assignments.end(), run.set.begin(), run.set.end());
  return spec;
}

Result<void> read_field(const Field& field, std::string_view text, SlowRank& value) {
  if (text == "none") {
    value = {};
    return {};
  }
  const std::size_t colon = text.find(':');
  const std::string_view behind = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const auto stage = read_whole_number(text.substr(0, colon), 0, kMostOfAField);
  const auto factor = read_positive_number(behind, kLargestSlowdown);
  if (!stage || !factor || *factor < 1) {
    return fail({ErrorCode::kInvalidInput, fmt::format("\"{}\" is no slow rank", text), std::string(field.name),
                 fmt::format("none, or a stage from 0 and a factor from 1 to {}", kLargestSlowdown),
                 fmt::format("write, for example, {}=3:1.2", field.name)});
  }
  value = {*stage, *factor};
  return {};
}

std::string field_text(const SlowRank& value) {
  return value == SlowRank() ? "none" : fmt::format("{}:{}", value.stage, value.factor);
}

bool wants_layout(const FieldLimit& limit) { return limit.field == kLayoutField && !limit.allows(kEvenLayout); }

namespace {

constexpr std::string_view kBelowStages = "below 1", kBelowTwice = "below 2", kTwiceOrMore = "2 or more";

std::string_view microbatches_of_stages(const Scenario& scenario) {
  const std::int64_t stages = scenario.plan.pp, microbatches = microbatches_of(scenario.plan, scenario.training);
  if (stages == 1) return kTwiceOrMore;  // no pipeline is to be filled
  return microbatches < stages ? kBelowStages : microbatches < 2 * stages ? kBelowTwice : kTwiceOrMore;
}

bool divides_key_heads(const Scenario& scenario) {
  if (has_sparse_attention(scenario.model)) return true;  // no exchange of heads
  const std::int64_t ranks = std::max<std::int64_t>(1, scenario.plan.tp * scenario.plan.cp);
  const std::vector<AttentionHeads> all = all_heads(scenario.model);
  return std::all_of(all.begin(), all.end(), [&](const AttentionHeads& of) {
    return (scenario.model.mla ? of.heads : of.kv_heads) % ranks == 0;
  });
}

constexpr std::string_view kMicrobatchesFact = "plan/microbatches_per_stage";

// What a framework's limits may ask for, too, and nobody sets.
struct Fact {
  std::string_view name;
  std::string (*value)(const Scenario&);
  std::string (*text)(std::string_view value);  // in words
  std::array<std::string_view, 2> reads = {};   // fields with whose values alone it changes; none: with most of them
};
constexpr std::array kFacts = {
    Fact{"model/experts", [](const Scenario& s) { return std::to_string(s.model.moe ? s.model.moe->experts : 0); },
         [](std::string_view value) { return fmt::format("{} experts", value); }},
    Fact{"plan/stages",  // whether all stages and chunks have as many layers
         [](const Scenario& s) -> std::string {
           return !s.plan.pipeline_layout.is_even() || divides_without_rest(s.model, s.plan) ? "even" : "uneven";
         },
         [](std::string_view value) { return fmt::format("{} stages", value); }},
    Fact{"model/attention",  // the keys that queries read
         [](const Scenario& s) -> std::string {
           return s.model.compressed ? "compressed" : s.model.indexer ? "chosen" : "usual";
         },
         [](std::string_view value) {
           return value == "usual" ? "attention to all keys" : fmt::format("attention to {} keys", value);
         }},
    // Whether the key-value heads of a tensor-parallel rank can be divided over its context-parallel ranks.
    Fact{"plan/key_heads",
         [](const Scenario& s) -> std::string { return divides_key_heads(s) ? "divided" : "copied"; },
         [](std::string_view value) -> std::string {
           return value == "divided" ? "heads of keys that tp x cp divides"
                                     : "fewer heads of keys than tp x cp, or not a multiple of it";
         },
         {"plan/tp", "plan/cp"}},
    Fact{kMicrobatchesFact, [](const Scenario& s) { return std::string(microbatches_of_stages(s)); },
         [](std::string_view value) -> std::string {
           return value == kBelowStages  ? "fewer microbatches than stages"
                  : value == kBelowTwice ? "fewer microbatches than twice the stages"
                                         : "two microbatches a stage or more";
         }},
};
const Fact* find_fact(std::string_view field) {
  const auto* found =
      std::find_if(kFacts.begin(), kFacts.end(), [field](const Fact& each) { return each.name == field; });
  return found == kFacts.end() ? nullptr : found;
}

}  // namespace

bool is_fact(std::string_view field) { return find_fact(field) != nullptr; }

bool asks_for_microbatches(const FieldLimit& limit) {
  return std::any_of(limit.when.begin(), limit.when.end(),
                     [](const FieldLimit& each) { return each.field == kMicrobatchesFact; });
}

std::string fact_text(std::string_view field, std::string_view value) {
  const Fact* fact = find_fact(field);
  NS_EXPECTS(fact != nullptr);
  return fact->text(value);
}

bool depends_on(std::string_view field, std::string_view other) {
  const Fact* fact = find_fact(field);
  if (fact == nullptr || fact->reads.front().empty()) return field == other;
  return std::find(fact->reads.begin(), fact->reads.end(), other) != fact->reads.end();
}

std::string value_of(const Scenario& scenario, std::string_view field) {
  const Fact* fact = find_fact(field);
  return fact != nullptr ? fact->value(scenario) : value_text(scenario, field);
}

std::string value_text(const Scenario& scenario, std::string_view field) {
  std::string text;
  const auto find = [&](const Field& each, const auto& value) {
    if (each.name == field) text = field_text(value);
  };
  visit_tables([&](const auto& table) { visit_fields(find, table); }, scenario);
  return text;
}

std::string wanted_layout(const Scenario& scenario) {
  const auto broken = [&](const auto& is) {
    return std::any_of(scenario.framework_only.begin(), scenario.framework_only.end(),
                       [&](const FieldLimit& limit) { return is(limit) && breaks(limit, scenario); });
  };
  // A schedule that the framework does not have divides layers as it likes.
  const bool foreign = broken([](const FieldLimit& limit) { return limit.field == "plan/schedule"; });
  if (foreign || !broken(wants_layout) || !divides_evenly(scenario.plan)) return "";
  const auto ranges = divide_layers(scenario.model, scenario.plan);
  if (!ranges) return "";
  std::vector<PositionParts> parts;
  for (const LayerRange& range : *ranges) {
    parts.push_back({range.count, scenario.training.mtp ? range.predictions : 0});
  }
  return pipeline_layout_text(parts);
}

bool breaks(const FieldLimit& limit, const std::function<std::string(std::string_view)>& value) {
  const auto holds = [&](const FieldLimit& each) { return each.allows(value(each.field)); };
  return std::all_of(limit.when.begin(), limit.when.end(), holds) && !holds(limit);
}

bool breaks(const FieldLimit& limit, const Scenario& scenario) {
  return breaks(limit, [&](std::string_view field) { return value_of(scenario, field); });
}

bool can_fuse_attention(const Scenario& scenario) {
  return !scenario.plan.flash_attention && !has_sparse_attention(scenario.model);
}

std::vector<std::int64_t> usual_shards(const Scenario& scenario, std::int64_t times) {
  const ParallelPlan& plan = scenario.plan;
  std::vector<std::int64_t> sizes;
  const std::int64_t all = replicas(plan, false);
  std::int64_t least = std::max<std::int64_t>(2, scenario.cluster.gpus_per_node() / plan.tp);
  while (least / times >= 2) least /= times;
  for (std::int64_t size = least; size < all; size *= times) {
    if (all % size != 0 || (scenario.model.moe && replicas(plan, true) % (all / size) != 0)) continue;
    sizes.push_back(size);
  }
  return sizes;
}

bool usual_sequence_parallel(const Scenario& scenario) {
  constexpr std::string_view kSequenceParallel = "plan/sequence_parallel";
  if (scenario.plan.tp > 1 || scenario.named.names.contains(kSequenceParallel)) return scenario.plan.sequence_parallel;
  return std::none_of(scenario.framework_only.begin(), scenario.framework_only.end(), [&](const FieldLimit& limit) {
    return limit.field == kSequenceParallel && limit.when.empty() && !limit.allows(field_text(true));
  });
}

Recomputation recomputation_of(const ParallelPlan& plan) {
  Recomputation again{plan.recompute};
  if (plan.recompute == Recompute::kSelective) again.modules = plan.recompute_modules;
  if (plan.recompute == Recompute::kFull)
    again.layers = plan.recompute_layers, again.together = plan.recompute_together;
  if (plan.recompute == Recompute::kOperators) again.products = plan.recompute_products;
  return again;
}

bool recomputes_less(const Recomputation& a, const Recomputation& b) {
  if (a.recompute != b.recompute) return a.recompute < b.recompute;
  if (a.recompute == Recompute::kSelective) return a.modules != b.modules && (a.modules & ~b.modules) == 0;
  if (a.recompute == Recompute::kOperators) return a.products > b.products;
  if (a.layers == b.layers) return a.together < b.together;
  return a.layers > 0 && (b.layers == 0 || a.layers < b.layers);
}

void set_stages(const Model& model, ParallelPlan& plan, std::int64_t pp, std::int64_t vpp, std::string_view schedule) {
  if (pp == plan.pp && vpp == plan.vpp && schedule == plan.schedule) return;
  const bool by_hand = !divides_evenly(plan), whole = by_hand && divides_without_rest(model, plan);
  if (pp * vpp != plan.pp * plan.vpp) plan.pipeline_layout = {};
  if (pp != plan.pp) plan.first_stage_layers = plan.last_stage_layers = 0;
  plan.pp = pp;
  plan.vpp = vpp;
  plan.schedule = std::string(schedule);
  if (!by_hand) return;
  if (whole ? !divides_without_rest(model, plan) : !divide_layers(model, plan)) divide_evenly(plan);
}

std::vector<Recomputation> usual_recomputations(const Scenario& scenario) {
  const Model& model = scenario.model;
  const ParallelPlan& plan = scenario.plan;
  std::vector<Recomputation> all = {{}};
  if (plan.passes == Passes::kForward) return all;
  const auto add = [&all](ModuleSet modules) { all.push_back({Recompute::kSelective, modules, 0}); };
  ModuleSet modules = 0;
  if (!plan.flash_attention) add(modules = set_of(RecomputeModule::kCoreAttention));
  // TransformerEngine's delayed scaling quantizes what these make while it makes it (Megatron-Core,
  // transformer_config.py, refuses both).
  const bool delayed = delays_scaling(plan, scenario.training.precision);
  if (!delayed) modules |= set_of(RecomputeModule::kNorm);
  const ModuleSet activation = model.moe && !delayed ? set_of(RecomputeModule::kMoeActivation) : 0;
  // The up-projections of latent attention are products, the others stream memory: both with and without them.
  if (model.mla && (modules | activation) != 0) add(modules | activation);
  if (model.mla) modules |= set_of(RecomputeModule::kLatentUpProjection);
  const ModuleSet cheap = modules | activation;
  if (cheap != 0 && all.back().modules != cheap) add(cheap);
  add(modules | set_of(model.moe ? RecomputeModule::kMoe : RecomputeModule::kMlp));
  all.push_back({.recompute = Recompute::kOperators, .products = KeptProducts::kAll});
  all.push_back({Recompute::kOperators});
  all.push_back({Recompute::kFull});
  return all;
}

FrameworkLimits::FrameworkLimits(const Scenario& before) : before_(before) {
  for (const FieldLimit& limit : before.framework_only) {
    if (wants_layout(limit)) continue;  // any division can be written as a layout
    Limit added{&limit, {number_of(limit.field)}, breaks(limit, before)};
    for (const FieldLimit& each : limit.when) added.fields.push_back(number_of(each.field));
    limits_.push_back(std::move(added));
  }
  const auto add = [&](const Field& field, const auto& value) {
    const auto known = std::find(fields_.begin(), fields_.end(), field.name);
    values_.emplace_back();
    if (known != fields_.end()) values_.back() = {value, static_cast<std::size_t>(known - fields_.begin())};
  };
  visit_tables([&](const auto& table) { visit_fields(add, table); }, before);
}

std::size_t FrameworkLimits::number_of(std::string_view field) {
  const auto known = std::find(fields_.begin(), fields_.end(), field);
  if (known != fields_.end()) return static_cast<std::size_t>(known - fields_.begin());
  fields_.push_back(field);
  texts_.push_back(value_of(before_, field));
  return fields_.size() - 1;
}

bool FrameworkLimits::has(const Scenario& after) const {
  std::vector<std::optional<std::string>> changed(fields_.size());
  auto next = values_.begin();
  const auto compare = [&](const Field&, const auto& value) {
    const Value& old = *next++;
    if (!old.field || value == *std::any_cast<std::decay_t<decltype(value)>>(&old.of_before)) return;
    if (std::string text = field_text(value); text != texts_[*old.field]) changed[*old.field] = std::move(text);
  };
  visit_tables([&](const auto& table) { visit_fields(compare, table); }, after);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (!is_fact(fields_[i])) continue;
    if (std::string text = value_of(after, fields_[i]); text != texts_[i]) changed[i] = std::move(text);
  }
  return std::none_of(limits_.begin(), limits_.end(), [&](const Limit& each) {
    const auto is_changed = [&](std::size_t field) { return changed[field].has_value(); };
    if (std::none_of(each.fields.begin(), each.fields.end(), is_changed)) return false;
    if (each.broken && !is_changed(each.fields.front())) return false;
    const auto holds = [&](const FieldLimit& limit, std::size_t field) {
      return limit.allows(changed[field] ? *changed[field] : texts_[field]);
    };
    if (holds(*each.limit, each.fields.front())) return false;
    for (std::size_t i = 0; i < each.limit->when.size(); ++i) {
      if (!holds(each.limit->when[i], each.fields[i + 1])) return false;
    }
    return true;
  });
}

bool framework_has(const Scenario& before, const Scenario& after) { return FrameworkLimits(before).has(after); }

}  // namespace ns_dist
