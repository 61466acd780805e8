// The answers of a search as one HTML file, like the page of a step.
#pragma once

#include <string>
#include <vector>

#include "search_case.h"

namespace ns_dist::cli {

// `command`: what was typed. `--from` reads the plans of the page.
std::string search_page(const std::vector<SearchCase>& cases, const SearchGoals& goals, const std::string& command);

}  // namespace ns_dist::cli
