// An explanation as `explain` prints it.
#pragma once

#include <string>

#include "ns_dist/forecast.h"

namespace ns_dist::cli {

std::string rendered(const Explanation& explanation, bool json);

}  // namespace ns_dist::cli
