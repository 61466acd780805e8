// When the members of a group, which may start at different times, have exchanged a chunk with each other.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "astra/dimension.h"

namespace ns_dist::astra {

bool all_equal(std::span<const Int> values);

// Members that exchange a chunk with each other: what a message takes between any two of them.
struct Exchange {
  const Dimension* dimension = nullptr;  // whose reductions and delays hold
  Int members = 0;
  std::function<Int(Int from, Int to, Int bytes)> message;  // by place in the group
  bool fills_dimension = true;                              // its form holds where all members start at one time

  // Moves the members' times (ns) from the start of one chunk of `c` bytes to its end. Errors: those of
  // Dimension::chunk.
  Result<void> run(CollectiveKind kind, const std::string& algorithm, Int c, std::span<Int> time) const;
  // Every member gets a message of each other one, and goes on `after` the last.
  void meet(Int m, Int after, std::span<Int> time) const;
};

}  // namespace ns_dist::astra
