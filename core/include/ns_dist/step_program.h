// One training step as a program: what each pipeline stage runs, with the loops of its schedule kept as loops.
//
// The size of a program does not depend on the number of microbatches. `expand` writes it out as an ExecutionGraph, one
// node for each kernel, collective and message.
//
// An actor is a set of ranks that do the same work at the same time, represented by one rank; there is one for each
// stage. It runs its instructions in order. A fragment (a layer one way) is a small graph of kernels and of collectives
// that the actor's own kernels wait for; nothing of a fragment is under way when it ends. What runs beside fragments
// (pipeline messages, data-parallel collectives) is started on a stream of its own and awaited where it is needed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/mesh.h"

namespace ns_dist {

enum class FragmentId : std::uint32_t {};
enum class BodyId : std::uint32_t {};
constexpr std::uint32_t index(FragmentId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t index(BodyId id) { return static_cast<std::uint32_t>(id); }

// Dependencies of a fragment's node are indices of nodes of the fragment, or one of these.
inline constexpr std::int32_t kEntry = -1;           // all that the actor waited for before the fragment
inline constexpr std::int32_t kPreviousKernel = -2;  // the last kernel before the fragment

struct FragmentNode {
  Stream stream = Stream::kCompute;
  WorkId work{};
  std::uint32_t first_dependency = 0, dependency_count = 0;
  friend bool operator==(const FragmentNode&, const FragmentNode&) = default;
};

struct Fragment {
  std::vector<FragmentNode> nodes;  // in launch order; the nodes of a stream run one after another
  std::vector<std::int32_t> dependencies;
  std::vector<std::int32_t> exits;  // what the next fragment's first node waits for

  // Behind all nodes. Returns its index.
  std::int32_t add(Stream stream, WorkId work, std::span<const std::int32_t> after) {
    nodes.push_back(
        {stream, work, static_cast<std::uint32_t>(dependencies.size()), static_cast<std::uint32_t>(after.size())});
    dependencies.insert(dependencies.end(), after.begin(), after.end());
    return static_cast<std::int32_t>(nodes.size() - 1);
  }
  std::int32_t add(Stream stream, WorkId work, std::initializer_list<std::int32_t> after) {
    return add(stream, work, std::span(after.begin(), after.size()));
  }
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

// Work items, each once. Groups of collectives are those of rank 0; an actor's own group is group.of(its rank).
class WorkTable {
 public:
  WorkTable() = default;
  // The items of `base` come first and are shared with it. It must stand on no other table.
  explicit WorkTable(std::shared_ptr<const WorkTable> base);

  WorkId intern(WorkItem item);
  WorkId add(WorkItem item);  // one more, even where an equal one is known

  std::size_t size() const { return shared_ + items_.size(); }
  const WorkItem& operator[](std::size_t work) const {
    return work < shared_ ? base_->items_[work] : items_[work - shared_];
  }
  friend bool operator==(const WorkTable& a, const WorkTable& b);

 private:
  std::optional<WorkId> find(const WorkItem& item, std::size_t hash) const;
  WorkId insert(WorkItem item, std::size_t hash);
  void grow();

  std::shared_ptr<const WorkTable> base_;
  std::size_t shared_ = 0;  // items of `base_`
  std::vector<WorkItem> items_;
  std::vector<std::size_t> hashes_;   // of `items_`
  std::vector<std::uint32_t> slots_;  // a power of two: 1 + the place in `items_`, found by hash and linear probing
};

struct Instruction {
  enum class Kind : std::uint8_t {
    kRun,      // runs fragment `index` `times` times on end
    kStart,    // starts work `index` on `stream`, behind what was started there before
    kSend,     // the same with a message, into `channel`
    kAwait,    // waits until the first `times` works started on `stream` have ended; 0: all that were started so far
    kReceive,  // waits for the message of its microbatch in `channel`
    kMeet,     // waits until all actors of meeting `index` have come here; kStart and kAwait of a collective follow
  };
  Kind kind = Kind::kRun;
  Stream stream = Stream::kCompute;
  bool second = false;  // belongs to the second microbatch of its body
  std::uint32_t index = 0;
  std::uint32_t channel = 0;
  std::int32_t times = 1;
  std::int32_t layer = -1, layer_step = 0;  // of the first run, and from one to the next; -1 where it does not apply
};

// Bodies: what one pass does, or two passes at the same time. Their instructions lie one behind the other in memory.
class Bodies {
 public:
  std::size_t size() const { return firsts_.size(); }
  std::span<const Instruction> operator[](std::size_t body) const {
    const std::size_t end = body + 1 < firsts_.size() ? firsts_[body + 1] : instructions_.size();
    return {instructions_.data() + firsts_[body], end - firsts_[body]};
  }

  void reserve(std::size_t bodies, std::size_t instructions) {
    firsts_.reserve(bodies);
    instructions_.reserve(instructions);
  }
  void add() { firsts_.push_back(static_cast<std::uint32_t>(instructions_.size())); }
  // To the body that was added last.
  void push_back(const Instruction& instruction) { instructions_.push_back(instruction); }
  // The last instruction of that body; null where it has none.
  Instruction* last() { return instructions_.size() > firsts_.back() ? &instructions_.back() : nullptr; }
  // At the end of any body. Moves all that lie behind it.
  void insert(BodyId body, const Instruction& instruction);

 private:
  std::vector<Instruction> instructions_;
  std::vector<std::uint32_t> firsts_;  // by BodyId
};

// Microbatches of a body come from its call.
struct BodyCall {
  BodyId body{};
  std::int32_t microbatch = -1, second = -1;  // -1: none
};

// `calls`, `repeats` times; in repeat r (from 0) every microbatch is larger by r * shift.
struct ProgramLoop {
  std::vector<BodyCall> calls;
  std::int64_t repeats = 1;
  std::int32_t shift = 0;
};

// The loops of an actor. Programs with the same calls and messages may share them.
class ProgramLoops {
 public:
  ProgramLoops() : ProgramLoops(std::vector<ProgramLoop>()) {}
  explicit ProgramLoops(std::vector<ProgramLoop> loops)
      : loops_(std::make_shared<const std::vector<ProgramLoop>>(std::move(loops))) {}

  auto begin() const { return loops_->begin(); }
  auto end() const { return loops_->end(); }
  std::size_t size() const { return loops_->size(); }
  const ProgramLoop& operator[](std::size_t i) const { return (*loops_)[i]; }
  const void* identity() const { return loops_.get(); }  // equal where they are shared

 private:
  std::shared_ptr<const std::vector<ProgramLoop>> loops_;
};

struct Actor {
  Rank rank = 0;  // its representative
  ProgramLoops loops;
};

struct StepProgram {
  Mesh mesh;
  WorkTable works;
  std::vector<Fragment> fragments;
  Bodies bodies;
  std::vector<Actor> actors;            // by stage
  std::uint32_t channels = 0;           // each has one sending and one receiving actor
  std::vector<std::uint32_t> meetings;  // actors of each

  FragmentId add(Fragment fragment) {
    fragments.push_back(std::move(fragment));
    return FragmentId{static_cast<std::uint32_t>(fragments.size() - 1)};
  }
  // Nodes of the graph that `expand` would make.
  std::uint64_t node_count() const;
  // How often the actors together run each work; by WorkId.
  std::vector<std::uint64_t> run_counts() const;
};

// The runs of an actor in one step: each(instruction, times).
template <class Each>
void for_each_instruction(const StepProgram& program, const Actor& actor, const Each& each) {
  for (const ProgramLoop& loop : actor.loops) {
    for (const BodyCall& call : loop.calls) {
      for (const Instruction& instruction : program.bodies[index(call.body)]) {
        each(instruction, static_cast<double>(loop.repeats));
      }
    }
  }
}

// Every pass of every microbatch, written out. The program must have fewer than 2^32 nodes.
struct Expansion {
  ExecutionGraph graph;
  struct Origin {
    std::uint32_t row = 0;
    WorkId work{};  // of the program
  };
  std::vector<Origin> origins;  // by WorkId of the graph
};
// Actors of one row share their kernels' work items. `row_of_actor` may be empty: all actors are in row 0.
Expansion expand(const StepProgram& program, const std::vector<std::uint32_t>& row_of_actor = {});

// What `item` is for the actor with this representative: its own group.
WorkItem work_of_actor(const WorkItem& item, Rank rank);

}  // namespace ns_dist
