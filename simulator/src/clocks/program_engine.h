// One run of the event queue over a program: its state, and what happens at each event (program_engine.cc) and where a
// state recurs (program_folding.cc).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "clocks/event_heap.h"
#include "clocks/program_fragments.h"
#include "clocks/program_queue.h"

namespace ns_dist {

class ProgramQueue::Engine {
 public:
  using State = ProgramFragments::State;
  using Kind = Instruction::Kind;

  Engine(ProgramQueue& queue, std::size_t actors);
  // The whole program. Returns the step, or nothing when it takes too many events.
  std::optional<double> run(const ProgramCosts& costs);
  // One fragment alone on a stage.
  void measure(std::uint32_t row, std::uint32_t fragment, ProgramFragments::Alone& into);

 private:
  enum class Mode : std::uint8_t { kWaiting, kStarting, kClosed, kOpen, kDone };
  struct Item {
    std::uint32_t work = 0, channel = kNone;
    std::int32_t microbatch = -1;
    std::uint32_t record = kNoRecord;
  };
  // A stream of works that run beside fragments.
  struct Beside {
    std::vector<Item> queue;  // behind what runs
    Item running;
    bool busy = false, starting = false;
    std::int64_t started = 0, done = 0;
    double end = 0;
    std::uint32_t last_record = kNoRecord, done_record = kNoRecord;  // last started, last ended
    double last_end = 0;
  };
  struct ActorState {
    // Where it is in its program.
    std::uint32_t loop = 0, call = 0, op = 0;
    std::int64_t repeat = 0;
    Mode mode = Mode::kWaiting;
    bool at_meeting = false;
    std::uint32_t row = 0;
    // The run under way.
    std::uint32_t fragment = 0;
    std::int32_t times_left = 0;  // runs that have not begun; of a closed run all of them
    double start = 0;             // of a closed run, or of the open one
    State open;
    std::array<bool, kFragmentStreams> starting{};
    std::uint32_t record = kNoRecord;
    std::uint32_t beside_now = 0;  // works of other streams, and messages from others, that run on the stage
    // What ended last of all that the next instruction waits for.
    std::uint32_t point = kNoRecord;
    double point_end = 0;
    std::array<Beside, kStreamCount - kFragmentStreams> beside;
  };
  struct Arrival {
    std::int32_t microbatch;
    std::uint32_t record;
    double end;
  };
  struct Border {
    std::uint64_t hash;
    std::vector<std::uint64_t> state;
    double time;
    std::vector<std::int64_t> repeats;  // by actor
    std::uint32_t records;
    std::vector<std::uint32_t> records_of_actor;  // by actor
    std::vector<std::uint32_t> under_way;
  };

  ProgramFragments::Row& row_of(std::uint32_t actor) { return fragments_.row(actors_[actor].row); }
  static Beside& beside_of(ActorState& actor, Stream stream) {
    return actor.beside[static_cast<std::size_t>(stream) - kFragmentStreams];
  }

  void loop();

  // ---- The program of an actor ----

  void advance_all(double now);
  static void skip_empty(ActorState& actor, const Actor& program);
  // To the next instruction.
  void step(std::uint32_t a);
  void advance(std::uint32_t a, double now);
  bool meet(std::uint32_t a, std::uint32_t meeting);
  const Instruction& instruction_of(std::uint32_t a) const;
  // Of the instruction at which the actor is; -1: none.
  std::int32_t microbatch_of(std::uint32_t a) const;

  // ---- Works beside fragments ----

  void start_beside(std::uint32_t a, Stream stream, const Item& item, double now);
  void complete_beside(std::uint32_t a, Stream stream, double now);

  // ---- Runs of fragments ----

  void complete(std::uint32_t lane, double now);
  void finish_run(std::uint32_t a, double now);
  // The last of the runs under way has ended, and the next begins.
  void next_run(std::uint32_t a, double now);
  void complete_node(std::uint32_t a, std::uint32_t stream, double now);
  double kernel_duration(std::uint32_t a, std::uint32_t work, const KernelRates& rates);
  // Goes on to the kernel of the piece that runs at `now`. `rates` are those since the piece was last looked at.
  void follow(std::uint32_t a, double now, const KernelRates& rates);
  // When the piece ends at the present rates, if its present kernel ends at kernel_end.
  void set_piece_end(std::uint32_t a);
  void start_node_if_ready(std::uint32_t a, std::uint32_t node, double now);
  NodeSpan* span_of(const ActorState& actor, std::uint32_t node);
  const ProgramFragments::Alone& alone(std::uint32_t row, std::uint32_t fragment);
  // One run of the fragment, node by node, from its beginning.
  void begin_open(std::uint32_t a, double now);
  // All runs that are left as one event.
  void begin_closed(std::uint32_t a, double now);
  // Something now runs beside a closed run: its present run goes on node by node.
  void open(std::uint32_t a, double now);
  // After all that happens at `now`. Returns whether anything runs.
  bool settle(double now);
  void start_on(std::uint32_t lane, double now);
  double& end_of(std::uint32_t lane);
  void snapshot(double now);

  // ---- Records ----

  std::uint32_t record(std::uint32_t a, std::uint32_t lane, std::uint32_t what, std::uint32_t cause);
  // A closed run that is opened at its very beginning.
  void forget_last_record(std::uint32_t a);

  // ---- Folding ----

  // Actor `a` begins another repeat of its loop.
  void note_border(std::uint32_t a);
  // The state at `now` without the numbers of microbatches and without the time.
  std::vector<std::uint64_t> encode(double now) const;
  std::int32_t base_of(std::uint32_t a) const;
  // Compares the state with those at earlier borders and goes over what repeats. Returns the time then.
  double recur(double now);
  double repeat(const Border& earlier, const Border& border);
  // What is under way belongs to the last copy.
  void move_record(std::uint32_t id, double shift, std::int32_t microbatches);

  static constexpr std::size_t kBorders = 64, kUnreadOfAnActor = 64;
  static constexpr std::uint64_t kNoReference = ~std::uint64_t{0};

  ProgramQueue& queue_;
  const StepProgram& program_;
  ProgramFragments& fragments_;
  Options options_;
  StepHistory& history_;
  Grid grid_;
  std::vector<ActorState> actors_;
  EventHeap heap_;  // by lane
  FlowTable flows_;
  std::vector<std::deque<Arrival>> arrivals_;  // by channel
  std::vector<std::uint32_t> receiver_;        // by channel
  std::vector<std::uint32_t> meetings_;        // actors that have come
  std::vector<std::uint32_t> ready_, touched_, starting_;
  double latest_ = 0;
  std::uint64_t events_ = 0;
  ProgramFragments::Alone* measured_ = nullptr;
  bool border_ = false, border_done_ = false;
  std::uint64_t reference_ = kNoReference;
  std::vector<Border> borders_;

  friend class ProgramQueue;
};

}  // namespace ns_dist
