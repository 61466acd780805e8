// An explanation as `explain` prints it.
#pragma once

#include <string>

#include "ns_dist/forecast.h"

namespace ns_dist::cli {

// `facts`: a line above the steps.
std::string rendered(const Explanation& explanation, bool json, const std::string& facts = "");

}  // namespace ns_dist::cli
