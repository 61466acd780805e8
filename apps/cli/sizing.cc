#include "sizing.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "ns_dist/planner.h"
#include "sizes.h"

namespace ns_dist::cli {
namespace {

struct Outcome {
  std::optional<TrainingTime> time;  // nothing: no plan
  bool in_time = false, surely_in_time = false, in_budget = false;
  double cost = 0;
};

using Outcomes = std::map<std::int64_t, Outcome>;  // by the number of GPUs

bool is_sooner(const Outcomes::value_type& one, const Outcomes::value_type& other) {
  const auto &time = one.second.time, &other_time = other.second.time;
  return time && (!other_time || time->total < other_time->total);
}

class SizeSearch {
 public:
  static Result<SizeSearch> make(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                 Searcher& searcher);
  Result<void> search();

 private:
  enum class Way { kUp, kDown };
  SizeSearch(const SearchRequest& request, const SearchGoals& goals, Sizes sizes, Searcher& searcher)
      : request_(request), goals_(goals), sizes_(std::move(sizes)), searcher_(searcher) {}

  Result<void> until_in_time();
  Result<void> within_budget();
  // Searches one size, or remembers it.
  Result<Outcome> at(std::int64_t gpus);
  // The best size from `gpus` to its double, then of the next octave, and so on, to the first one that `ends` it, or
  // until `most` sizes after each other are no sooner than all before them. Without `ends`, those above the budget must
  // also cost less than the one before.
  Result<void> gallop(std::int64_t gpus, Way way, int most, bool Outcome::*ends);
  // At most so many sizes between two others, each near the middle of those that are left: the ones on this way where
  // the size before `holds`, otherwise those on the other way.
  Result<void> bisect(std::int64_t low, std::int64_t high, int most, bool Outcome::*holds, Way way);
  // The fewest GPUs of which an outcome is true; or the end.
  Outcomes::const_iterator fewest(bool Outcome::*holds) const {
    return std::find_if(found_.begin(), found_.end(), [holds](const auto& each) { return each.second.*holds; });
  }
  // The next size that was searched, or what cannot be in time.
  std::int64_t below(Outcomes::const_iterator size) const {
    return size == found_.begin() ? static_cast<std::int64_t>(std::ceil(least_)) - 1 : std::prev(size)->first;
  }

  // Sizes that are tried between two others, and without gain. Two that differ by an eighth have none between them.
  static constexpr int kMostBetween = 4, kMostCertain = 2, kMostInVain = 2, kFinest = 8;
  const SearchRequest& request_;
  const SearchGoals& goals_;
  Sizes sizes_;
  Searcher& searcher_;
  double least_ = 0;         // of GPUs at their peak rate, to be in time
  std::int64_t octave_ = 0;  // the first one above
  Outcomes found_;
};

Result<SizeSearch> SizeSearch::make(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                    Searcher& searcher) {
  NS_TRY(Sizes sizes, Sizes::make(request, catalog, searcher.options().watch));
  SizeSearch made(request, goals, std::move(sizes), searcher);
  made.octave_ = made.sizes_.unit();
  if (!goals.deadline) return made;
  NS_TRY(const SearchSpace space, made.sizes_.space(made.octave_));
  const Scenario& base = space.base();
  const Flops each = 1 / tokens_of_step(base.training) * step_flops(base.model, base.plan, base.training).model;
  const FlopsPerSecond peak = product_peak(base.cluster.gpu, base.training.precision);
  if (peak > FlopsPerSecond()) made.least_ = *goals.tokens * each / (peak * *goals.deadline);
  while (static_cast<double>(made.octave_) < made.least_ && made.octave_ < kMostSearched) made.octave_ *= 2;
  return made;
}

Result<Outcome> SizeSearch::at(std::int64_t gpus) {
  if (const auto known = found_.find(gpus); known != found_.end()) return known->second;
  NS_TRY_VOID(searcher_.add(with_gpus(request_, gpus)));
  const SearchCase& found = searcher_.cases().back();
  return found_[gpus] = {training_of(found, goals_), in_time(found, goals_), surely_in_time(found, goals_),
                         in_budget(found, goals_), cost_of(found, goals_).value_or(0)};
}

Result<void> SizeSearch::gallop(std::int64_t gpus, Way way, int most, bool Outcome::*ends) {
  const bool up = way == Way::kUp;
  int in_vain = 0;
  double before = std::numeric_limits<double>::infinity();
  for (; gpus >= sizes_.unit() && gpus <= kMostSearched && in_vain < most; gpus = up ? 2 * gpus : gpus / 2) {
    if (searcher_.interrupted()) break;
    NS_TRY(const auto size, sizes_.best(gpus, 2 * gpus, gpus));
    if (!size && up && gpus > sizes_.most_replicas()) break;
    if (!size) continue;
    NS_TRY(const Outcome outcome, at(*size));
    if (ends != nullptr && outcome.*ends) break;
    const auto here = found_.find(*size);
    const auto first = up ? found_.begin() : std::next(here), last = up ? here : found_.end();
    const bool any = std::any_of(first, last, [](const auto& each) { return each.second.time.has_value(); });
    const bool sooner = std::all_of(first, last, [&](const auto& each) { return is_sooner(*here, each); });
    const bool pays = ends != nullptr || outcome.in_budget || outcome.cost < before;
    in_vain = !any || (sooner && pays) ? 0 : in_vain + 1;
    if (outcome.time) before = outcome.cost;
  }
  return {};
}

Result<void> SizeSearch::bisect(std::int64_t low, std::int64_t high, int most, bool Outcome::*holds, Way way) {
  for (int tried = 0; tried < most && high - low > low / kFinest && !searcher_.interrupted(); ++tried) {
    const std::int64_t quarter = (high - low) / 4, middle = low + (high - low) / 2;
    auto size = sizes_.best(low + std::max<std::int64_t>(1, quarter), high - quarter, middle);
    if (!size || !*size) size = sizes_.best(low + 1, high, middle);
    if (!size || !*size) break;
    NS_TRY(const Outcome outcome, at(**size));
    (outcome.*holds == (way == Way::kUp) ? low : high) = **size;
  }
  return {};
}

Result<void> SizeSearch::until_in_time() {
  NS_TRY_VOID(gallop(octave_, Way::kUp, kMostInVain, &Outcome::in_time));
  auto fewest_gpus = fewest(&Outcome::in_time);
  if (fewest_gpus == found_.end()) {
    const bool smaller_may_be_sooner = std::none_of(
        found_.begin(), found_.end(), [this](const auto& each) { return is_sooner(each, *found_.begin()); });
    return smaller_may_be_sooner ? gallop(octave_ / 2, Way::kDown, 1, &Outcome::in_time) : Result<void>();
  }
  NS_TRY_VOID(bisect(below(fewest_gpus), fewest_gpus->first, kMostBetween, &Outcome::in_time, Way::kDown));

  fewest_gpus = fewest(&Outcome::in_time);
  // As many times the GPUs as the end of their interval is too late.
  const double late = fewest_gpus->second.time->high / *goals_.deadline;
  const auto least = static_cast<std::int64_t>(std::ceil(static_cast<double>(fewest_gpus->first) * late));
  if (fewest(&Outcome::surely_in_time) == found_.end()) {
    NS_TRY_VOID(gallop(least, Way::kUp, kMostInVain, &Outcome::surely_in_time));
  }
  const auto certain = fewest(&Outcome::surely_in_time);
  if (certain == fewest_gpus || certain == found_.end()) return {};
  const std::int64_t low = std::max(least - 1, below(certain));
  return bisect(low, certain->first, kMostCertain, &Outcome::surely_in_time, Way::kDown);
}

Result<void> SizeSearch::within_budget() {
  NS_TRY_VOID(gallop(octave_, Way::kUp, kMostInVain, nullptr));
  const auto is_bought = [](const auto& each) { return each.second.in_budget; };
  const auto above = std::find_if(found_.rbegin(), found_.rend(), is_bought).base();
  if (above == found_.begin() || above == found_.end()) return {};
  const auto most = std::prev(above);
  const bool soonest = std::all_of(found_.begin(), most, [&](const auto& each) { return is_sooner(*most, each); });
  if (!soonest) return {};  // still more GPUs are no sooner
  return bisect(most->first, above->first, kMostBetween, &Outcome::in_budget, Way::kUp);
}

Result<void> SizeSearch::search() {
  const std::size_t first = searcher_.cases().size();
  if (goals_.deadline) NS_TRY_VOID(until_in_time());
  if (goals_.budget) NS_TRY_VOID(within_budget());
  if (found_.empty()) return searcher_.add(with_gpus(request_, sizes_.unit()));  // says why there is none
  if (goals_.deadline && fewest(&Outcome::in_time) == found_.end()) searcher_.keep_answers_from(first);
  searcher_.sort_sizes_from(first);
  return {};
}

}  // namespace

Result<void> search_sizes(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                          Searcher& searcher) {
  NS_TRY(SizeSearch sizes, SizeSearch::make(request, goals, catalog, searcher));
  return sizes.search();
}

}  // namespace ns_dist::cli
