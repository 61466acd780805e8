#include "clocks/call_order.h"

#include <algorithm>
#include <utility>

namespace ns_dist {
namespace {

constexpr std::size_t kMostCalls = 131'072;  // of one program
constexpr std::size_t kMostEntries = 256, kMostCallsOfAll = 2'000'000;
// A call in order takes about a fourth of the time of one whose messages have to be awaited.
constexpr std::size_t kGain = 4;
constexpr int kFewRuns = 3;  // to make the order takes about as long as to run folded
constexpr std::uint32_t kNoCall = 0xffffffffu;

using Kind = Instruction::Kind;

bool has_meeting(const StepProgram& program, const ProgramLoop& loop) {
  return std::any_of(loop.calls.begin(), loop.calls.end(), [&](const BodyCall& call) {
    const std::span<const Instruction> body = program.bodies[index(call.body)];
    return std::any_of(body.begin(), body.end(),
                       [](const Instruction& instruction) { return instruction.kind == Kind::kMeet; });
  });
}

// Which actors meet. Meetings are at the end of a step.
std::vector<bool> meeting_actors(const StepProgram& program) {
  std::vector<bool> meets(program.actors.size());
  if (program.meetings.empty()) return meets;
  for (std::size_t a = 0; a < meets.size(); ++a) {
    const auto& loops = program.actors[a].loops;
    meets[a] = loops.size() > 0 && has_meeting(program, loops[loops.size() - 1]);
  }
  return meets;
}

// Runs the calls of actors in turn, each until a message is missing.
class Ordering {
 public:
  Ordering(const StepProgram& program, std::size_t most_calls)
      : program_(program), most_calls_(most_calls), places_(program.actors.size()), receivers_(program.channels) {}

  std::shared_ptr<const CallOrder> run() && {
    if (!count()) return nullptr;
    sent_.assign(program_.channels * microbatches_, kNoCall);
    order_.calls.reserve(calls_);
    for (std::uint32_t a = 0; a < places_.size(); ++a) {
      order_.loops.push_back(places_[a].end);
      ready_.push_back(a);
    }
    while (!ready_.empty()) {
      const std::uint32_t a = ready_.back();
      ready_.pop_back();
      advance(a);
    }
    if (order_.calls.size() != calls_) return nullptr;
    return std::make_shared<const CallOrder>(std::move(order_));
  }

 private:
  struct Place {
    std::uint32_t loop = 0, end = 0;  // end: the first loop with a meeting
    std::int64_t repeat = 0;
    std::size_t call = 0;
  };

  std::span<const Instruction> body(const BodyCall& call) const { return program_.bodies[index(call.body)]; }

  // Counts calls and microbatches. Returns whether they are few enough.
  bool count() {
    for (std::uint32_t a = 0; a < places_.size(); ++a) {
      for (const ProgramLoop& loop : program_.actors[a].loops) {
        if (has_meeting(program_, loop)) break;
        ++places_[a].end;
        calls_ += loop.calls.size() * static_cast<std::size_t>(loop.repeats);
        if (calls_ > most_calls_) return false;
        const std::int64_t further = (loop.repeats - 1) * loop.shift;
        for (const BodyCall& call : loop.calls) {
          const std::int64_t most = std::max(call.microbatch, call.second) + std::max<std::int64_t>(0, further);
          microbatches_ = std::max(microbatches_, static_cast<std::size_t>(most + 1));
          for (const Instruction& instruction : body(call)) {
            if (instruction.kind == Kind::kReceive) receivers_[instruction.channel] = a;
          }
        }
      }
    }
    return true;
  }

  // The slot of a message; none before it is sent.
  std::uint32_t& slot(const Instruction& instruction, const BodyCall& call) {
    return sent_[instruction.channel * microbatches_ +
                 static_cast<std::size_t>(instruction.second ? call.second : call.microbatch)];
  }
  std::uint32_t free_slot() {
    if (free_.empty()) return static_cast<std::uint32_t>(order_.slot_count++);
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void advance(std::uint32_t a) {
    Place& place = places_[a];
    for (; place.loop < place.end; ++place.loop, place.repeat = 0) {
      const ProgramLoop& loop = program_.actors[a].loops[place.loop];
      for (; place.repeat < loop.repeats; ++place.repeat, place.call = 0) {
        const auto offset = static_cast<std::int32_t>(place.repeat) * loop.shift;
        for (; place.call < loop.calls.size(); ++place.call) {
          BodyCall call = loop.calls[place.call];
          if (call.microbatch >= 0) call.microbatch += offset;
          if (call.second >= 0) call.second += offset;
          for (const Instruction& instruction : body(call)) {
            if (instruction.kind == Kind::kReceive && slot(instruction, call) == kNoCall) return;
          }
          order_.calls.push_back({a, call.body});
          for (const Instruction& instruction : body(call)) {
            if (instruction.kind == Kind::kReceive) {
              order_.slots.push_back(slot(instruction, call));
              free_.push_back(order_.slots.back());
            } else if (instruction.kind == Kind::kSend) {
              order_.slots.push_back(slot(instruction, call) = free_slot());
              ready_.push_back(receivers_[instruction.channel]);
            }
          }
        }
      }
    }
  }

  const StepProgram& program_;
  std::size_t most_calls_;
  std::vector<Place> places_;             // by actor
  std::vector<std::uint32_t> receivers_;  // by channel
  std::vector<std::uint32_t> sent_;       // slots by channel and microbatch
  std::vector<std::uint32_t> free_, ready_;
  std::size_t calls_ = 0, microbatches_ = 0;
  CallOrder order_;
};

}  // namespace

// Programs with the same loops differ in which of their last bodies meet.
std::deque<CallOrders::Entry>::iterator CallOrders::find(const StepProgram& program, const std::vector<bool>& meets) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.loops.identity() == program.actors.front().loops.identity() && entry.meets == meets;
  });
}

std::shared_ptr<const CallOrder> CallOrders::of(const StepProgram& program) {
  std::size_t most_calls = kMostCalls;
  const std::vector<bool> meets = meeting_actors(program);
  {
    const std::scoped_lock guard(lock_);
    const auto entry = find(program, meets);
    if (entry == entries_.end()) return nullptr;
    if (entry->known) return entry->order;
    if (entry->runs < kFewRuns) return nullptr;
    most_calls = std::min(most_calls, kGain * static_cast<std::size_t>(entry->bodies));
  }
  auto order = Ordering(program, most_calls).run();
  const std::scoped_lock guard(lock_);
  if (const auto entry = find(program, meets); entry != entries_.end() && !entry->known) {
    entry->known = true;
    entry->order = order;
    if (order != nullptr) calls_ += order->calls.size();
    while (calls_ > kMostCallsOfAll) forget_oldest();
  }
  return order;
}

void CallOrders::ran_folded(const StepProgram& program, std::int64_t bodies) {
  std::vector<bool> meets = meeting_actors(program);
  const std::scoped_lock guard(lock_);
  if (const auto entry = find(program, meets); entry != entries_.end()) {
    ++entry->runs;
    return;
  }
  entries_.push_back({program.actors.front().loops, std::move(meets), bodies, 1, false, nullptr});
  if (entries_.size() > kMostEntries) forget_oldest();
}

void CallOrders::forget_oldest() {
  if (entries_.front().order != nullptr) calls_ -= entries_.front().order->calls.size();
  entries_.pop_front();
}

}  // namespace ns_dist
