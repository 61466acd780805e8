#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace ns_dist {

// The text with a to z for A to Z, whatever the locale.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

}  // namespace ns_dist
