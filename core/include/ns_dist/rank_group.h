// Ranks, and sets of ranks with regular strides: 8,192 ranks in a few bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace ns_dist {

using Rank = std::int64_t;

// `count` ranks; from one to the next, `stride`.
struct Stride {
  std::int64_t count = 1, stride = 1;
  friend bool operator==(const Stride&, const Stride&) = default;
};

// The ranks first + sum_i c_i * strides[i].stride with 0 <= c_i < strides[i].count, the first stride running fastest:
// that order is the ring order of the communicator. A RankGroup is an orbit of its strides: for every rank r of the
// cluster, `of(r)` is the group of the same shape that holds r. This is right whenever each stride's axis is a digit
// of a mixed-radix rank number, which Mesh guarantees.
struct RankGroup {
  Rank first = 0;
  std::vector<Stride> strides;

  std::int64_t size() const {
    std::int64_t n = 1;
    for (const Stride& s : strides) n *= s.count;
    return n;
  }

  Rank at(std::int64_t index) const {
    Rank rank = first;
    for (const Stride& s : strides) {
      rank += (index % s.count) * s.stride;
      index /= s.count;
    }
    return rank;
  }

  // Where groups do not begin at a multiple of their strides (pairs of mirrored pipeline stages), `rank` is a member,
  // or a member moved within its stage.
  RankGroup of(Rank rank) const {
    RankGroup group{rank, strides};
    for (const Stride& s : strides) {
      const std::int64_t digit = (rank / s.stride - first / s.stride % s.count) % s.count;
      group.first -= (digit + s.count) % s.count * s.stride;
    }
    return group;
  }

  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

}  // namespace ns_dist
