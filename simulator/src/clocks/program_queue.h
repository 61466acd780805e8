// Event-driven time of a program: the event queue without a node for every kernel.
//
// A fragment that runs alone on its stage always takes the same time, so it is one event ("closed"). So it does beside
// a message or a data-parallel collective that takes the same shares of SMs and memory bandwidth all the time. When
// these shares change, what is left of it is one event again ("rest"): the end of its present kernel moves, and what
// follows was measured. While flows share ports, its kernels and collectives are run one by one ("open").
//
// Loops are folded: the queue is deterministic, so when its whole state, relative to the microbatches and to the time,
// is what it was at an earlier time, then what follows repeats until some actor leaves its loop. The queue goes that
// far at once. Times are on a grid (grid.h), so nothing is rounded on the way, and the folded step is the unfolded one,
// bit by bit. Where no state recurs, nothing is folded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "clocks/program_fragments.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

inline constexpr std::uint32_t kNoRecord = 0xffffffffu;

// What one actor did: a fragment some times on end, or a work that ran beside. Times are those of the record's frame:
// the first copy of whatever was folded before it.
struct StepRecord {
  std::uint32_t actor = 0;
  std::uint32_t lane = 0;           // of an execution graph; kCompute: a run
  std::uint32_t what = 0;           // FragmentId of a run, WorkId of others
  std::int32_t times = 1;           // runs of the fragment
  double start = 0, end = 0;        // seconds
  std::uint32_t cause = kNoRecord;  // what ended last of all that it waited for
  std::uint32_t spans = kNoRecord;  // of an open run: its nodes' spans, in StepHistory::spans; closed: those alone
  std::uint32_t sequence = 0;       // among the records of the actor
  std::uint32_t frame = 0;
  std::int32_t microbatch = -1;  // of a run; -1: of none
};

// Records `first` to `end` stand for copies + 1 periods of `length` seconds.
struct FoldedPeriod {
  std::uint32_t first = 0, end = 0;
  std::int64_t copies = 0, microbatches = 0;    // microbatches: of one period
  double at = 0, length = 0;                    // at: when the first ended, as of the period's frame
  std::vector<std::uint32_t> records_of_actor;  // in one period
  // What was under way when the period began, and at the same places when it ended. How a record of the first goes on
  // is how it goes on in all copies; how a record of the second goes on is seen once.
  std::vector<std::uint32_t> under_way, under_way_after;
};

// Spans of the nodes of runs; those of a run lie side by side. They are most of a long history, and a vector that grows
// would hold them twice.
class NodeSpans {
 public:
  // Room for the nodes of one run; returns the number of its first.
  std::uint32_t add(std::size_t nodes);
  NodeSpan* at(std::uint32_t first) { return blocks_[first / kBlock] + first % kBlock; }
  const NodeSpan* at(std::uint32_t first) const { return blocks_[first / kBlock] + first % kBlock; }

 private:
  static constexpr std::size_t kBlock = 65'536;
  std::vector<std::unique_ptr<NodeSpan[]>> owned_;
  std::vector<NodeSpan*> blocks_;  // of kBlock spans each; a run with more has several that lie side by side
  std::size_t count_ = 0;          // with what is left free at the end of blocks
};

// All that is needed to say where the time went.
struct StepHistory {
  std::vector<StepRecord> records;
  std::vector<std::vector<std::uint32_t>> by_actor;
  NodeSpans spans;
  std::vector<FoldedPeriod> periods;  // in order of time; a frame for each, and one more
};

class ProgramQueue {
 public:
  struct Options {
    bool fold = true;                               // go over what repeats at once
    bool close = true;                              // run a fragment that is alone on its stage as one event
    bool record = false;                            // keep the history
    std::uint64_t most_events = ~std::uint64_t{0};  // give up behind these
  };
  ProgramQueue(const StepProgram& program, const ProgramCosts& costs, Options options);
  ~ProgramQueue();

  // The step in seconds; nothing when it takes more events than Options::most_events.
  std::optional<double> run();
  const StepHistory& history() const;
  // Spans of a fragment's nodes when it runs alone on a stage of this row of costs, from its start.
  const std::vector<NodeSpan>& alone(std::uint32_t row, FragmentId fragment);

 private:
  class Engine;
  const StepProgram& program_;
  const ProgramCosts& costs_;
  Options options_;
  std::unique_ptr<ProgramFragments> fragments_;
  StepHistory history_;
};

}  // namespace ns_dist
