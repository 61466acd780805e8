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
  using Measured = ProgramFragments::Measured;
  using Streams = std::array<std::uint32_t, kFragmentStreams>;
  using Kind = Instruction::Kind;

  Engine(ProgramQueue& queue, std::size_t actors);
  // The whole program. Returns the step, or nothing when it takes too many events.
  std::optional<double> run(const ProgramCosts& costs);
  // One fragment beside into.company on a stage.
  void measure(std::uint32_t row, std::uint32_t fragment, Measured& into);
  // The fragment beside `company`; nothing where too much was asked for.
  const Measured* measured(std::uint32_t row, std::uint32_t fragment, const Company& company);

 private:
  // kClosed: runs of a fragment are one event; kRest: what is left of one run is; kOpen: each node is.
  enum class Mode : std::uint8_t { kWaiting, kStarting, kClosed, kRest, kOpen, kDone };
  struct Item {
    std::uint32_t work = 0, channel = kNone;
    std::int32_t microbatch = -1;
    std::uint32_t record = kNoRecord;
  };
  // A stream of works that run beside fragments.
  struct Beside {
    std::deque<Item> queue;  // behind what runs
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
    double start = 0;             // of a closed run, or of the open one; of a rest, as if the run were the measured one
    std::uint64_t begun_in = 0;   // the settle
    const Measured* measured = nullptr;          // what a closed run or a rest does
    std::uint32_t snapshot = 0, kernel = kNone;  // where that began: in the measured run, and what ran on stream 0
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
  static bool is_one_event(Mode mode) { return mode == Mode::kClosed || mode == Mode::kRest; }
  static bool runs(Mode mode) { return is_one_event(mode) || mode == Mode::kOpen; }
  // What runs beside the fragments of the stage, where it leaves all but their kernels as they are.
  std::optional<Company> company(std::uint32_t a) const;
  // `beside`: company(a).
  void begin(std::uint32_t a, const std::optional<Company>& beside, double now);
  // One run of the fragment, node by node, from its beginning.
  void begin_open(std::uint32_t a, double now);
  // All runs (kClosed) or what is left of one (kRest) as one event: `known` from `snapshot` on, as if that had begun at
  // `start`.
  void run_as(Mode mode, std::uint32_t a, const Measured& known, std::uint32_t snapshot, std::uint32_t kernel,
              double start);
  // Spans of the nodes of a rest. `first`: by stream.
  void record_rest(std::uint32_t a, const Measured& known, const Streams& first);
  // The measured run beside this company, if it was in this state when its only running node began.
  const Measured* measured_from(std::uint32_t a, const State& state, const std::optional<Company>& beside);
  // The open run of the lane goes on as a rest, if all that runs of it has just begun, on this lane.
  void rest_if_measured(std::uint32_t lane, double now);
  // All runs that are left as one event.
  void begin_closed(std::uint32_t a, double now);
  // Something else now runs beside a closed run or a rest.
  void change_company(std::uint32_t a, const std::optional<Company>& beside, double now);
  // The run goes on node by node, from the state `at` of what was measured.
  void open(std::uint32_t a, std::uint32_t at, double now);
  // Of a closed run: goes over the runs that are done. Returns whether the present one has begun before `now`.
  bool open_closed(std::uint32_t a, double now);
  // Runs on the stages where something began or ended.
  void follow_touched(double now);
  // When that ends at the rate `after` which would have ended at `end` at the rate `before`.
  double rescaled(double end, double now, double before, double after) const;
  // After all that happens at `now`. Returns whether anything runs.
  bool settle(double now);
  void start_on(std::uint32_t lane, double now);
  double& end_of(std::uint32_t lane);
  void snapshot(double now);

  // ---- Records ----

  std::uint32_t record(std::uint32_t a, std::uint32_t lane, std::uint32_t what, std::uint32_t cause);
  // Of a run, with spans of its nodes.
  void record_run(std::uint32_t a, double now);
  // Of the nodes of the run under way.
  void add_spans(std::uint32_t a);
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

  static constexpr std::size_t kBorders = 64, kUnreadOfAnActor = 64, kStatesAhead = 64;
  static constexpr std::size_t kMostMeasured = 16;  // of a fragment: each has a state for every node
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
  std::size_t unread_ = 0;                  // messages in arrivals_
  std::uint64_t events_ = 0, encoded_ = 0;  // encoded_: actors and channels in all states that were compared
  Measured* measured_ = nullptr;
  std::uint64_t settles_ = 0;
  bool was_calm_ = true;  // at the last of them, or when this one began
  bool border_ = false, border_done_ = false;
  std::uint64_t reference_ = kNoReference;
  std::vector<Border> borders_;

  friend class ProgramQueue;
};

}  // namespace ns_dist
