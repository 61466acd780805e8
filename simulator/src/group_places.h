// Where the groups of a stage lie that are like its representative's.
#pragma once

#include <utility>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/mesh.h"
#include "ns_dist/rank_group.h"

namespace ns_dist {

// Groups like `group` that other ranks of its stages have and that lie across two units (nodes, racks) of the cluster
// where `group` does not, or otherwise than it does: one for each place. Nothing where all groups lie alike, and of
// groups that fit into no unit. A step waits for the slowest of them.
std::vector<RankGroup> otherwise_placed(const RankGroup& group, const Mesh& mesh, const Cluster& cluster);

// The same for collectives of few groups, each found once. `mesh` and `cluster` outlive it.
class OtherPlaces {
 public:
  OtherPlaces(const Mesh& mesh, const Cluster& cluster) : mesh_(mesh), cluster_(cluster) {}
  // Valid until the next call.
  const std::vector<RankGroup>& of(const RankGroup& group);

 private:
  const Mesh& mesh_;
  const Cluster& cluster_;
  std::vector<std::pair<RankGroup, std::vector<RankGroup>>> known_;
};

}  // namespace ns_dist
