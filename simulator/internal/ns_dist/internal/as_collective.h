#pragma once

#include "ns_dist/collective.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/mesh.h"

namespace ns_dist {

// A message as its network model sees it: a send and receive between the representatives of its stages. Links carry
// both directions at once, so a message towards a lower rank takes as long as one towards a higher rank; the group is
// written in the order of ranks, as RankGroup::of needs it.
Collective as_collective(const Message& message, const Mesh& mesh);

}  // namespace ns_dist
