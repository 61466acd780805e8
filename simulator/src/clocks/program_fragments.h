// The fragments of a program as the event queue runs them, and what each takes beside flows that stay the same.
#pragma once

#include <array>
#include <cstdint>
#include <forward_list>
#include <vector>

#include "clocks/flow_table.h"
#include "clocks/fragment_length.h"
#include "clocks/grid.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

inline constexpr std::uint32_t kNone = 0xffffffffu;
// Compute, tensor, expert and context parallel, shared weights, host: the first.
inline constexpr std::uint32_t kFragmentStreams = 6;
static_assert(static_cast<std::uint32_t>(Stream::kHost) + 1 == kFragmentStreams);

constexpr std::array<std::uint32_t, kFragmentStreams> nothing_on_streams() {
  std::array<std::uint32_t, kFragmentStreams> none{};
  none.fill(kNone);
  return none;
}

class ProgramFragments {
 public:
  struct Node {
    std::uint32_t work = 0;
    std::uint8_t stream = 0;
    std::uint8_t needed = 0;            // edges into it from other streams
    bool flow = false;                  // a collective
    bool ends_piece = true;             // the next node of the stream is an event of its own
    std::uint32_t next = kNone;         // on the stream
    std::uint32_t first_successor = 0;  // on other streams; up to the next node's
  };
  struct Compiled {
    std::vector<Node> nodes;  // and one behind the last
    std::vector<std::uint32_t> successors;
    std::array<std::uint32_t, kFragmentStreams> first = nothing_on_streams();
    std::uint32_t count = 0;
  };
  // A fragment under way. Times are absolute, or relative to its start in a snapshot. Kernels that nothing else waits
  // for are run as one piece: running[0] is the kernel that was last seen to run.
  struct State {
    std::uint32_t completed = 0;
    std::array<std::uint32_t, kFragmentStreams> next = nothing_on_streams(), running = nothing_on_streams();
    std::array<double, kFragmentStreams> end{}, rate{};  // rate: of flows, in a snapshot
    std::uint32_t last = kNone;                          // kernel of the piece
    double kernel_end = 0;                               // of running[0]; end[0] is that of the piece
    std::vector<std::uint8_t> needed;
    KernelRates kernels;  // in a snapshot
  };
  struct Snapshot {
    double time = 0;
    State state;
  };
  // A whole run of a fragment beside the same flows.
  struct Measured {
    Company company;
    double length = 0;
    std::vector<NodeSpan> spans;
    std::vector<Snapshot> snapshots;    // after what happened at each time
    std::vector<std::uint32_t> starts;  // by node: the snapshot in which it began, and nothing else ran; kNone
  };
  // A fragment on the stages of a row.
  struct Runs {
    std::vector<double> ports;           // by level: the most that its flows may ask for at a time
    bool crowded = false;                // its flows may have to share ports
    std::forward_list<Measured> beside;  // what was asked for
  };
  struct Row {
    std::vector<double> durations;  // by WorkId, on the grid
    std::vector<FlowDemand> demands;
    std::vector<Runs> runs;  // by FragmentId
  };

  ProgramFragments(const StepProgram& program, const ProgramCosts& costs);
  // Durations are those on `grid`; runs that were measured are forgotten.
  void set_grid(const Grid& grid, const ProgramCosts& costs);

  const Compiled& compiled(std::uint32_t fragment) const { return compiled_[fragment]; }
  Row& row(std::uint32_t r) { return rows_[r]; }
  const Grid& grid() const { return grid_; }
  bool shares() const { return shares_; }

 private:
  std::vector<Compiled> compiled_;
  std::vector<Row> rows_;
  Grid grid_;
  bool shares_ = false;
};

}  // namespace ns_dist
