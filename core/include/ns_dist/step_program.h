// One training step as a program: what each pipeline stage runs, with the loops of its schedule kept as loops.
//
// The size of a program does not depend on the number of microbatches. `expand` writes it out as an ExecutionGraph, one
// node for each kernel and message.
//
// An actor is a set of ranks that do the same work at the same time; it is represented by one rank. It runs its
// instructions in order. A fragment (a layer one way) is a small graph of kernels and of collectives that the actor's
// own kernels wait for; nothing of a fragment is left when it ends. What runs beside fragments (pipeline messages,
// data-parallel collectives) is started on a stream of its own and awaited where it is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "ns_dist/mesh.h"

namespace ns_dist {

enum class FragmentId : std::uint32_t {};
enum class BodyId : std::uint32_t {};
constexpr std::uint32_t index(FragmentId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t index(BodyId id) { return static_cast<std::uint32_t>(id); }

// Dependencies of a fragment's node are indices of nodes of the fragment, or one of these.
inline constexpr std::int32_t kEntry = -1;           // whatever the actor had to wait for when the fragment starts
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

}  // namespace ns_dist
