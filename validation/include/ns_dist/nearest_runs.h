// How far off are forecasts of published training steps that are like this one?
#pragma once

#include <cstddef>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/result.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

// Of the catalog's published runs, forecasts of those that are most like the scenario, the most alike first: at most
// `most`, and of those with one model, GPU, number format and framework only the most alike. Dense models are never
// compared with those with experts, nor GPUs of different vendors; so there may be none, as where the nearest run is
// hardly like the scenario (of other sizes, lengths and degrees). None is left out because its forecast is bad. Errors:
// a run's file has mistakes.
Result<std::vector<RunCheck>> nearest_runs(const Scenario& scenario, const Catalog& catalog, std::size_t most);

}  // namespace ns_dist
