// The report as at most forty lines of text, and the whole training below its answer.
#pragma once

#include <string>

#include "ns_dist/report.h"
#include "terminal.h"

namespace ns_dist::cli {

// `evidence`: a line of how far off forecasts of published steps are; `training`: what the whole training takes, as
// lines. Empty: nothing to tell, or nobody asked.
std::string summary(const Report& report, const std::string& evidence, const std::string& training, const Style& style);

}  // namespace ns_dist::cli
