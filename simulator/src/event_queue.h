// Event-driven time: what runs at once shares ports, SMs and memory bandwidth.
//
// A lane runs one node at a time, so what runs is at most one piece of work a lane. Kernels of a lane that nothing else
// waits for are run as one piece. Events are the ends of pieces; a change of the collectives on a stage moves the ends
// of the pieces that feel it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/simulator.h"
#include "ns_dist/timeline.h"
#include "ns_dist/units.h"

namespace ns_dist {

class EventQueue {
 public:
  EventQueue(const ExecutionGraph& graph, std::vector<Demand> demands);

  // `durations` by WorkId. Fills `spans` by NodeId and returns the latest end.
  Seconds run(std::span<const Seconds> durations, std::vector<Span>& spans);

 private:
  using LaneIndex = std::uint32_t;
  static constexpr std::uint32_t kNone = 0xffffffffu;

  struct Port {
    std::uint32_t level;
    double share;
  };
  // A work item, ready for the inner loop.
  struct Work {
    std::uint32_t first_port = 0, port_count = 0;
    std::uint32_t from = kNone, to = kNone;  // messages: stages; collectives run on the stage of their lane
    double sms = 0, memory = 0;
    std::uint8_t feels = 0;  // index into Stage::rates
    bool flow = false;       // a collective or a message
  };
  struct Node {
    std::uint32_t work = 0, lane = 0;
    std::uint32_t next = kNone;         // on the lane
    std::uint32_t needed = 0;           // edges into it from other lanes
    std::uint32_t first_successor = 0;  // on other lanes; up to the next node's
    std::uint8_t feels = 0;
    bool flow = false;
    bool ends_piece = false;
  };
  struct Lane {
    std::uint32_t next = kNone;      // node that starts next, when nothing runs
    std::uint32_t running = kNone;   // node that runs, of the piece's nodes
    std::uint32_t last = kNone;      // last node of the piece
    double end = 0;                  // of the piece
    double rate = 1;                 // flows: of progress, against alone
    std::uint32_t from = 0, to = 0;  // flows: stages that send and receive
    std::uint32_t heap = kNone;      // position in the heap
  };
  struct Stage {
    double rates[3] = {1, 1, 1};   // of kernels: untouched, bound by SMs, bound by memory
    std::vector<LaneIndex> flows;  // lanes whose flows run here
    bool changed = false;
  };

  // Resources: stage, level, direction. Collectives send and receive alike.
  std::size_t resource(std::uint32_t stage, std::uint32_t level, bool into) const {
    return (stage * levels_ + level) * 2 + (into ? 1 : 0);
  }
  std::span<const Port> ports_of(const Work& work) const { return {ports_.data() + work.first_port, work.port_count}; }
  const Work& work_of(std::uint32_t node) const { return works_[nodes_[node].work]; }
  double duration_of(std::uint32_t node) const { return durations_[nodes_[node].work]; }
  double rate_of(std::uint32_t node) const;
  void complete(LaneIndex lane);
  void start_if_ready(std::uint32_t node);
  void start(LaneIndex lane, double now);
  void extend(LaneIndex lane, std::uint32_t node, double start, double left);
  void slow_down(LaneIndex lane, double now, double flow_rate);
  void touch(std::uint32_t stage);
  void settle(double now);
  void share_ports(double now);
  void add_flow(LaneIndex lane);
  void remove_flow(LaneIndex lane);

  void heap_set(LaneIndex lane, double end);
  void heap_pop();
  bool before(LaneIndex a, LaneIndex b) const {
    return lanes_[a].end < lanes_[b].end || (lanes_[a].end == lanes_[b].end && a < b);
  }
  void sift_up(std::size_t at);
  void sift_down(std::size_t at);

  const ExecutionGraph& graph_;
  std::size_t levels_ = 0;
  std::vector<Work> works_;  // by WorkId
  std::vector<Port> ports_;
  std::vector<Node> nodes_;                   // and one behind the last
  std::vector<std::uint32_t> first_on_lane_;  // by lane
  std::vector<std::uint32_t> successors_;

  // Of one run.
  std::vector<double> durations_;  // by WorkId, seconds
  std::vector<Span>* spans_ = nullptr;
  std::vector<std::uint32_t> pending_;  // by node
  std::vector<Lane> lanes_;
  std::vector<Stage> stages_;
  std::vector<std::uint32_t> changed_stages_;
  std::vector<LaneIndex> heap_, starting_;
  std::vector<double> load_;  // by resource: shares of the flows that run
  bool overloaded_ = false;   // some flow may run below its full rate
  bool ports_changed_ = false;
  std::uint32_t completed_ = 0;  // nodes of pieces that have ended or run
};

}  // namespace ns_dist
