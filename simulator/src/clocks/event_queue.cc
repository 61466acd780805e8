#include "clocks/event_queue.h"

#include <algorithm>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {

EventQueue::EventQueue(const ExecutionGraph& graph, std::vector<Demand> demands) : graph_(graph) {
  NS_EXPECTS(demands.size() == graph.works().size());
  const std::uint32_t count = graph.node_count();

  works_.resize(demands.size());
  for (std::size_t w = 0; w < demands.size(); ++w) {
    const WorkItem& item = graph.works()[w];
    works_[w].demand = flow_demand(item, demands[w]);
    if (const auto* message = std::get_if<Message>(&item.work)) {
      works_[w].from = static_cast<std::uint32_t>(message->from_stage);
      works_[w].to = static_cast<std::uint32_t>(message->to_stage);
    }
  }

  first_on_lane_.assign(graph.lane_count(), kNone);
  nodes_.resize(count + std::size_t{1});
  std::vector<std::uint32_t> successors_of(count, 0);
  for (std::uint32_t n = 0; n < count; ++n) {
    Node& node = nodes_[n];
    node.work = index(graph.nodes()[n].work);
    node.lane = index(graph.nodes()[n].lane);
    node.feels = works_[node.work].demand.feels;
    node.flow = works_[node.work].demand.flow;
    const NodeId previous = graph.previous_on_lane(NodeId{n});
    (previous == kNoNode ? first_on_lane_[node.lane] : nodes_[index(previous)].next) = n;
    for (const NodeId dependency : graph.dependencies(NodeId{n})) {
      if (index(graph.nodes()[index(dependency)].lane) == node.lane) continue;
      ++node.needed;
      ++successors_of[index(dependency)];
    }
  }
  std::uint32_t edges = 0;
  for (std::uint32_t n = 0; n < count; ++n) {
    nodes_[n].first_successor = edges;
    edges += std::exchange(successors_of[n], edges);
  }
  nodes_[count].first_successor = edges;
  successors_.resize(edges);
  for (std::uint32_t n = 0; n < count; ++n) {
    for (const NodeId dependency : graph.dependencies(NodeId{n})) {
      if (nodes_[index(dependency)].lane != nodes_[n].lane) successors_[successors_of[index(dependency)]++] = n;
    }
  }
  for (std::uint32_t n = 0; n < count; ++n) {
    Node& node = nodes_[n];
    node.ends_piece = node.next == kNone || nodes_[node.next].needed > 0 || node.flow || nodes_[node.next].flow ||
                      node.first_successor != nodes_[n + std::size_t{1}].first_successor;
  }
}

double EventQueue::rate_of(std::uint32_t node) const {
  return flows_.kernels(nodes_[node].lane / kStreamCount).by[nodes_[node].feels];
}

Seconds EventQueue::run(std::span<const Seconds> durations, std::vector<Span>& spans) {
  NS_EXPECTS(durations.size() == works_.size());
  // Work put end to end is an upper bound of the step, but for what sharing costs; a step beyond it is timed again.
  double bound = 0;
  for (const Node& node : nodes_) bound += node.lane == kNone ? 0 : durations[node.work] / units::s;
  bound /= static_cast<double>(graph_.stage_count());
  for (;;) {
    grid_ = Grid::covering(bound);
    const Seconds step = run_on_grid(durations, spans);
    if (step / units::s <= grid_.limit()) return step;
    bound = 2 * step / units::s;
  }
}

Seconds EventQueue::run_on_grid(std::span<const Seconds> durations, std::vector<Span>& spans) {
  durations_.resize(durations.size());
  for (std::size_t i = 0; i < durations.size(); ++i) durations_[i] = grid_.snap(durations[i] / units::s);
  spans.resize(graph_.node_count());
  spans_ = &spans;
  pending_.resize(graph_.node_count());
  for (std::size_t n = 0; n < pending_.size(); ++n) pending_[n] = nodes_[n].needed;
  lanes_.assign(graph_.lane_count(), {});
  flows_.reset(static_cast<std::size_t>(graph_.stage_count()));
  heap_.reset(lanes_.size());
  starting_.clear();
  completed_ = 0;

  for (LaneIndex lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].next = first_on_lane_[lane];
    if (lanes_[lane].next != kNone) start_if_ready(lanes_[lane].next);
  }
  double now = 0, latest = 0;
  settle(now);
  while (!heap_.empty()) {
    now = heap_.time();
    latest = std::max(latest, now);
    while (!heap_.empty() && heap_.time() == now) complete(heap_.pop());
    settle(now);
  }
  NS_EXPECTS(completed_ == graph_.node_count());  // otherwise nodes wait for each other
  return latest * units::s;
}

void EventQueue::complete(LaneIndex lane) {
  Lane& state = lanes_[lane];
  const std::uint32_t node = state.last;
  if (nodes_[node].flow) flows_.remove(lane);
  ++completed_;
  state.running = state.last = kNone;
  state.next = nodes_[node].next;
  const std::uint32_t end = nodes_[node + std::size_t{1}].first_successor;
  for (std::uint32_t s = nodes_[node].first_successor; s < end; ++s) {
    const std::uint32_t successor = successors_[s];
    if (--pending_[successor] == 0) start_if_ready(successor);
  }
  if (state.next != kNone) start_if_ready(state.next);
}

// A node starts when all that it needs has ended and its lane has come to it; whichever happens last calls.
void EventQueue::start_if_ready(std::uint32_t node) {
  const LaneIndex lane = nodes_[node].lane;
  Lane& state = lanes_[lane];
  if (state.next != node || state.running != kNone || pending_[node] != 0) return;
  state.next = kNone;
  state.running = node;
  state.last = node;
  while (!nodes_[state.last].ends_piece) {
    state.last = nodes_[state.last].next;
    ++completed_;
  }
  if (nodes_[node].flow) {
    const Work& work = work_of(node);
    const std::uint32_t own = lane / kStreamCount;
    flows_.add(lane, work.from == kNone ? own : work.from, work.to == kNone ? own : work.to, &work.demand);
  }
  state.starting = true;
  starting_.push_back(lane);
}

// Puts the piece from `node` on, which ends at `end`, on the timeline; its other kernels follow at the present rates.
void EventQueue::extend(LaneIndex lane, std::uint32_t node, double end) {
  Lane& state = lanes_[lane];
  std::vector<Span>& spans = *spans_;
  spans[node].end = end * units::s;
  for (double time = end; node != state.last; end = time) {
    node = nodes_[node].next;
    spans[node].start = time * units::s;
    const double rate = rate_of(node);
    time += rate == 1 ? duration_of(node) : grid_.snap(duration_of(node) / rate);
    spans[node].end = time * units::s;
  }
  state.end = end;
  heap_.set(lane, end);
}

// After all that happens at `now`: rates of flows, then of kernels beside them, then what starts.
void EventQueue::settle(double now) {
  const auto rescaled = [&](double end, double before, double after) {
    return now + grid_.snap(grid_.snap(std::max(0.0, end - now) * before) / after);
  };
  flows_.settle(
      [&](LaneIndex lane, double before) {
        extend(lane, lanes_[lane].running, rescaled(lanes_[lane].end, before, flows_.rate(lane)));
      },
      [&](std::uint32_t stage, const KernelRates& before) {
        for (std::uint32_t stream = 0; stream < kStreamCount; ++stream) {
          const LaneIndex lane = stage * kStreamCount + stream;
          Lane& state = lanes_[lane];
          if (state.running == kNone || nodes_[state.running].flow || state.starting) continue;
          const std::vector<Span>& spans = *spans_;
          while (state.running != state.last && spans[state.running].end / units::s <= now) {
            state.running = nodes_[state.running].next;
          }
          const double end = spans[state.running].end / units::s;
          const double rate = before.by[nodes_[state.running].feels];
          extend(lane, state.running,
                 rate == rate_of(state.running) ? end : rescaled(end, rate, rate_of(state.running)));
        }
      });
  for (const LaneIndex lane : starting_) {
    const std::uint32_t node = lanes_[lane].running;
    lanes_[lane].starting = false;
    (*spans_)[node].start = now * units::s;
    const double rate = nodes_[node].flow ? flows_.rate(lane) : rate_of(node);
    extend(lane, node, now + (rate == 1 ? duration_of(node) : grid_.snap(duration_of(node) / rate)));
  }
  starting_.clear();
}

}  // namespace ns_dist
