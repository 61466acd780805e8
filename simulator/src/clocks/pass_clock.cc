#include "clocks/pass_clock.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::size_t kBorders = 64, kUnreadOfAnActor = 64;
constexpr auto kFirstBeside = static_cast<std::uint32_t>(Stream::kDataParallel);

}  // namespace

double fragment_length(const Fragment& fragment, const std::vector<double>& durations) {
  std::array<double, kStreamCount> streams{};
  std::vector<double> ends(fragment.nodes.size());
  double length = 0;
  for (std::size_t n = 0; n < fragment.nodes.size(); ++n) {
    const FragmentNode& node = fragment.nodes[n];
    double& stream = streams[static_cast<std::size_t>(node.stream)];
    double start = stream;
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      const std::int32_t on = fragment.dependencies[node.first_dependency + d];
      if (on >= 0) start = std::max(start, ends[static_cast<std::size_t>(on)]);
    }
    stream = ends[n] = start + durations[index(node.work)];
    length = std::max(length, stream);
  }
  return length;
}

PassClock::PassClock(const StepProgram& program, const ProgramCosts& costs, bool fold)
    : program_(program), costs_(costs), fold_(fold) {}

void PassClock::compile() {
  std::vector<std::vector<double>> durations(costs_.rows.size());
  for (std::size_t r = 0; r < durations.size(); ++r) {
    durations[r].reserve(program_.works.size());
    for (const Forecast& forecast : costs_.rows[r].forecasts) {
      durations[r].push_back(grid_.snap(forecast.latency / units::s));
    }
  }
  std::vector<std::vector<double>> lengths(costs_.rows.size(), std::vector<double>(program_.fragments.size(), -1));
  ops_.assign(program_.bodies.size(), {});
  channels_.assign(program_.channels, {});
  for (std::uint32_t a = 0; a < program_.actors.size(); ++a) {
    const std::uint32_t row = costs_.row_of_actor[a];
    for (const ProgramLoop& loop : program_.actors[a].loops) {
      for (const BodyCall& call : loop.calls) {
        std::vector<Op>& ops = ops_[index(call.body)];
        if (!ops.empty()) continue;
        for (const Instruction& instruction : program_.bodies[index(call.body)]) {
          Op op;
          op.kind = instruction.kind;
          op.second = instruction.second;
          op.index = instruction.kind == Kind::kMeet ? instruction.index : instruction.channel;
          op.count = instruction.times;
          if (instruction.stream != Stream::kCompute) {
            op.stream = static_cast<std::uint8_t>(static_cast<std::uint32_t>(instruction.stream) - kFirstBeside);
          }
          if (instruction.kind == Kind::kRun) {
            double& length = lengths[row][instruction.index];
            if (length < 0) length = fragment_length(program_.fragments[instruction.index], durations[row]);
            op.seconds = instruction.times * length;
            if (!ops.empty() && ops.back().kind == Kind::kRun) {
              ops.back().seconds += op.seconds;
              continue;
            }
          } else if (instruction.kind == Kind::kStart || instruction.kind == Kind::kSend) {
            op.seconds = durations[row][instruction.index];
          } else if (instruction.kind == Kind::kReceive) {
            channels_[instruction.channel].receiver = a;
          }
          ops.push_back(op);
        }
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
  borders_.resize(kBorders);
  border_count_ = next_border_ = 0;
  latest_ = 0;
  passes_ = 0;
  for (;;) {
    bool moved = false, all_done = true;
    for (std::uint32_t a = 0; a < states_.size(); ++a) {
      if (states_[a].done) continue;
      ++states_[a].budget;
      ready_.push_back(a);
    }
    const std::int64_t before = passes_;
    while (!ready_.empty()) {
      const std::uint32_t a = ready_.back();
      ready_.pop_back();
      advance(a);
    }
    for (const State& state : states_) all_done = all_done && state.done;
    if (all_done) return latest_;
    moved = passes_ != before;
    NS_EXPECTS(moved);  // otherwise actors wait for each other
    if (fold_) recur();
  }
}

// Reads the message of `microbatch`, if it has arrived.
bool PassClock::take(Channel& channel, std::int32_t microbatch, double& now) {
  for (std::size_t i = channel.first; i < channel.arrived.size(); ++i) {
    if (channel.arrived[i].microbatch != microbatch) continue;
    now = std::max(now, channel.arrived[i].time);
    if (i == channel.first) {
      if (++channel.first == channel.arrived.size()) {
        channel.arrived.clear();
        channel.first = 0;
      }
    } else {
      channel.arrived.erase(channel.arrived.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return true;
  }
  return false;
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
    for (; state.call < loop.calls.size(); ++state.call, state.op = 0) {
      const BodyCall& call = loop.calls[state.call];
      const std::vector<Op>& ops = ops_[index(call.body)];
      for (; state.op < ops.size(); ++state.op) {
        const Op& op = ops[state.op];
        switch (op.kind) {
          case Kind::kRun:
            state.now += op.seconds;
            break;
          case Kind::kStart:
          case Kind::kSend: {
            double& free = state.free[op.stream];
            free = std::max(free, state.now) + op.seconds;
            if (op.stream == 0) state.ends.push_back(free);
            if (op.kind == Kind::kSend) {
              channels_[op.index].arrived.push_back({(op.second ? call.second : call.microbatch) + offset, free});
              ready_.push_back(channels_[op.index].receiver);
            }
            latest_ = std::max(latest_, free);
            break;
          }
          case Kind::kAwait:
            state.now =
                std::max(state.now, op.stream == 0 && op.count > 0 ? state.ends[static_cast<std::size_t>(op.count) - 1]
                                                                   : state.free[op.stream]);
            break;
          case Kind::kReceive:
            if (!take(channels_[op.index], (op.second ? call.second : call.microbatch) + offset, state.now)) return;
            break;
          case Kind::kMeet: {
            if (!state.at_meeting) {
              state.at_meeting = true;
              ++meetings_[op.index];
            }
            if (meetings_[op.index] < program_.meetings[op.index]) return;
            meetings_[op.index] = 0;
            double latest = 0;
            const auto meets = [&](const State& guest, std::uint32_t b) {
              if (!guest.at_meeting) return false;
              const std::vector<Op>& its = ops_[index(program_.actors[b].loops[guest.loop].calls[guest.call].body)];
              return its[guest.op].index == op.index;
            };
            for (std::uint32_t b = 0; b < states_.size(); ++b) {
              if (meets(states_[b], b)) latest = std::max(latest, states_[b].now);
            }
            for (std::uint32_t b = 0; b < states_.size(); ++b) {
              State& guest = states_[b];
              if (!meets(guest, b)) continue;
              guest.at_meeting = false;
              guest.now = latest;
              if (b == a) continue;
              ++guest.op;
              ready_.push_back(b);
            }
            break;
          }
        }
      }
      ++passes_;
    }
    latest_ = std::max(latest_, state.now);
    state.call = 0;
    if (++state.repeat < loop.repeats) {
      state.waiting = true;
      continue;
    }
    state.repeat = 0;
    ++state.loop;
  }
  latest_ = std::max(latest_, state.now);
  state.done = true;
}

// The state relative to the time of `reference`; what no longer matters is left out.
void PassClock::encode(std::uint32_t reference, std::vector<double>& code) const {
  const double zero = states_[reference].now;
  for (std::uint32_t a = 0; a < states_.size(); ++a) {
    const State& state = states_[a];
    code.push_back(state.loop);
    if (state.done) continue;
    code.push_back(state.call);
    code.push_back(state.op * 4.0 + (state.waiting ? 2 : 0) + (state.at_meeting ? 1 : 0));
    code.push_back(state.now - zero);
    for (const double free : state.free) code.push_back(std::max(0.0, free - state.now));
  }
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    const Channel& channel = channels_[c];
    if (channel.first == channel.arrived.size()) continue;
    const State& receiver = states_[channel.receiver];
    const Actor& actor = program_.actors[channel.receiver];
    const auto base = receiver.done ? 0 : static_cast<std::int32_t>(receiver.repeat) * actor.loops[receiver.loop].shift;
    for (std::size_t i = channel.first; i < channel.arrived.size(); ++i) {
      code.push_back(static_cast<double>(c));
      code.push_back(channel.arrived[i].microbatch - base);
      code.push_back(std::max(0.0, channel.arrived[i].time - receiver.now));
    }
  }
}

void PassClock::recur() {
  // The actor with the most repeats left is the reference.
  std::uint32_t reference = 0;
  std::int64_t most = 2;
  for (std::uint32_t a = 0; a < states_.size(); ++a) {
    if (states_[a].done) continue;
    const std::int64_t left = program_.actors[a].loops[states_[a].loop].repeats - states_[a].repeat;
    if (left > most) {
      most = left;
      reference = a;
    }
  }
  if (most == 2) {
    border_count_ = 0;
    return;
  }
  // A stage that runs ahead of the next one piles up messages: such a state does not recur.
  std::size_t unread = 0;
  for (const Channel& channel : channels_) unread += channel.arrived.size() - channel.first;
  if (unread > kUnreadOfAnActor * states_.size()) return;
  code_.clear();
  code_.push_back(reference);
  encode(reference, code_);
  std::uint64_t hash = 1469598103934665603u;
  for (const double word : code_) hash = (hash ^ std::bit_cast<std::uint64_t>(word)) * 1099511628211u;
  Border& border = borders_[next_border_];
  for (std::size_t back = 1; back <= border_count_; ++back) {
    const Border& earlier = borders_[(next_border_ + kBorders - back) % kBorders];
    if (earlier.hash != hash || earlier.state != code_) continue;
    repeat(earlier, states_[reference].now);
    border_count_ = 0;
    return;
  }
  border.hash = hash;
  border.state = code_;
  border.time = states_[reference].now;
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
