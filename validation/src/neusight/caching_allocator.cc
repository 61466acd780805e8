#include "neusight/caching_allocator.h"

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr CachingAllocator::Block kNone = static_cast<CachingAllocator::Block>(-1);

std::int64_t up(std::int64_t bytes, std::int64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

void CachingAllocator::put(Block block) {
  parts_[block].free = true;
  free_[parts_[block].pool].emplace(parts_[block].size, block);
}

void CachingAllocator::take(Block block) {
  parts_[block].free = false;
  free_[parts_[block].pool].erase({parts_[block].size, block});
}

CachingAllocator::Block CachingAllocator::allocate(std::int64_t bytes) {
  NS_EXPECTS(bytes > 0);
  const std::int64_t size = up(bytes, 512);
  const std::size_t pool = size <= kMiB ? 0 : 1;
  if (free_[pool].lower_bound({size, 0}) == free_[pool].end()) {
    const std::int64_t segment = pool == 0 ? 2 * kMiB : size < 10 * kMiB ? 20 * kMiB : up(size, 2 * kMiB);
    ++calls_, mapped_ += segment;
    parts_.push_back({segment, kNone, kNone, pool, false});
    put(parts_.size() - 1);
  }
  const Block block = free_[pool].lower_bound({size, 0})->second;
  take(block);
  const std::int64_t rest = parts_[block].size - size;
  if (pool == 0 ? rest >= 512 : rest > kMiB) {
    const Block split = parts_.size(), after = parts_[block].after;
    parts_.push_back({rest, block, after, pool, false});
    if (after != kNone) parts_[after].before = split;
    parts_[block].after = split, parts_[block].size = size;
    put(split);
  }
  return block;
}

void CachingAllocator::release(Block block) {
  NS_EXPECTS(block < parts_.size() && !parts_[block].free);
  const auto join = [&](Block first, Block second) {  // the second becomes part of the first
    const Block after = parts_[second].after;
    parts_[first].size += parts_[second].size, parts_[first].after = after;
    if (after != kNone) parts_[after].before = first;
  };
  const Block after = parts_[block].after, before = parts_[block].before;
  if (after != kNone && parts_[after].free) {
    take(after);
    join(block, after);
  }
  if (before != kNone && parts_[before].free) {
    take(before);
    join(before, block);
    block = before;
  }
  put(block);
}

}  // namespace ns_dist
