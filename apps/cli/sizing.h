// How many GPUs? Sizes of one machine are searched one after the other, until a deadline or a budget decides.
#pragma once

#include "ns_dist/catalog.h"
#include "search_case.h"
#include "searcher.h"

namespace ns_dist::cli {

// Adds to the searcher, in order of size, what it found of each size that was searched. Sizes are the best ones
// (sizes.h) of octaves: of twice as many GPUs each time, and then near the middle between two of these.
//
// With a deadline: octaves until one is in time; sizes between the fewest in time and the next below; and where the end
// of their interval is too late, sizes above. Where none is in time and the first size is the soonest, or none has a
// plan, smaller octaves.
// With a budget: octaves until two after each other cost more than the budget and than the one before, or train no
// sooner; then sizes between the most that the budget buys and the next above.
Result<void> search_sizes(const SearchRequest& request, const SearchGoals& goals, const Catalog& catalog,
                          Searcher& searcher);

}  // namespace ns_dist::cli
