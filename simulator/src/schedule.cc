#include "clocks/event_queue.h"
#include "clocks/grid.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph.works().size());
  double bound = 0;
  for (const GraphNode& node : graph.nodes()) bound += durations[index(node.work)] / units::s;
  const Grid grid = Grid::covering(bound / static_cast<double>(graph.stage_count()));
  std::vector<Seconds> snapped;
  snapped.reserve(durations.size());
  for (const Seconds duration : durations) snapped.push_back(grid.snap(duration / units::s) * units::s);

  const std::vector<NodeId> order = graph.topological_order();
  NS_EXPECTS(order.size() == graph.node_count());
  Timeline timeline;
  timeline.spans.resize(graph.node_count());
  for (const NodeId id : order) {
    Seconds start;
    if (const NodeId previous = graph.previous_on_lane(id); previous != kNoNode) {
      start = timeline.spans[index(previous)].end;
    }
    for (const NodeId on : graph.dependencies(id)) start = max(start, timeline.spans[index(on)].end);
    const Seconds end = start + snapped[index(graph.node(id).work)];
    timeline.spans[index(id)] = {start, end};
    timeline.step = max(timeline.step, end);
  }
  return timeline;
}

Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations, std::span<const Demand> demands) {
  if (demands.empty()) return schedule(graph, durations);
  Timeline timeline;
  timeline.step = EventQueue(graph, {demands.begin(), demands.end()}).run(durations, timeline.spans);
  return timeline;
}

}  // namespace ns_dist
