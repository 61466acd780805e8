// The same graph scheduled again and again with other durations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/simulator.h"
#include "ns_dist/timeline.h"
#include "ns_dist/units.h"

namespace ns_dist {

class EventQueue;

class Clock {
 public:
  // `demands` by WorkId; none: nothing shares anything.
  explicit Clock(const ExecutionGraph& graph, std::vector<Demand> demands = {});
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // `durations` by WorkId.
  Timeline timeline(std::span<const Seconds> durations);
  Seconds step(std::span<const Seconds> durations);  // of the same timeline

 private:
  std::vector<Seconds> on_grid(std::span<const Seconds> durations) const;
  Seconds start_of(NodeId id, const auto& end_of) const;

  const ExecutionGraph& graph_;
  std::vector<NodeId> order_;
  std::vector<Seconds> ends_;           // scratch, by NodeId
  std::vector<Span> spans_;             // the same
  std::unique_ptr<EventQueue> events_;  // null: nothing shares anything
};

}  // namespace ns_dist
