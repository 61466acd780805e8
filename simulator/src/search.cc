#include "ns_dist/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "costs.h"
#include "fewer_layers.h"
#include "host_waits.h"
#include "ns_dist/internal/shared_work.h"
#include "ns_dist/memory.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "scenario_fields.h"
#include "search_bounds.h"
#include "search_space.h"
#include "step_difference.h"
#include "step_times.h"
#include "stragglers.h"

namespace ns_dist {
namespace {

using Texts = std::vector<std::string>;
constexpr double kForever = std::numeric_limits<double>::infinity();
// Memory or network time of two plans that are no different to a user; and network time that is none, as a share of the
// step.
constexpr double kAlike = 1.01;
constexpr double kNoNetwork = 0.01;
// Shares of a long search, for its progress alone: when groups that are impossible are known, and the bounds of others.
constexpr double kRefusing = 0.3, kBounding = 0.6;
// Of a model's parts, the passes of all plans that are remembered: about 130 MB.
constexpr std::size_t kMostKnownParts = 4'000'000;
// Choices of schedule, chunks and the last stage's layers that are remembered: about 80 MB.
constexpr std::size_t kMostKnownBranches = 300'000;

// A plan that may be an answer. Times are seconds for as many tokens as the base scenario trains in a step.
struct Plan {
  double bound = 0;  // the step without sharing
  double step = -1;  // -1: not timed yet; kForever: it cannot be timed
  double network = 0;
  double memory = 0;  // bytes
  std::uint32_t group = 0, leaf = 0;
  int kinds = 0;
};

constexpr std::string_view kGlobalBatch = "training/global_batch";
constexpr const char *kFastest = "fastest", *kFastestNotTight = "fastest that is not tight";

// Why a plan is impossible, and where in the space it lies. Of plans whose global batch is at fault, those with the
// fewest sequences in one pass of all replicas come first: they tell what binds.
struct Example {
  std::int64_t sequences = 0;
  std::uint32_t group = 0, leaf = 0;
  std::string message;
  bool before(const Example& other) const {
    return std::tie(sequences, group, leaf) < std::tie(other.sequences, other.group, other.leaf);
  }
  void pack(Packer& to) const {
    to.put(sequences);
    to.put(group);
    to.put(leaf);
    to.put(message);
  }
  void unpack(Unpacker& from) {
    from.get(sequences);
    from.get(group);
    from.get(leaf);
    from.get(message);
  }
};

// What was found in one family of groups.
struct Found {
  std::vector<Plan> plans;
  std::vector<std::uint32_t> refused;  // groups without a plan that is possible
  std::map<std::string, std::uint64_t> infeasible;
  std::map<std::string, Example> examples;
  std::uint64_t seen = 0, bounded = 0;
  double least_memory = kForever;

  // Notes that `count` plans from `leaf` of `group` on are impossible, the first of which is `plan`.
  void refuse(const Error& error, const Scenario& plan, std::uint32_t group, std::uint32_t leaf, std::uint64_t count) {
    const std::string reason = error.where.substr(0, error.where.find(','));
    const std::int64_t sequences = reason == kGlobalBatch ? plan.training.micro_batch * plan.plan.dp : 0;
    refuse(reason, {sequences, group, leaf, {}}, count, [&] { return error.message; });
  }
  void refuse(Bytes held, Bytes capacity, std::uint32_t group, std::uint32_t leaf, std::uint64_t count) {
    least_memory = std::min(least_memory, held / units::B);
    refuse("memory", {0, group, leaf, {}}, count,
           [&] { return fmt::format("{:.1f} GiB of {:.1f} GiB", held / units::GiB, capacity / units::GiB); });
  }
  // `message`: makes that of the example.
  template <class Message>
  void refuse(const std::string& reason, Example example, std::uint64_t count, const Message& message) {
    infeasible[reason] += count;
    const auto [known, is_new] = examples.try_emplace(reason);
    if (!is_new && !example.before(known->second)) return;
    example.message = message();
    known->second = std::move(example);
  }
  void pack(Packer& to) const {
    to.put(plans);
    to.put(refused);
    to.put(infeasible);
    to.put(examples);
    to.put(seen);
    to.put(bounded);
    to.put(least_memory);
  }
  void unpack(Unpacker& from) {
    from.get(plans);
    from.get(refused);
    from.get(infeasible);
    from.get(examples);
    from.get(seen);
    from.get(bounded);
    from.get(least_memory);
  }
};

int kinds_of(const ParallelPlan& plan) {
  int kinds = 0;
  for (const std::int64_t degree : {plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.vpp}) kinds += degree > 1 ? 1 : 0;
  if (traits_of(plan).splits_backward) ++kinds;
  if (plan.recompute != Recompute::kNone) ++kinds;
  return kinds;
}

// What collectives and messages of the busiest stage take alone.
double network_time(const StepProgram& program, const ProgramCosts& costs) {
  double most = 0;
  for (std::size_t a = 0; a < program.actors.size(); ++a) {
    const std::vector<Forecast>& forecasts = costs.row(a).forecasts;
    std::vector<double> of_fragment;
    for (const Fragment& fragment : program.fragments) {
      double sum = 0;
      for (const FragmentNode& node : fragment.nodes) {
        if (!std::holds_alternative<Operator>(program.works[index(node.work)].work)) {
          sum += forecasts[index(node.work)].latency / units::s;
        }
      }
      of_fragment.push_back(sum);
    }
    double sum = 0;
    for_each_instruction(program, program.actors[a], [&](const Instruction& instruction, double repeats) {
      if (instruction.kind == Instruction::Kind::kRun)
        sum += repeats * instruction.times * of_fragment[instruction.index];
      if (instruction.kind == Instruction::Kind::kStart || instruction.kind == Instruction::Kind::kSend) {
        sum += repeats * (forecasts[instruction.index].latency / units::s);
      }
    });
    most = std::max(most, sum);
  }
  return most;
}

class Search {
 public:
  Search(const SearchSpace& space, const Session& session, const SearchOptions& options)
      : space_(space.contents()),
        session_(session),
        options_(options),
        base_(space.base()),
        alone_(without_sharing(space.base())),
        pp_(level_of("plan/pp")),
        dp_(level_of("plan/dp")),
        micro_batch_(level_of("training/micro_batch")),
        zero_(level_of("plan/zero")),
        shard_(level_of("plan/shard")),
        recompute_(level_of("plan/recompute")) {
    tokens_ = tokens_of_step(base_.training);
    best_ = most();
  }

  Result<SearchResult> run() {
    const auto start = std::chrono::steady_clock::now();
    result_.plans = space_.size;
    collect_groups();
    bound_groups();
    look_at_groups();
    choose();
    for (const Plan& plan : near_) {
      if (plan.step < 0) ++(stop() ? result_.unseen : result_.bounded);
    }
    NS_TRY_VOID(answer());
    result_.interrupted = stop();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  // Groups that lie side by side and have the same shape of the pipeline: the loops of their schedules are made once.
  struct Family {
    std::uint32_t first = 0, end = 0;
    double bound = 0;  // the least of its groups
  };

  // Told to this process, which lets go of what it works on; and what every member of the team knows.
  bool told_to_stop() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  bool stop() const { return options_.team != nullptr ? stopped_ : told_to_stop(); }

  template <class T, class Work>
  std::vector<T> shared(std::size_t count, const Work& work) {
    bool stopped = false;
    std::vector<T> results = shared_work<T>(count, options_.threads, options_.team, options_.stop, stopped, work);
    stopped_ |= stopped;
    return results;
  }
  double most() const { return options_.below ? *options_.below / units::s : kForever; }
  bool found() const { return best_ < most(); }
  double limit() const { return best_ * (1 + options_.within); }

  // A function that tells that one more of `count` parts is done.
  auto progress(double from, double to, std::size_t count) {
    return [=, this, done = std::make_shared<std::size_t>(0)] {
      if (!options_.progress) return;
      const std::scoped_lock guard(telling_);
      options_.progress(from + (to - from) * static_cast<double>(++*done) / static_cast<double>(count));
    };
  }

  // ---- Groups: plans with the same kernels ----

  void collect_groups() {
    std::unordered_map<std::string, std::uint32_t> ids;
    Scenario scenario = base_;
    Texts texts;
    std::array<std::int64_t, 4> last{};
    space_.walk(0, space_.groups, scenario, texts, [&](const Scenario& each, const Texts& chosen) {
      for (const std::string& text : chosen) {
        const auto [known, is_new] = ids.try_emplace(text, static_cast<std::uint32_t>(texts_.size()));
        if (is_new) texts_.push_back(text);
        chosen_.push_back(known->second);
      }
      const ParallelPlan& plan = each.plan;
      const std::array shape{plan.tp, plan.pp, plan.dp, microbatches_of(plan, each.training)};
      const auto group = static_cast<std::uint32_t>(bounds_.size());
      if (families_.empty() || shape != last) families_.push_back({group, group, 0});
      last = shape;
      families_.back().end = group + 1;
      bounds_.push_back({});
      return true;
    });
  }

  std::size_t level_of(std::string_view field) const {
    const auto is_it = [field](const auto& level) { return level.field == field; };
    return static_cast<std::size_t>(std::find_if(space_.levels.begin(), space_.levels.end(), is_it) -
                                    space_.levels.begin());
  }
  // Of each level of groups, the number of its text.
  const std::uint32_t* chosen(std::uint32_t group) const { return chosen_.data() + group * space_.groups; }

  // Runs: groups side by side that differ in the micro-batch and what comes behind it.
  bool starts_run(std::uint32_t group) const {
    return group == 0 || !std::equal(chosen(group), chosen(group) + micro_batch_, chosen(group - 1));
  }

  Texts texts_of(std::uint32_t group) const {
    Texts texts;
    for (std::size_t i = 0; i < space_.groups; ++i) texts.push_back(texts_[chosen(group)[i]]);
    return texts;
  }

  static constexpr std::uint32_t kNoGroup = 0xffffffffu;

  // Gives `scenario` what the plans of a group have in common.
  void apply(Scenario& scenario, std::uint32_t group) const { give(scenario, group, 0); }
  // The same of a scenario that has what those of group `last` have in common, which becomes `group`; or of kNoGroup.
  void apply(Scenario& scenario, std::uint32_t& last, std::uint32_t group) const {
    const std::uint32_t* const now = chosen(group);
    const std::uint32_t* const changed =
        last == kNoGroup ? now : std::mismatch(now, now + space_.groups, chosen(last)).first;
    give(scenario, group, static_cast<std::size_t>(changed - now));
    last = group;
  }
  // Its values of the levels from `first` on.
  void give(Scenario& scenario, std::uint32_t group, std::size_t first) const {
    const std::uint32_t* const now = chosen(group);
    space_.apply(scenario, first, space_.groups,
                 [&](std::size_t level) -> const std::string& { return texts_[now[level]]; });
  }

  // Calls visit(scenario, leaf) for the plans of a group until it returns false. `scenario` has what they have in
  // common.
  template <class Visit>
  void for_each_leaf(Scenario& scenario, const Visit& visit) const {
    Texts texts;
    std::uint32_t leaf = 0;
    space_.walk(space_.groups, space_.levels.size(), scenario, texts,
                [&](const Scenario& each, const Texts&) { return visit(each, leaf++); });
  }

  Scenario scenario_of(const Plan& plan, const Scenario& base) const {
    Scenario found, scenario = base;
    apply(scenario, plan.group);
    for_each_leaf(scenario, [&](const Scenario& each, std::uint32_t leaf) {
      if (leaf == plan.leaf) found = each;
      return leaf != plan.leaf;
    });
    return found;
  }

  Texts texts_of(const Plan& plan) const {
    Scenario scenario = base_;
    apply(scenario, plan.group);
    Texts texts = texts_of(plan.group), found;
    std::uint32_t leaf = 0;
    space_.walk(space_.groups, space_.levels.size(), scenario, texts, [&](const Scenario&, const Texts& each) {
      if (leaf == plan.leaf) found = each;
      return leaf++ != plan.leaf;
    });
    return found;
  }

  // Seconds for the tokens of the base scenario.
  double scaled(const Scenario& scenario, double seconds) const {
    return seconds * (tokens_ / tokens_of_step(scenario.training));
  }

  // ---- Bounds of groups, before any of their plans is looked at ----

  static constexpr double kRefused = kForever;  // the bounds of a group without a plan that is possible

  void bound_groups() {
    refuse_groups();
    distances_.resize(bounds_.size());
    bound_passes();
    for (Family& family : families_) {
      family.bound = kRefused;
      for (std::uint32_t group = family.first; group < family.end; ++group) {
        family.bound = std::min(family.bound, bounds_[group].any);
      }
    }
    std::sort(families_.begin(), families_.end(),
              [](const Family& a, const Family& b) { return std::tie(a.bound, a.first) < std::tie(b.bound, b.first); });
  }

  // Groups none of whose plans can be built or fits.
  void refuse_groups() {
    // Those that differ in pipeline stages and replicas alone come one after the other, since they share the sizes of
    // the model's parts.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
    for (std::uint32_t group = 0; group < bounds_.size(); ++group) {
      if (starts_run(group)) runs.push_back({group, group});
      runs.back().second = group + 1;
    }
    std::stable_sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) {
      for (std::size_t i = 0; i < micro_batch_; ++i) {
        const std::uint32_t x = chosen(a.first)[i], y = chosen(b.first)[i];
        if (i != pp_ && i != dp_ && x != y) return x < y;
      }
      return false;
    });
    const auto tell = progress(0, kRefusing, runs.size());
    std::vector<Found> found = shared<Found>(runs.size(), [&](std::size_t i) {
      Found here;
      Scenario scenario = alone_;
      std::uint32_t last = kNoGroup;
      std::vector<Variant> variants;
      for (std::uint32_t group = runs[i].first; group < runs[i].second && !told_to_stop(); ++group) {
        apply(scenario, last, group);
        const std::uint32_t* const behind = chosen(group) + micro_batch_ + 1;
        const std::size_t count = space_.groups - micro_batch_ - 1;
        auto variant = std::find_if(variants.begin(), variants.end(), [&](const Variant& known) {
          return std::equal(behind, behind + count, known.behind);
        });
        if (variant == variants.end()) {
          const auto plans = static_cast<std::uint64_t>(space_.count(space_.groups, scenario));
          variant = variants.insert(variant, Variant{behind, plans, {}, {}});
        }
        refuse_group(group, scenario, *variant, here);
      }
      tell();
      return here;
    });
    for (Found& each : found) {
      for (const std::uint32_t group : each.refused) bounds_[group].any = kRefused;
      take(std::move(each));
    }
  }

  // Groups of a run that differ in the micro-batch alone.
  struct Variant {
    const std::uint32_t* behind = nullptr;  // chosen behind the micro-batch
    std::uint64_t plans = 0;                // of each
    std::optional<std::int64_t> too_large;  // a micro-batch that is
    Bytes least;                            // that is held then
  };

  void refuse_group(std::uint32_t group, Scenario& scenario, Variant& variant, Found& found) const {
    const auto refuse = [&](auto... why) {
      found.refused.push_back(group);
      found.seen += variant.plans;
      found.refuse(why..., group, 0, variant.plans);
    };
    if (const auto known = check_stragglers(scenario); !known) return refuse(known.error(), scenario);
    if (const auto possible = check_all_but_schedule(scenario.model, scenario.plan, scenario.training); !possible) {
      return refuse(possible.error(), scenario);
    }
    // The larger the micro-batch, the more is kept of it.
    const Bytes capacity = scenario.cluster.gpu.memory;
    if (variant.too_large && *variant.too_large <= scenario.training.micro_batch) {
      return refuse(variant.least, capacity);
    }
    const Bytes least =
        (1 - kRounding) * least_memory(scenario.model, scenario.plan, scenario.training, session_.plans());
    if (least <= capacity) return;
    for_each_leaf(scenario, [&](const Scenario& each, std::uint32_t) {  // is it memory alone?
      if (!check_plan(each.model, each.plan, each.training, session_.plans())) return true;
      variant.too_large = each.training.micro_batch;
      variant.least = least;
      refuse(least, capacity);
      return false;
    });
  }

  // The passes of a group's microbatches on all its stages, bounds of what a stage computes in the mean. Groups that
  // differ in the number of stages and of replicas run the same kernels, which are forecast as if one stage held the
  // model; here without recomputation, which `look_at` adds for those that may still win.
  void bound_passes() {
    Scenario scenario = alone_;
    std::uint32_t last = kNoGroup;
    std::map<Passes, std::uint32_t> numbers;
    std::vector<std::uint32_t> first, number(bounds_.size());
    for (std::uint32_t group = 0; group < bounds_.size(); ++group) {
      if (bounds_[group].any == kRefused) continue;
      const std::uint32_t before = last;
      apply(scenario, last, group);
      const bool lies_alike =
          before != kNoGroup && std::equal(chosen(group), chosen(group) + micro_batch_, chosen(before));
      distances_[group] = lies_alike ? distances_[before] : distance_of_places(scenario);
      const auto [known, is_new] =
          numbers.try_emplace(passes_of(group, scenario, {}), static_cast<std::uint32_t>(first.size()));
      if (is_new) first.push_back(group);
      number[group] = known->second;
    }
    const auto none = static_cast<std::uint32_t>(std::find(texts_.begin(), texts_.end(), field_text(Recomputation())) -
                                                 texts_.begin());
    const auto tell = progress(kRefusing, kBounding, first.size());
    const auto found = shared<PassBounds>(first.size(), [&](std::size_t i) {
      if (told_to_stop()) return PassBounds();
      Scenario each = alone_;
      apply(each, first[i]);
      set_recomputation(each.plan, {});
      const auto least = know(passes_of(first[i], each, none), {{least_passes(each, session_)}});
      tell();
      return least->places.front().all;
    });
    last = kNoGroup;
    for (std::uint32_t group = 0; group < bounds_.size(); ++group) {
      if (bounds_[group].any == kRefused) continue;
      apply(scenario, last, group);
      bounds_[group] = on_its_stages(scenario, found[number[group]]);
    }
  }

  // What decides the passes of one microbatch through the whole model. `recomputation`: the number of its text, or
  // nothing for the passes without it.
  using Passes = std::vector<std::uint32_t>;
  Passes passes_of(std::uint32_t group, const Scenario& scenario, std::optional<std::uint32_t> recomputation) const {
    Passes key{static_cast<std::uint32_t>(scenario.plan.cp_inner), shards_gradients(scenario.plan) ? 1u : 0u,
               static_cast<std::uint32_t>(distances_[group])};
    key.reserve(space_.groups + 4);
    for (std::size_t i = 0; i < space_.groups; ++i) {
      const bool spreads = i == pp_ || i == dp_ || i == zero_ || i == shard_;
      if (!spreads && i != recompute_) key.push_back(chosen(group)[i]);
    }
    if (recomputation) key.push_back(*recomputation);
    return key;
  }

  // `placed`: with each stage's collectives where they lie, which is a closer bound, and more to forecast.
  std::shared_ptr<const PassesOfStages> known_passes(std::uint32_t group, const Scenario& scenario, bool placed) const {
    Passes key = passes_of(group, scenario, chosen(group)[recompute_]);
    if (placed) key.push_back(chosen(group)[pp_]);
    {
      const std::scoped_lock guard(knowing_);
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    return know(std::move(key),
                placed ? passes_on_each_stage(scenario, session_) : PassesOfStages{{least_passes(scenario, session_)}});
  }
  std::shared_ptr<const PassesOfStages> know(Passes key, PassesOfStages passes) const {
    auto made = std::make_shared<const PassesOfStages>(std::move(passes));
    const std::scoped_lock guard(knowing_);
    if (known_parts_ > kMostKnownParts) known_parts_ = 0, known_.clear();
    known_parts_ += made->size();
    return known_.try_emplace(std::move(key), std::move(made)).first->second;
  }

  // Of a step's passes on the fastest stage, for the tokens of the base scenario.
  double to_step(const Scenario& scenario, double seconds) const {
    double fastest = 1;
    for (const double speed : scenario.stragglers.stage_speed) fastest = std::max(fastest, speed);
    return scaled(scenario, seconds / fastest) * (1 - kRounding);
  }
  // `one`: of one microbatch on one stage.
  PassBounds on_its_stages(const Scenario& scenario, const PassBounds& one) const {
    const double share = to_step(scenario, static_cast<double>(microbatches_of(scenario.plan, scenario.training))) /
                         static_cast<double>(scenario.plan.pp);
    return {one.any * share, one.apart * share};
  }

  // ---- Plans ----

  // One choice of each level from `groups` to `budgets`, with the first that each level behind them has; and how many
  // plans share the former.
  struct Branch {
    Texts texts;
    std::uint32_t plans = 0;
  };
  using Branches = std::shared_ptr<const std::vector<Branch>>;

  // Those of a group, whose plans' common values `scenario` has. Groups of which no level behind `groups` reads another
  // value share them.
  Branches branches_of(std::uint32_t group, Scenario& scenario) const {
    std::vector<std::uint32_t> key;
    for (std::size_t i = 0; i < space_.groups; ++i) {
      if (space_.levels[i].is_read_below) key.push_back(chosen(group)[i]);
    }
    {
      const std::scoped_lock guard(knowing_);
      if (const auto known = branches_.find(key); known != branches_.end()) return known->second;
    }
    auto made = std::make_shared<const std::vector<Branch>>(make_branches(scenario));
    const std::scoped_lock guard(knowing_);
    if (known_branches_ > kMostKnownBranches) known_branches_ = 0, branches_.clear();
    known_branches_ += made->size();
    return branches_.try_emplace(std::move(key), std::move(made)).first->second;
  }

  std::vector<Branch> make_branches(Scenario& scenario) const {
    std::vector<Branch> all;
    Texts walked;
    space_.walk(space_.groups, space_.budgets, scenario, walked, [&](const Scenario&, const Texts& texts) {
      Branch& branch = all.emplace_back(Branch{texts, 0});
      branch.plans = static_cast<std::uint32_t>(space_.count(space_.budgets, scenario));
      for (std::size_t i = space_.budgets; i < space_.levels.size(); ++i) {
        const Texts behind = space_.values(space_.levels[i], scenario);
        if (behind.empty()) break;
        branch.texts.push_back(behind.front());
        space_.set(scenario, space_.levels[i], behind.front());
      }
      return true;
    });
    return all;
  }

  // The plans of a group. Those that differ in levels behind `budgets` hold the same, and have the same step when
  // data-parallel collectives take no time; this bound is asked first.
  // `last`: whose plans' common values `scenario` has; it becomes `group`.
  void look_at(std::uint32_t group, Scenario& scenario, std::uint32_t& last, double limit, Found& found) const {
    apply(scenario, last, group);
    const ParallelPlan& plan = scenario.plan;
    const auto one = known_passes(group, scenario, false);
    const PassBounds least = on_its_stages(scenario, one->places.front().all);
    if (least.any > limit) return;
    const bool several = has_several_places(scenario.cluster, distances_[group]);
    std::shared_ptr<const PassesOfStages> placed;  // only where some plan may still win
    std::optional<std::vector<ExchangeTime>> exchanges;
    Texts texts;
    std::uint32_t leaf = 0;
    const Branches branches = branches_of(group, scenario);
    for (const Branch& branch : *branches) {
      if (told_to_stop()) return;
      space_.apply(scenario, space_.groups, space_.groups + branch.texts.size(),
                   [&](std::size_t level) -> const std::string& { return branch.texts[level - space_.groups]; });
      const std::uint32_t first = std::exchange(leaf, leaf + branch.plans);
      const std::int64_t microbatches = microbatches_of(plan, scenario.training);
      const bool slow = (least.apart > limit && !pairs_passes(plan)) ||
                        to_step(scenario, pipeline_bound(*one, scenario, microbatches)) > limit;
      if (slow) continue;
      found.seen += leaf - first;
      if (const auto runs = space_.check(scenario); !runs) {
        found.refuse(runs.error(), scenario, group, first, leaf - first);
        continue;
      }
      const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training, session_.plans());
      if (!memory) {
        found.refuse(memory.error(), scenario, group, first, leaf - first);
        continue;
      }
      if (!memory->fits(scenario.cluster.gpu.memory)) {
        found.refuse(memory->needed(), scenario.cluster.gpu.memory, group, first, leaf - first);
        continue;
      }
      if (several && !placed) placed = known_passes(group, scenario, true);
      if (!exchanges) exchanges = exchange_times(scenario, session_);
      const bool is_closer = several || !exchanges->empty();  // than the bound before
      const PassesOfStages& closest = several ? *placed : *one;
      if (is_closer && to_step(scenario, pipeline_bound(closest, scenario, microbatches, *exchanges)) > limit) {
        found.bounded += leaf - first;
        continue;
      }
      std::uint32_t at = first;
      bool asked = false;
      space_.walk(space_.budgets, space_.levels.size(), scenario, texts, [&](const Scenario& each, const Texts&) {
        const std::uint32_t here = at++;
        auto program = plan_program(each.model, each.plan, each.training, session_.plans());
        auto costs = program ? costs_of(*program, each, session_) : Result<ProgramCosts>(fail(program.error()));
        if (!costs) {
          found.refuse(costs.error(), each, group, here, 1);
          return true;
        }
        if (!asked && leaf - first > 1) {
          asked = true;
          if (step_alone(*program, without_data_parallel(*program, *costs), each) > limit) {
            found.bounded += leaf - here;
            return false;
          }
        }
        double bound = step_alone(*program, *costs, each);
        // What the host adds takes longer to find: where the rest is not too slow. Sharing never makes a fragment with
        // its wait shorter (add_host_waits).
        if (bound <= limit && add_host_waits(each.host, each.constants.hosts, *program, *costs)) {
          bound = step_alone(*program, *costs, each);
        }
        if (bound > limit) {
          ++found.bounded;
          return true;
        }
        found.plans.push_back({bound, -1, 0, memory->peak() / units::B, group, here, kinds_of(each.plan)});
        return true;
      });
    }
  }

  static ProgramCosts without_data_parallel(const StepProgram& program, ProgramCosts costs) {
    for (ProgramCosts::Row& row : costs.rows) {
      for (std::size_t w = 0; w < row.forecasts.size(); ++w) {
        if (program.works[w].category == Category::kDataParallel) row.forecasts[w].latency = Seconds();
      }
    }
    return costs;
  }

  // A lower bound of the step: the clock without sharing.
  double step_alone(const StepProgram& program, const ProgramCosts& costs, const Scenario& scenario) const {
    const auto step = step_of(program, costs, scenario, session_);
    return step ? scaled(scenario, *step / units::s) * (1 - kRounding) : 0;
  }

  void take(Found found) {
    for (const auto& [reason, count] : found.infeasible) result_.infeasible[reason] += count;
    for (auto& [reason, example] : found.examples) {
      const auto [known, is_new] = examples_.try_emplace(reason, example);
      if (!is_new && example.before(known->second)) known->second = example;
    }
    seen_ += found.seen;
    result_.bounded += found.bounded;
    least_memory_ = std::min(least_memory_, found.least_memory);
    near_.insert(near_.end(), found.plans.begin(), found.plans.end());
  }

  // Rounds of groups, the lowest bound first. Limits change between rounds only, so that the result does not depend on
  // the number of threads.
  void look_at_groups() {
    std::size_t first = 0, round = 2;
    while (first < families_.size() && families_[first].bound <= limit() && !stop()) {
      if (options_.below && found()) break;
      const std::size_t end = std::min(families_.size(), first + round);
      const double limit_now = limit();
      std::vector<Found> found = shared<Found>(end - first, [&](std::size_t i) {
        const Family& family = families_[first + i];
        Found here;
        Scenario scenario = alone_;
        std::uint32_t last = kNoGroup;
        for (std::uint32_t group = family.first; group < family.end && !told_to_stop(); ++group) {
          const double least = bounds_[group].any;
          if (least != kRefused && least <= limit_now) look_at(group, scenario, last, limit_now, here);
        }
        return here;
      });
      const std::size_t before = near_.size();
      for (Found& each : found) take(std::move(each));
      time_the_best(before);
      forget_slow();
      first = end;
      round = std::min<std::size_t>(2 * round, 16);
      if (options_.progress) {
        const double share = static_cast<double>(first) / static_cast<double>(families_.size());
        options_.progress(kBounding + (1 - kBounding) * share);
      }
    }
    (stop() ? result_.unseen : result_.skipped) = result_.plans - seen_;
    if (least_memory_ < kForever) result_.least_memory = least_memory_ * units::B;
    for (const auto& [reason, example] : examples_) {
      result_.examples[reason] = example.message;
      if (reason == kGlobalBatch) result_.least_sequences = example.sequences;
    }
  }

  static bool before(const Plan& a, const Plan& b) {
    return std::tie(a.bound, a.kinds, a.group, a.leaf) < std::tie(b.bound, b.kinds, b.group, b.leaf);
  }

  // Times plans in parallel, those that are not timed yet.
  void time(std::vector<Plan*> plans) {
    std::erase_if(plans, [](const Plan* plan) { return plan->step >= 0; });
    const std::vector<double> steps = shared<double>(plans.size(), [&](std::size_t i) {
      if (told_to_stop()) return -1.0;
      const Scenario scenario = scenario_of(*plans[i], base_);
      const auto step = step_time(scenario, session_);
      return step ? scaled(scenario, *step / units::s) : kForever;
    });
    for (std::size_t i = 0; i < plans.size(); ++i) plans[i]->step = steps[i];
    for (const Plan* plan : plans) {
      if (plan->step >= 0) ++result_.evaluated;
      if (plan->step >= 0) best_ = std::min(best_, plan->step);
    }
  }

  // Of the plans from `from` on, times those whose bound is below the best step, a few at a time.
  void time_the_best(std::size_t from) {
    std::sort(near_.begin() + static_cast<std::ptrdiff_t>(from), near_.end(), before);
    std::size_t size = 4;
    for (std::size_t at = from; at < near_.size() && near_[at].bound <= best_ && !stop();) {
      std::vector<Plan*> batch;
      for (; at < near_.size() && batch.size() < size && near_[at].bound <= best_; ++at) batch.push_back(&near_[at]);
      time(std::move(batch));
      size = std::min<std::size_t>(2 * size, 32);
    }
  }

  void forget_slow() {
    std::erase_if(near_, [&](const Plan& plan) {
      const bool slow = plan.bound > limit() || plan.step > limit();
      if (slow && plan.step < 0) ++result_.bounded;
      return slow;
    });
  }

  // ---- Answers ----

  // The plan with the least key(plan) among those within the limit; of equal keys the fastest.
  template <class Key>
  const Plan* least(const Key& key) {
    std::vector<Plan*> order;
    for (Plan& plan : near_) order.push_back(&plan);
    std::sort(order.begin(), order.end(), [&](const Plan* a, const Plan* b) {
      const auto key_a = key(*a), key_b = key(*b);
      return key_a != key_b ? key_a < key_b : before(*a, *b);
    });
    for (std::size_t first = 0; first < order.size() && !stop();) {
      std::size_t end = first + 1;
      while (end < order.size() && key(*order[end]) == key(*order[first])) ++end;
      const Plan* best = fastest(
          {order.begin() + static_cast<std::ptrdiff_t>(first), order.begin() + static_cast<std::ptrdiff_t>(end)});
      if (best != nullptr) return best;
      first = end;
    }
    return nullptr;
  }

  // Of plans in the order of their bounds, the fastest that is within the limit.
  const Plan* fastest(std::vector<Plan*> plans) {
    double best = limit();
    for (std::size_t at = 0; at < plans.size() && plans[at]->bound <= best;) {
      std::vector<Plan*> batch;
      for (; at < plans.size() && batch.size() < 16 && plans[at]->bound <= best; ++at) batch.push_back(plans[at]);
      time(batch);
      for (const Plan* plan : batch) {
        if (plan->step >= 0) best = std::min(best, plan->step);
      }
      if (stop()) break;
    }
    const Plan* found = nullptr;
    for (const Plan* plan : plans) {
      if (plan->step < 0 || plan->step > best) continue;
      const auto rank = [](const Plan& each) {
        return std::tie(each.step, each.kinds, each.memory, each.group, each.leaf);
      };
      if (found == nullptr || rank(*plan) < rank(*found)) found = plan;
    }
    return found;
  }

  double network_of(const Plan& plan) const {
    const Scenario scenario = scenario_of(plan, alone_);
    const auto program = plan_program(scenario.model, scenario.plan, scenario.training, session_.plans());
    if (!program) return 0;
    const auto costs = costs_of(*program, scenario, session_);
    return costs ? scaled(scenario, network_time(*program, *costs)) : 0;
  }

  // What nvidia-smi would show, bytes.
  double device_of(const Plan& plan) const {
    const Scenario scenario = scenario_of(plan, alone_);
    const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training, session_.plans());
    return memory ? memory->device() / units::B : kForever;
  }
  double capacity() const { return base_.cluster.gpu.memory / units::B; }

  void choose() {
    std::sort(near_.begin(), near_.end(), before);
    if (!found()) return;
    const auto add = [&](const Plan* plan, std::string why) {
      if (plan == nullptr) return;
      const auto same = std::find_if(chosen_plans_.begin(), chosen_plans_.end(), [&](const auto& each) {
        return each.first.group == plan->group && each.first.leaf == plan->leaf;
      });
      if (same != chosen_plans_.end()) {
        same->second.push_back(std::move(why));
      } else {
        chosen_plans_.push_back({*plan, {std::move(why)}});
      }
    };
    if (stop()) {
      const Plan* best = nullptr;
      for (const Plan& plan : near_) {
        if (plan.step >= 0 && (best == nullptr || plan.step < best->step)) best = &plan;
      }
      add(best, "fastest so far");
      for (auto& [plan, why] : chosen_plans_) plan.network = network_of(plan);
      return;
    }
    {
      std::vector<Plan*> all;
      for (Plan& plan : near_) all.push_back(&plan);
      const Plan* best = fastest(all);
      add(best, kFastest);
      if (best != nullptr && device_of(*best) > capacity()) {
        const std::vector<double> device =
            shared<double>(near_.size(), [&](std::size_t i) { return device_of(near_[i]); });
        std::erase_if(
            all, [&](const Plan* plan) { return device[static_cast<std::size_t>(plan - near_.data())] > capacity(); });
        add(fastest(std::move(all)), kFastestNotTight);
      }
    }
    // A plan that was chosen already is as good where its value is: no twins.
    const auto add_least = [&](const auto& key, std::string why, double nothing = 0) {
      const Plan* found = least(key);
      if (found == nullptr) return;
      for (const auto& [chosen, reasons] : chosen_plans_) {
        const Plan& known = *std::find_if(near_.begin(), near_.end(), [&, &plan = chosen](const Plan& each) {
          return each.group == plan.group && each.leaf == plan.leaf;
        });
        if (key(known) <= std::max(kAlike * key(*found), nothing)) return add(&known, std::move(why));
      }
      add(found, std::move(why));
    };
    add_least([](const Plan& plan) { return static_cast<double>(plan.kinds); }, "simplest to run");
    // Rounded to a thousandth: less frees nothing.
    add_least([](const Plan& plan) { return std::pow(1.001, std::ceil(std::log(plan.memory) / std::log(1.001))); },
              "most memory headroom");
    const std::vector<double> network =
        shared<double>(near_.size(), [&](std::size_t i) { return network_of(near_[i]); });
    for (std::size_t i = 0; i < near_.size(); ++i) near_[i].network = network[i];
    add_least([](const Plan& plan) { return plan.network; }, "least network time", kNoNetwork * best_);
    for (const Plan& each : near_) {
      const bool timed = each.step >= 0;
      if (each.step > limit()) continue;
      result_.points.push_back({(timed ? each.step : each.bound) * units::s, each.memory * units::B, timed});
    }
    for (auto& [plan, why] : chosen_plans_) {  // those that were copied before
      for (const Plan& each : near_) {
        if (each.group == plan.group && each.leaf == plan.leaf) plan.network = each.network;
      }
    }
  }

  // The assignments that repeat a plan, without those that say what follows anyway.
  Result<std::vector<Assignment>> assignments_of(const Plan& plan, const Scenario& scenario) const {
    const Texts texts = texts_of(plan);
    std::vector<Assignment> all;
    for (const Assignment& each : space_.fixed.assignments) {
      if (level_of(each.field) == space_.levels.size()) all.push_back(each);
    }
    const std::size_t fixed = all.size();
    for (std::size_t i = 0; i < texts.size(); ++i) all.push_back({space_.levels[i].field, texts[i]});
    const auto resolved = [&](const std::vector<Assignment>& assignments) {
      ScenarioSpec spec;
      spec.assignments = assignments;
      return resolve(spec, *space_.catalog, space_.from.get());
    };
    const auto repeats = [&](const std::vector<Assignment>& assignments) {
      const auto again = resolved(assignments);
      return again && again->plan == scenario.plan && again->training == scenario.training &&
             again->cluster == scenario.cluster;
    };
    if (!repeats(all)) {  // fields that follow from others, and that the search left as they were
      NS_TRY(const Scenario again, resolved(all));
      for (const auto& changes :
           {differences(again.plan, scenario.plan), differences(again.training, scenario.training)}) {
        for (const Assignment& each : changes) {
          std::erase_if(all, [&](const Assignment& other) { return other.field == each.field; });
          all.push_back(each);
        }
      }
    }
    NS_EXPECTS(repeats(all));
    for (std::size_t i = all.size(); i-- > fixed;) {
      const bool is_degree = all[i].field == "plan/tp" || all[i].field == "plan/pp" || all[i].field == "plan/dp";
      if (is_degree && all[i].text != "1") continue;
      std::vector<Assignment> fewer = all;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (repeats(fewer)) all = std::move(fewer);
    }
    return all;
  }

  // Advice on an answer is beside the flags that repeat it: what these set follows from nothing else. One flag says all
  // that overlaps.
  static void name_chosen(Scenario& scenario, const std::vector<Assignment>& assignments) {
    const auto name = [&named = scenario.named](std::string_view field) {
      if (named.names.emplace(field).second) named.chosen.emplace(field);
    };
    for (const Assignment& each : assignments) name(each.field);
    for (const FieldDescription& all : scenario_fields()) {
      const auto& members = all.stands_for;
      const bool said = std::any_of(assignments.begin(), assignments.end(), [&](const Assignment& each) {
        return std::find(members.begin(), members.end(), each.field) != members.end();
      });
      if (said) std::for_each(members.begin(), members.end(), name);
    }
  }

  // What is forecast of a plan, with the layout that its framework wants written.
  Scenario answered(const Plan& plan) const {
    Scenario scenario = scenario_of(plan, base_);
    if (std::string layout = wanted_layout(scenario); !layout.empty()) {
      scenario.plan.pipeline_layout.text = std::move(layout);
    }
    return scenario;
  }

  // Plans that recompute all layers may keep some, as many as fit. Where one of them is the fastest then, it goes to
  // the front of the answers; returns its scenario.
  std::optional<Scenario> recompute_fewer() {
    constexpr std::size_t kMostTried = 16;
    const bool is_given = !space_.levels[recompute_].given.empty();
    if (chosen_plans_.empty() || result_.interrupted || is_given) return std::nullopt;
    std::optional<FewerLayers> best;
    const Plan* from = nullptr;
    double least = chosen_plans_.front().first.step;
    std::size_t tried = 0;
    for (const Plan& plan : near_) {
      if (tried == kMostTried) break;
      const Scenario whole = answered(plan);
      if (whole.plan.recompute != Recompute::kFull || whole.plan.recompute_layers != 0) continue;
      ++tried;
      auto fewer = recomputing_fewer_layers(whole, base_, session_);
      if (!fewer) continue;
      const auto step = step_time(fewer->scenario, session_);
      if (!step || scaled(whole, *step / units::s) >= least) continue;
      least = scaled(whole, *step / units::s);
      best = std::move(fewer);
      from = &plan;
    }
    if (!best) return std::nullopt;
    best_ = least;
    const bool tight = best->memory.device() / units::B > capacity();
    std::erase_if(chosen_plans_, [&](auto& each) {
      std::erase(each.second, kFastest);
      if (!tight) std::erase(each.second, kFastestNotTight);  // it is the new one
      return each.second.empty() || each.first.step > limit();
    });
    chosen_plans_.insert(chosen_plans_.begin(), {*from, {kFastest}});
    chosen_plans_.front().first.network = network_of(*from);
    return std::move(best->scenario);
  }

  Result<void> answer() {
    std::stable_sort(chosen_plans_.begin(), chosen_plans_.end(),
                     [](const auto& a, const auto& b) { return a.first.step < b.first.step; });
    const std::optional<Scenario> refined = recompute_fewer();
    std::optional<Prediction> best;
    for (auto& [plan, why] : chosen_plans_) {
      Scenario scenario = refined && result_.answers.empty() ? *refined : answered(plan);
      SearchAnswer answer;
      answer.why = why;
      NS_TRY(answer.assignments, assignments_of(plan, scenario));
      name_chosen(scenario, answer.assignments);
      NS_TRY(Prediction prediction, predict(scenario, session_));
      answer.report = report(scenario, prediction, advise(scenario, prediction, session_));
      answer.network = plan.network / scaled(scenario, 1) * units::s;  // of this plan's own batch
      answer.kinds = plan.kinds;
      if (best) {
        answer.behind = compare(result_.answers.front().report.scenario, *best, scenario, prediction);
      } else {
        answer.behind.from = prediction.step;
        best = std::move(prediction);
      }
      result_.answers.push_back(std::move(answer));
    }
    return {};
  }

  const SearchSpace::Contents& space_;
  const Session& session_;
  const SearchOptions& options_;
  const Scenario& base_;
  Scenario alone_;                                                // the same, and nothing shares anything
  std::size_t pp_, dp_, micro_batch_, zero_, shard_, recompute_;  // levels
  double tokens_ = 0;

  std::vector<std::string> texts_;       // each once
  std::vector<std::uint32_t> chosen_;    // of each group, its texts
  std::vector<PassBounds> bounds_;       // of each group
  std::vector<std::int64_t> distances_;  // distance_of_places of each group that is not refused
  std::vector<Family> families_;
  mutable std::mutex knowing_;
  mutable std::map<Passes, std::shared_ptr<const PassesOfStages>> known_;
  mutable std::size_t known_parts_ = 0;
  mutable std::map<std::vector<std::uint32_t>, Branches> branches_;
  mutable std::size_t known_branches_ = 0;
  std::vector<Plan> near_;  // plans that may be answers
  double best_ = kForever, least_memory_ = kForever;
  std::uint64_t seen_ = 0;
  std::mutex telling_;
  bool stopped_ = false;  // some member of the team was told to stop
  std::map<std::string, Example> examples_;
  std::vector<std::pair<Plan, std::vector<std::string>>> chosen_plans_;
  SearchResult result_;
};

}  // namespace

Result<SearchResult> search(const SearchSpace& space, const Session& session, const SearchOptions& options) {
  return Search(space, session, options).run();
}

}  // namespace ns_dist
