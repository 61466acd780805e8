#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "ns_dist/sensitivity.h"

namespace ns_dist {

// As reports and answers of a search have it: a row for each part, times in seconds.
nlohmann::ordered_json sensitivity_json(std::span<const Sensitivity> all);

}  // namespace ns_dist
