// How far off forecasts of published steps like this one were, as a line, steps of an explanation and rows of a page.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ns_dist/forecast.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/scenario.h"

namespace ns_dist::cli {

// None where a file of runs cannot be read: `validate` tells why.
std::vector<RunCheck> evidence_for(const Scenario& scenario);

// "the 5 measured steps most like it were forecast -3.1 to +2.4 % off, 5 in their interval", or that there are none.
std::string evidence_line(std::span<const RunCheck> evidence, const Scenario& scenario);
std::vector<ExplanationStep> evidence_steps(std::span<const RunCheck> evidence);
std::string evidence_rows(std::span<const RunCheck> evidence);

}  // namespace ns_dist::cli
