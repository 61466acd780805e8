// The rank grid of a plan: which rank has which coordinates.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ns_dist/rank_group.h"

namespace ns_dist {

// One digit of the rank number.
struct MeshAxis {
  std::string_view name;  // "tp", "cp", "dp", "pp"; static lifetime
  std::int64_t size = 1, stride = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// A mixed-radix numbering of ranks, innermost axis first. Megatron's default order is tp-cp-ep-dp-pp
// (Megatron-LM core/parallel_state.py, `order`); expert parallelism splits the dp axis and is not a digit of its own.
class Mesh {
 public:
  Mesh() = default;
  // Strides follow from the order of `names` and `sizes`; sizes are positive.
  static Mesh innermost_first(const std::vector<std::string_view>& names, const std::vector<std::int64_t>& sizes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  std::int64_t ranks() const;
  std::int64_t size(std::string_view axis) const;                   // 1 for an axis that is not there
  std::int64_t stride(std::string_view axis) const;                 // ranks() for an axis that is not there
  std::int64_t coordinate(Rank rank, std::string_view axis) const;  // 0 for an axis that is not there
  // All ranks that share every coordinate of `rank` but those on `axes`; the first axis runs fastest.
  RankGroup group(Rank rank, const std::vector<std::string_view>& axes) const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<MeshAxis> axes_;
};

// The rank of a pipeline stage with coordinate 0 on every other axis.
inline Rank representative(const Mesh& mesh, std::int64_t stage) {
  return mesh.size("pp") > 1 ? stage * mesh.stride("pp") : 0;
}

}  // namespace ns_dist
