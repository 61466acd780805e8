#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ns_dist/report.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

// Whether the rest of the scenario leaves nothing for a field to change.
bool changes_nothing(std::string_view field, const Scenario& scenario);

// What the user set and what changes nothing in this plan, or costs time for nothing. `layers`: of each position.
std::vector<Warning> without_effect(const Scenario& scenario, std::span<const std::int64_t> layers);

}  // namespace ns_dist
