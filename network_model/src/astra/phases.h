// How ASTRA-Sim cuts a collective: a buffer into chunks, and of all NPUs a chunk's way into phases, one in each
// dimension.
#pragma once

#include <cstddef>
#include <vector>

#include "astra/dimension.h"

namespace ns_dist::astra {

// Errors: no dimension, one of fewer than 2 NPUs, without bandwidth or with a negative latency.
Result<std::vector<Dimension>> dimensions_of(const AstraSystem& system, CollectiveKind kind);

// A buffer: `rounds` times a chunk of `size` bytes, one after another; `count` of them in all.
struct Chunks {
  Int size = 0, rounds = 1, count = 1;
};
// Errors: those of astra_time_ns that lie in the kind or the sizes.
Result<Chunks> chunks_of(const AstraSystem& system, CollectiveKind kind, Int comm_size);

// A part of a collective that runs in one dimension.
struct Phase {
  std::size_t dimension = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Int size = 0;           // of the chunk that goes in
  bool backward = false;  // messages go to the rank before, where ranks start at different times
};

// A collective of all NPUs: each chunk runs through all phases.
struct PhasedCollective {
  std::vector<Dimension> dimensions;
  Chunks chunks;
  std::vector<Phase> phases;  // at least one
};
// Errors: as dimensions_of and chunks_of; no algorithm; several chunks on several dimensions.
Result<PhasedCollective> phased(const AstraSystem& system, CollectiveKind kind, Int comm_size);

Error no_algorithm(CollectiveKind kind);

}  // namespace ns_dist::astra
