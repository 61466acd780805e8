#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace ns_dist {

// "535,903".
template <std::integral Integer>
std::string with_commas(Integer value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');  // g++ 12 warns of the other insert
  }
  return digits;
}

// "1 layer", "1,024 layers".
template <std::integral Integer>
std::string counted(Integer count, std::string_view noun) {
  return with_commas(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

}  // namespace ns_dist
