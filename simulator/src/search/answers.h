// Which of the plans that a search found are its answers, and what is told of each.
#pragma once

#include "ns_dist/result.h"
#include "ns_dist/search.h"
#include "ns_dist/session.h"
#include "search/crew.h"
#include "search/groups.h"
#include "search/near_plans.h"

namespace ns_dist {

// Adds answers and points to `result`. Errors: those of the answers' forecasts.
Result<void> add_answers(const SearchGroups& groups, const Session& session, Crew& crew, NearPlans& near,
                         SearchResult& result);

}  // namespace ns_dist
