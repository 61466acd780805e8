#include "group_places.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

namespace ns_dist {
namespace {

// Whether blocks of `count` ranks at this stride never lie across two units when they begin at multiples of their span.
bool lies_along(std::int64_t count, std::int64_t stride, std::int64_t unit) {
  if (count == 1 || stride % unit == 0) return true;
  if (unit % stride != 0) return false;
  const std::int64_t fit = unit / stride;
  return fit % count == 0 || count % fit == 0;
}

// Whether a member of the group differs from another one along this axis.
bool uses(const RankGroup& group, const MeshAxis& axis) {
  return std::any_of(group.strides.begin(), group.strides.end(), [&](const Stride& s) {
    return s.count > 1 && s.stride < axis.stride * axis.size && s.stride * s.count > axis.stride;
  });
}

// Distances, one for each place in the period, of the groups that differ from `group` by their place along one axis.
std::vector<Rank> distances_along(const MeshAxis& axis, const RankGroup& group, std::int64_t period) {
  std::vector<Rank> distances{0};
  const bool used = uses(group, axis);
  std::vector<bool> seen(static_cast<std::size_t>(period));
  seen[0] = true;
  for (std::int64_t i = 1; i < axis.size; ++i) {
    const Rank distance = i * axis.stride;
    const auto place = static_cast<std::size_t>(distance % period);
    if (seen[place] || (used && group.of(group.first + distance).first != group.first + distance)) continue;
    seen[place] = true;
    distances.push_back(distance);
  }
  return distances;
}

}  // namespace

std::vector<RankGroup> otherwise_placed(const RankGroup& group, const Mesh& mesh, const Cluster& cluster) {
  Rank span = 1;
  for (const Stride& s : group.strides) span += (s.count - 1) * s.stride;
  std::vector<std::int64_t> units;  // that a group fits into, and of which the plan needs several
  std::int64_t period = 1;
  for (std::size_t i = 0; i + 1 < cluster.levels.size(); ++i) {
    period *= std::max<std::int64_t>(1, cluster.levels[i].size);
    if (span > 1 && span <= period && mesh.ranks() > period) units.push_back(period);
  }
  const auto is_straight = [&](std::int64_t unit) {
    return std::all_of(mesh.axes().begin(), mesh.axes().end(),
                       [&](const MeshAxis& axis) { return lies_along(axis.size, axis.stride, unit); }) &&
           std::all_of(group.strides.begin(), group.strides.end(),
                       [&](const Stride& s) { return lies_along(s.count, s.stride, unit); });
  };
  if (std::all_of(units.begin(), units.end(), is_straight)) return {};

  std::vector<Rank> distances{0};
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == "pp" || axis.size == 1) continue;
    const std::vector<Rank> along = distances_along(axis, group, period);
    if (along.size() == 1) continue;
    std::vector<bool> seen(static_cast<std::size_t>(period));
    std::vector<Rank> all;
    for (const Rank one : distances) {
      for (const Rank other : along) {
        const auto place = static_cast<std::size_t>((one + other) % period);
        if (!seen[place]) all.push_back(one + other);
        seen[place] = true;
      }
    }
    distances = std::move(all);
  }
  // Where the group begins in each unit that it lies across; -1 in those that hold it.
  const auto place_of = [&](Rank first) {
    std::vector<std::int64_t> place;
    for (const std::int64_t unit : units) place.push_back(first % unit + span > unit ? first % unit : -1);
    return place;
  };
  std::set<std::vector<std::int64_t>> known{place_of(group.first)};
  std::vector<RankGroup> found;
  for (const Rank distance : distances) {
    if (known.insert(place_of(group.first + distance)).second) {
      found.push_back({group.first + distance, group.strides});
    }
  }
  return found;
}

const std::vector<RankGroup>& OtherPlaces::of(const RankGroup& group) {
  for (const auto& [known, places] : known_) {
    if (known == group) return places;
  }
  return known_.emplace_back(group, otherwise_placed(group, mesh_, cluster_)).second;
}

}  // namespace ns_dist
