#include "topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ns_dist::network {
namespace {

constexpr std::int64_t kMaxRank = std::int64_t{1} << 48;  // keeps every product of this file far from overflow
constexpr std::int64_t kMaxCounted = 10'000'000;  // ranks of a group that does not lie along the units: of any plan

std::string describe(const RankGroup& group) {
  std::string text = fmt::format("first rank {}", group.first);
  for (const Stride& s : group.strides) text += fmt::format(", {} x {}", s.count, s.stride);
  return text;
}

// Trays of a rack, say: the same NVLink switches join both levels, and a GPU has one set of links for them.
bool is_one_switch(const FabricLevel& inner, const FabricLevel& outer) {
  return inner.fabric == outer.fabric && is_switch_of_node(inner.fabric.kind) && !inner.ring && !outer.ring &&
         inner.nics_per_gpu == outer.nics_per_gpu && inner.oversubscription == 1 && outer.oversubscription == 1;
}

}  // namespace

Result<Topology> Topology::of(const Cluster& cluster, std::int64_t ranks) {
  if (cluster.levels.empty()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("cluster \"{}\" has no levels", cluster.id), "",
                 "at least one level that joins GPUs"});
  }
  if (cluster.levels.size() > kMaxLevels) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("cluster \"{}\" has {} levels", cluster.id, cluster.levels.size()), "",
                 fmt::format("at most {}", kMaxLevels)});
  }
  Topology topology;
  topology.ranks_ = ranks;
  topology.unit_sizes_.push_back(1);
  std::int64_t below = 1;
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const std::int64_t size = cluster.levels[i].size;
    const bool outermost = i + 1 == cluster.levels.size();
    if (size < 0 || (size == 0 && !outermost)) {
      return fail({ErrorCode::kInvalidInput, fmt::format("level {} of cluster \"{}\" has size {}", i, cluster.id, size),
                   fmt::format("/levels/{}/size", i),
                   "a positive number of units; only the outermost level may be open (0)"});
    }
    if (size > kMaxRank / below) {
      return fail({ErrorCode::kInvalidInput, fmt::format("cluster \"{}\" has more than 2^48 GPUs", cluster.id),
                   fmt::format("/levels/{}/size", i)});
    }
    below = size == 0 ? kOpen : below * size;
    if (!outermost && is_one_switch(cluster.levels[i], cluster.levels[i + 1])) continue;
    topology.unit_sizes_.push_back(below);
    topology.levels_.push_back(i);
  }
  return topology;
}

Result<Placement> Topology::place(const RankGroup& group) const {
  std::int64_t ranks = 1, last = group.first;
  if (group.first < 0 || group.first > kMaxRank) {
    return fail(
        {ErrorCode::kInvalidInput, fmt::format("group ({}) starts at an impossible rank", describe(group)), ""});
  }
  // Digits of one rank number: sorted by stride, each stride covers the whole span of the digits below it.
  bool sorted = true;
  for (std::size_t i = 0; i < group.strides.size(); ++i) {
    const Stride& s = group.strides[i];
    if (s.count < 1 || s.stride < 1 || s.count > kMaxRank || s.stride > kMaxRank / s.count ||
        ranks > kMaxRank / s.count) {
      return fail({ErrorCode::kInvalidInput, fmt::format("group ({}) has an impossible stride", describe(group)), "",
                   "positive counts and strides within 2^48 ranks"});
    }
    ranks *= s.count;
    last += (s.count - 1) * s.stride;
    if (i > 0 && s.stride < group.strides[i - 1].stride * group.strides[i - 1].count) sorted = false;
  }
  if (!sorted) {
    std::vector<Stride> strides = group.strides;
    std::erase_if(strides, [](const Stride& s) { return s.count == 1; });
    std::sort(strides.begin(), strides.end(), [](const Stride& a, const Stride& b) { return a.stride < b.stride; });
    for (std::size_t i = 1; i < strides.size(); ++i) {
      if (strides[i].stride < strides[i - 1].stride * strides[i - 1].count) {
        return fail({ErrorCode::kInvalidInput, fmt::format("strides of group ({}) overlap", describe(group)), "",
                     "strides that are digits of one rank number",
                     "give each stride at least the count times the stride of the one below it"});
      }
    }
  }
  if (last >= unit_sizes_.back()) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("group ({}) reaches rank {}, but the cluster has {} GPUs", describe(group), last,
                             unit_sizes_.back()),
                 "", "", "use fewer ranks or more nodes"});
  }
  Placement placement;
  placement.ranks = ranks;
  if (!place_aligned(group, placement)) {
    if (ranks > kMaxCounted) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("group ({}) does not lie along the units of the cluster", describe(group)), "",
                   fmt::format("at most {} ranks in such a group", kMaxCounted)});
    }
    // The ranks between those of the group have groups of their own.
    std::int64_t between = kMaxRank;
    for (const Stride& s : group.strides) between = s.count > 1 ? std::min(between, s.stride) : between;
    place_by_counting(group, std::max(ranks_, last + between), placement);
  }
  return placement;
}

Result<Placement> Topology::place_message(const RankGroup& ends, const Stride& ranks) const {
  NS_TRY(Placement placement, place(ends));
  if (ranks.count < 2) return placement;
  if (ranks.stride < 1) return place({ends.first, {ranks}});  // its error
  NS_TRY(const Placement all, place(RankGroup{0, {ranks}}.of(ends.first)));
  for (std::size_t i = 0; i < placement.tier_count; ++i) {
    Tier& tier = placement.tiers[i];
    for (const Tier& of_all : all) {
      if (of_all.level == tier.level) tier.room = of_all.room, tier.most_room = of_all.most_room;
    }
  }
  return placement;
}

// Every stride divides every unit or is divided by it: each unit that is touched holds equally many ranks.
bool Topology::place_aligned(const RankGroup& group, Placement& placement) const {
  std::int64_t below = 1;
  for (std::size_t level = 0; level + 1 < unit_sizes_.size(); ++level) {
    const std::int64_t unit = unit_sizes_[level + 1];
    std::int64_t members = 1;
    if (unit == kOpen) {
      members = placement.ranks;
    } else {
      for (const Stride& s : group.strides) {
        if (s.count == 1) continue;
        const std::int64_t span = s.count * s.stride;
        if (span <= unit) {
          if (unit % span != 0) return false;
          members *= s.count;
        } else if (s.stride < unit) {
          if (unit % s.stride != 0 || span % unit != 0) return false;
          members *= unit / s.stride;
        } else if (s.stride % unit != 0) {
          return false;
        }
        if ((group.first / s.stride) % s.count != 0) return false;
      }
    }
    if (members > below) {
      const auto room = static_cast<double>(below);  // of two equally full units, one at least is full
      placement.tiers[placement.tier_count++] = {
          levels_[level], members / below, placement.ranks / below, below, below, room, room};
    }
    below = members;
  }
  return true;
}

void Topology::place_by_counting(const RankGroup& group, std::int64_t job, Placement& placement) const {
  placement.tier_count = 0;
  std::vector<Rank> ranks(static_cast<std::size_t>(placement.ranks));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = group.at(static_cast<std::int64_t>(i));
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t level = 0; level + 1 < unit_sizes_.size(); ++level) {
    const std::int64_t part = unit_sizes_[level], unit = unit_sizes_[level + 1];
    Tier tier{levels_[level], 0, 0, placement.ranks, 0, std::numeric_limits<double>::infinity(), 0};
    std::int64_t in_unit = 0;
    for (std::size_t i = 0; i < ranks.size();) {
      std::size_t end = i;
      while (end < ranks.size() && ranks[end] / part == ranks[i] / part) ++end;
      in_unit = i > 0 && ranks[i] / unit == ranks[i - 1] / unit ? in_unit + 1 : 1;
      const auto members = static_cast<std::int64_t>(end - i);
      tier.parts = std::max(tier.parts, in_unit);
      tier.members = std::min(tier.members, members);
      tier.max_members = std::max(tier.max_members, members);
      const std::int64_t busy = std::min(part, job - ranks[i] / part * part);
      const double room = static_cast<double>(members) * static_cast<double>(part) / static_cast<double>(busy);
      tier.room = std::min(tier.room, room);
      tier.most_room = std::max(tier.most_room, room);
      ++tier.all_parts;
      i = end;
    }
    if (tier.parts > 1) placement.tiers[placement.tier_count++] = tier;
  }
}

Result<Topology> check_cluster(const Cluster& cluster, std::int64_t ranks) {
  NS_TRY(Topology topology, Topology::of(cluster, ranks));
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const FabricLevel& level = cluster.levels[i];
    const double peak = level.bandwidth_per_gpu() / (units::B / units::s);
    const double latency = level.fabric.latency / units::s;
    if (!std::isfinite(peak) || peak <= 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("level {} of cluster \"{}\" gives a GPU no bandwidth", i, cluster.id),
                   fmt::format("/levels/{}", i), "positive bandwidth, nics_per_gpu and oversubscription"});
    }
    if (!std::isfinite(latency) || latency < 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("level {} of cluster \"{}\" has a latency of {} s", i, cluster.id, latency),
                   fmt::format("/levels/{}/fabric/latency", i), "a latency of at least zero"});
    }
  }
  return topology;
}

}  // namespace ns_dist::network
