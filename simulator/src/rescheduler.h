// The same graph scheduled again and again with other durations.
#pragma once

#include <span>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/timeline.h"
#include "ns_dist/units.h"

namespace ns_dist {

class Rescheduler {
 public:
  explicit Rescheduler(const ExecutionGraph& graph);

  // `durations` by WorkId.
  Timeline timeline(std::span<const Seconds> durations) const;
  Seconds step(std::span<const Seconds> durations);  // of the same timeline, without keeping it

 private:
  Seconds start_of(NodeId id, const auto& end_of) const;

  const ExecutionGraph& graph_;
  std::vector<NodeId> order_;
  std::vector<Seconds> ends_;  // scratch, by NodeId
};

}  // namespace ns_dist
