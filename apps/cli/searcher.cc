#include "searcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "ns_dist/sensitivity.h"
#include "tables.h"
#include "terminal.h"

namespace ns_dist::cli {

Result<SearchSpace> Searcher::space(SearchRequest request) {
  Progress progress("counting plans", 0, began_);
  auto made = SearchSpace::make(std::move(request), catalog_,
                                {[&](const SearchProgress&) { progress.note("..."); }, options_.watch.stop});
  progress.done();
  return made;
}

Result<void> Searcher::add(SearchRequest request) {
  NS_TRY(const SearchSpace made, space(std::move(request)));
  return add(made);
}

Result<void> Searcher::add(const SearchSpace& space) {
  const Scenario& base = space.base();
  if (cases_.empty() || !same_machine(cases_.back().base, base)) warn_of(base);
  Progress progress(fmt::format("{} x {}", with_commas(space.gpus()), base.cluster.gpu.id), 0, began_);
  const auto text = [](std::uint64_t plans) { return with_commas(plans); };
  SearchOptions options = options_;
  options.watch.progress = [&](const SearchProgress& at) {
    progress.share(at.share, fmt::format(", {} of {} plans checked", text(at.checked), text(at.plans)));
  };
  NS_TRY(const Session session, Session::make(base));
  auto result = search(space, session, options);
  progress.done();
  if (!result) return fail(std::move(result.error()));
  SearchCase found{base, space.gpus(), *std::move(result), {}};
  if (sensitivity_ && !found.result.answers.empty() && !found.result.interrupted) {
    NS_TRY(found.sensitivity, sensitivities(found.result.answers.front().report.scenario));
  }
  for (SearchAnswer& answer : found.result.answers) {
    if (!gpu_spread_) break;
    NS_TRY(answer.unequal_step, step_of_unequal_gpus(answer.report.scenario, *gpu_spread_));
  }
  cases_.push_back(std::move(found));
  return {};
}

void Searcher::keep_answers_from(std::size_t first) {
  const auto begin = cases_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto none = [](const SearchCase& each) { return each.result.answers.empty(); };
  if (!std::all_of(begin, cases_.end(), none)) cases_.erase(std::remove_if(begin, cases_.end(), none), cases_.end());
}

void Searcher::sort_sizes_from(std::size_t first) {
  std::stable_sort(cases_.begin() + static_cast<std::ptrdiff_t>(first), cases_.end(),
                   [](const SearchCase& a, const SearchCase& b) { return a.gpus < b.gpus; });
}

}  // namespace ns_dist::cli
