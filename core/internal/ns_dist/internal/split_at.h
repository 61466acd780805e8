#pragma once

#include <string_view>
#include <vector>

namespace ns_dist {

// The parts of a text before, between and behind any of these separators: one more than there are separators.
inline std::vector<std::string_view> split_at(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find_first_of(separators);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace ns_dist
