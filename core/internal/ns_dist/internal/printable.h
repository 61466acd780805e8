// Names from files, as a terminal may show them.
#pragma once

#include <string>
#include <string_view>

namespace ns_dist {

// `text` with control characters, marks that turn the direction of writing, and bytes that are no UTF-8 written as
// "\x1b": what a terminal would obey.
std::string printable(std::string_view text);

}  // namespace ns_dist
