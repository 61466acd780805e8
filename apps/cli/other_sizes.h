// Would another number of GPUs, or another batch, be better than what was asked for?
#pragma once

#include <string>

#include "ns_dist/catalog.h"
#include "ns_dist/search.h"
#include "search_case.h"

namespace ns_dist::cli {

// Where no plan fits into memory, what does: more GPUs, or the optimizer on the hosts. Where GPUs are too many or no
// number that can be divided well, fewer that are faster, or of which plans are possible. Only what another search
// found: "" where it found nothing.
std::string better_size(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                        const Catalog& catalog);

}  // namespace ns_dist::cli
