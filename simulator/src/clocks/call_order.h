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
    BodyCall call;
  };
  std::vector<Call> calls;
  std::vector<std::uint32_t> loops;  // by actor: those that `calls` covers; what is left begins with a meeting
  std::size_t microbatches = 0;
};

// Remembers orders by the loops of the first actor: the planner gives the same loops to programs with the same calls
// and messages. Any number of threads may ask at once.
class CallOrders {
 public:
  // Nothing at the first time that a program with such loops comes, since it may be the last, and for long programs.
  std::shared_ptr<const CallOrder> of(const StepProgram& program);

 private:
  struct Entry {
    ProgramLoops loops;
    bool meets = false;
    bool known = false;
    std::shared_ptr<const CallOrder> order;
  };
  void forget_oldest();

  std::mutex lock_;
  std::deque<Entry> entries_;  // the oldest first
  std::size_t calls_ = 0;      // of all entries
};

}  // namespace ns_dist
