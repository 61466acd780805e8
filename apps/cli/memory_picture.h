// The memory of the stages as pictures for a page: what it is made of, and how it changes over a step.
#pragma once

#include <string>

#include "ns_dist/report.h"

namespace ns_dist::cli {

// What each stage holds: bars by part, and a table of what tools show.
std::string memory_by_part(const Report& report);
// Legend and bars of the activations at the peak, by kind. `report` has its memory_detail.
std::string activations_by_kind(const Report& report);
// An SVG: the memory of the first, the fullest and the last stage behind each pass. Nothing under forward passes alone.
std::string memory_over_time(const Report& report);

}  // namespace ns_dist::cli
