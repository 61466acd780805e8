#include "clocks/program_queue.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "clocks/event_heap.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;
constexpr std::uint32_t kFragmentStreams =
    5;  // compute, tensor, expert and context parallel, shared weights: the first
static_assert(static_cast<std::uint32_t>(Stream::kShardedWeights) + 1 == kFragmentStreams);

constexpr std::array<std::uint32_t, kFragmentStreams> nothing_on_streams() {
  std::array<std::uint32_t, kFragmentStreams> none{};
  none.fill(kNone);
  return none;
}

std::uint32_t lane_of(std::uint32_t actor, std::uint32_t stream) { return actor * kStreamCount + stream; }

}  // namespace

// Fragments as the engine runs them, and what they take alone.
class ProgramQueue::Fragments {
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
  struct Alone {
    bool known = false;
    double length = 0;
    std::vector<NodeSpan> spans;
    std::vector<Snapshot> snapshots;  // after what happened at each time
  };
  struct Row {
    std::vector<double> durations;  // by WorkId, on the grid
    std::vector<FlowDemand> demands;
    std::vector<Alone> alone;  // by FragmentId
  };

  Fragments(const StepProgram& program, const ProgramCosts& costs) {
    compiled_.reserve(program.fragments.size());
    for (const Fragment& fragment : program.fragments) compiled_.push_back(compile(fragment, program.works));
    rows_.resize(costs.rows.size());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const ProgramCosts::Row& from = costs.rows[r];
      Row& row = rows_[r];
      row.demands.reserve(from.forecasts.size());
      for (std::size_t w = 0; w < from.forecasts.size(); ++w) {
        row.demands.push_back(flow_demand(program.works[w], from.demands.empty() ? Demand{} : from.demands[w]));
      }
      shares_ = shares_ || !from.demands.empty();
    }
    set_grid(Grid{}, costs);
  }

  void set_grid(const Grid& grid, const ProgramCosts& costs) {
    grid_ = grid;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      rows_[r].durations.clear();
      for (const Forecast& forecast : costs.rows[r].forecasts) {
        rows_[r].durations.push_back(grid.snap(forecast.latency / units::s));
      }
      rows_[r].alone.assign(compiled_.size(), {});
    }
  }

  const Compiled& compiled(std::uint32_t fragment) const { return compiled_[fragment]; }
  Row& row(std::uint32_t r) { return rows_[r]; }
  const Grid& grid() const { return grid_; }
  bool shares() const { return shares_; }

 private:
  static Compiled compile(const Fragment& fragment, const std::vector<WorkItem>& works) {
    Compiled result;
    result.count = static_cast<std::uint32_t>(fragment.nodes.size());
    NS_EXPECTS(result.count < 10'000);
    result.nodes.resize(result.count + std::size_t{1});
    std::array<std::uint32_t, kFragmentStreams> last = nothing_on_streams();
    std::vector<std::uint32_t> successors_of(result.count + std::size_t{1}, 0);
    const auto for_each_edge = [&](auto visit) {
      for (std::uint32_t n = 0; n < result.count; ++n) {
        const FragmentNode& node = fragment.nodes[n];
        for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
          const std::int32_t on = fragment.dependencies[node.first_dependency + d];
          if (on < 0 || fragment.nodes[static_cast<std::size_t>(on)].stream == node.stream) continue;
          visit(static_cast<std::uint32_t>(on), n);
        }
      }
    };
    for (std::uint32_t n = 0; n < result.count; ++n) {
      Node& node = result.nodes[n];
      node.work = index(fragment.nodes[n].work);
      node.stream = static_cast<std::uint8_t>(fragment.nodes[n].stream);
      NS_EXPECTS(node.stream < kFragmentStreams);
      node.flow = !std::holds_alternative<Operator>(works[node.work].work);
      std::uint32_t& before = last[node.stream];
      (before == kNone ? result.first[node.stream] : result.nodes[before].next) = n;
      before = n;
    }
    for_each_edge([&](std::uint32_t from, std::uint32_t to) {
      ++successors_of[from];
      ++result.nodes[to].needed;
    });
    std::uint32_t edges = 0;
    for (std::uint32_t n = 0; n <= result.count; ++n) {
      result.nodes[n].first_successor = edges;
      edges += std::exchange(successors_of[n], edges);
    }
    result.successors.resize(edges);
    for_each_edge([&](std::uint32_t from, std::uint32_t to) { result.successors[successors_of[from]++] = to; });
    for (std::uint32_t n = 0; n < result.count; ++n) {
      Node& node = result.nodes[n];
      node.ends_piece = node.next == kNone || result.nodes[node.next].needed > 0 || node.flow ||
                        result.nodes[node.next].flow ||
                        node.first_successor != result.nodes[n + std::size_t{1}].first_successor;
    }
    return result;
  }

  std::vector<Compiled> compiled_;
  std::vector<Row> rows_;
  Grid grid_;
  bool shares_ = false;
};

class ProgramQueue::Engine {
 public:
  using State = Fragments::State;
  using Kind = Instruction::Kind;

  Engine(ProgramQueue& queue, std::size_t actors)
      : queue_(queue),
        program_(queue.program_),
        fragments_(*queue.fragments_),
        options_(queue.options_),
        history_(queue.history_),
        grid_(fragments_.grid()),
        actors_(actors),
        heap_(actors * kStreamCount) {
    flows_.reset(actors);
  }

  // The whole program. Returns the step, or nothing when it takes too many events.
  std::optional<double> run(const ProgramCosts& costs) {
    arrivals_.resize(program_.channels);
    meetings_.assign(program_.meetings.size(), 0);
    receiver_.assign(program_.channels, kNone);
    for (std::uint32_t a = 0; a < actors_.size(); ++a) {
      actors_[a].row = costs.row_of_actor[a];
      for (const ProgramLoop& loop : program_.actors[a].loops) {
        for (const BodyCall& call : loop.calls) {
          for (const Instruction& instruction : program_.bodies[index(call.body)]) {
            if (instruction.kind == Kind::kReceive) receiver_[instruction.channel] = a;
          }
        }
      }
      skip_empty(actors_[a], program_.actors[a]);
      ready_.push_back(a);
    }
    if (options_.record) history_.by_actor.resize(actors_.size());
    loop();
    if (events_ > options_.most_events) return std::nullopt;
    for (const ActorState& actor : actors_)
      NS_EXPECTS(actor.mode == Mode::kDone);  // otherwise they wait for each other
    return latest_;
  }

  // One fragment alone on a stage.
  void measure(std::uint32_t row, std::uint32_t fragment, Fragments::Alone& into) {
    measured_ = &into;
    into.spans.assign(fragments_.compiled(fragment).count, {});
    actors_[0].row = row;
    actors_[0].fragment = fragment;
    actors_[0].times_left = 1;
    begin_open(0, 0);
    if (settle(0)) loop();
    into.length = latest_;
    into.known = true;
    measured_ = nullptr;
  }

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

  Fragments::Row& row_of(std::uint32_t actor) { return fragments_.row(actors_[actor].row); }
  static Beside& beside_of(ActorState& actor, Stream stream) {
    return actor.beside[static_cast<std::size_t>(stream) - kFragmentStreams];
  }

  void loop() {
    double now = 0;
    if (!ready_.empty()) {
      advance_all(now);
      settle(now);
    }
    while (!heap_.empty() && events_ <= options_.most_events) {
      now = heap_.time();
      latest_ = std::max(latest_, now);
      for (; !heap_.empty() && heap_.time() == now; ++events_) complete(heap_.pop(), now);
      advance_all(now);
      settle(now);
      if (border_) now = recur(now);
    }
  }

  // ---- The program of an actor ----

  void advance_all(double now) {
    for (std::size_t i = 0; i < ready_.size(); ++i) advance(ready_[i], now);
    ready_.clear();
  }

  static void skip_empty(ActorState& actor, const Actor& program) {
    while (actor.loop < program.loops.size() &&
           (program.loops[actor.loop].repeats == 0 || program.loops[actor.loop].calls.empty())) {
      ++actor.loop;
    }
  }

  // To the next instruction.
  void step(std::uint32_t a) {
    ActorState& actor = actors_[a];
    const Actor& program = program_.actors[a];
    const ProgramLoop& loop = program.loops[actor.loop];
    ++actor.op;
    while (actor.op >= program_.bodies[index(loop.calls[actor.call].body)].size()) {
      actor.op = 0;
      if (++actor.call < loop.calls.size()) continue;
      actor.call = 0;
      if (++actor.repeat < loop.repeats) {
        note_border(a);
        continue;
      }
      actor.repeat = 0;
      ++actor.loop;
      skip_empty(actor, program);
      return;
    }
  }

  void advance(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    const Actor& program = program_.actors[a];
    if (actor.mode != Mode::kWaiting) return;
    while (actor.loop < program.loops.size()) {
      const ProgramLoop& loop = program.loops[actor.loop];
      const BodyCall& call = loop.calls[actor.call];
      const std::vector<Instruction>& body = program_.bodies[index(call.body)];
      if (actor.op >= body.size()) {  // an empty body at the beginning of a loop
        step(a);
        continue;
      }
      const Instruction& instruction = body[actor.op];
      const std::int32_t microbatch = microbatch_of(a);
      switch (instruction.kind) {
        case Kind::kRun:
          if (fragments_.compiled(instruction.index).count == 0 || instruction.times == 0) break;
          actor.mode = Mode::kStarting;
          actor.fragment = instruction.index;
          actor.times_left = instruction.times;
          touched_.push_back(a);
          return;
        case Kind::kStart:
        case Kind::kSend: {
          Beside& lane = beside_of(actor, instruction.stream);
          Item item{instruction.index, instruction.kind == Kind::kSend ? instruction.channel : kNone, microbatch,
                    kNoRecord};
          if (options_.record) {
            const bool behind = lane.last_record != kNoRecord && (lane.busy || lane.last_end >= actor.point_end);
            item.record = record(a, lane_of(a, static_cast<std::uint32_t>(instruction.stream)), item.work,
                                 behind ? lane.last_record : actor.point);
            lane.last_record = item.record;
          }
          ++lane.started;
          if (lane.busy) {
            lane.queue.push_back(item);
          } else {
            start_beside(a, instruction.stream, item, now);
          }
          break;
        }
        case Kind::kAwait: {
          const Beside& lane = beside_of(actor, instruction.stream);
          const std::int64_t count = instruction.times == 0 ? lane.started : instruction.times;
          if (lane.done < count) return;
          if (lane.last_end > actor.point_end && lane.done == count && lane.done > 0) {
            actor.point_end = lane.last_end;
            actor.point = lane.done_record;
          }
          break;
        }
        case Kind::kReceive: {
          std::deque<Arrival>& arrived = arrivals_[instruction.channel];
          const auto found = std::find_if(arrived.begin(), arrived.end(),
                                          [&](const Arrival& arrival) { return arrival.microbatch == microbatch; });
          if (found == arrived.end()) return;
          if (found->end > actor.point_end) {
            actor.point_end = found->end;
            actor.point = found->record;
          }
          arrived.erase(found);
          break;
        }
        case Kind::kMeet:
          if (!meet(a, instruction.index)) return;
          continue;  // meet() went on
      }
      step(a);
    }
    actor.mode = Mode::kDone;
  }

  bool meet(std::uint32_t a, std::uint32_t meeting) {
    if (!actors_[a].at_meeting) {
      actors_[a].at_meeting = true;
      ++meetings_[meeting];
    }
    if (meetings_[meeting] < program_.meetings[meeting]) return false;
    meetings_[meeting] = 0;
    std::uint32_t point = kNoRecord;
    double point_end = -1;
    std::vector<std::uint32_t> guests;
    for (std::uint32_t b = 0; b < actors_.size(); ++b) {
      const ActorState& actor = actors_[b];
      if (!actor.at_meeting || instruction_of(b).index != meeting) continue;
      guests.push_back(b);
      if (actor.point_end > point_end) {
        point_end = actor.point_end;
        point = actor.point;
      }
    }
    for (const std::uint32_t b : guests) {
      actors_[b].at_meeting = false;
      actors_[b].point = point;
      actors_[b].point_end = point_end;
      step(b);
      if (b != a) ready_.push_back(b);
    }
    return true;
  }

  const Instruction& instruction_of(std::uint32_t a) const {
    const ActorState& actor = actors_[a];
    return program_.bodies[index(program_.actors[a].loops[actor.loop].calls[actor.call].body)][actor.op];
  }

  // Of the instruction at which the actor is; -1: none.
  std::int32_t microbatch_of(std::uint32_t a) const {
    const ActorState& actor = actors_[a];
    const ProgramLoop& loop = program_.actors[a].loops[actor.loop];
    const BodyCall& call = loop.calls[actor.call];
    const std::int32_t first = instruction_of(a).second ? call.second : call.microbatch;
    return first < 0 ? -1 : first + static_cast<std::int32_t>(actor.repeat) * loop.shift;
  }

  // ---- Works beside fragments ----

  void start_beside(std::uint32_t a, Stream stream, const Item& item, double now) {
    Beside& lane = beside_of(actors_[a], stream);
    lane.running = item;
    lane.busy = lane.starting = true;
    const std::uint32_t id = lane_of(a, static_cast<std::uint32_t>(stream));
    if (item.record != kNoRecord) history_.records[item.record].start = now;
    const std::uint32_t to = item.channel == kNone ? a : receiver_[item.channel];
    flows_.add(id, a, to, &row_of(a).demands[item.work]);
    for (const std::uint32_t stage : {a, to}) {
      ++actors_[stage].beside_now;
      touched_.push_back(stage);
      if (to == a) break;
    }
    starting_.push_back(id);
  }

  void complete_beside(std::uint32_t a, Stream stream, double now) {
    ActorState& actor = actors_[a];
    Beside& lane = beside_of(actor, stream);
    const std::uint32_t id = lane_of(a, static_cast<std::uint32_t>(stream));
    const Item item = lane.running;
    const std::uint32_t to = item.channel == kNone ? a : receiver_[item.channel];
    flows_.remove(id);
    for (const std::uint32_t stage : {a, to}) {
      --actors_[stage].beside_now;
      touched_.push_back(stage);
      if (to == a) break;
    }
    ++lane.done;
    lane.busy = false;
    lane.last_end = now;
    if (item.record != kNoRecord) {
      history_.records[item.record].end = now;
      lane.done_record = item.record;
    }
    if (item.channel != kNone) {
      arrivals_[item.channel].push_back({item.microbatch, item.record, now});
      ready_.push_back(to);
    }
    ready_.push_back(a);
    if (!lane.queue.empty()) {
      const Item next = lane.queue.front();
      lane.queue.erase(lane.queue.begin());
      start_beside(a, stream, next, now);
    }
  }

  // ---- Runs of fragments ----

  void complete(std::uint32_t lane, double now) {
    const std::uint32_t a = lane / kStreamCount, stream = lane % kStreamCount;
    if (stream >= kFragmentStreams) return complete_beside(a, static_cast<Stream>(stream), now);
    if (actors_[a].mode == Mode::kClosed) return finish_run(a, now);
    complete_node(a, stream, now);
  }

  void finish_run(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    if (actor.record != kNoRecord) {
      history_.records[actor.record].end = now;
      actor.point = actor.record;
    }
    actor.point_end = now;
    actor.mode = Mode::kWaiting;
    if (measured_ != nullptr) {
      actor.mode = Mode::kDone;
      return;
    }
    step(a);
    ready_.push_back(a);
  }

  // The last of the runs under way has ended, and the next begins.
  void next_run(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    if (actor.times_left == 0) return finish_run(a, now);
    if (actor.record != kNoRecord) {
      history_.records[actor.record].end = now;
      actor.point = actor.record;
    }
    actor.point_end = now;
    actor.mode = Mode::kStarting;
    touched_.push_back(a);
  }

  void complete_node(std::uint32_t a, std::uint32_t stream, double now) {
    ActorState& actor = actors_[a];
    State& open = actor.open;
    const Fragments::Compiled& fragment = fragments_.compiled(actor.fragment);
    if (stream == 0) follow(a, now, flows_.kernels(a));
    const std::uint32_t node = open.running[stream];
    if (fragment.nodes[node].flow) flows_.remove(lane_of(a, stream));
    if (NodeSpan* span = span_of(actor, node)) span->end = now;
    open.running[stream] = kNone;
    open.next[stream] = fragment.nodes[node].next;
    ++open.completed;
    for (std::uint32_t s = fragment.nodes[node].first_successor;
         s < fragment.nodes[node + std::size_t{1}].first_successor; ++s) {
      const std::uint32_t successor = fragment.successors[s];
      if (--open.needed[successor] == 0) start_node_if_ready(a, successor, now);
    }
    if (open.next[stream] != kNone) start_node_if_ready(a, open.next[stream], now);
    if (open.completed == fragment.count) next_run(a, now);
  }

  double kernel_duration(std::uint32_t a, std::uint32_t work, const KernelRates& rates) {
    Fragments::Row& row = row_of(a);
    const double alone = row.durations[work], rate = rates.by[row.demands[work].feels];
    return rate == 1 ? alone : grid_.snap(alone / rate);
  }

  // Goes on to the kernel of the piece that runs at `now`. `rates` are those since the piece was last looked at.
  void follow(std::uint32_t a, double now, const KernelRates& rates) {
    ActorState& actor = actors_[a];
    State& open = actor.open;
    const std::vector<Fragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
    while (open.running[0] != open.last && open.kernel_end <= now) {
      if (NodeSpan* span = span_of(actor, open.running[0])) span->end = open.kernel_end;
      open.running[0] = nodes[open.running[0]].next;
      if (NodeSpan* span = span_of(actor, open.running[0])) span->start = open.kernel_end;
      ++open.completed;
      open.kernel_end += kernel_duration(a, nodes[open.running[0]].work, rates);
    }
  }

  // When the piece ends at the present rates, if its present kernel ends at kernel_end.
  void set_piece_end(std::uint32_t a) {
    State& open = actors_[a].open;
    const std::vector<Fragments::Node>& nodes = fragments_.compiled(actors_[a].fragment).nodes;
    double end = open.kernel_end;
    for (std::uint32_t node = open.running[0]; node != open.last;) {
      node = nodes[node].next;
      end += kernel_duration(a, nodes[node].work, flows_.kernels(a));
    }
    open.end[0] = end;
    heap_.set(lane_of(a, 0), end);
  }

  void start_node_if_ready(std::uint32_t a, std::uint32_t node, double now) {
    ActorState& actor = actors_[a];
    State& open = actor.open;
    const Fragments::Node& what = fragments_.compiled(actor.fragment).nodes[node];
    if (open.next[what.stream] != node || open.running[what.stream] != kNone || open.needed[node] != 0) return;
    open.next[what.stream] = kNone;
    open.running[what.stream] = node;
    if (NodeSpan* span = span_of(actor, node)) span->start = now;
    if (what.flow) flows_.add(lane_of(a, what.stream), a, a, &row_of(a).demands[what.work]);
    if (what.stream == 0) {
      open.last = node;
      const std::vector<Fragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
      while (!nodes[open.last].ends_piece) open.last = nodes[open.last].next;
    }
    actor.starting[what.stream] = true;
    starting_.push_back(lane_of(a, what.stream));
  }

  NodeSpan* span_of(const ActorState& actor, std::uint32_t node) {
    if (measured_ != nullptr) return &measured_->spans[node];
    if (actor.record == kNoRecord) return nullptr;
    return &history_.spans[history_.records[actor.record].spans + node];
  }

  const Fragments::Alone& alone(std::uint32_t row, std::uint32_t fragment);

  // One run of the fragment, node by node, from its beginning.
  void begin_open(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    const Fragments::Compiled& fragment = fragments_.compiled(actor.fragment);
    actor.mode = Mode::kOpen;
    actor.start = now;
    --actor.times_left;
    if (options_.record && measured_ == nullptr) {
      actor.record = record(a, lane_of(a, 0), actor.fragment, actor.point);
      history_.records[actor.record].start = now;
      history_.records[actor.record].spans = static_cast<std::uint32_t>(history_.spans.size());
      history_.spans.resize(history_.spans.size() + fragment.count);
    }
    State& open = actor.open;
    open.completed = 0;
    open.next = fragment.first;
    open.running.fill(kNone);
    open.needed.resize(fragment.count);
    for (std::uint32_t n = 0; n < fragment.count; ++n) open.needed[n] = fragment.nodes[n].needed;
    for (const std::uint32_t first : fragment.first) {
      if (first != kNone) start_node_if_ready(a, first, now);
    }
  }

  // All runs that are left as one event.
  void begin_closed(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    const double length = alone(actor.row, actor.fragment).length;
    actor.mode = Mode::kClosed;
    actor.start = now;
    if (options_.record) {
      actor.record = record(a, lane_of(a, 0), actor.fragment, actor.point);
      history_.records[actor.record].start = now;
      history_.records[actor.record].times = actor.times_left;
    }
    heap_.set(lane_of(a, 0), now + actor.times_left * length);
  }

  // Something now runs beside a closed run: its present run goes on node by node.
  void open(std::uint32_t a, double now) {
    ActorState& actor = actors_[a];
    const Fragments::Alone& known = alone(actor.row, actor.fragment);
    const double since = now - actor.start;
    auto done = static_cast<std::int32_t>(since / known.length);
    while (done * known.length > since) --done;
    while ((done + 1) * known.length <= since) ++done;
    const double start = actor.start + done * known.length;
    heap_.erase(lane_of(a, 0));
    actor.times_left -= done;
    NS_EXPECTS(actor.times_left > 0);
    if (options_.record && done > 0) {
      history_.records[actor.record].times = done;
      history_.records[actor.record].end = start;
      actor.point = actor.record;
      actor.point_end = start;
    }
    if (start == now) {
      if (options_.record && done == 0) forget_last_record(a);
      return begin_open(a, now);
    }
    // What happens at this very time has not happened yet in the state that is restored.
    const auto later =
        std::lower_bound(known.snapshots.begin(), known.snapshots.end(), now - start,
                         [](const Fragments::Snapshot& snapshot, double time) { return snapshot.time < time; });
    const Fragments::Snapshot& snapshot = *(later - 1);
    if (options_.record) {
      if (done > 0) {
        actor.record = record(a, lane_of(a, 0), actor.fragment, actor.point);
        history_.records[actor.record].start = start;
      }
      history_.records[actor.record].times = 1;
      history_.records[actor.record].spans = static_cast<std::uint32_t>(history_.spans.size());
      for (const NodeSpan& span : known.spans) history_.spans.push_back({start + span.start, start + span.end});
    }
    --actor.times_left;
    actor.mode = Mode::kOpen;
    actor.start = start;
    actor.open = snapshot.state;
    actor.open.kernel_end += start;
    flows_.restore(a, snapshot.state.kernels);
    const Fragments::Compiled& fragment = fragments_.compiled(actor.fragment);
    std::array<bool, kFragmentStreams> due{};
    for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
      const std::uint32_t node = actor.open.running[stream];
      if (node == kNone) continue;
      actor.open.end[stream] += start;
      const FlowDemand& demand = row_of(a).demands[fragment.nodes[node].work];
      if (fragment.nodes[node].flow) {
        flows_.add(lane_of(a, stream), a, a, &demand);
        flows_.restore(lane_of(a, stream), snapshot.state.rate[stream]);
      }
      due[stream] = actor.open.end[stream] == now;
      if (!due[stream]) heap_.set(lane_of(a, stream), actor.open.end[stream]);
    }
    for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
      if (due[stream]) complete_node(a, stream, now);
    }
  }

  // After all that happens at `now`. Returns whether anything runs.
  bool settle(double now) {
    if (measured_ == nullptr) {
      for (std::size_t i = 0; i < touched_.size(); ++i) {
        const std::uint32_t a = touched_[i];
        ActorState& actor = actors_[a];
        const bool shared = !options_.close || (fragments_.shares() && actor.beside_now > 0);
        if (actor.mode == Mode::kStarting) {
          shared ? begin_open(a, now) : begin_closed(a, now);
        } else if (actor.mode == Mode::kClosed && shared) {
          open(a, now);
        }
      }
      touched_.clear();
    }
    const auto rescaled = [&](double end, double before, double after) {
      return now + grid_.snap(grid_.snap(std::max(0.0, end - now) * before) / after);
    };
    flows_.settle(
        [&](std::uint32_t lane, double before) {
          double& end = end_of(lane);
          end = rescaled(end, before, flows_.rate(lane));
          heap_.set(lane, end);
        },
        [&](std::uint32_t stage, const KernelRates& before) {
          ActorState& actor = actors_[stage];
          State& open = actor.open;
          if (actor.mode != Mode::kOpen || open.running[0] == kNone || actor.starting[0]) return;
          follow(stage, now, before);
          const std::uint32_t work = fragments_.compiled(actor.fragment).nodes[open.running[0]].work;
          const Feels feels = row_of(stage).demands[work].feels;
          const double rate = flows_.kernels(stage).by[feels];
          if (rate != before.by[feels]) open.kernel_end = rescaled(open.kernel_end, before.by[feels], rate);
          set_piece_end(stage);
        });
    for (const std::uint32_t lane : starting_) start_on(lane, now);
    starting_.clear();
    if (measured_ != nullptr) snapshot(now);
    return !heap_.empty();
  }

  void start_on(std::uint32_t lane, double now) {
    const std::uint32_t a = lane / kStreamCount, stream = lane % kStreamCount;
    ActorState& actor = actors_[a];
    std::uint32_t work = 0;
    if (stream < kFragmentStreams) {
      actor.starting[stream] = false;
      work = fragments_.compiled(actor.fragment).nodes[actor.open.running[stream]].work;
    } else {
      Beside& beside = beside_of(actor, static_cast<Stream>(stream));
      beside.starting = false;
      work = beside.running.work;
    }
    if (stream == 0) {
      actor.open.kernel_end = now + kernel_duration(a, work, flows_.kernels(a));
      return set_piece_end(a);
    }
    const double alone = row_of(a).durations[work], rate = flows_.rate(lane);
    double& end = end_of(lane);
    end = now + (rate == 1 ? alone : grid_.snap(alone / rate));
    heap_.set(lane, end);
  }

  double& end_of(std::uint32_t lane) {
    const std::uint32_t stream = lane % kStreamCount;
    ActorState& actor = actors_[lane / kStreamCount];
    return stream < kFragmentStreams ? actor.open.end[stream] : beside_of(actor, static_cast<Stream>(stream)).end;
  }

  void snapshot(double now) {
    if (!measured_->snapshots.empty() && measured_->snapshots.back().time == now) measured_->snapshots.pop_back();
    Fragments::Snapshot& taken = measured_->snapshots.emplace_back();
    taken.time = now;
    taken.state = actors_[0].open;
    taken.state.kernels = flows_.kernels(0);
    for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) taken.state.rate[stream] = flows_.rate(stream);
  }

  // ---- Records ----

  std::uint32_t record(std::uint32_t a, std::uint32_t lane, std::uint32_t what, std::uint32_t cause) {
    const auto id = static_cast<std::uint32_t>(history_.records.size());
    StepRecord& made = history_.records.emplace_back();
    made.actor = a;
    made.lane = lane;
    made.what = what;
    made.cause = cause;
    made.sequence = static_cast<std::uint32_t>(history_.by_actor[a].size());
    made.frame = static_cast<std::uint32_t>(history_.periods.size());
    made.microbatch = microbatch_of(a);
    history_.by_actor[a].push_back(id);
    return id;
  }

  // A closed run that is opened at its very beginning.
  void forget_last_record(std::uint32_t a) {
    StepRecord& forgotten = history_.records[actors_[a].record];
    forgotten.times = 0;
    forgotten.end = forgotten.start;
    actors_[a].point = actors_[a].record;
  }

  // ---- Folding ----

  // Actor `a` begins another repeat of its loop.
  void note_border(std::uint32_t a) {
    if (!options_.fold || measured_ != nullptr) return;
    const std::uint64_t place = (std::uint64_t{a} << 32) | actors_[a].loop;
    const std::int64_t left = program_.actors[a].loops[actors_[a].loop].repeats - actors_[a].repeat;
    if (place != reference_) {
      // One actor's loop at a time is watched: the one with the most repeats left.
      if (reference_ != kNoReference) {
        const auto watched = static_cast<std::uint32_t>(reference_ >> 32);
        const auto loop = static_cast<std::uint32_t>(reference_);
        if (actors_[watched].mode != Mode::kDone && actors_[watched].loop == loop &&
            program_.actors[watched].loops[loop].repeats - actors_[watched].repeat >= left) {
          return;
        }
      }
      reference_ = place;
      borders_.clear();
    }
    if (left < 3) return;
    border_ = true;
  }

  // The state at `now` without the numbers of microbatches and without the time.
  std::vector<std::uint64_t> encode(double now) const {
    std::vector<std::uint64_t> state;
    state.reserve(actors_.size() * 12);
    const auto put = [&](std::uint64_t a, std::uint64_t b) { state.push_back((a << 32) | (b & 0xffffffffu)); };
    const auto put_time = [&](double time) { state.push_back(std::bit_cast<std::uint64_t>(time - now)); };
    for (std::uint32_t a = 0; a < actors_.size(); ++a) {
      const ActorState& actor = actors_[a];
      const std::int32_t base = base_of(a);
      put(actor.loop, actor.call);
      put(actor.op, (static_cast<std::uint64_t>(actor.mode) << 1) | (actor.at_meeting ? 1u : 0u));
      put(actor.fragment, static_cast<std::uint32_t>(actor.times_left));
      if (actor.mode == Mode::kClosed) put_time(actor.start);
      if (actor.mode == Mode::kOpen) {
        for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
          put(actor.open.next[stream], actor.open.running[stream]);
          if (actor.open.running[stream] == kNone) continue;
          put_time(actor.open.end[stream]);
          if (stream == 0) put_time(actor.open.kernel_end);
        }
      }
      for (const Beside& lane : actor.beside) {
        put(static_cast<std::uint32_t>(lane.started - lane.done), lane.busy ? lane.running.work : kNone);
        if (!lane.busy) continue;
        put(lane.running.channel, static_cast<std::uint32_t>(lane.running.microbatch - base));
        put_time(lane.end);
        for (const Item& item : lane.queue) {
          put(item.work, item.channel);
          state.push_back(static_cast<std::uint32_t>(item.microbatch - base));
        }
      }
    }
    for (std::uint32_t channel = 0; channel < arrivals_.size(); ++channel) {
      for (const Arrival& arrival : arrivals_[channel]) {
        put(channel, static_cast<std::uint32_t>(arrival.microbatch - base_of(receiver_[channel])));
      }
    }
    return state;
  }

  std::int32_t base_of(std::uint32_t a) const {
    const ActorState& actor = actors_[a];
    if (actor.loop >= program_.actors[a].loops.size()) return 0;
    return static_cast<std::int32_t>(actor.repeat) * program_.actors[a].loops[actor.loop].shift;
  }

  // Compares the state with those at earlier borders and goes over what repeats. Returns the time then.
  double recur(double now) {
    border_ = false;
    // A stage that runs ahead of the next one piles up messages: such a state does not recur.
    std::size_t unread = 0;
    for (const auto& arrived : arrivals_) unread += arrived.size();
    if (unread > kUnreadOfAnActor * actors_.size()) return now;
    for (std::uint32_t a = 0; a < actors_.size(); ++a) {
      if (actors_[a].mode == Mode::kOpen && actors_[a].open.running[0] != kNone) follow(a, now, flows_.kernels(a));
    }
    Border border;
    border.state = encode(now);
    border.hash = 1469598103934665603u;
    for (const std::uint64_t word : border.state) border.hash = (border.hash ^ word) * 1099511628211u;
    border.time = now;
    border.records = static_cast<std::uint32_t>(history_.records.size());
    border.repeats.reserve(actors_.size());
    for (const ActorState& actor : actors_) border.repeats.push_back(actor.repeat);
    if (options_.record) {
      for (const auto& records : history_.by_actor) {
        border.records_of_actor.push_back(static_cast<std::uint32_t>(records.size()));
      }
      for (const ActorState& actor : actors_) {
        border.under_way.push_back(actor.mode == Mode::kClosed || actor.mode == Mode::kOpen ? actor.record : kNoRecord);
        for (const Beside& lane : actor.beside) {
          if (lane.busy) border.under_way.push_back(lane.running.record);
          for (const Item& item : lane.queue) border.under_way.push_back(item.record);
        }
      }
    }
    for (auto earlier = borders_.rbegin(); earlier != borders_.rend(); ++earlier) {
      if (earlier->hash != border.hash || earlier->state != border.state) continue;
      now = repeat(*earlier, border);
      break;
    }
    if (borders_.size() >= kBorders) borders_.erase(borders_.begin());
    if (!border_done_) borders_.push_back(std::move(border));
    border_done_ = false;
    return now;
  }

  double repeat(const Border& earlier, const Border& border) {
    const double now = border.time, length = now - earlier.time;
    std::int64_t copies = std::numeric_limits<std::int64_t>::max(), microbatches = 0;
    for (std::uint32_t a = 0; a < actors_.size(); ++a) {
      const std::int64_t went = border.repeats[a] - earlier.repeats[a];
      if (went == 0) continue;
      const ProgramLoop& loop = program_.actors[a].loops[actors_[a].loop];
      const std::int64_t shifted = went * loop.shift;
      if (microbatches != 0 && shifted != microbatches) return now;
      microbatches = shifted;
      copies = std::min(copies, (loop.repeats - 1 - actors_[a].repeat) / went);
    }
    if (microbatches == 0 || copies < 1) return now;
    const double shift = static_cast<double>(copies) * length;
    const auto offset = static_cast<std::int32_t>(copies * microbatches);
    std::vector<bool> moved(actors_.size());
    for (std::uint32_t a = 0; a < actors_.size(); ++a) {
      const std::int64_t went = border.repeats[a] - earlier.repeats[a];
      ActorState& actor = actors_[a];
      moved[a] = went != 0;
      actor.repeat += copies * went;
      actor.start += shift;
      actor.point_end += shift;
      for (double& end : actor.open.end) end += shift;
      actor.open.kernel_end += shift;
      move_record(actor.mode == Mode::kClosed || actor.mode == Mode::kOpen ? actor.record : kNoRecord, shift,
                  moved[a] ? offset : 0);
      for (Beside& lane : actor.beside) {
        lane.last_end += shift;
        lane.end += shift;
        if (lane.busy) {
          move_record(lane.running.record, shift, moved[a] ? offset : 0);
          if (moved[a]) lane.running.microbatch += offset;
        }
        for (Item& item : lane.queue) {
          if (item.record != kNoRecord) ++history_.records[item.record].frame;
          if (moved[a]) item.microbatch += offset;
        }
      }
    }
    for (std::uint32_t channel = 0; channel < arrivals_.size(); ++channel) {
      for (Arrival& arrival : arrivals_[channel]) {
        arrival.end += shift;
        if (moved[receiver_[channel]]) arrival.microbatch += offset;
      }
    }
    heap_.shift(shift);
    FoldedPeriod period;
    period.first = earlier.records;
    period.end = border.records;
    period.copies = copies;
    period.microbatches = microbatches < 0 ? -microbatches : microbatches;
    period.at = now;
    period.length = length;
    if (options_.record) {
      for (std::size_t a = 0; a < actors_.size(); ++a) {
        period.records_of_actor.push_back(border.records_of_actor[a] - earlier.records_of_actor[a]);
      }
      period.under_way = earlier.under_way;
      period.under_way_after = border.under_way;
    }
    history_.periods.push_back(std::move(period));
    borders_.clear();
    border_done_ = true;
    latest_ = std::max(latest_, now + shift);
    return now + shift;
  }

  // What is under way belongs to the last copy.
  void move_record(std::uint32_t id, double shift, std::int32_t microbatches) {
    if (id == kNoRecord) return;
    StepRecord& moved = history_.records[id];
    moved.start += shift;
    if (moved.microbatch >= 0) moved.microbatch += microbatches;
    ++moved.frame;
    if (moved.lane % kStreamCount != 0 || moved.spans == kNoRecord) return;
    for (std::uint32_t n = 0; n < fragments_.compiled(moved.what).count; ++n) {
      history_.spans[moved.spans + n].start += shift;
      history_.spans[moved.spans + n].end += shift;
    }
  }

  static constexpr std::size_t kBorders = 64, kUnreadOfAnActor = 64;
  static constexpr std::uint64_t kNoReference = ~std::uint64_t{0};

  ProgramQueue& queue_;
  const StepProgram& program_;
  Fragments& fragments_;
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
  Fragments::Alone* measured_ = nullptr;
  bool border_ = false, border_done_ = false;
  std::uint64_t reference_ = kNoReference;
  std::vector<Border> borders_;

  friend class ProgramQueue;
};

const ProgramQueue::Fragments::Alone& ProgramQueue::Engine::alone(std::uint32_t row, std::uint32_t fragment) {
  Fragments::Alone& known = fragments_.row(row).alone[fragment];
  if (!known.known) {
    Engine engine(queue_, 1);
    engine.measure(row, fragment, known);
  }
  return known;
}

ProgramQueue::ProgramQueue(const StepProgram& program, const ProgramCosts& costs, Options options)
    : program_(program), costs_(costs), options_(options), fragments_(std::make_unique<Fragments>(program, costs)) {}

ProgramQueue::~ProgramQueue() = default;

std::optional<double> ProgramQueue::run() {
  for (;;) {
    history_ = {};
    Engine engine(*this, program_.actors.size());
    const std::optional<double> step = engine.run(costs_);
    if (!step || *step <= fragments_->grid().limit()) return step;
    fragments_->set_grid(Grid::covering(2 * *step), costs_);
  }
}

const StepHistory& ProgramQueue::history() const { return history_; }

const std::vector<NodeSpan>& ProgramQueue::alone(std::uint32_t actor, FragmentId fragment) {
  const std::uint32_t row = costs_.row_of_actor[actor];
  const Fragments::Alone& known = fragments_->row(row).alone[index(fragment)];
  if (!known.known) Engine(*this, 1).alone(row, index(fragment));
  return known.spans;
}

}  // namespace ns_dist
