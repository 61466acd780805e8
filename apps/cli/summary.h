// The report as at most forty lines of text, and the whole training below its answer.
#pragma once

#include <string>

#include "ns_dist/report.h"
#include "terminal.h"

namespace ns_dist::cli {

// `training`: what the whole training takes, as lines; nothing where nobody asked.
std::string summary(const Report& report, const std::string& training, const Style& style);

}  // namespace ns_dist::cli
