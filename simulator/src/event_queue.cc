#include "event_queue.h"

#include <algorithm>
#include <utility>

#include "ns_dist/fair_sharing.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr double kSlowest = 0.05;  // whatever is left over, kernels make some progress
constexpr double kFull = 1 + 1e-9;

enum Feels : std::uint8_t { kNothing = 0, kSms = 1, kMemory = 2 };

}  // namespace

EventQueue::EventQueue(const ExecutionGraph& graph, std::vector<Demand> demands) : graph_(graph) {
  NS_EXPECTS(demands.size() == graph.works().size());
  for (const Demand& demand : demands) levels_ = std::max(levels_, demand.ports.size());
  const std::uint32_t count = graph.node_count();

  works_.resize(demands.size());
  for (std::size_t w = 0; w < demands.size(); ++w) {
    const Demand& demand = demands[w];
    Work& work = works_[w];
    const WorkItem& item = graph.works()[w];
    work.feels = demand.bound == Bound::kCompute ? kSms : demand.bound == Bound::kMemory ? kMemory : kNothing;
    work.flow = !std::holds_alternative<Operator>(item.work);
    if (!work.flow) continue;
    work.feels = kNothing;
    work.sms = demand.sms;
    work.memory = demand.memory;
    if (const auto* message = std::get_if<Message>(&item.work)) {
      work.from = static_cast<std::uint32_t>(message->from_stage);
      work.to = static_cast<std::uint32_t>(message->to_stage);
    }
    work.first_port = static_cast<std::uint32_t>(ports_.size());
    for (std::size_t level = 0; level < demand.ports.size(); ++level) {
      if (demand.ports[level] > 0) ports_.push_back({static_cast<std::uint32_t>(level), demand.ports[level]});
    }
    work.port_count = static_cast<std::uint32_t>(ports_.size()) - work.first_port;
  }

  first_on_lane_.assign(graph.lane_count(), kNone);
  nodes_.resize(count + std::size_t{1});
  std::vector<std::uint32_t> successors_of(count, 0);
  for (std::uint32_t n = 0; n < count; ++n) {
    Node& node = nodes_[n];
    node.work = index(graph.nodes()[n].work);
    node.lane = index(graph.nodes()[n].lane);
    node.feels = works_[node.work].feels;
    node.flow = works_[node.work].flow;
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
  return stages_[nodes_[node].lane / kStreamCount].rates[nodes_[node].feels];
}

Seconds EventQueue::run(std::span<const Seconds> durations, std::vector<Span>& spans) {
  NS_EXPECTS(durations.size() == works_.size());
  durations_.resize(durations.size());
  for (std::size_t i = 0; i < durations.size(); ++i) durations_[i] = durations[i] / units::s;
  spans.resize(graph_.node_count());
  spans_ = &spans;
  pending_.resize(graph_.node_count());
  for (std::size_t n = 0; n < pending_.size(); ++n) pending_[n] = nodes_[n].needed;
  lanes_.assign(graph_.lane_count(), {});
  stages_.assign(static_cast<std::size_t>(graph_.stage_count()), {});
  load_.assign(static_cast<std::size_t>(graph_.stage_count()) * levels_ * 2, 0);
  heap_.clear();
  starting_.clear();
  changed_stages_.clear();
  overloaded_ = ports_changed_ = false;
  completed_ = 0;

  for (LaneIndex lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].next = first_on_lane_[lane];
    if (lanes_[lane].next != kNone) start_if_ready(lanes_[lane].next);
  }
  double now = 0, latest = 0;
  settle(now);
  while (!heap_.empty()) {
    now = lanes_[heap_.front()].end;
    latest = std::max(latest, now);
    while (!heap_.empty() && lanes_[heap_.front()].end == now) {
      const LaneIndex lane = heap_.front();
      heap_pop();
      complete(lane);
    }
    settle(now);
  }
  NS_EXPECTS(completed_ == graph_.node_count());  // otherwise nodes wait for each other
  return latest * units::s;
}

void EventQueue::touch(std::uint32_t stage) {
  if (stages_[stage].changed) return;
  stages_[stage].changed = true;
  changed_stages_.push_back(stage);
}

void EventQueue::add_flow(LaneIndex lane) {
  Lane& state = lanes_[lane];
  const Work& work = work_of(state.last);
  const std::uint32_t own = lane / kStreamCount;
  state.rate = 1;
  state.from = work.from == kNone ? own : work.from;
  state.to = work.to == kNone ? own : work.to;
  stages_[state.from].flows.push_back(lane);
  touch(state.from);
  if (state.to != state.from) {
    stages_[state.to].flows.push_back(lane);
    touch(state.to);
  }
  for (const Port& port : ports_of(work)) {
    for (const std::size_t used : {resource(state.from, port.level, false), resource(state.to, port.level, true)}) {
      load_[used] += port.share;
      if (load_[used] > kFull) ports_changed_ = true;
    }
  }
}

void EventQueue::remove_flow(LaneIndex lane) {
  const Lane& state = lanes_[lane];
  for (const std::uint32_t stage : {state.from, state.to}) {
    std::vector<LaneIndex>& flows = stages_[stage].flows;
    flows.erase(std::remove(flows.begin(), flows.end(), lane), flows.end());
    touch(stage);
  }
  for (const Port& port : ports_of(work_of(state.last))) {
    load_[resource(state.from, port.level, false)] -= port.share;
    load_[resource(state.to, port.level, true)] -= port.share;
  }
  if (overloaded_) ports_changed_ = true;
}

void EventQueue::complete(LaneIndex lane) {
  Lane& state = lanes_[lane];
  const std::uint32_t node = state.last;
  if (nodes_[node].flow) remove_flow(lane);
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
  while (!nodes_[state.last].ends_piece) state.last = nodes_[state.last].next, ++completed_;
  if (nodes_[node].flow) add_flow(lane);
  starting_.push_back(lane);
}

// Puts the piece from `node` on, which starts at `start` with `left` of its duration alone to do, on the timeline.
void EventQueue::extend(LaneIndex lane, std::uint32_t node, double start, double left) {
  Lane& state = lanes_[lane];
  std::vector<Span>& spans = *spans_;
  double time = start;
  for (std::uint32_t n = node;; n = nodes_[n].next) {
    const double rate = nodes_[n].flow ? state.rate : rate_of(n);
    const double alone = n == node ? left : duration_of(n);
    if (n != node) spans[n].start = time * units::s;
    time += rate == 1 ? alone : alone / rate;
    spans[n].end = time * units::s;
    if (n == state.last) break;
  }
  heap_set(lane, time);
}

void EventQueue::start(LaneIndex lane, double now) {
  (*spans_)[lanes_[lane].running].start = now * units::s;
  extend(lane, lanes_[lane].running, now, duration_of(lanes_[lane].running));
}

// Gives a running flow another rate: what it has not done yet takes longer or shorter.
void EventQueue::slow_down(LaneIndex lane, double now, double flow_rate) {
  Lane& state = lanes_[lane];
  if (state.rate == flow_rate) return;
  const double left = std::max(0.0, state.end - now) * state.rate;
  state.rate = flow_rate;
  extend(lane, state.running, now, left);
}

// After all that happens at `now`: rates of flows, then of kernels beside them, then what starts.
void EventQueue::settle(double now) {
  if (ports_changed_) share_ports(now);
  ports_changed_ = false;
  const auto is_starting = [&](LaneIndex lane) {
    return std::find(starting_.begin(), starting_.end(), lane) != starting_.end();
  };
  for (const std::uint32_t s : changed_stages_) {
    Stage& stage = stages_[s];
    stage.changed = false;
    double sms = 0, memory = 0;
    for (const LaneIndex lane : stage.flows) {
      const Work& work = work_of(lanes_[lane].last);
      sms += work.sms;
      memory += work.memory * lanes_[lane].rate;
    }
    const double by_sms = std::max(kSlowest, 1 - sms), by_memory = std::max(kSlowest, 1 - memory);
    if (by_sms == stage.rates[kSms] && by_memory == stage.rates[kMemory]) continue;
    const double before[3] = {1, stage.rates[kSms], stage.rates[kMemory]};
    stage.rates[kSms] = by_sms;
    stage.rates[kMemory] = by_memory;
    for (std::uint32_t stream = 0; stream < kStreamCount; ++stream) {
      const LaneIndex lane = s * kStreamCount + stream;
      Lane& state = lanes_[lane];
      if (state.running == kNone || nodes_[state.running].flow || is_starting(lane)) continue;
      // Where the piece is now, and what is left of that kernel.
      while (state.running != state.last && (*spans_)[state.running].end / units::s <= now) {
        state.running = nodes_[state.running].next;
      }
      const double left = std::max(0.0, (*spans_)[state.running].end / units::s - now);
      extend(lane, state.running, now, left * before[nodes_[state.running].feels]);
    }
  }
  changed_stages_.clear();
  for (const LaneIndex lane : starting_) start(lane, now);
  starting_.clear();
}

// Max-min fair rates of all flows that run, by network_model.
void EventQueue::share_ports(double now) {
  std::vector<LaneIndex> lanes;
  std::vector<SharedFlow> flows;
  std::vector<std::uint32_t> compact(load_.size(), kNone);
  std::vector<BytesPerSecond> capacities;
  const BytesPerSecond one = BytesPerSecond::from_base(1);
  for (std::uint32_t s = 0; s < stages_.size(); ++s) {
    for (const LaneIndex lane : stages_[s].flows) {
      const Lane& state = lanes_[lane];
      if (state.from != s) continue;  // a message is listed at both of its ends
      SharedFlow flow;
      flow.limit = one;
      for (const Port& port : ports_of(work_of(state.last))) {
        for (const std::size_t used : {resource(state.from, port.level, false), resource(state.to, port.level, true)}) {
          if (load_[used] <= kFull) continue;
          if (compact[used] == kNone) {
            compact[used] = static_cast<std::uint32_t>(capacities.size());
            capacities.push_back(one);
          }
          flow.uses.push_back({compact[used], port.share});
        }
      }
      lanes.push_back(lane);
      flows.push_back(std::move(flow));
    }
  }
  overloaded_ = !capacities.empty();
  std::vector<double> rates(lanes.size(), 1);
  if (overloaded_) {
    const auto fair = max_min_rates(capacities, flows);
    NS_EXPECTS(fair.has_value());
    for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = std::min(1.0, (*fair)[i].in_base());
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Lane& state = lanes_[lanes[i]];
    if (state.rate == rates[i]) continue;
    touch(state.from);
    touch(state.to);
    if (std::find(starting_.begin(), starting_.end(), lanes[i]) != starting_.end()) {
      state.rate = rates[i];
    } else {
      slow_down(lanes[i], now, rates[i]);
    }
  }
}

void EventQueue::heap_set(LaneIndex lane, double end) {
  Lane& state = lanes_[lane];
  const double before = state.end;
  state.end = end;
  if (state.heap == kNone) {
    state.heap = static_cast<std::uint32_t>(heap_.size());
    heap_.push_back(lane);
    sift_up(state.heap);
  } else if (end < before) {
    sift_up(state.heap);
  } else {
    sift_down(state.heap);
  }
}

void EventQueue::heap_pop() {
  const LaneIndex lane = heap_.front();
  lanes_[lane].heap = kNone;
  const LaneIndex moved = heap_.back();
  heap_.pop_back();
  if (moved == lane) return;
  heap_.front() = moved;
  lanes_[moved].heap = 0;
  sift_down(0);
}

void EventQueue::sift_up(std::size_t at) {
  const LaneIndex lane = heap_[at];
  while (at > 0 && before(lane, heap_[(at - 1) / 2])) {
    heap_[at] = heap_[(at - 1) / 2];
    lanes_[heap_[at]].heap = static_cast<std::uint32_t>(at);
    at = (at - 1) / 2;
  }
  heap_[at] = lane;
  lanes_[lane].heap = static_cast<std::uint32_t>(at);
}

void EventQueue::sift_down(std::size_t at) {
  const LaneIndex lane = heap_[at];
  for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], lane)) break;
    heap_[at] = heap_[child];
    lanes_[heap_[at]].heap = static_cast<std::uint32_t>(at);
    at = child;
  }
  heap_[at] = lane;
  lanes_[lane].heap = static_cast<std::uint32_t>(at);
}

}  // namespace ns_dist
