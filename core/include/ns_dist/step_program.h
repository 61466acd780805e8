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
#include <memory>
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
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

// Work items, each once. Groups of collectives are those of rank 0; an actor's own group is group.of(its rank).
class WorkTable {
 public:
  WorkId intern(WorkItem item);
  const std::vector<WorkItem>& items() const { return items_; }
  std::vector<WorkItem> take() && { return std::move(items_); }

 private:
  void grow();

  std::vector<WorkItem> items_;
  std::vector<std::size_t> hashes_;   // of the items
  std::vector<std::uint32_t> slots_;  // a power of two: 1 + the index of an item, found by its hash and linear probing
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

// What one pass does, or two passes at the same time. Microbatches come from the call.
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
  std::vector<WorkItem> works;
  std::vector<Fragment> fragments;
  std::vector<std::vector<Instruction>> bodies;  // by BodyId
  std::vector<Actor> actors;                     // by stage
  std::uint32_t channels = 0;                    // each has one sending and one receiving actor
  std::vector<std::uint32_t> meetings;           // actors of each

  FragmentId add(Fragment fragment) {
    fragments.push_back(std::move(fragment));
    return FragmentId{static_cast<std::uint32_t>(fragments.size() - 1)};
  }
  // Nodes of the graph that `expand` would make.
  std::uint64_t node_count() const;
};

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
