#include "clocks/call_order.h"

#include <algorithm>
#include <utility>

namespace ns_dist {
namespace {

constexpr std::size_t kMostCalls = 32'768, kMostMessages = 65'536;  // of one program
constexpr std::size_t kMostEntries = 256, kMostCallsOfAll = 2'000'000;

using Kind = Instruction::Kind;

// Runs the calls of actors in turn, each until a message is missing.
class Ordering {
 public:
  explicit Ordering(const StepProgram& program)
      : program_(program), places_(program.actors.size()), receivers_(program.channels) {}

  std::shared_ptr<const CallOrder> run() && {
    if (!count()) return nullptr;
    sent_.assign(program_.channels * order_.microbatches, false);
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

  const std::vector<Instruction>& body(const BodyCall& call) const { return program_.bodies[index(call.body)]; }
  bool meets(const ProgramLoop& loop) const {
    return std::any_of(loop.calls.begin(), loop.calls.end(), [&](const BodyCall& call) {
      return std::any_of(body(call).begin(), body(call).end(),
                         [](const Instruction& instruction) { return instruction.kind == Kind::kMeet; });
    });
  }

  // Counts calls and microbatches. Returns whether they are few enough.
  bool count() {
    for (std::uint32_t a = 0; a < places_.size(); ++a) {
      for (const ProgramLoop& loop : program_.actors[a].loops) {
        if (meets(loop)) break;
        ++places_[a].end;
        calls_ += loop.calls.size() * static_cast<std::size_t>(loop.repeats);
        if (calls_ > kMostCalls) return false;
        const std::int64_t further = (loop.repeats - 1) * loop.shift;
        for (const BodyCall& call : loop.calls) {
          const std::int64_t most = std::max(call.microbatch, call.second) + std::max<std::int64_t>(0, further);
          order_.microbatches = std::max(order_.microbatches, static_cast<std::size_t>(most + 1));
          for (const Instruction& instruction : body(call)) {
            if (instruction.kind == Kind::kReceive) receivers_[instruction.channel] = a;
          }
        }
      }
    }
    return program_.channels * order_.microbatches <= kMostMessages;
  }

  std::size_t message(const Instruction& instruction, const BodyCall& call) const {
    return instruction.channel * order_.microbatches +
           static_cast<std::size_t>(instruction.second ? call.second : call.microbatch);
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
            if (instruction.kind == Kind::kReceive && !sent_[message(instruction, call)]) return;
          }
          order_.calls.push_back({a, call});
          for (const Instruction& instruction : body(call)) {
            if (instruction.kind != Kind::kSend) continue;
            sent_[message(instruction, call)] = true;
            ready_.push_back(receivers_[instruction.channel]);
          }
        }
      }
    }
  }

  const StepProgram& program_;
  std::vector<Place> places_;             // by actor
  std::vector<std::uint32_t> receivers_;  // by channel
  std::vector<bool> sent_;
  std::vector<std::uint32_t> ready_;
  std::size_t calls_ = 0;
  CallOrder order_;
};

}  // namespace

std::shared_ptr<const CallOrder> CallOrders::of(const StepProgram& program) {
  const ProgramLoops& loops = program.actors.front().loops;
  // Programs with the same loops differ in whether their last bodies meet.
  const bool meets = !program.meetings.empty();
  const auto find = [&] {
    return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.loops.identity() == loops.identity() && entry.meets == meets;
    });
  };
  {
    const std::scoped_lock guard(lock_);
    const auto entry = find();
    if (entry == entries_.end()) {
      entries_.push_back({loops, meets, false, nullptr});
      if (entries_.size() > kMostEntries) forget_oldest();
      return nullptr;
    }
    if (entry->known) return entry->order;
  }
  auto order = Ordering(program).run();
  const std::scoped_lock guard(lock_);
  if (const auto entry = find(); entry != entries_.end() && !entry->known) {
    *entry = {loops, meets, true, order};
    if (order != nullptr) calls_ += order->calls.size();
    while (calls_ > kMostCallsOfAll) forget_oldest();
  }
  return order;
}

void CallOrders::forget_oldest() {
  if (entries_.front().order != nullptr) calls_ -= entries_.front().order->calls.size();
  entries_.pop_front();
}

}  // namespace ns_dist
