// The release and the commit of this build. Every report holds both.
#pragma once

#include <string_view>

namespace ns_dist {

// The release, as in "0.1.0".
std::string_view version();

// Abbreviated git commit that this was built from; empty when the sources were not a git checkout. Uncommitted changes
// do not show.
std::string_view git_revision();

}  // namespace ns_dist
