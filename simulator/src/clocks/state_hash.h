#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace ns_dist {

// Of a clock's state, as words of 8 bytes; equal for equal bits (as FNV-1a, a word at a time). States of a pipeline in
// its stride differ in few of many words, and seldom in the first.
template <class Word>
std::uint64_t state_hash(const std::vector<Word>& state) {
  std::uint64_t hash = 14695981039346656037u;
  for (const Word word : state) hash = (hash ^ std::bit_cast<std::uint64_t>(word)) * 1099511628211u;
  return hash;
}

}  // namespace ns_dist
