// A scenario as a JSON value, for the report.
#pragma once

#include <nlohmann/json.hpp>

#include "ns_dist/scenario.h"

namespace ns_dist {

nlohmann::ordered_json scenario_json(const Scenario& scenario);

}  // namespace ns_dist
