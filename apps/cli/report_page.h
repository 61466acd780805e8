// The report as one HTML file for people who were not there: it needs no network, no script and no other file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ns_dist/outline.h"
#include "ns_dist/report.h"
#include "ns_dist/result.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/session.h"

namespace ns_dist::cli {

// `evidence`: forecasts of published steps that are like it. `training`: what the whole training takes, as lines;
// nothing where nobody asked. `command`: what was typed. The same arguments give the same bytes. Errors: as outline().
Result<std::string> report_page(const Report& report, const Session& session, std::span<const RunCheck> evidence,
                                const std::string& training, const std::string& command);

// A page like it: `question` stands below the title, `json` is what --from reads.
std::string page_of(const std::string& title, const std::string& question, const std::string& body,
                    const std::string& json);

// A table of what changes of the machine, one by one, do to a step.
std::string sensitivity_table(const std::vector<Sensitivity>& all);

// The report, as to_json writes it, in a page; the text itself where it is no page.
std::string report_in_page(std::string text);

}  // namespace ns_dist::cli
