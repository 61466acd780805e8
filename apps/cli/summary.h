// The report as at most forty lines of text.
#pragma once

#include <string>

#include "ns_dist/report.h"
#include "terminal.h"

namespace ns_dist::cli {

std::string summary(const Report& report, const Style& style);

}  // namespace ns_dist::cli
