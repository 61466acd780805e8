// How PyTorch's caching allocator turns tensors into calls of cudaMalloc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace ns_dist {

// The rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.1) with nothing configured and nothing cached at first:
// sizes in steps of 512 bytes; up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB, else a segment
// of its own in steps of 2 MiB; the smallest free block that is large enough is taken and split where more than 1 MiB
// (512 bytes in small segments) is left; free neighbors join.
class CachingAllocator {
 public:
  using Block = std::size_t;
  Block allocate(std::int64_t bytes);  // at least one byte
  void release(Block block);           // allocated before, and once

  std::int64_t calls() const { return calls_; }    // of cudaMalloc
  std::int64_t mapped() const { return mapped_; }  // bytes of all segments

 private:
  struct Part {
    std::int64_t size = 0;
    Block before = 0, after = 0;  // neighbors in the segment; kNone at its ends
    std::size_t pool = 0;         // 0 small, 1 large
    bool free = false;
  };
  void put(Block block);   // into its pool
  void take(Block block);  // out of it

  std::vector<Part> parts_;
  std::array<std::set<std::pair<std::int64_t, Block>>, 2> free_;  // by size
  std::int64_t calls_ = 0, mapped_ = 0;
};

}  // namespace ns_dist
