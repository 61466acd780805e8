// An order of all calls of a program in which every message is sent before it is received. Programs whose actors share
// their loops share it; with it, the pass clock need not find out who waits for whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "ns_dist/step_program.h"

namespace ns_dist {

struct CallOrder {
  struct Call {
    std::uint32_t actor = 0;
    BodyId body{};
  };
  std::vector<Call> calls;
  std::vector<std::uint32_t> slots;  // where the messages lie that these calls receive and send, one after the other
  std::size_t slot_count = 0;        // a slot is free again when its message has been received
  std::vector<std::uint32_t> loops;  // by actor: those that `calls` covers; what is left begins with a meeting
};

// Remembers orders by the loops of the first actor, and by which actors meet at the end of theirs: the planner gives
// the same loops to programs with the same calls and messages, whatever the bodies hold. Any number of threads may ask
// at once.
class CallOrders {
 public:
  // Nothing where folded runs of such loops are few, since the next may be the last, and where folding is faster.
  std::shared_ptr<const CallOrder> of(const StepProgram& program);
  // The program was run folded, `bodies` of its calls one by one.
  void ran_folded(const StepProgram& program, std::int64_t bodies);

 private:
  struct Entry {
    ProgramLoops loops;
    std::vector<bool> meets;  // by actor
    std::int64_t bodies = 0;  // of a folded run
    int runs = 0;             // folded
    bool known = false;       // the order, or that there is none
    std::shared_ptr<const CallOrder> order;
  };
  std::deque<Entry>::iterator find(const StepProgram& program, const std::vector<bool>& meets);
  void forget_oldest();

  std::mutex lock_;
  std::deque<Entry> entries_;  // the oldest first
  std::size_t calls_ = 0;      // of all entries
};

}  // namespace ns_dist
