// Event-driven time: what runs at once shares ports, SMs and memory bandwidth.
//
// A lane runs one node at a time, so what runs is at most one piece of work a lane. Kernels of a lane that nothing else
// waits for are run as one piece. Events are the ends of pieces; a change of the collectives on a stage moves the ends
// of the pieces that feel it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "clocks/event_heap.h"
#include "clocks/flow_table.h"
#include "clocks/grid.h"
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

  // A work item, ready for the inner loop.
  struct Work {
    FlowDemand demand;
    std::uint32_t from = kNone, to = kNone;  // messages: stages; collectives run on the stage of their lane
  };
  struct Node {
    std::uint32_t work = 0, lane = kNone;
    std::uint32_t next = kNone;         // on the lane
    std::uint32_t needed = 0;           // edges into it from other lanes
    std::uint32_t first_successor = 0;  // on other lanes; up to the next node's
    Feels feels = kFeelsNothing;
    bool flow = false;
    bool ends_piece = false;
  };
  struct Lane {
    std::uint32_t next = kNone;     // node that starts next, when nothing runs
    std::uint32_t running = kNone;  // node that runs, of the piece's nodes
    std::uint32_t last = kNone;     // last node of the piece
    double end = 0;                 // of the piece
    bool starting = false;
  };

  Seconds run_on_grid(std::span<const Seconds> durations, std::vector<Span>& spans);
  const Work& work_of(std::uint32_t node) const { return works_[nodes_[node].work]; }
  double duration_of(std::uint32_t node) const { return durations_[nodes_[node].work]; }
  double rate_of(std::uint32_t node) const;
  void complete(LaneIndex lane);
  void start_if_ready(std::uint32_t node);
  void extend(LaneIndex lane, std::uint32_t node, double end);
  void settle(double now);

  const ExecutionGraph& graph_;
  std::vector<Work> works_;                   // by WorkId
  std::vector<Node> nodes_;                   // and one behind the last
  std::vector<std::uint32_t> first_on_lane_;  // by lane
  std::vector<std::uint32_t> successors_;

  // Of one run.
  Grid grid_;
  std::vector<double> durations_;  // by WorkId, seconds
  std::vector<Span>* spans_ = nullptr;
  std::vector<std::uint32_t> pending_;  // by node
  std::vector<Lane> lanes_;
  std::vector<LaneIndex> starting_;
  EventHeap heap_;  // by lane
  FlowTable flows_;
  std::uint32_t completed_ = 0;  // nodes of pieces that have ended or run
};

}  // namespace ns_dist
