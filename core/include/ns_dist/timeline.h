// When every node of an execution graph runs.
#pragma once

#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct Span {
  Seconds start, end;
};

struct Timeline {
  std::vector<Span> spans;  // by NodeId
  Seconds step;             // latest end
};

}  // namespace ns_dist
