#include "clocks/program_engine.h"

#include <algorithm>
#include <optional>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

std::uint32_t lane_of(std::uint32_t actor, std::uint32_t stream) { return actor * kStreamCount + stream; }

// The node that runs, where it is the only one.
std::uint32_t only_running(const ProgramFragments::State& state) {
  std::uint32_t only = kNone;
  for (const std::uint32_t node : state.running) {
    if (node == kNone) continue;
    if (only != kNone) return kNone;
    only = node;
  }
  return only;
}

}  // namespace

ProgramQueue::Engine::Engine(ProgramQueue& queue, std::size_t actors)
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

std::optional<double> ProgramQueue::Engine::run(const ProgramCosts& costs) {
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
  for (const ActorState& actor : actors_) NS_EXPECTS(actor.mode == Mode::kDone);  // otherwise they wait for each other
  return latest_;
}

void ProgramQueue::Engine::measure(std::uint32_t row, std::uint32_t fragment, Measured& into) {
  measured_ = &into;
  into.spans.assign(fragments_.compiled(fragment).count, {});
  into.starts.assign(fragments_.compiled(fragment).count, kNone);
  flows_.add_company(0, into.company);
  actors_[0].row = row;
  actors_[0].fragment = fragment;
  actors_[0].times_left = 1;
  begin_open(0, 0);
  if (settle(0)) loop();
  into.length = latest_;
  measured_ = nullptr;
}

void ProgramQueue::Engine::loop() {
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

void ProgramQueue::Engine::advance_all(double now) {
  for (std::size_t i = 0; i < ready_.size(); ++i) advance(ready_[i], now);
  ready_.clear();
}

void ProgramQueue::Engine::skip_empty(ActorState& actor, const Actor& program) {
  while (actor.loop < program.loops.size() &&
         (program.loops[actor.loop].repeats == 0 || program.loops[actor.loop].calls.empty())) {
    ++actor.loop;
  }
}

void ProgramQueue::Engine::step(std::uint32_t a) {
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

void ProgramQueue::Engine::advance(std::uint32_t a, double now) {
  ActorState& actor = actors_[a];
  const Actor& program = program_.actors[a];
  if (actor.mode != Mode::kWaiting) return;
  while (actor.loop < program.loops.size()) {
    const ProgramLoop& loop = program.loops[actor.loop];
    const BodyCall& call = loop.calls[actor.call];
    const std::span<const Instruction> body = program_.bodies[index(call.body)];
    if (actor.op >= body.size()) {  // an empty body at the beginning of a loop
      step(a);
      continue;
    }
    const Instruction& instruction = body[actor.op];
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
        Item item{instruction.index, instruction.kind == Kind::kSend ? instruction.channel : kNone, microbatch_of(a),
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
        if (arrived.empty()) return;
        const std::int32_t microbatch = microbatch_of(a);
        const auto found = std::find_if(arrived.begin(), arrived.end(),
                                        [&](const Arrival& arrival) { return arrival.microbatch == microbatch; });
        if (found == arrived.end()) return;
        if (found->end > actor.point_end) {
          actor.point_end = found->end;
          actor.point = found->record;
        }
        arrived.erase(found);
        --unread_;
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

bool ProgramQueue::Engine::meet(std::uint32_t a, std::uint32_t meeting) {
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

const Instruction& ProgramQueue::Engine::instruction_of(std::uint32_t a) const {
  const ActorState& actor = actors_[a];
  return program_.bodies[index(program_.actors[a].loops[actor.loop].calls[actor.call].body)][actor.op];
}

std::int32_t ProgramQueue::Engine::microbatch_of(std::uint32_t a) const {
  const ActorState& actor = actors_[a];
  const ProgramLoop& loop = program_.actors[a].loops[actor.loop];
  const BodyCall& call = loop.calls[actor.call];
  const std::int32_t first = instruction_of(a).second ? call.second : call.microbatch;
  return first < 0 ? -1 : first + static_cast<std::int32_t>(actor.repeat) * loop.shift;
}

void ProgramQueue::Engine::start_beside(std::uint32_t a, Stream stream, const Item& item, double now) {
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

void ProgramQueue::Engine::complete_beside(std::uint32_t a, Stream stream, double now) {
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
    ++unread_;
    ready_.push_back(to);
  }
  ready_.push_back(a);
  if (!lane.queue.empty()) {
    const Item next = lane.queue.front();
    lane.queue.pop_front();
    start_beside(a, stream, next, now);
  }
}

void ProgramQueue::Engine::complete(std::uint32_t lane, double now) {
  const std::uint32_t a = lane / kStreamCount, stream = lane % kStreamCount;
  if (stream >= kFragmentStreams) return complete_beside(a, static_cast<Stream>(stream), now);
  if (actors_[a].mode == Mode::kClosed) return finish_run(a, now);
  if (actors_[a].mode == Mode::kRest) return next_run(a, now);
  complete_node(a, stream, now);
}

void ProgramQueue::Engine::finish_run(std::uint32_t a, double now) {
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

void ProgramQueue::Engine::next_run(std::uint32_t a, double now) {
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

void ProgramQueue::Engine::complete_node(std::uint32_t a, std::uint32_t stream, double now) {
  ActorState& actor = actors_[a];
  State& open = actor.open;
  const ProgramFragments::Compiled& fragment = fragments_.compiled(actor.fragment);
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

double ProgramQueue::Engine::kernel_duration(std::uint32_t a, std::uint32_t work, const KernelRates& rates) {
  ProgramFragments::Row& row = row_of(a);
  const double alone = row.durations[work], rate = rates.by[row.demands[work].feels];
  return rate == 1 ? alone : grid_.snap(alone / rate);
}

void ProgramQueue::Engine::follow(std::uint32_t a, double now, const KernelRates& rates) {
  ActorState& actor = actors_[a];
  State& open = actor.open;
  const std::vector<ProgramFragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
  while (open.running[0] != open.last && open.kernel_end <= now) {
    if (NodeSpan* span = span_of(actor, open.running[0])) span->end = open.kernel_end;
    open.running[0] = nodes[open.running[0]].next;
    if (NodeSpan* span = span_of(actor, open.running[0])) span->start = open.kernel_end;
    ++open.completed;
    open.kernel_end += kernel_duration(a, nodes[open.running[0]].work, rates);
  }
}

void ProgramQueue::Engine::set_piece_end(std::uint32_t a) {
  State& open = actors_[a].open;
  const std::vector<ProgramFragments::Node>& nodes = fragments_.compiled(actors_[a].fragment).nodes;
  double end = open.kernel_end;
  for (std::uint32_t node = open.running[0]; node != open.last;) {
    node = nodes[node].next;
    end += kernel_duration(a, nodes[node].work, flows_.kernels(a));
  }
  open.end[0] = end;
  heap_.set(lane_of(a, 0), end);
}

void ProgramQueue::Engine::start_node_if_ready(std::uint32_t a, std::uint32_t node, double now) {
  ActorState& actor = actors_[a];
  State& open = actor.open;
  const ProgramFragments::Node& what = fragments_.compiled(actor.fragment).nodes[node];
  if (open.next[what.stream] != node || open.running[what.stream] != kNone || open.needed[node] != 0) return;
  open.next[what.stream] = kNone;
  open.running[what.stream] = node;
  if (NodeSpan* span = span_of(actor, node)) span->start = now;
  if (what.flow) flows_.add(lane_of(a, what.stream), a, a, &row_of(a).demands[what.work]);
  if (what.stream == 0) {
    open.last = node;
    const std::vector<ProgramFragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
    while (!nodes[open.last].ends_piece) open.last = nodes[open.last].next;
  }
  actor.starting[what.stream] = true;
  starting_.push_back(lane_of(a, what.stream));
}

NodeSpan* ProgramQueue::Engine::span_of(const ActorState& actor, std::uint32_t node) {
  if (measured_ != nullptr) return &measured_->spans[node];
  if (actor.record == kNoRecord) return nullptr;
  return history_.spans.at(history_.records[actor.record].spans) + node;
}

std::optional<Company> ProgramQueue::Engine::company(std::uint32_t a) const {
  if (!options_.close || measured_ != nullptr) return std::nullopt;
  const ActorState& actor = actors_[a];
  if (actor.beside_now == 0 || !fragments_.shares()) return Company{};
  const ProgramFragments::Runs& runs = fragments_.row(actor.row).runs[actor.fragment];
  if (runs.crowded || !flows_.calm()) return std::nullopt;
  return flows_.company(a, kFragmentStreams, runs.ports);
}

void ProgramQueue::Engine::begin(std::uint32_t a, const std::optional<Company>& beside, double now) {
  ActorState& actor = actors_[a];
  actor.begun_in = settles_;
  if (beside == Company{}) return begin_closed(a, now);
  const Measured* known = beside ? measured(actor.row, actor.fragment, *beside) : nullptr;
  if (known == nullptr) return begin_open(a, now);
  --actor.times_left;
  record_run(a, now);
  run_as(Mode::kRest, a, *known, 0, known->snapshots.front().state.running[0], now);
  record_rest(a, *known, fragments_.compiled(actor.fragment).first);
}

void ProgramQueue::Engine::begin_open(std::uint32_t a, double now) {
  ActorState& actor = actors_[a];
  const ProgramFragments::Compiled& fragment = fragments_.compiled(actor.fragment);
  actor.mode = Mode::kOpen;
  actor.start = now;
  --actor.times_left;
  record_run(a, now);
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

void ProgramQueue::Engine::begin_closed(std::uint32_t a, double now) {
  ActorState& actor = actors_[a];
  const Measured& known = *measured(actor.row, actor.fragment, {});
  run_as(Mode::kClosed, a, known, 0, known.snapshots.front().state.running[0], now);
  if (!options_.record) return;
  actor.record = record(a, lane_of(a, 0), actor.fragment, actor.point);
  history_.records[actor.record].start = now;
  history_.records[actor.record].times = actor.times_left;
}

void ProgramQueue::Engine::run_as(Mode mode, std::uint32_t a, const Measured& known, std::uint32_t snapshot,
                                  std::uint32_t kernel, double start) {
  ActorState& actor = actors_[a];
  actor.mode = mode;
  actor.measured = &known;
  actor.start = start;
  actor.snapshot = snapshot;
  actor.kernel = kernel;
  heap_.set(lane_of(a, 0), start + (mode == Mode::kClosed ? actor.times_left : 1) * known.length);
}

void ProgramQueue::Engine::record_rest(std::uint32_t a, const Measured& known, const Streams& first) {
  const ActorState& actor = actors_[a];
  if (actor.record == kNoRecord) return;
  const std::vector<ProgramFragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
  for (std::uint32_t node : first) {
    for (; node != kNone; node = nodes[node].next) {
      *span_of(actor, node) = {actor.start + known.spans[node].start, actor.start + known.spans[node].end};
    }
  }
}

const ProgramQueue::Engine::Measured* ProgramQueue::Engine::measured_from(std::uint32_t a, const State& state,
                                                                          const std::optional<Company>& beside) {
  const std::uint32_t node = only_running(state);
  if (node == kNone || !beside) return nullptr;
  const Measured* known = measured(actors_[a].row, actors_[a].fragment, *beside);
  if (known == nullptr || known->starts[node] == kNone) return nullptr;
  const State& there = known->snapshots[known->starts[node]].state;
  return there.next == state.next && there.running == state.running ? known : nullptr;
}

void ProgramQueue::Engine::rest_if_measured(std::uint32_t lane, double now) {
  const std::uint32_t a = lane / kStreamCount, stream = lane % kStreamCount;
  if (stream >= kFragmentStreams || actors_[a].mode != Mode::kOpen) return;
  const State& open = actors_[a].open;
  const ProgramFragments::Compiled& fragment = fragments_.compiled(actors_[a].fragment);
  if (open.completed + 1 == fragment.count) return;
  const Measured* known = only_running(open) == kNone ? nullptr : measured_from(a, open, company(a));
  if (known == nullptr) return;
  const std::uint32_t node = open.running[stream];
  heap_.erase(lane);
  if (fragment.nodes[node].flow) flows_.remove(lane);
  run_as(Mode::kRest, a, *known, known->starts[node], open.running[0], now - known->spans[node].start);
  Streams first = open.next;
  first[stream] = node;
  record_rest(a, *known, first);
}

void ProgramQueue::Engine::change_company(std::uint32_t a, const std::optional<Company>& beside, double now) {
  ActorState& actor = actors_[a];
  heap_.erase(lane_of(a, 0));
  if (actor.begun_in == settles_) {  // rather, it begins beside something else
    if (actor.mode == Mode::kRest) ++actor.times_left;
    if (options_.record) forget_last_record(a);
    return begin(a, beside, now);
  }
  if (actor.mode == Mode::kClosed && !open_closed(a, now)) return begin(a, beside, now);
  const Measured& known = *actor.measured;
  // What happens at this very time has not happened yet.
  const double since = now - actor.start;
  const auto later =
      std::lower_bound(known.snapshots.begin(), known.snapshots.end(), since,
                       [](const ProgramFragments::Snapshot& snapshot, double time) { return snapshot.time < time; });
  const auto at = std::max(static_cast<std::uint32_t>(later - known.snapshots.begin()), actor.snapshot + 1) - 1;
  const State& state = known.snapshots[at].state;
  const Measured* next = measured_from(a, state, beside);
  if (next == nullptr) return open(a, at, now);
  // One node runs: only its end moves, and what is left follows it as it was measured.
  const std::vector<ProgramFragments::Node>& nodes = fragments_.compiled(actor.fragment).nodes;
  std::uint32_t node = only_running(state);
  const std::uint32_t start = next->starts[node];
  std::uint32_t kernel = at == actor.snapshot ? actor.kernel : state.running[0];
  if (kernel != kNone) {
    while (kernel != state.last && known.spans[kernel].end <= since) kernel = nodes[kernel].next;
    node = kernel;
  }
  double end = actor.start + known.spans[node].end;
  const Feels feels = row_of(a).demands[nodes[node].work].feels;
  const double before = state.kernels.by[feels], after = next->snapshots[start].state.kernels.by[feels];
  if (before != after) end = rescaled(end, now, before, after);
  run_as(Mode::kRest, a, *next, start, kernel, end - next->spans[node].end);
  if (actor.record == kNoRecord) return;
  span_of(actor, node)->end = end;
  Streams behind = state.next;
  behind[nodes[node].stream] = nodes[node].next;
  record_rest(a, *next, behind);
}

void ProgramQueue::Engine::open(std::uint32_t a, std::uint32_t at, double now) {
  ActorState& actor = actors_[a];
  const Measured& known = *actor.measured;
  const State& state = known.snapshots[at].state;
  const ProgramFragments::Compiled& fragment = fragments_.compiled(actor.fragment);
  actor.mode = Mode::kOpen;
  actor.open = state;
  if (at == actor.snapshot && actor.kernel != state.running[0]) {  // the rest began within a piece
    for (; actor.open.running[0] != actor.kernel; ++actor.open.completed) {
      actor.open.running[0] = fragment.nodes[actor.open.running[0]].next;
    }
    actor.open.kernel_end = known.spans[actor.kernel].end;
  }
  actor.open.kernel_end += actor.start;
  flows_.restore(a, state.kernels);
  std::array<bool, kFragmentStreams> due{};
  for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
    const std::uint32_t node = actor.open.running[stream];
    if (node == kNone) continue;
    actor.open.end[stream] += actor.start;
    if (fragment.nodes[node].flow) {
      flows_.add(lane_of(a, stream), a, a, &row_of(a).demands[fragment.nodes[node].work]);
      flows_.restore(lane_of(a, stream), state.rate[stream]);
    }
    due[stream] = actor.open.end[stream] == now;
    if (!due[stream]) heap_.set(lane_of(a, stream), actor.open.end[stream]);
  }
  for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
    if (due[stream]) complete_node(a, stream, now);
  }
}

bool ProgramQueue::Engine::open_closed(std::uint32_t a, double now) {
  ActorState& actor = actors_[a];
  const Measured& known = *actor.measured;
  const double length = known.length;
  const double since = now - actor.start;
  auto done = static_cast<std::int32_t>(since / length);
  while (done * length > since) --done;
  while ((done + 1) * length <= since) ++done;
  actor.start += done * length;
  actor.times_left -= done;
  NS_EXPECTS(actor.times_left > 0);
  if (options_.record && done > 0) {
    history_.records[actor.record].times = done;
    history_.records[actor.record].end = actor.start;
    actor.point = actor.record;
    actor.point_end = actor.start;
  }
  if (actor.start == now) {
    if (options_.record && done == 0) forget_last_record(a);
    return false;
  }
  if (options_.record && done > 0) {
    record_run(a, actor.start);
  } else if (options_.record) {
    history_.records[actor.record].times = 1;
    add_spans(a);
  }
  record_rest(a, known, fragments_.compiled(actor.fragment).first);
  --actor.times_left;
  return true;
}

void ProgramQueue::Engine::follow_touched(double now) {
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    const std::uint32_t a = touched_[i];
    const ActorState& actor = actors_[a];
    if (actor.mode == Mode::kStarting) {
      begin(a, company(a), now);
    } else if (is_one_event(actor.mode)) {
      const std::optional<Company> beside = company(a);
      if (beside != actor.measured->company) change_company(a, beside, now);
    }
  }
  touched_.clear();
}

double ProgramQueue::Engine::rescaled(double end, double now, double before, double after) const {
  return now + grid_.snap(grid_.snap(std::max(0.0, end - now) * before) / after);
}

bool ProgramQueue::Engine::settle(double now) {
  if (measured_ == nullptr) {
    ++settles_;
    was_calm_ = was_calm_ || flows_.calm();
    follow_touched(now);
    if (was_calm_ && !flows_.calm()) {  // flows are about to run at other rates than those that were measured beside
      for (std::uint32_t a = 0; a < actors_.size(); ++a) {
        if (is_one_event(actors_[a].mode) && actors_[a].beside_now > 0) change_company(a, std::nullopt, now);
      }
      follow_touched(now);
    }
  }
  flows_.settle(
      [&](std::uint32_t lane, double before) {
        double& end = end_of(lane);
        end = rescaled(end, now, before, flows_.rate(lane));
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
        if (rate != before.by[feels]) open.kernel_end = rescaled(open.kernel_end, now, before.by[feels], rate);
        set_piece_end(stage);
      });
  for (const std::uint32_t lane : starting_) start_on(lane, now);
  for (const std::uint32_t lane : starting_) rest_if_measured(lane, now);
  starting_.clear();
  was_calm_ = flows_.calm();
  if (measured_ != nullptr) snapshot(now);
  return !heap_.empty();
}

void ProgramQueue::Engine::start_on(std::uint32_t lane, double now) {
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

double& ProgramQueue::Engine::end_of(std::uint32_t lane) {
  const std::uint32_t stream = lane % kStreamCount;
  ActorState& actor = actors_[lane / kStreamCount];
  return stream < kFragmentStreams ? actor.open.end[stream] : beside_of(actor, static_cast<Stream>(stream)).end;
}

void ProgramQueue::Engine::snapshot(double now) {
  if (!measured_->snapshots.empty() && measured_->snapshots.back().time == now) measured_->snapshots.pop_back();
  ProgramFragments::Snapshot& taken = measured_->snapshots.emplace_back();
  taken.time = now;
  taken.state = actors_[0].open;
  taken.state.kernels = flows_.kernels(0);
  for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) taken.state.rate[stream] = flows_.rate(stream);
  const std::uint32_t node = only_running(taken.state);
  if (node == kNone || measured_->spans[node].start != now) return;
  measured_->starts[node] = static_cast<std::uint32_t>(measured_->snapshots.size() - 1);
}

std::uint32_t ProgramQueue::Engine::record(std::uint32_t a, std::uint32_t lane, std::uint32_t what,
                                           std::uint32_t cause) {
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

void ProgramQueue::Engine::record_run(std::uint32_t a, double now) {
  if (!options_.record || measured_ != nullptr) return;
  ActorState& actor = actors_[a];
  actor.record = record(a, lane_of(a, 0), actor.fragment, actor.point);
  history_.records[actor.record].start = now;
  add_spans(a);
}

void ProgramQueue::Engine::add_spans(std::uint32_t a) {
  const ActorState& actor = actors_[a];
  history_.records[actor.record].spans = history_.spans.add(fragments_.compiled(actor.fragment).count);
}

void ProgramQueue::Engine::forget_last_record(std::uint32_t a) {
  StepRecord& forgotten = history_.records[actors_[a].record];
  forgotten.times = 0;
  forgotten.end = forgotten.start;
  actors_[a].point = actors_[a].record;
}

const ProgramQueue::Engine::Measured* ProgramQueue::Engine::measured(std::uint32_t row, std::uint32_t fragment,
                                                                     const Company& company) {
  std::forward_list<Measured>& all = fragments_.row(row).runs[fragment].beside;
  std::size_t count = 0;
  for (const Measured& known : all) {
    if (known.company == company) return &known;
    ++count;
  }
  if (count >= kMostMeasured && company != Company{}) return nullptr;
  Measured& made = all.emplace_front();
  made.company = company;
  Engine(queue_, 1).measure(row, fragment, made);
  return &made;
}

}  // namespace ns_dist
