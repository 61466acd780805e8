#include "clocks/pass_clock.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "clocks/fragment_length.h"
#include "clocks/state_hash.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::size_t kBorders = 64, kUnreadOfAnActor = 64;
constexpr std::size_t kPassesOfAnActor = 8;  // at least, between two borders: comparing states takes time, too
constexpr std::size_t kUsualStarts = 64;
constexpr auto kFirstBeside = static_cast<std::uint32_t>(Stream::kDataParallel);

// Among those that run beside fragments.
std::uint8_t stream_of(const Instruction& instruction) {
  if (instruction.stream == Stream::kCompute) return 0;
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(instruction.stream) - kFirstBeside);
}

}  // namespace

PassClock::PassClock(const StepProgram& program, const ProgramCosts& costs, bool fold, const CallOrder* order)
    : program_(program), costs_(costs), fold_(fold), order_(order) {}

void PassClock::compile() {
  std::vector<double> lengths(costs_.rows.size() * program_.fragments.size(), -1);  // by row and fragment
  std::vector<NodeSpan> spans;
  ops_.clear();
  ops_.reserve(2 * program_.bodies.size());
  bodies_.assign(program_.bodies.size(), {});
  channels_.assign(program_.channels, {});
  for (std::uint32_t a = 0; a < program_.actors.size(); ++a) {
    const ProgramCosts::Row& row = costs_.row(a);
    double* const lengths_of_row = lengths.data() + costs_.row_of_actor[a] * program_.fragments.size();
    const auto duration = [&](std::uint32_t work) { return grid_.snap(row.forecasts[work].latency / units::s); };
    for (const ProgramLoop& loop : program_.actors[a].loops) {
      for (const BodyCall& call : loop.calls) {
        Ops& body = bodies_[index(call.body)];
        if (body.known) continue;
        body.known = true;
        body.first = static_cast<std::uint32_t>(ops_.size());
        for (const Instruction& instruction : program_.bodies[index(call.body)]) {
          const auto op_of = [&](bool joins) -> Op& { return joins ? ops_.back() : ops_.emplace_back(); };
          const bool behind_run = ops_.size() > body.first && ops_.back().kind == Kind::kRun && ops_.back().to == kNone;
          switch (instruction.kind) {
            case Kind::kReceive: {
              Op& op = op_of(false);
              op.from = instruction.channel;
              op.receives_second = instruction.second;
              channels_[instruction.channel].receiver = a;
              break;
            }
            case Kind::kRun: {
              double& length = lengths_of_row[instruction.index];
              if (length < 0) length = fragment_length(program_.fragments[instruction.index], duration, spans);
              op_of(behind_run).seconds += instruction.times * length;
              break;
            }
            case Kind::kSend: {
              Op& op = op_of(behind_run);
              op.to = instruction.channel;
              op.sends_second = instruction.second;
              op.stream = stream_of(instruction);
              op.message = duration(instruction.index);
              break;
            }
            case Kind::kStart:
            case Kind::kAwait:
            case Kind::kMeet: {
              Op& op = op_of(false);
              op.kind = instruction.kind;
              op.stream = stream_of(instruction);
              op.from = instruction.index;
              op.count = instruction.times;
              if (instruction.kind == Kind::kStart) op.message = duration(instruction.index);
              break;
            }
          }
        }
        body.end = static_cast<std::uint32_t>(ops_.size());
      }
    }
  }
}

double PassClock::run() {
  for (;;) {
    const double step = run_on_grid();
    if (step <= grid_.limit()) return step;
    grid_ = Grid::covering(2 * step);
  }
}

double PassClock::run_on_grid() {
  compile();
  states_.assign(program_.actors.size(), {});
  meetings_.assign(program_.meetings.size(), 0);
  unread_ = 0;
  if (order_ != nullptr) run_in_order();
  std::int64_t compared = passes_;  // passes until the last border
  border_count_ = next_border_ = 0;
  passes_ = 0;
  for (;;) {
    for (std::uint32_t a = 0; a < states_.size(); ++a) {
      State& state = states_[a];
      if (state.done) continue;
      ++state.budget;
      if (state.awaits == kNone && !state.at_meeting) ready_.push_back(a);
    }
    const std::int64_t before = passes_;
    while (!ready_.empty()) {
      const std::uint32_t a = ready_.back();
      ready_.pop_back();
      advance(a);
    }
    if (std::all_of(states_.begin(), states_.end(), [](const State& state) { return state.done; })) break;
    NS_EXPECTS(passes_ != before);  // otherwise actors wait for each other
    if (!fold_ || static_cast<std::size_t>(passes_ - compared) < kPassesOfAnActor * states_.size()) continue;
    compared = passes_;
    recur();
  }
  double latest = 0;
  for (const State& state : states_) {
    latest = std::max(latest, state.now);
    for (const double free : state.free) latest = std::max(latest, free);
  }
  return latest;
}

// Returns the time after it.
inline double PassClock::start_or_await(const Op& op, State& state, double now) {
  double& free = state.free[op.stream];
  if (op.kind == Kind::kAwait) {
    return std::max(now, op.stream == 0 && op.count > 0 ? state.ends[static_cast<std::size_t>(op.count) - 1] : free);
  }
  free = std::max(free, now) + op.message;
  if (op.stream != 0) return now;
  if (state.ends.empty()) state.ends.reserve(kUsualStarts);
  state.ends.push_back(free);
  return now;
}

void PassClock::run_in_order() {
  std::vector<double> messages(order_->slot_count);
  const std::uint32_t* slot = order_->slots.data();
  const Op* const ops = ops_.data();
  const Ops* const bodies = bodies_.data();
  State* const states = states_.data();
  for (const auto& [a, id] : order_->calls) {
    State& state = states[a];
    const Ops& body = bodies[index(id)];
    double now = state.now;
    for (const Op *op = ops + body.first, *end = ops + body.end; op != end; ++op) {
      if (op->kind != Kind::kRun) {
        now = start_or_await(*op, state, now);
        continue;
      }
      if (op->from != kNone) now = std::max(now, messages[*slot++]);
      now += op->seconds;
      if (op->to == kNone) continue;
      double& free = state.free[op->stream];
      free = std::max(free, now) + op->message;
      messages[*slot++] = free;
    }
    state.now = now;
  }
  passes_ += static_cast<std::int64_t>(order_->calls.size());
  for (std::uint32_t a = 0; a < states_.size(); ++a) states_[a].loop = order_->loops[a];
}

// Reads the message of `microbatch`, if it has arrived. `now` becomes the time at which both are there.
inline bool PassClock::Channel::take(std::int32_t microbatch, double& now) {
  if (first == arrived.size()) return false;
  if (arrived[first].microbatch == microbatch) {
    now = std::max(now, arrived[first].time);
    if (++first < arrived.size()) return true;
    arrived.clear();
    first = 0;
    return true;
  }
  const auto found = std::find_if(arrived.begin() + static_cast<std::ptrdiff_t>(first), arrived.end(),
                                  [&](const Arrival& arrival) { return arrival.microbatch == microbatch; });
  if (found == arrived.end()) return false;
  now = std::max(now, found->time);
  arrived.erase(found);
  return true;
}

void PassClock::advance(std::uint32_t a) {
  State& state = states_[a];
  const Actor& actor = program_.actors[a];
  while (state.loop < actor.loops.size()) {
    const ProgramLoop& loop = actor.loops[state.loop];
    if (loop.repeats == 0 || loop.calls.empty()) {
      ++state.loop;
      continue;
    }
    if (state.waiting) {  // for the budget of another repeat
      if (state.budget == 0) return;
      --state.budget;
      state.waiting = false;
    }
    const auto offset = static_cast<std::int32_t>(state.repeat) * loop.shift;
    if (!run(a, loop.calls, offset)) return;
    if (++state.repeat < loop.repeats) {
      state.waiting = true;
      continue;
    }
    state.repeat = 0;
    ++state.loop;
  }
  state.done = true;
}

// The rest of the calls. Returns whether it came to the end.
bool PassClock::run(std::uint32_t a, std::span<const BodyCall> calls, std::int32_t offset) {
  State& state = states_[a];
  double now = state.now;
  std::uint32_t op_of_call = state.op;
  const auto leave = [&](std::size_t call, const Op* op, const Op* first) {
    state.now = now;
    state.call = static_cast<std::uint32_t>(call);
    state.op = static_cast<std::uint32_t>(op - first);
  };
  for (std::size_t c = state.call; c < calls.size(); ++c) {
    const BodyCall& call = calls[c];
    const Ops& body = bodies_[index(call.body)];
    const Op *const first = ops_.data() + body.first, *const end = ops_.data() + body.end;
    for (const Op* op = first + std::exchange(op_of_call, 0); op != end; ++op) {
      switch (op->kind) {
        case Kind::kStart:
        case Kind::kAwait:
          now = start_or_await(*op, state, now);
          break;
        case Kind::kMeet:
          leave(c, op, first);
          if (!meet(a, op->from)) return false;
          now = state.now;
          break;
        case Kind::kRun:
        case Kind::kReceive:
        case Kind::kSend:
          if (op->from != kNone) {
            const std::int32_t microbatch = (op->receives_second ? call.second : call.microbatch) + offset;
            if (!channels_[op->from].take(microbatch, now)) {
              state.awaits = op->from;
              leave(c, op, first);
              return false;
            }
            --unread_;
          }
          now += op->seconds;
          if (op->to == kNone) break;
          double& free = state.free[op->stream];
          free = std::max(free, now) + op->message;
          Channel& channel = channels_[op->to];
          channel.arrived.push_back({(op->sends_second ? call.second : call.microbatch) + offset, free});
          ++unread_;
          State& receiver = states_[channel.receiver];
          if (receiver.awaits != op->to) break;
          receiver.awaits = kNone;
          ready_.push_back(channel.receiver);
          break;
      }
    }
    ++passes_;
  }
  state.now = now;
  state.call = state.op = 0;
  return true;
}

// Whether all actors of the meeting have come. They go on at the time of the last one.
bool PassClock::meet(std::uint32_t a, std::uint32_t meeting) {
  if (!states_[a].at_meeting) {
    states_[a].at_meeting = true;
    ++meetings_[meeting];
  }
  if (meetings_[meeting] < program_.meetings[meeting]) return false;
  meetings_[meeting] = 0;
  const auto meets = [&](std::uint32_t b) {
    const State& guest = states_[b];
    if (!guest.at_meeting) return false;
    const BodyId its = program_.actors[b].loops[guest.loop].calls[guest.call].body;
    return ops_[bodies_[index(its)].first + guest.op].from == meeting;
  };
  double latest = 0;
  for (std::uint32_t b = 0; b < states_.size(); ++b) {
    if (meets(b)) latest = std::max(latest, states_[b].now);
  }
  for (std::uint32_t b = 0; b < states_.size(); ++b) {
    if (!meets(b)) continue;
    State& guest = states_[b];
    guest.at_meeting = false;
    guest.now = latest;
    if (b == a) continue;
    ++guest.op;
    ready_.push_back(b);
  }
  return true;
}

// The state relative to the time of `reference`; what no longer matters is left out. No number is -0.
void PassClock::encode(std::uint32_t reference, std::vector<double>& code) const {
  code.resize(1 + states_.size() * 7 + unread_ * 3);
  double* next = code.data();
  const double zero = states_[reference].now;
  *next++ = reference;
  for (const State& state : states_) {
    *next++ = state.loop;
    if (state.done) continue;
    *next++ = state.call;
    *next++ = state.op * 4.0 + (state.waiting ? 2 : 0) + (state.at_meeting ? 1 : 0);
    *next++ = state.now - zero;
    for (const double free : state.free) *next++ = std::max(0.0, free - state.now);
  }
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    const Channel& channel = channels_[c];
    if (channel.first == channel.arrived.size()) continue;
    const State& receiver = states_[channel.receiver];
    const Actor& actor = program_.actors[channel.receiver];
    const auto base = receiver.done ? 0 : static_cast<std::int32_t>(receiver.repeat) * actor.loops[receiver.loop].shift;
    for (std::size_t i = channel.first; i < channel.arrived.size(); ++i) {
      *next++ = static_cast<double>(c);
      *next++ = channel.arrived[i].microbatch - base;
      *next++ = std::max(0.0, channel.arrived[i].time - receiver.now);
    }
  }
  code.resize(static_cast<std::size_t>(next - code.data()));
}

void PassClock::recur() {
  // The actor with the most repeats left is the reference. Every actor must have one left that can be gone over.
  std::uint32_t reference = 0;
  std::int64_t most = 2;
  for (std::uint32_t a = 0; a < states_.size(); ++a) {
    if (states_[a].done) continue;
    const std::int64_t left = program_.actors[a].loops[states_[a].loop].repeats - states_[a].repeat;
    if (left < 2) return;
    if (left > most) {
      most = left;
      reference = a;
    }
  }
  if (most == 2) return;
  // A stage that runs ahead of the next one piles up messages: such a state does not recur.
  if (unread_ > kUnreadOfAnActor * states_.size()) return;
  borders_.resize(kBorders);
  Border& border = borders_[next_border_];
  encode(reference, border.state);
  border.hash = state_hash(border.state);
  border.time = states_[reference].now;
  for (std::size_t back = 1; back <= border_count_; ++back) {
    const Border& earlier = borders_[(next_border_ + kBorders - back) % kBorders];
    if (earlier.hash != border.hash || earlier.state != border.state) continue;
    repeat(earlier, border.time);
    border_count_ = 0;
    return;
  }
  border.repeats.clear();
  for (const State& state : states_) border.repeats.push_back(state.repeat);
  next_border_ = (next_border_ + 1) % kBorders;
  border_count_ = std::min(border_count_ + 1, kBorders - 1);
}

void PassClock::repeat(const Border& earlier, double now) {
  std::int64_t copies = std::numeric_limits<std::int64_t>::max(), microbatches = 0;
  for (std::uint32_t a = 0; a < states_.size(); ++a) {
    if (states_[a].done) continue;
    const std::int64_t went = states_[a].repeat - earlier.repeats[a];
    const ProgramLoop& loop = program_.actors[a].loops[states_[a].loop];
    if (went == 0 || (microbatches != 0 && went * loop.shift != microbatches)) return;
    microbatches = went * loop.shift;
    copies = std::min(copies, (loop.repeats - 1 - states_[a].repeat) / went);
  }
  if (microbatches == 0 || copies < 1) return;
  const double shift = static_cast<double>(copies) * (now - earlier.time);
  const auto offset = static_cast<std::int32_t>(copies * microbatches);
  for (std::uint32_t a = 0; a < states_.size(); ++a) {
    State& state = states_[a];
    if (state.done) continue;
    state.repeat += copies * (state.repeat - earlier.repeats[a]);
    state.now += shift;
    for (double& free : state.free) free += shift;
  }
  for (Channel& channel : channels_) {
    for (std::size_t i = channel.first; i < channel.arrived.size(); ++i) {
      channel.arrived[i].microbatch += offset;
      channel.arrived[i].time += shift;
    }
  }
}

}  // namespace ns_dist
