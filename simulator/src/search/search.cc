#include "ns_dist/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "costs.h"
#include "fewer_layers.h"
#include "host_waits.h"
#include "ns_dist/memory.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "scenario_fields.h"
#include "search/answers.h"
#include "search/bounds.h"
#include "search/crew.h"
#include "search/groups.h"
#include "search/near_plans.h"
#include "search/refused.h"
#include "search/space.h"
#include "step_times.h"
#include "stragglers.h"

namespace ns_dist {
namespace {

using Texts = SearchGroups::Texts;
using Family = SearchGroups::Family;
constexpr std::uint32_t kNoGroup = SearchGroups::kNoGroup;
// Shares of a long search, for its progress alone: when groups that are impossible are known, and the bounds of others.
constexpr double kRefusing = 0.3, kBounding = 0.6;
// Of a model's parts, the passes of all plans that are remembered: about 130 MB.
constexpr std::size_t kMostKnownParts = 4'000'000;
// Choices of schedule, chunks and the last stage's layers that are remembered: about 80 MB.
constexpr std::size_t kMostKnownBranches = 300'000;

// What was found in one family of groups.
struct Found {
  std::vector<NearPlan> plans;
  std::vector<std::uint32_t> without_plan;  // groups of which no plan is possible
  RefusedPlans refused;
  std::uint64_t seen = 0, bounded = 0;

  void pack(Packer& to) const {
    to.put(plans);
    to.put(without_plan);
    to.put(refused);
    to.put(seen);
    to.put(bounded);
  }
  void unpack(Unpacker& from) {
    from.get(plans);
    from.get(without_plan);
    from.get(refused);
    from.get(seen);
    from.get(bounded);
  }
};

int kinds_of(const ParallelPlan& plan) {
  int kinds = 0;
  for (const std::int64_t degree : {plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.vpp}) kinds += degree > 1 ? 1 : 0;
  if (traits_of(plan).splits_backward) ++kinds;
  if (plan.recompute != Recompute::kNone) ++kinds;
  return kinds;
}

class Search {
 public:
  Search(const SearchSpace& space, const Session& session, const SearchOptions& options)
      : space_(space.contents()),
        session_(session),
        options_(options),
        crew_(options),
        groups_(space, crew_),
        near_(groups_, session, options, crew_),
        alone_(without_sharing(space.base())),
        pp_(groups_.level_of("plan/pp")),
        dp_(groups_.level_of("plan/dp")),
        micro_batch_(groups_.level_of("training/micro_batch")),
        zero_(groups_.level_of("plan/zero")),
        shard_(groups_.level_of("plan/shard")),
        recompute_(groups_.level_of("plan/recompute")),
        gives_recompute_(!space_.levels[recompute_].given.empty()),
        no_recomputation_(groups_.number_of(field_text(Recomputation()))),
        bounds_(groups_.size()),
        distances_(groups_.size()) {}

  Result<SearchResult> run() {
    const auto start = std::chrono::steady_clock::now();
    result_.plans = space_.size;
    crew_.agree();  // whether all groups are there
    if (!crew_.stop()) refuse_groups();
    if (!crew_.stop()) bound_passes();
    bound_families();
    look_at_groups();
    NS_TRY_VOID(add_answers(groups_, session_, crew_, near_, result_));
    result_.evaluated = near_.timed();
    result_.evaluated_with_fewer_layers = near_.timed_with_fewer_layers();
    result_.bounded += near_.forgotten();
    for (const NearPlan& plan : near_.all()) {
      if (plan.step < 0 && plan.is_of_space()) ++(crew_.stop() ? result_.unseen : result_.bounded);
    }
    result_.interrupted = crew_.stop();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  void tell(double share) const {
    if (options_.watch.progress) options_.watch.progress({share, checked_, space_.size});
  }
  // A function that tells that one more of `count` parts is done.
  auto progress(double from, double to, std::size_t count) {
    return [=, this, done = std::make_shared<std::size_t>(0)] {
      if (!options_.watch.progress) return;
      const std::scoped_lock guard(telling_);
      tell(from + (to - from) * static_cast<double>(++*done) / static_cast<double>(count));
    };
  }

  // ---- Bounds of groups, before any of their plans is looked at ----

  static constexpr double kRefused = kForever;  // the bounds of a group without a plan that is possible

  void bound_families() {
    for (Family& family : groups_.families) {
      family.bound = kRefused;
      for (std::uint32_t group = family.first; group < family.end; ++group) {
        family.bound = std::min(family.bound, bounds_[group].any);
      }
    }
    std::sort(groups_.families.begin(), groups_.families.end(),
              [](const Family& a, const Family& b) { return std::tie(a.bound, a.first) < std::tie(b.bound, b.first); });
  }

  // Groups none of whose plans can be built or fits.
  void refuse_groups() {
    // Those that differ in pipeline stages and replicas alone come one after the other, since they share the sizes of
    // the model's parts.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      if (groups_.starts_run(group)) runs.push_back({group, group});
      runs.back().second = group + 1;
    }
    std::stable_sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) {
      for (std::size_t i = 0; i < micro_batch_; ++i) {
        const std::uint32_t x = groups_.chosen(a.first)[i], y = groups_.chosen(b.first)[i];
        if (i != pp_ && i != dp_ && x != y) return x < y;
      }
      return false;
    });
    const auto tell = progress(0, kRefusing, runs.size());
    std::vector<Found> found = crew_.shared<Found>(runs.size(), [&](std::size_t i) {
      Found here;
      if (crew_.told_to_stop()) return here;
      Scenario scenario = alone_;
      std::uint32_t last = kNoGroup;
      std::vector<Variant> variants;
      for (std::uint32_t group = runs[i].first; group < runs[i].second && !crew_.told_to_stop(); ++group) {
        groups_.apply(scenario, last, group);
        const std::uint32_t* const behind = groups_.chosen(group) + micro_batch_ + 1;
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
      checked_ += here.seen;
      tell();
      return here;
    });
    for (Found& each : found) {
      for (const std::uint32_t group : each.without_plan) bounds_[group].any = kRefused;
      take(each);
    }
    checked_ = seen_;  // of all members
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
      found.without_plan.push_back(group);
      found.seen += variant.plans;
      found.refused.refuse(why..., group, 0, variant.plans);
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
        (1 - kRounding) * least_memory(scenario.model, scenario.plan, scenario.training, session_.plans()) +
        StageMemory::kContext;
    if (least <= capacity) return;
    groups_.for_each_leaf(scenario, [&](const Scenario& each, std::uint32_t) {  // is it memory alone?
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
    for (std::uint32_t group = 0; group < groups_.size() && !crew_.told_to_stop(); ++group) {
      if (bounds_[group].any == kRefused) continue;
      const std::uint32_t before = last;
      groups_.apply(scenario, last, group);
      const bool lies_alike =
          before != kNoGroup &&
          std::equal(groups_.chosen(group), groups_.chosen(group) + micro_batch_, groups_.chosen(before));
      distances_[group] = lies_alike ? distances_[before] : distance_of_places(scenario);
      const auto [known, is_new] =
          numbers.try_emplace(passes_of(group, scenario, {}), static_cast<std::uint32_t>(first.size()));
      if (is_new) first.push_back(group);
      number[group] = known->second;
    }
    crew_.agree();
    if (crew_.stop()) return;
    const auto tell = progress(kRefusing, kBounding, first.size());
    const auto found = crew_.shared<PassBounds>(first.size(), [&](std::size_t i) {
      if (crew_.told_to_stop()) return PassBounds();
      Scenario each = alone_;
      groups_.apply(each, first[i]);
      set_recomputation(each.plan, {});
      const auto least = know(passes_of(first[i], each, no_recomputation_), {{least_passes(each, session_)}});
      tell();
      return least->places.front().all;
    });
    last = kNoGroup;
    for (std::uint32_t group = 0; group < groups_.size() && !crew_.stop(); ++group) {
      if (bounds_[group].any == kRefused) continue;
      groups_.apply(scenario, last, group);
      bounds_[group] = on_its_stages(scenario, found[number[group]]);
    }
  }

  // What decides the passes of one microbatch through the whole model. `recomputation`: the number of its text, or
  // nothing for the passes without it.
  using Passes = std::vector<std::uint32_t>;
  Passes passes_of(std::uint32_t group, const Scenario& scenario, std::optional<std::uint32_t> recomputation) const {
    const ParallelPlan& plan = scenario.plan;
    const std::uint32_t sums =
        (adds_up_gradients(plan) ? 0u : 1u) + (exchanges_by_layer(plan) ? 2u : 0u) + (is_fsdp(plan) ? 4u : 0u);
    Passes key{static_cast<std::uint32_t>(plan.cp_inner), sums, static_cast<std::uint32_t>(distances_[group])};
    key.reserve(space_.groups + 4);
    for (std::size_t i = 0; i < space_.groups; ++i) {
      const bool spreads = i == pp_ || i == dp_ || i == zero_ || i == shard_;
      if (!spreads && i != recompute_) key.push_back(groups_.chosen(group)[i]);
    }
    if (recomputation) key.push_back(*recomputation);
    return key;
  }

  using KnownPasses = std::shared_ptr<const PassesOfStages>;
  // The passes of one microbatch, forecast by `make` where no group before had the same.
  template <class Make>
  KnownPasses known_passes(Passes key, const Make& make) const {
    {
      const std::scoped_lock guard(knowing_);
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    return know(std::move(key), make());
  }
  KnownPasses passes_without_recomputation(std::uint32_t group, const Scenario& scenario) const {
    return known_passes(passes_of(group, scenario, no_recomputation_), [&] {
      Scenario without = scenario;
      set_recomputation(without.plan, {});
      return PassesOfStages{{least_passes(without, session_)}};
    });
  }
  KnownPasses passes_anywhere(std::uint32_t group, const Scenario& scenario) const {
    return known_passes(passes_of(group, scenario, groups_.chosen(group)[recompute_]),
                        [&] { return PassesOfStages{{least_passes(scenario, session_)}}; });
  }
  // With each stage's collectives where they lie, which is a closer bound, and more to forecast.
  KnownPasses passes_in_place(std::uint32_t group, const Scenario& scenario) const {
    Passes key = passes_of(group, scenario, groups_.chosen(group)[recompute_]);
    key.push_back(groups_.chosen(group)[pp_]);
    return known_passes(std::move(key), [&] { return passes_on_each_stage(scenario, session_); });
  }
  KnownPasses know(Passes key, PassesOfStages passes) const {
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
    return groups_.scaled(scenario, seconds / fastest) * (1 - kRounding);
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
      if (space_.levels[i].is_read_below) key.push_back(groups_.chosen(group)[i]);
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
    groups_.apply(scenario, last, group);
    const ParallelPlan& plan = scenario.plan;
    const std::int64_t microbatches = microbatches_of(plan, scenario.training);
    const auto is_slow = [&](const PassesOfStages& passes, const PassBounds& least) {
      return least.any > limit || (least.apart > limit && !pairs_passes(plan)) ||
             to_step(scenario, pipeline_bound(passes, scenario, microbatches)) > limit;
    };
    const KnownPasses without = passes_without_recomputation(group, scenario);
    const bool several = has_several_places(scenario.cluster, distances_[group]);
    PassBounds least;         // of `one`
    KnownPasses one, placed;  // made when the first plan fits, and when one may still win: most groups fit nowhere
    std::optional<std::vector<ExchangeTime>> exchanges;
    std::uint32_t leaf = 0;
    const Branches branches = branches_of(group, scenario);
    for (const Branch& branch : *branches) {
      if (crew_.told_to_stop()) return;
      space_.apply(scenario, space_.groups, space_.groups + branch.texts.size(),
                   [&](std::size_t level) -> const std::string& { return branch.texts[level - space_.groups]; });
      const std::uint32_t first = std::exchange(leaf, leaf + branch.plans);
      if (is_slow(*without, bounds_[group])) continue;
      found.seen += leaf - first;
      if (const auto runs = space_.check(scenario); !runs) {
        found.refused.refuse(runs.error(), scenario, group, first, leaf - first);
        continue;
      }
      const auto memory = memory_budget(scenario.model, scenario.plan, scenario.training, session_.plans());
      if (!memory) {
        found.refused.refuse(memory.error(), scenario, group, first, leaf - first);
        continue;
      }
      if (!memory->fits(scenario.cluster.gpu.memory)) {
        found.refused.refuse(memory->needed(), scenario.cluster.gpu.memory, group, first, leaf - first);
        continue;
      }
      if (!one) {
        one = passes_anywhere(group, scenario);
        least = on_its_stages(scenario, one->places.front().all);
      }
      bool slow = is_slow(*one, least);
      if (!slow) {
        if (several && !placed) placed = passes_in_place(group, scenario);
        if (!exchanges) exchanges = exchange_times(scenario, session_);
        const bool is_closer = several || !exchanges->empty();  // than the bound before
        const PassesOfStages& closest = several ? *placed : *one;
        slow = is_closer && to_step(scenario, pipeline_bound(closest, scenario, microbatches, *exchanges)) > limit;
      }
      if (slow) {
        found.bounded += leaf - first;
      } else {
        look_at_leaves({group, first, leaf, 0}, scenario, *memory, limit, found);
      }
      if (gives_recompute_ || recomputation_of(plan) != Recomputation{Recompute::kFull}) continue;
      if (!exchanges) exchanges = exchange_times(scenario, session_);
      Scenario fewer = scenario;
      const auto is_slow_with = [&](std::int64_t layers) {
        fewer.plan.recompute_layers = layers;
        const PassesOfOne& kept = without->places.front();
        return to_step(fewer, pipeline_bound(*one, fewer, microbatches, *exchanges, &kept)) > limit;
      };
      for (FewerLayers& each : fewer_layers(scenario, *memory, is_slow_with)) {
        fewer.plan = std::move(each.plan);
        const auto layers = static_cast<std::uint32_t>(fewer.plan.recompute_layers);
        look_at_leaves({group, first, leaf, layers}, fewer, each.memory, limit, found);
      }
    }
  }

  // Where a plan that recomputes all layers fits, and without recomputation it would not or would be tight: the fewest
  // layers with which it fits, and the fewest with which it is not tight; none that are slow.
  template <class IsSlow>
  std::vector<FewerLayers> fewer_layers(const Scenario& whole, const MemoryBudget& memory,
                                        const IsSlow& is_slow_with) const {
    std::int64_t least = 1, end = layers_of_chunk(whole);
    while (least < end) {
      const std::int64_t layers = least + (end - least) / 2;
      const bool slow = is_slow_with(layers);
      (slow ? end : least) = slow ? layers : layers + 1;
    }
    std::vector<FewerLayers> found;
    const Bytes capacity = whole.cluster.gpu.memory;
    const auto fits = [capacity](const MemoryBudget& each) { return each.fits(capacity); };
    const auto is_roomy = [&](const MemoryBudget& each) { return fits(each) && each.device() <= capacity; };
    auto fitting = fewest_layers(whole, session_, 1, end, fits);
    if (!fitting) return found;
    Scenario changed = whole;
    set_recomputation(changed.plan, {});
    const auto without = memory_budget(changed.model, changed.plan, changed.training, session_.plans());
    if (!without || is_roomy(*without)) return found;
    least = fitting->plan.recompute_layers;
    const bool is_roomy_at_once = is_roomy(fitting->memory);
    if (!fits(*without)) found.push_back(*std::move(fitting));
    if (is_roomy(memory) && (found.empty() || !is_roomy_at_once)) {
      if (auto roomy = fewest_layers(whole, session_, least, end, is_roomy)) found.push_back(*std::move(roomy));
    }
    std::erase_if(found, [&](const FewerLayers& each) {
      changed.plan = each.plan;
      return !framework_has(whole, changed);
    });
    return found;
  }

  // Plans of a group that differ in levels behind `budgets`; with so many `layers` (NearPlan).
  struct Leaves {
    std::uint32_t group, first, end, layers;
  };
  // `scenario` has what they have in common.
  void look_at_leaves(const Leaves& leaves, Scenario& scenario, const MemoryBudget& memory, double limit,
                      Found& found) const {
    const bool is_of_space = leaves.layers == 0;
    std::uint32_t at = leaves.first;
    bool asked = false;
    Texts texts;
    space_.walk(space_.budgets, space_.levels.size(), scenario, texts, [&](const Scenario& each, const Texts&) {
      const std::uint32_t here = at++;
      auto program = plan_program(each.model, each.plan, each.training, session_.plans());
      auto costs = program ? costs_of(*program, each, session_) : Result<ProgramCosts>(fail(program.error()));
      if (!costs) {
        if (is_of_space) found.refused.refuse(costs.error(), each, leaves.group, here, 1);
        return true;
      }
      if (!asked && leaves.end - leaves.first > 1) {
        asked = true;
        if (step_alone(*program, without_data_parallel(*program, *costs), each) > limit) {
          if (is_of_space) found.bounded += leaves.end - here;
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
        if (is_of_space) ++found.bounded;
        return true;
      }
      found.plans.push_back({.bound = bound,
                             .memory = memory.peak() / units::B,
                             .device = memory.device() / units::B,
                             .group = leaves.group,
                             .leaf = here,
                             .layers = leaves.layers,
                             .kinds = kinds_of(each.plan)});
      return true;
    });
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
    return step ? groups_.scaled(scenario, *step / units::s) * (1 - kRounding) : 0;
  }

  void take(const Found& found) {
    result_.bounded += found.bounded;
    seen_ += found.seen;
    refused_.add(found.refused);
  }

  // Rounds of groups, the lowest bound first. Limits change between rounds only, so that the result does not depend on
  // the number of threads.
  void look_at_groups() {
    std::size_t first = 0, round = 2;
    while (first < groups_.families.size() && groups_.families[first].bound <= near_.limit() && !crew_.stop()) {
      if (options_.below && near_.found()) break;
      const std::size_t end = std::min(groups_.families.size(), first + round);
      const double limit = near_.limit();
      const std::vector<Found> found = crew_.shared<Found>(end - first, [&](std::size_t i) {
        const Family& family = groups_.families[first + i];
        Found here;
        Scenario scenario = alone_;
        std::uint32_t last = kNoGroup;
        for (std::uint32_t group = family.first; group < family.end && !crew_.told_to_stop(); ++group) {
          const double least = bounds_[group].any;
          if (least != kRefused && least <= limit) look_at(group, scenario, last, limit, here);
        }
        checked_ += here.seen;
        return here;
      });
      std::vector<NearPlan> plans;
      for (const Found& each : found) {
        take(each);
        plans.insert(plans.end(), each.plans.begin(), each.plans.end());
      }
      near_.add(plans);
      first = end;
      round = std::min<std::size_t>(2 * round, 16);
      checked_ = seen_;
      tell(kBounding + (1 - kBounding) * static_cast<double>(first) / static_cast<double>(groups_.families.size()));
    }
    (crew_.stop() ? result_.unseen : result_.skipped) = result_.plans - seen_;
    refused_.tell(result_);
  }

  const SearchSpace::Contents& space_;
  const Session& session_;
  const SearchOptions& options_;
  Crew crew_;
  SearchGroups groups_;
  NearPlans near_;
  Scenario alone_;                                                // the base, and nothing shares anything
  std::size_t pp_, dp_, micro_batch_, zero_, shard_, recompute_;  // levels

  bool gives_recompute_;            // the request does
  std::uint32_t no_recomputation_;  // the number of its text

  std::vector<PassBounds> bounds_;       // of each group
  std::vector<std::int64_t> distances_;  // distance_of_places of each group that is not refused
  mutable std::mutex knowing_;
  mutable std::map<Passes, std::shared_ptr<const PassesOfStages>> known_;
  mutable std::size_t known_parts_ = 0;
  mutable std::map<std::vector<std::uint32_t>, Branches> branches_;
  mutable std::size_t known_branches_ = 0;
  RefusedPlans refused_;
  std::uint64_t seen_ = 0;
  mutable std::atomic<std::uint64_t> checked_{0};  // for the progress: of rounds under way, too
  std::mutex telling_;
  SearchResult result_;
};

}  // namespace

Result<SearchResult> search(const SearchSpace& space, const Session& session, const SearchOptions& options) {
  if (options.watch.progress) options.watch.progress({0, 0, space.size()});  // before its groups are listed
  return Search(space, session, options).run();
}

}  // namespace ns_dist
