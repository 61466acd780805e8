// Where the ranks of a group lie on the levels of a cluster.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/rank_group.h"
#include "ns_dist/result.h"

namespace ns_dist::network {

inline constexpr std::size_t kMaxLevels = 8;

// What a group uses of one level.
struct Tier {
  std::size_t level = 0;         // index into the cluster's levels
  std::int64_t parts = 1;        // units of the level below that hold a rank of the group, in one unit of this level
  std::int64_t all_parts = 1;    // the same, in the whole cluster
  std::int64_t members = 1;      // ranks of the group in the emptiest such unit
  std::int64_t max_members = 1;  // and in the fullest
  // What such a unit has of the level's links, in shares of a GPU whose unit is full: as many as it has ranks of the
  // group, or more where the job leaves GPUs of the unit idle. The least and the most.
  double room = 1, most_room = 1;
};

// The levels that a group spans (those with more than one part), inside out.
struct Placement {
  std::int64_t ranks = 0;
  std::size_t tier_count = 0;
  std::array<Tier, kMaxLevels> tiers;

  const Tier* begin() const { return tiers.data(); }
  const Tier* end() const { return tiers.data() + tier_count; }
  const Tier& outermost() const { return tiers[tier_count - 1]; }
};

// The tree of units of a cluster: unit k holds unit_sizes[k] GPUs, ranks are numbered along it.
class Topology {
 public:
  // `ranks`: GPUs that the job has, the first ones; 0: not known, those that a group reaches. Errors: no level, more
  // than kMaxLevels, a level that is open below the outermost one, or of negative size.
  static Result<Topology> of(const Cluster& cluster, std::int64_t ranks = 0);

  // Errors: an empty group, a stride that is not positive, strides that are not digits of one rank number, a rank
  // outside the cluster.
  Result<Placement> place(const RankGroup& group) const;
  // Of a message of a ring or a pipeline, each of whose ranks sends to the next one: where its two ends lie. The other
  // ranks of a unit send to each other, so they leave the message their part of the links that lead out.
  Result<Placement> place_message(const RankGroup& ends, const Stride& ranks) const;

 private:
  bool place_aligned(const RankGroup& group, Placement& placement) const;
  void place_by_counting(const RankGroup& group, std::int64_t job, Placement& placement) const;

  std::vector<std::int64_t> unit_sizes_;  // [0] = 1: a GPU; the last is the cluster, kOpen when it is open
  std::vector<std::size_t> levels_;       // of the cluster, that join units of each size
  std::int64_t ranks_ = 0;                // of the job; 0: not known
  static constexpr std::int64_t kOpen = std::int64_t{1} << 62;
};

// The topology of a cluster on which collectives can be timed. Errors: those of Topology::of; a level without bandwidth
// or with a negative latency.
Result<Topology> check_cluster(const Cluster& cluster, std::int64_t ranks = 0);

}  // namespace ns_dist::network
