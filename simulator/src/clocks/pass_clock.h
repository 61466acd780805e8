// Time of a program in which nothing shares anything: an addition and a maximum for each pass.
//
// Since the order on every stream is fixed and sharing only lengthens work, this step is a lower bound of the step with
// sharing. Loops are folded as in the program queue: when the times of all actors, relative to each other, are what
// they were some microbatches earlier, what follows repeats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "clocks/call_order.h"
#include "clocks/grid.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

class PassClock {
 public:
  // With an `order` of its calls the program is run in that order, without folding.
  PassClock(const StepProgram& program, const ProgramCosts& costs, bool fold = true, const CallOrder* order = nullptr);

  // The step in seconds.
  double run();
  std::int64_t passes() const { return passes_; }  // bodies that were run one by one

 private:
  using Kind = Instruction::Kind;
  static constexpr std::uint32_t kBesideStreams = 3;  // data parallel and both directions of the pipeline
  static constexpr std::uint32_t kNone = 0xffffffffu;

  // kRun: waits for a message, runs, and sends one; any of the three may be missing. Others: as the instruction.
  struct Op {
    Kind kind = Kind::kRun;
    std::uint8_t stream = 0;
    bool receives_second = false, sends_second = false;  // the second microbatch of the body
    std::uint32_t from = kNone, to = kNone;              // channels; kMeet: from is the meeting
    std::int32_t count = 0;                              // kAwait
    double seconds = 0, message = 0;                     // of the run, of what is started
  };
  struct Ops {  // of a body: a part of ops_
    std::uint32_t first = 0, end = 0;
    bool known = false;
  };
  struct Arrival {
    std::int32_t microbatch;
    double time;
  };
  struct Channel {
    std::vector<Arrival> arrived;
    std::size_t first = 0;  // of `arrived` that has not been read
    std::uint32_t receiver = 0;
    bool take(std::int32_t microbatch, double& now);
  };
  struct State {
    double now = 0;
    double free[kBesideStreams] = {};  // when the stream is free again
    std::uint32_t loop = 0, call = 0, op = 0;
    std::uint32_t awaits = kNone;  // the channel from which it needs a message
    std::int64_t repeat = 0;
    std::int64_t budget = 0;  // repeats that it may begin
    bool at_meeting = false, waiting = false, done = false;
    std::vector<double> ends;  // of works started on the data-parallel stream
  };
  struct Border {
    std::uint64_t hash = 0;
    std::vector<double> state;
    double time = 0;
    std::vector<std::int64_t> repeats;
  };

  double run_on_grid();
  void compile();
  void run_in_order();
  static double start_or_await(const Op& op, State& state, double now);
  void advance(std::uint32_t actor);
  bool run(std::uint32_t actor, std::span<const BodyCall> calls, std::int32_t offset);
  bool meet(std::uint32_t actor, std::uint32_t meeting);
  void recur();
  void encode(std::uint32_t reference, std::vector<double>& state) const;
  void repeat(const Border& earlier, double now);

  const StepProgram& program_;
  const ProgramCosts& costs_;
  bool fold_;
  const CallOrder* order_;
  Grid grid_;
  std::vector<Op> ops_;
  std::vector<Ops> bodies_;  // by BodyId
  std::vector<State> states_;
  std::vector<Channel> channels_;
  std::vector<std::uint32_t> meetings_, ready_;
  std::vector<Border> borders_;  // a ring of those in use and free ones
  std::size_t border_count_ = 0, next_border_ = 0;
  std::size_t unread_ = 0;  // messages
  std::int64_t passes_ = 0;
};

}  // namespace ns_dist
