// Time of a program in which nothing shares anything: an addition and a maximum for each pass.
//
// Since the order on every stream is fixed and sharing only lengthens work, this step is a lower bound of the step with
// sharing. Loops are folded as in the program queue: when the times of all actors, relative to each other, are what
// they were some microbatches earlier, what follows repeats.
#pragma once

#include <cstdint>
#include <vector>

#include "clocks/grid.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

class PassClock {
 public:
  PassClock(const StepProgram& program, const ProgramCosts& costs, bool fold = true);

  // The step in seconds.
  double run();
  std::int64_t passes() const { return passes_; }  // bodies that were run one by one

 private:
  using Kind = Instruction::Kind;
  static constexpr std::uint32_t kBesideStreams = 3;  // data parallel and both directions of the pipeline

  struct Op {
    Kind kind = Kind::kRun;
    std::uint8_t stream = 0;
    bool second = false;
    std::int32_t count = 0;   // kAwait
    std::uint32_t index = 0;  // channel, meeting
    double seconds = 0;
  };
  struct Arrival {
    std::int32_t microbatch;
    double time;
  };
  struct Channel {
    std::vector<Arrival> arrived;
    std::size_t first = 0;  // of `arrived` that has not been read
    std::uint32_t receiver = 0;
  };
  struct State {
    double now = 0;
    double free[kBesideStreams] = {};  // when the stream is free again
    std::uint32_t loop = 0, call = 0, op = 0;
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
  void advance(std::uint32_t actor);
  bool take(Channel& channel, std::int32_t microbatch, double& now);
  void recur();
  void encode(std::uint32_t reference, std::vector<double>& state) const;
  void repeat(const Border& earlier, double now);

  const StepProgram& program_;
  const ProgramCosts& costs_;
  bool fold_;
  Grid grid_;
  std::vector<std::vector<Op>> ops_;  // by BodyId
  std::vector<State> states_;
  std::vector<Channel> channels_;
  std::vector<std::uint32_t> meetings_, ready_;
  std::vector<Border> borders_;  // a ring of those in use and free ones
  std::size_t border_count_ = 0, next_border_ = 0;
  std::vector<double> code_;
  double latest_ = 0;
  std::int64_t passes_ = 0;
};

// What a fragment takes when nothing shares anything. `durations` by WorkId, seconds.
double fragment_length(const Fragment& fragment, const std::vector<double>& durations);

}  // namespace ns_dist
