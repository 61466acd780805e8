#include "sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
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
constexpr int kMostBetween = 3;                                // sizes that are tried between two others

// The fewest GPUs that are whole nodes and whole replicas of the least degrees that the user gives. Of a node of 72, 64
// may be used. Errors: they are more than are searched.
Result<std::int64_t> unit_of(const SearchRequest& request, const Catalog& catalog) {
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
  const std::int64_t used =
      used_of_node(node, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(node))));
  const std::int64_t whole = std::lcm(node, replica);
  const std::int64_t unit = used > 0 ? std::min(whole, std::lcm(used, replica)) : whole;
  if (unit <= kMostSearched) return unit;
  return fail({ErrorCode::kInvalidInput,
               fmt::format("whole replicas on whole nodes of {} need {} GPUs", node, with_commas(unit)), "--dp",
               fmt::format("degrees that whole nodes hold: at most {} GPUs are searched", with_commas(kMostSearched)),
               "leave out the degrees that may be searched"});
}

SearchRequest with_gpus(SearchRequest request, std::int64_t gpus) {
  std::erase_if(request.fixed.assignments, [](const Assignment& each) { return each.field == "machine/nodes"; });
  request.gpus = gpus;
  return request;
}

// Sizes of which some plan may share the global batch evenly among its replicas.
class Sizes {
 public:
  static Result<Sizes> make(const SearchRequest& request, const Catalog& catalog) {
    NS_TRY(const std::int64_t unit, unit_of(request, catalog));
    Sizes sizes(request, catalog, unit);
    std::vector<std::int64_t> batches;
    for (const FieldValues& each : request.listed) {
      if (each.field != "training/global_batch") continue;
      for (const std::string& text : each.values) {
        if (const auto batch = read_whole_number(text, 1, kMostOfAField)) batches.push_back(*batch);
      }
    }
    if (batches.empty()) {
      NS_TRY(const SearchSpace space, sizes.space(unit));
      batches.push_back(space.base().training.global_batch);
    }
    for (const std::int64_t batch : batches) {
      for (const std::int64_t replicas : divisors_of(batch, kMostSearched / unit)) {
        sizes.known_.push_back(unit * replicas);
      }
    }
    return sizes;
  }
  std::int64_t unit() const { return unit_; }
  Result<SearchSpace> space(std::int64_t gpus) const { return SearchSpace::make(with_gpus(request_, gpus), catalog_); }
  // `most`, or the largest one below it that is above half of it. Nothing: none is known.
  std::optional<std::int64_t> up_to(std::int64_t most) const {
    if (divides(most).value_or(true)) return most;  // of an error the search tells
    const std::vector<std::int64_t> below = between(most / 2, most);
    return below.empty() ? std::nullopt : std::optional(below.back());
  }
  bool has_whole_replicas(std::int64_t gpus) const {
    return std::find(known_.begin(), known_.end(), gpus) != known_.end();
  }
  // Some of those between two others, the smallest first: whole quarters of the way, and those with a whole number of
  // replicas of one unit.
  std::vector<std::int64_t> between(std::int64_t low, std::int64_t high) const {
    std::vector<std::int64_t> all;
    for (const std::int64_t size : known_) {
      if (size > low && size < high) all.push_back(size);
    }
    for (int part = 1; part < 4; ++part) {
      const std::int64_t quarters = 4 * low + part * (high - low);
      if (quarters % (4 * unit_) == 0) all.push_back(quarters / 4);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::erase_if(all, [&](std::int64_t size) { return size == low || !divides(size).value_or(false); });
    return all;
  }

 private:
  Sizes(const SearchRequest& request, const Catalog& catalog, std::int64_t unit)
      : request_(request), catalog_(catalog), unit_(unit) {}
  Result<bool> divides(std::int64_t gpus) const {
    NS_TRY(const SearchSpace sized, space(gpus));
    return sized.may_share_batch();
  }

  const SearchRequest& request_;
  const Catalog& catalog_;
  std::int64_t unit_;
  std::vector<std::int64_t> known_;  // whose replicas are one unit each
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
  std::optional<Size> fewest;  // of those in time
  bool is_certain = false;     // the whole interval of one is in time
  const auto in_time = [&](std::int64_t size) -> Result<bool> {
    NS_TRY_VOID(searcher.add(with_gpus(request, size)));
    const auto time = training_of(searcher.cases().back(), goals);
    soonest.add(size, time);
    if (!time || time->total > *goals.deadline) return false;
    is_certain = is_certain || time->high <= *goals.deadline;
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
    for (int i = 0; i < kMostTried && i < std::ssize(larger) && !is_certain && !searcher.interrupted(); ++i) {
      NS_TRY_VOID(in_time(larger[static_cast<std::size_t>(i)]));
    }
    return {};
  };
  std::int64_t low = smallest == sizes.unit() ? 0 : smallest / 2, lowest = 0;
  for (std::int64_t most = smallest; most <= kMostSearched && soonest.in_vain < 2 && !searcher.interrupted();
       most *= 2) {
    const std::optional<std::int64_t> gpus = sizes.up_to(most);
    if (!gpus) continue;
    NS_TRY(const bool found, in_time(*gpus));
    if (found) {
      NS_TRY_VOID(halve(sizes.between(low, *gpus), searcher, [&](std::int64_t size) -> Result<bool> {
        NS_TRY(const bool fewer, in_time(size));
        return !fewer;
      }));
      NS_TRY_VOID(search_certain());
      searcher.sort_sizes_from(first);
      return {};
    }
    low = *gpus;
    if (lowest == 0) lowest = *gpus;
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
  std::int64_t within = 0, above = 0;
  std::optional<double> before;
  bool passed = false;
  for (std::int64_t most = smallest; most <= kMostSearched && !passed && soonest.in_vain < 2 && !searcher.interrupted();
       most *= 2) {
    const std::optional<std::int64_t> gpus = sizes.up_to(most);
    if (!gpus) continue;
    NS_TRY(const std::optional<double> cost, cost_at(*gpus));
    if (!cost) continue;
    const bool buys = *cost <= *goals.budget;
    if (buys) within = *gpus;
    if (buys || above <= within) above = buys ? 0 : *gpus;
    passed = !buys && before && *cost >= *before;
    before = cost;
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

constexpr Seconds kAny = std::numeric_limits<double>::infinity() * units::s;

// A search beside the one that was asked for: the step of some plan that is below `step`.
std::optional<Seconds> step_below(Seconds step, const SearchRequest& request, SearchOptions options,
                                  const Catalog& catalog) {
  constexpr std::uint64_t kMostPlans = 4'000'000;  // about two seconds of one processor
  const auto space = SearchSpace::make(request, catalog);
  if (!space || space->size() > kMostPlans) return std::nullopt;
  const auto session = Session::make(space->base());
  if (!session) return std::nullopt;
  options.within = 0;
  options.team = nullptr;
  options.below = step;
  const auto result = search(*space, *session, options);
  if (!result || result->answers.empty() || result->interrupted) return std::nullopt;
  return result->answers.front().report.step;
}

std::string what_fits(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                      const Catalog& catalog) {
  constexpr std::int64_t kMostTimes = 64;  // as many GPUs
  const double times_memory = *found.result.least_memory / found.base.cluster.gpu.memory;
  std::vector<std::string> fits;
  for (std::int64_t times = 2; times <= kMostTimes && fits.empty(); times *= 2) {
    const std::int64_t gpus = times * found.gpus;
    if (static_cast<double>(times) < times_memory) continue;
    if (step_below(kAny, with_gpus(request, gpus), options, catalog)) {
      fits.push_back(fmt::format("more GPUs, as --gpus {}", gpus));
    }
  }
  SearchRequest offloads = request;
  offloads.fixed.set("plan/offload_optimizer", 1);
  const bool known = found.base.plan.offload_optimizer.value > 0 || found.base.plan.passes != Passes::kTraining;
  if (!known && step_below(kAny, offloads, options, catalog)) {
    fits.emplace_back("the optimizer in the hosts' memory, --offload-optimizer 1");
  }
  return fits.empty() ? "" : fmt::format("what fits: {}", fmt::join(fits, "; "));
}

// Fewer GPUs that are faster; where no plan is possible, the most of which some are.
std::string fewer_gpus(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                       const Catalog& catalog) {
  const auto sizes = Sizes::make(request, catalog);
  const std::int64_t gpus = found.gpus, rounder = 4 * (gpus & -gpus);
  const std::int64_t node = found.base.cluster.gpus_per_node();
  const auto even = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(node)));
  if (!sizes || gpus < sizes->unit() || (node == even && sizes->has_whole_replicas(gpus))) return "";
  // The next one that shares the batch evenly, the next that can be halved more often, and the next power of two.
  std::vector<std::int64_t> fewer = sizes->between(gpus / 2 - 1, gpus);
  if (!fewer.empty()) fewer = {fewer.back()};
  fewer.push_back(gpus / rounder * rounder);
  if (gpus % node == 0 && node != even) fewer.push_back(gpus / node * even);  // 64 of each 72
  fewer.push_back(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(gpus - 1))));
  std::sort(fewer.rbegin(), fewer.rend());
  fewer.erase(std::unique(fewer.begin(), fewer.end()), fewer.end());
  const bool none = found.result.answers.empty();
  Seconds least = none ? kAny : found.result.answers.front().report.step;
  std::string text;
  for (const std::int64_t size : fewer) {
    const auto step = step_below(least, with_gpus(request, size), options, catalog);
    if (!step) continue;
    if (none) return fmt::format("what is possible: fewer GPUs, as --gpus {}", size);
    least = *step;
    text = fmt::format("fewer GPUs are faster: --gpus {}, {} or less", size, duration_text(least));
  }
  return text;
}

}  // namespace

std::string better_size(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                        const Catalog& catalog) {
  if (found.result.interrupted) return "";
  const bool none = found.result.answers.empty();
  if (none && lacks_memory(found.result)) return what_fits(request, found, options, catalog);
  const bool several = std::any_of(request.listed.begin(), request.listed.end(), [](const FieldValues& each) {
    return each.field == "training/global_batch" || each.field == "training/sequence";
  });
  return several && !none ? "" : fewer_gpus(request, found, options, catalog);
}

}  // namespace ns_dist::cli
