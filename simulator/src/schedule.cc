#include <fmt/format.h>

#include <algorithm>

#include "clock.h"
#include "event_queue.h"
#include "ns_dist/fair_sharing.h"
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

Clock::Clock(const ExecutionGraph& graph, std::vector<Demand> demands) : graph_(graph) {
  if (!demands.empty()) {
    events_ = std::make_unique<EventQueue>(graph, std::move(demands));
    return;
  }
  order_ = graph.topological_order();
  NS_EXPECTS(order_.size() == graph.node_count());
}

Clock::~Clock() = default;

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
  timeline.spans.resize(graph_.node_count());
  const auto end_of = [&](NodeId id) { return timeline.spans[index(id)].end; };
  for (const NodeId id : order_) {
    const Seconds start = start_of(id, end_of);
    const Seconds end = start + durations[index(graph_.node(id).work)];
    timeline.spans[index(id)] = {start, end};
    timeline.step = max(timeline.step, end);
  }
  return timeline;
}

Seconds Clock::step(std::span<const Seconds> durations) {
  NS_EXPECTS(durations.size() == graph_.works().size());
  if (events_) return events_->run(durations, spans_);
  ends_.resize(graph_.node_count());
  const auto end_of = [&](NodeId id) { return ends_[index(id)]; };
  Seconds step;
  for (const NodeId id : order_) {
    ends_[index(id)] = start_of(id, end_of) + durations[index(graph_.node(id).work)];
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

Result<std::vector<Demand>> demands_of(const ExecutionGraph& graph, std::span<const Forecast> forecasts,
                                       const Cluster& cluster, bool contention, bool compute_slowdown) {
  NS_EXPECTS(forecasts.size() == graph.works().size());
  std::vector<Demand> demands;
  if (!contention && !compute_slowdown) return demands;
  demands.reserve(forecasts.size());
  for (std::size_t i = 0; i < forecasts.size(); ++i) {
    Demand& demand = demands.emplace_back();
    const WorkItem& item = graph.works()[i];
    if (std::holds_alternative<Operator>(item.work)) {
      if (compute_slowdown) demand.bound = forecasts[i].bound;
      continue;
    }
    const auto* collective = std::get_if<Collective>(&item.work);
    const Collective call = collective ? *collective : as_collective(std::get<Message>(item.work), graph.mesh());
    NS_TRY(Footprint taken, footprint(cluster, call, forecasts[i].latency));
    if (contention) demand.ports = std::move(taken.ports);
    if (!compute_slowdown) continue;
    demand.sms = std::min(1.0, taken.channels / static_cast<double>(cluster.gpu.sm_count));
    demand.memory = std::min(1.0, taken.memory_traffic / cluster.gpu.memory_bandwidth);
  }
  return demands;
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
