#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace ns_dist {

// Divisors of `whole` up to `most`, in order.
inline std::vector<std::int64_t> divisors_of(std::int64_t whole, std::int64_t most) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t each = 1; each <= most && each <= whole / each; ++each) {
    if (whole % each != 0) continue;
    small.push_back(each);
    const std::int64_t other = whole / each;
    if (other != each && other <= most) large.push_back(other);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

// The largest power of two up to `most`; of 0, 0.
inline std::int64_t power_of_two_up_to(std::int64_t most) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)));
}

}  // namespace ns_dist
