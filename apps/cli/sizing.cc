#include "sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "ns_dist/internal/divisors.h"
#include "ns_dist/planner.h"
#include "report_text.h"
#include "terminal.h"

namespace ns_dist::cli {

Result<Cluster> searched_cluster(const SearchRequest& request, const Catalog& catalog) {
  ScenarioSpec spec;
  for (const Assignment& each : request.fixed.assignments) {
    if (decides_machine(each.field)) spec.assignments.push_back(each);
  }
  NS_TRY(Scenario machine, resolve(spec, catalog, request.from.get()));
  return std::move(machine.cluster);
}

namespace {

constexpr std::int64_t kMostSearched = std::int64_t{1} << 20;  // GPUs
constexpr std::string_view kGlobalBatch = "training/global_batch";
constexpr int kMostBetween = 3;  // sizes that are tried between two others

// The fewest GPUs that are whole nodes and whole replicas of the least degrees that the user gives.
struct Units {
  std::int64_t fewest = 1;  // of a node of 72, 64 may be used
  std::int64_t full = 1;    // all GPUs of each node
};
// Errors: they are more than are searched.
Result<Units> units_of(const SearchRequest& request, const Catalog& catalog) {
  NS_TRY(const Cluster cluster, searched_cluster(request, catalog));
  std::int64_t replica = 1;
  const auto add = [&replica](std::string_view field, std::span<const std::string> texts) {
    if (!is_degree(field)) return;
    std::int64_t least = kMostSearched;
    for (const std::string& text : texts) {
      if (const auto value = read_whole_number(text, 1, kMostSearched)) least = std::min(least, *value);
    }
    replica = std::min(replica * least, kMostSearched);
  };
  for (const Assignment& each : request.fixed.assignments) add(each.field, {&each.text, 1});
  for (const FieldValues& each : request.listed) add(each.field, each.values);
  const std::int64_t node = cluster.gpus_per_node();
  const std::int64_t used = used_of_node(node, power_of_two_up_to(node));
  const std::int64_t whole = std::lcm(node, replica);
  const std::int64_t unit = used > 0 ? std::min(whole, std::lcm(used, replica)) : whole;
  if (unit <= kMostSearched) return Units{unit, whole};
  return fail({ErrorCode::kInvalidInput,
               fmt::format("whole replicas on whole nodes of {} need {} GPUs", node, with_commas(unit)), "--dp",
               fmt::format("degrees that whole nodes hold: at most {} GPUs are searched", with_commas(kMostSearched)),
               "leave out the degrees that may be searched"});
}

SearchRequest without(SearchRequest request, std::string_view field) {
  std::erase_if(request.fixed.assignments, [field](const Assignment& each) { return each.field == field; });
  return request;
}

SearchRequest with_gpus(SearchRequest request, std::int64_t gpus) {
  request = without(std::move(request), "machine/nodes");
  request.gpus = gpus;
  return request;
}

// Sizes of which some plan may share the global batch evenly among its replicas.
class Sizes {
 public:
  static Result<Sizes> make(const SearchRequest& request, const Catalog& catalog) {
    NS_TRY(const Units units, units_of(request, catalog));
    Sizes sizes(request, catalog, units.fewest);
    std::vector<std::int64_t> batches;
    for (const FieldValues& each : request.listed) {
      if (each.field != kGlobalBatch) continue;
      for (const std::string& text : each.values) {
        if (const auto batch = read_whole_number(text, 1, kMostOfAField)) batches.push_back(*batch);
      }
    }
    if (batches.empty()) {
      NS_TRY(const SearchSpace space, sizes.space(units.fewest));
      batches.push_back(space.base().training.global_batch);
    }
    for (const std::int64_t batch : batches) {
      for (const std::int64_t unit : {units.fewest, units.full}) {
        for (const std::int64_t replicas : divisors_of(batch, kMostSearched / unit)) {
          sizes.known_.push_back(unit * replicas);
        }
      }
    }
    return sizes;
  }
  std::int64_t unit() const { return unit_; }
  Result<SearchSpace> space(std::int64_t gpus) const { return SearchSpace::make(with_gpus(request_, gpus), catalog_); }
  // The largest one above half of `most`, one of whole replicas where there is one. Nothing: none is known.
  std::optional<std::int64_t> up_to(std::int64_t most) const {
    if (const auto whole = whole_between(most / 2, most + 1); !whole.empty()) return whole.back();
    if (divides(most).value_or(true)) return most;  // of an error the search tells
    const std::vector<std::int64_t> below = between(most / 2, most);
    return below.empty() ? std::nullopt : std::optional(below.back());
  }
  bool has_whole_replicas(std::int64_t gpus) const {
    return std::find(known_.begin(), known_.end(), gpus) != known_.end();
  }
  // Those between two others with a whole number of replicas of one unit, the smallest first.
  std::vector<std::int64_t> whole_between(std::int64_t low, std::int64_t high) const {
    return in_order(low, high, known_);
  }
  // These, and whole quarters of the way.
  std::vector<std::int64_t> between(std::int64_t low, std::int64_t high) const {
    std::vector<std::int64_t> all = known_;
    for (int part = 1; part < 4; ++part) {
      const std::int64_t quarters = 4 * low + part * (high - low);
      if (quarters % (4 * unit_) == 0) all.push_back(quarters / 4);
    }
    return in_order(low, high, std::move(all));
  }

 private:
  Sizes(const SearchRequest& request, const Catalog& catalog, std::int64_t unit)
      : request_(request), catalog_(catalog), unit_(unit) {}
  std::vector<std::int64_t> in_order(std::int64_t low, std::int64_t high, std::vector<std::int64_t> all) const {
    std::erase_if(all, [=](std::int64_t size) { return size <= low || size >= high; });
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::erase_if(all, [this](std::int64_t size) { return !divides(size).value_or(false); });
    return all;
  }
  Result<bool> divides(std::int64_t gpus) const {
    NS_TRY(const SearchSpace sized, space(gpus));
    return sized.may_share_batch();
  }

  const SearchRequest& request_;
  const Catalog& catalog_;
  std::int64_t unit_;
  std::vector<std::int64_t> known_;  // whose replicas are one unit each, of some nodes or of full ones
};

// A size below which the GPU's peak rate is too low for the deadline: a unit, or twice as many, and so on.
Result<std::int64_t> first_size(const Sizes& sizes, const SearchGoals& goals) {
  NS_TRY(const SearchSpace space, sizes.space(sizes.unit()));
  const Scenario& base = space.base();
  const Flops each = 1 / tokens_of_step(base.training) * step_flops(base.model, base.plan, base.training).model;
  const FlopsPerSecond peak = base.cluster.gpu.matrix_peak(product_type(base.training.precision));
  const double least = peak > FlopsPerSecond() ? *goals.tokens * each / (peak * *goals.deadline) : 1;
  std::int64_t gpus = sizes.unit();
  while (static_cast<double>(gpus) < least && gpus < kMostSearched) gpus *= 2;
  return gpus;
}

// The size whose training ends soonest, and how many sizes behind each other were no sooner.
struct Soonest {
  std::optional<Seconds> least;
  std::int64_t gpus = 0;
  int in_vain = 0;
  void add(std::int64_t size, const std::optional<TrainingTime>& time) {
    const bool sooner = time && (!least || time->total < *least);
    if (sooner) least = time->total, gpus = size;
    in_vain = sooner || !least ? 0 : in_vain + 1;
  }
};

// Halves the sizes between two others as often as kMostBetween allows. `goes_up(size)`: whether the larger half is
// next.
template <class GoesUp>
Result<void> halve(std::vector<std::int64_t> sizes, const Searcher& searcher, const GoesUp& goes_up) {
  for (int tried = 0; tried < kMostBetween && !sizes.empty() && !searcher.interrupted(); ++tried) {
    const auto middle = sizes.begin() + std::ssize(sizes) / 2;
    NS_TRY(const bool up, goes_up(*middle));
    sizes = up ? std::vector(middle + 1, sizes.end()) : std::vector(sizes.begin(), middle);
  }
  return {};
}

}  // namespace

Result<void> search_until_in_time(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                  Searcher& searcher) {
  NS_TRY(const Sizes sizes, Sizes::make(request, catalog));
  NS_TRY(const std::int64_t smallest, first_size(sizes, goals));
  const std::size_t first = searcher.cases().size();
  Soonest soonest;
  struct Size {
    std::int64_t gpus;
    TrainingTime time;
  };
  std::optional<Size> fewest;                                       // of those in time
  std::int64_t certain = std::numeric_limits<std::int64_t>::max();  // the fewest whose whole interval is in time
  const auto in_time = [&](std::int64_t size) -> Result<bool> {
    NS_TRY_VOID(searcher.add(with_gpus(request, size)));
    const auto time = training_of(searcher.cases().back(), goals);
    soonest.add(size, time);
    if (!time || time->total > *goals.deadline) return false;
    if (time->high <= *goals.deadline) certain = std::min(certain, size);
    if (!fewest || size < fewest->gpus) fewest = Size{size, *time};
    return true;
  };
  const auto search_certain = [&]() -> Result<void> {
    constexpr int kMostTried = 2;
    const std::int64_t twice = 2 * fewest->gpus;
    std::vector<std::int64_t> larger = sizes.between(fewest->gpus, twice);
    if (const auto gpus = sizes.up_to(twice); gpus && (larger.empty() || *gpus > larger.back()))
      larger.push_back(*gpus);
    // Of as many GPUs as the end of the interval is too late.
    const double least = static_cast<double>(fewest->gpus) * (fewest->time.high / *goals.deadline);
    std::erase_if(larger, [&](std::int64_t size) { return static_cast<double>(size) < least; });
    if (std::ssize(larger) > kMostTried) larger.resize(kMostTried);
    for (const std::int64_t size : larger) {
      if (size >= certain || searcher.interrupted()) break;
      NS_TRY_VOID(in_time(size));
    }
    return {};
  };
  const auto find_fewest = [&](std::int64_t low, std::int64_t high) -> Result<void> {
    std::vector<std::int64_t> fewer_gpus = sizes.whole_between(low, high);
    if (fewer_gpus.empty()) fewer_gpus = sizes.between(low, high);
    NS_TRY_VOID(halve(std::move(fewer_gpus), searcher, [&](std::int64_t size) -> Result<bool> {
      NS_TRY(const bool fewer, in_time(size));
      return !fewer;
    }));
    NS_TRY_VOID(search_certain());
    searcher.sort_sizes_from(first);
    return {};
  };
  std::int64_t low = smallest == sizes.unit() ? 0 : smallest / 2, lowest = 0;
  for (std::int64_t most = smallest; most <= kMostSearched && soonest.in_vain < 2 && !searcher.interrupted();
       most *= 2) {
    const std::optional<std::int64_t> gpus = sizes.up_to(most);
    if (!gpus) continue;
    NS_TRY(const bool found, in_time(*gpus));
    if (found) return find_fewest(low, *gpus);
    // Larger is not always sooner: the first size of whole replicas behind the one before may be.
    if (const auto whole = sizes.whole_between(low, *gpus); !whole.empty() && lowest > 0) {
      const int in_vain = soonest.in_vain;
      NS_TRY(const bool sooner, in_time(whole.front()));
      if (sooner) return find_fewest(low, whole.front());
      soonest.in_vain = std::min(soonest.in_vain, in_vain);
    }
    low = *gpus;
    if (lowest == 0) lowest = *gpus;
  }
  // Powers of two may share the batch badly: larger sizes of whole replicas.
  if (soonest.gpus > 0) {
    low = soonest.gpus;
    int tried = 0;
    for (const std::int64_t size : sizes.whole_between(low, 4 * low)) {
      if (tried++ == kMostBetween || searcher.interrupted()) break;
      NS_TRY(const bool found, in_time(size));
      if (found) return find_fewest(low, size);
    }
  }
  soonest.in_vain = 0;
  for (std::int64_t most = smallest / 2; soonest.gpus <= lowest && most >= sizes.unit() && soonest.in_vain == 0;
       most /= 2) {
    if (searcher.interrupted()) break;
    if (const auto gpus = sizes.up_to(most)) NS_TRY_VOID(in_time(*gpus));
  }
  if (searcher.cases().size() == first)
    return searcher.add(with_gpus(request, sizes.unit()));  // says why there is none
  searcher.keep_answers_from(first);
  searcher.sort_sizes_from(first);
  return {};
}

Result<void> search_within_budget(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                  std::size_t first, Searcher& searcher) {
  NS_TRY(const Sizes sizes, Sizes::make(request, catalog));
  NS_TRY(const std::int64_t smallest, goals.deadline ? first_size(sizes, goals) : Result<std::int64_t>(sizes.unit()));
  Soonest soonest;
  const auto cost_at = [&](std::int64_t gpus) -> Result<std::optional<double>> {
    const auto same = [&](const SearchCase& each) { return each.gpus == gpus; };
    auto found =
        std::find_if(searcher.cases().begin() + static_cast<std::ptrdiff_t>(first), searcher.cases().end(), same);
    if (found == searcher.cases().end()) {
      NS_TRY_VOID(searcher.add(with_gpus(request, gpus)));
      found = searcher.cases().end() - 1;
    }
    soonest.add(gpus, training_of(*found, goals));
    return cost_of(*found, goals);
  };
  std::int64_t within = 0, above = 0, last = 0;
  std::optional<double> before;
  int dearer = 0;  // sizes behind each other that cost too much, and more than the one before
  for (std::int64_t most = smallest;
       most <= kMostSearched && dearer < 2 && soonest.in_vain < 2 && !searcher.interrupted(); most *= 2) {
    const std::optional<std::int64_t> gpus = sizes.up_to(most);
    if (!gpus) continue;
    NS_TRY(const std::optional<double> cost, cost_at(*gpus));
    if (!cost) continue;
    const bool buys = *cost <= *goals.budget;
    if (buys) within = *gpus;
    if (buys || above <= within) above = buys ? 0 : *gpus;
    // Larger is not always dearer: the first size of whole replicas behind the one before may be bought.
    const std::vector<std::int64_t> whole = buys ? std::vector<std::int64_t>() : sizes.whole_between(last, *gpus);
    if (!whole.empty() && last > 0) {
      const int in_vain = soonest.in_vain;
      NS_TRY(const std::optional<double> less, cost_at(whole.front()));
      if (less && *less <= *goals.budget) within = whole.front(), above = *gpus;
      soonest.in_vain = std::min(soonest.in_vain, in_vain);
    }
    dearer = !buys && before && *cost >= *before ? dearer + 1 : 0;
    before = cost;
    last = *gpus;
  }
  if (within > 0 && above > within) {
    NS_TRY_VOID(halve(sizes.between(within, above), searcher, [&](std::int64_t size) -> Result<bool> {
      NS_TRY(const std::optional<double> cost, cost_at(size));
      return cost && *cost <= *goals.budget;
    }));
  }
  if (searcher.cases().size() == first)
    return searcher.add(with_gpus(request, sizes.unit()));  // says why there is none
  searcher.sort_sizes_from(first);
  return {};
}

namespace {

// Searches beside the one that was asked for.
class OtherSearches {
 public:
  // Beside one of so many plans.
  OtherSearches(const SearchOptions& options, const Catalog& catalog, std::uint64_t plans)
      : options_(options),
        catalog_(catalog),
        most_(std::max(kMostPlans, 4 * plans)),
        left_(std::max(kMostPlans, plans)) {
    options_.within = 0;
    options_.team = nullptr;
  }
  // The step of some plan that is below `step`, or of the fastest without one; nothing of a space that takes too long.
  std::optional<Seconds> step(const SearchRequest& request, std::optional<Seconds> below = {}) {
    const auto space = SearchSpace::make(request, catalog_);
    const bool any = below == kAny;  // the first plan that fits ends it
    if (!space || space->size() > (any ? most_ : below ? left_ : kMostPlans)) return std::nullopt;
    if (below && !any) left_ -= space->size();
    const auto session = Session::make(space->base());
    if (!session) return std::nullopt;
    options_.below = below;
    const auto result = search(*space, *session, options_);
    if (!result || result->answers.empty() || result->interrupted) return std::nullopt;
    return result->answers.front().report.step;
  }
  bool fits(const SearchRequest& request) { return step(request, kAny).has_value(); }

 private:
  static constexpr Seconds kAny = std::numeric_limits<double>::infinity() * units::s;
  static constexpr std::uint64_t kMostPlans = 4'000'000;  // about two seconds of one processor
  SearchOptions options_;
  const Catalog& catalog_;
  std::uint64_t most_;
  std::uint64_t left_;  // plans of all searches below a step together: they take no longer than the one beside
};

// The plans of a request that need the least memory.
SearchRequest small_plans(SearchRequest request) {
  if (!request.gives("training/micro_batch")) request.fixed.set("training/micro_batch", 1);
  if (!request.gives("plan/recompute")) request.fixed.set("plan/recompute", std::string_view("full"));
  return request;
}

std::string what_fits(const SearchRequest& request, const SearchCase& found, OtherSearches& others) {
  constexpr std::int64_t kMostTimes = 64;  // as many GPUs
  const double times_memory = *found.result.least_memory / found.base.cluster.gpu.memory;
  std::vector<std::string> fits;
  // Halves of the way from one power of two to the next, in whole nodes.
  const std::int64_t node = std::min(found.gpus, found.base.cluster.gpus_per_node());
  for (std::int64_t halves = 3; halves <= 2 * kMostTimes && fits.empty();) {
    const std::int64_t gpus = halves * found.gpus / 2;
    const bool may_fit = static_cast<double>(halves) >= 2 * times_memory && gpus % node == 0;
    if (may_fit && others.fits(small_plans(with_gpus(request, gpus)))) {
      fits.push_back(fmt::format("more GPUs, as --gpus {}", gpus));
    }
    halves += halves % 3 == 0 ? halves / 3 : halves / 2;
  }
  SearchRequest offloads = small_plans(request);
  offloads.fixed.set("plan/offload_optimizer", 1);
  Scenario with = found.base;
  with.plan.offload_optimizer = {1};
  const bool known = found.base.plan.offload_optimizer.value > 0 || found.base.plan.passes != Passes::kTraining;
  if (!known && framework_has(found.base, with) && others.fits(offloads)) {
    fits.emplace_back("the optimizer in the hosts' memory, --offload-optimizer 1");
  }
  return fits.empty() ? "" : fmt::format("what fits: {}", fmt::join(fits, "; "));
}

// Numbers of GPUs below the given one of which there are more plans, the largest first.
std::vector<std::int64_t> rounder_sizes(const Sizes& sizes, std::int64_t gpus, std::int64_t node) {
  const std::int64_t even = power_of_two_up_to(node);
  // The next one that shares the batch evenly, those that can be halved more often, and the next power of two.
  std::vector<std::int64_t> fewer = sizes.between(gpus / 2 - 1, gpus);
  if (!fewer.empty()) fewer = {fewer.back()};
  for (std::int64_t rounder = 4 * (gpus & -gpus); rounder < gpus; rounder *= 4) {
    fewer.push_back(gpus / rounder * rounder);
  }
  if (gpus % node == 0 && node != even) fewer.push_back(gpus / node * even);  // 64 of each 72
  fewer.push_back(power_of_two_up_to(gpus - 1));
  std::sort(fewer.rbegin(), fewer.rend());
  fewer.erase(std::unique(fewer.begin(), fewer.end()), fewer.end());
  return fewer;
}

// Fewer GPUs that are faster.
std::string fewer_gpus(const SearchRequest& request, const SearchCase& found, const Sizes& sizes,
                       OtherSearches& others) {
  const std::int64_t gpus = found.gpus, node = found.base.cluster.gpus_per_node();
  const bool even = power_of_two_up_to(node) == node;
  if (gpus < sizes.unit() || (even && sizes.has_whole_replicas(gpus))) return "";
  Seconds least = found.result.answers.front().report.step;
  std::string text;
  for (const std::int64_t size : rounder_sizes(sizes, gpus, node)) {
    const auto step = others.step(with_gpus(request, size), least);
    if (!step) continue;
    least = *step;
    text = fmt::format("fewer GPUs are faster: --gpus {}, {} or less", size, duration_text(least));
  }
  return text;
}

// The global batch nearest to that of the request, and the number of GPUs below, of which plans are possible.
std::string what_is_possible(const SearchRequest& request, const SearchCase& found, const Sizes& sizes,
                             OtherSearches& others) {
  std::vector<std::string> possible;
  const std::int64_t batch = found.base.training.global_batch;
  std::vector<std::int64_t> batches;
  const bool is_free = !request.gives("plan/dp") && !request.lists(kGlobalBatch);
  for (std::int64_t replicas = found.gpus; is_free; replicas /= 2) {
    const std::int64_t nearest = (batch + replicas / 2) / replicas * replicas;
    if (nearest > 0 && nearest != batch) batches.push_back(nearest);
    if (replicas % 2 != 0) break;
  }
  std::stable_sort(batches.begin(), batches.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::abs(a - batch) < std::abs(b - batch); });
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  constexpr std::size_t kMostTried = 4;
  batches.resize(std::min(kMostTried, batches.size()));
  std::optional<std::pair<Seconds, std::int64_t>> best;  // of which a sequence takes least
  for (const std::int64_t other : batches) {
    SearchRequest changed = without(request, kGlobalBatch);
    changed.fixed.set(kGlobalBatch, other);
    auto step = others.step(changed);
    if (!step) step = others.step(small_plans(changed));
    const auto each = [](Seconds of, std::int64_t sequences) { return of / static_cast<double>(sequences); };
    if (step && (!best || each(*step, other) < each(best->first, best->second))) best = {*step, other};
  }
  if (best) {
    possible.push_back(
        fmt::format("another batch, as --global-batch {}: {} or less", best->second, duration_text(best->first)));
  }
  std::optional<std::pair<Seconds, std::int64_t>> fastest;
  for (const std::int64_t size : rounder_sizes(sizes, found.gpus, found.base.cluster.gpus_per_node())) {
    const auto step = others.step(with_gpus(request, size));
    if (step && (!fastest || *step < fastest->first)) fastest = {*step, size};
  }
  if (fastest)
    possible.push_back(
        fmt::format("fewer GPUs, as --gpus {}: {} or less", fastest->second, duration_text(fastest->first)));
  return possible.empty() ? "" : fmt::format("what is possible: {}", fmt::join(possible, "; "));
}

}  // namespace

std::string better_size(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                        const Catalog& catalog) {
  if (found.result.interrupted) return "";
  OtherSearches others(options, catalog, found.result.plans);
  const bool none = found.result.answers.empty();
  if (none && lacks_memory(found.result)) return what_fits(request, found, others);
  const bool several = request.lists(kGlobalBatch) || request.lists("training/sequence");
  const auto sizes = Sizes::make(request, catalog);
  if (!sizes || (several && !none)) return "";
  return none ? what_is_possible(request, found, *sizes, others) : fewer_gpus(request, found, *sizes, others);
}

}  // namespace ns_dist::cli
