// The critical path of a step: the longest chain of nodes that wait for one another.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/timeline.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct CriticalPath {
  std::vector<NodeId> nodes;  // in order of time; each starts when the one before it ends
  Seconds length;
};

// The longest path over dependencies and lane order. `durations` by WorkId.
CriticalPath critical_path(const ExecutionGraph& graph, std::span<const Seconds> durations);

// The same with what each node took on a timeline of this graph.
CriticalPath critical_path(const ExecutionGraph& graph, const Timeline& timeline);

// All work of one name on the critical path.
struct Hotspot {
  std::string name;       // as in WorkItem::name
  std::string_view kind;  // operator family or collective; static lifetime
  std::int64_t count = 0;
  Seconds seconds;
  bool extrapolated = false;  // a forecast of it lies outside what its method was fitted on
};

inline constexpr std::string_view kWaitKind = "wait";  // the GPU does nothing, as where launches are late

// Operator family, name of the collective, "send_recv", "host" (work of the host) or kWaitKind: what a work item is
// forecast as.
std::string_view kind_of(const WorkItem& item);

}  // namespace ns_dist
