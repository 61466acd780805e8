#include <algorithm>

#include "clock.h"
#include "clocks/event_queue.h"
#include "clocks/grid.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

Clock::Clock(const ExecutionGraph& graph, std::vector<Demand> demands) : graph_(graph) {
  if (!demands.empty()) {
    events_ = std::make_unique<EventQueue>(graph, std::move(demands));
    return;
  }
  order_ = graph.topological_order();
  NS_EXPECTS(order_.size() == graph.node_count());
}

Clock::~Clock() = default;

std::vector<Seconds> Clock::on_grid(std::span<const Seconds> durations) const {
  double bound = 0;
  for (const GraphNode& node : graph_.nodes()) bound += durations[index(node.work)] / units::s;
  const Grid grid = Grid::covering(bound / static_cast<double>(graph_.stage_count()));
  std::vector<Seconds> snapped;
  snapped.reserve(durations.size());
  for (const Seconds duration : durations) snapped.push_back(grid.snap(duration / units::s) * units::s);
  return snapped;
}

Seconds Clock::start_of(NodeId id, const auto& end_of) const {
  Seconds start;
  if (const NodeId previous = graph_.previous_on_lane(id); previous != kNoNode) start = end_of(previous);
  for (const NodeId dependency : graph_.dependencies(id)) start = max(start, end_of(dependency));
  return start;
}

Timeline Clock::timeline(std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph_.works().size());
  Timeline timeline;
  if (events_) {
    timeline.step = events_->run(durations, timeline.spans);
    return timeline;
  }
  const std::vector<Seconds> snapped = on_grid(durations);
  timeline.spans.resize(graph_.node_count());
  const auto end_of = [&](NodeId id) { return timeline.spans[index(id)].end; };
  for (const NodeId id : order_) {
    const Seconds start = start_of(id, end_of);
    const Seconds end = start + snapped[index(graph_.node(id).work)];
    timeline.spans[index(id)] = {start, end};
    timeline.step = max(timeline.step, end);
  }
  return timeline;
}

Seconds Clock::step(std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph_.works().size());
  if (events_) return events_->run(durations, spans_);
  const std::vector<Seconds> snapped = on_grid(durations);
  ends_.resize(graph_.node_count());
  const auto end_of = [&](NodeId id) { return ends_[index(id)]; };
  Seconds step;
  for (const NodeId id : order_) {
    ends_[index(id)] = start_of(id, end_of) + snapped[index(graph_.node(id).work)];
    step = max(step, ends_[index(id)]);
  }
  return step;
}

Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations) {
  return Clock(graph).timeline(durations);
}

Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations, std::span<const Demand> demands) {
  return Clock(graph, {demands.begin(), demands.end()}).timeline(durations);
}

}  // namespace ns_dist
