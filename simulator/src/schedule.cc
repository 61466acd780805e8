#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

// Links carry both directions at once, so a message towards a lower rank takes as long as one towards a higher rank;
// the group is written in the order of ranks, as RankGroup::of needs it.
Collective as_collective(const Message& message, const Mesh& mesh) {
  const Rank stride = mesh.stride("pp");
  const Rank first = std::min(message.from_stage, message.to_stage) * stride;
  const Rank last = std::max(message.from_stage, message.to_stage) * stride;
  return {CollectiveKind::kSendRecv, message.size, RankGroup{first, {{2, last - first}}}};
}

}  // namespace

Timeline schedule(const ExecutionGraph& graph, std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph.works().size());
  Timeline timeline;
  timeline.spans.resize(graph.node_count());
  const std::vector<NodeId> order = graph.topological_order();
  NS_EXPECTS(order.size() == graph.node_count());
  for (const NodeId id : order) {
    Seconds start;
    if (const NodeId previous = graph.previous_on_lane(id); previous != kNoNode) {
      start = timeline.spans[index(previous)].end;
    }
    for (const NodeId dependency : graph.dependencies(id)) start = max(start, timeline.spans[index(dependency)].end);
    const Seconds end = start + durations[index(graph.node(id).work)];
    timeline.spans[index(id)] = {start, end};
    timeline.step = max(timeline.step, end);
  }
  return timeline;
}

Result<std::vector<Forecast>> forecast_works(const ExecutionGraph& graph, const ComputeCost& compute,
                                             const NetworkCost& network) {
  std::vector<Forecast> forecasts;
  forecasts.reserve(graph.works().size());
  for (const WorkItem& item : graph.works()) {
    Result<Forecast> forecast;
    if (const auto* op = std::get_if<Operator>(&item.work)) {
      forecast = compute.forecast(*op);
    } else if (const auto* collective = std::get_if<Collective>(&item.work)) {
      forecast = network.forecast(*collective);
    } else {
      forecast = network.forecast(as_collective(std::get<Message>(item.work), graph.mesh()));
    }
    if (!forecast) {
      Error error = std::move(forecast.error());
      error.message = fmt::format("{}: {}", item.name, error.message);
      return fail(std::move(error));
    }
    forecasts.push_back(*forecast);
  }
  return forecasts;
}

Result<void> write_timeline(const Simulation& simulation, TraceSink& sink) {
  if (auto begun = sink.begin(simulation.graph); !begun) return begun;
  const std::vector<Span>& spans = simulation.timeline.spans;
  for (std::uint32_t i = 0; i < simulation.graph.node_count(); ++i) {
    if (auto written = sink.span(NodeId{i}, spans[i]); !written) return written;
  }
  return sink.finish();
}

}  // namespace ns_dist
