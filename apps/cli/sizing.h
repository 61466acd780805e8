// How many GPUs? Sizes of one machine are searched one after the other, until a deadline or a budget decides. Only
// sizes of which some plan may share the global batch evenly are searched.
#pragma once

#include <string>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"
#include "search_case.h"
#include "searcher.h"

namespace ns_dist::cli {

// The machine that a request describes, of any size.
Result<Cluster> searched_cluster(const SearchRequest& request, const Catalog& catalog);

// Twice as many GPUs each time until they are in time; then sizes between these and half of them; and if the interval
// of the fewest in time ends too late, a larger size or two, until one's does not. Where two sizes after
// each other train no sooner than smaller ones, larger ones are not tried. Where the first size is the soonest, or none
// has a plan, half as many each time, as long as that is sooner.
Result<void> search_until_in_time(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                  Searcher& searcher);

// Twice as many GPUs each time until two sizes after each other cost more than the budget and than the one before, or
// train no sooner; then sizes between the last one within the budget and the first above it. With a
// deadline, from the first size on whose peak rate could be in time. `first`: of the searcher's cases, the first one of
// this request; none is searched twice.
Result<void> search_within_budget(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                                  std::size_t first, Searcher& searcher);

// Where no plan fits into memory, what does: more GPUs, or the optimizer on the hosts. Where GPUs are too many or no
// number that can be divided well, fewer that are faster, or of which plans are possible. Only what another search
// found: "" where it found nothing.
std::string better_size(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                        const Catalog& catalog);

}  // namespace ns_dist::cli
