// What a PlanCache holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "model_parts.h"
#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/result.h"
#include "stage_passes.h"

namespace ns_dist {

// About the last kBuckets * kWays values that are not too large. A `Key` refers to what it was made from; Key::Stored
// owns it.
template <class Key, class Value>
class Remembered {
 public:
  // Errors: those of `make`, which are not remembered.
  template <class Make>
  Result<std::shared_ptr<const Value>> find_or_make(const Key& key, Make make) {
    const std::uint64_t hash = key.hash();
    Bucket& bucket = buckets_[hash % kBuckets];
    {
      const std::scoped_lock guard(lock_);
      for (const Entry& entry : bucket.entries) {
        if (entry.value && entry.hash == hash && key == *entry.key) return entry.value;
      }
    }
    NS_TRY(Value made, make());
    auto value = std::make_shared<const Value>(std::move(made));
    if (value->too_large()) return value;
    const std::scoped_lock guard(lock_);
    bucket.entries[bucket.next++ % kWays] = {hash, std::make_unique<const typename Key::Stored>(key.store()), value};
    return value;
  }

 private:
  static constexpr std::size_t kBuckets = 128, kWays = 4;
  struct Entry {
    std::uint64_t hash = 0;
    std::unique_ptr<const typename Key::Stored> key;  // elsewhere: a cache of one plan makes a thousand entries
    std::shared_ptr<const Value> value;
  };
  struct Bucket {
    std::array<Entry, kWays> entries;
    std::size_t next = 0;
  };
  std::mutex lock_;
  std::array<Bucket, kBuckets> buckets_;
};

class PlanCache::Contents {
 public:
  Remembered<PartsKey, ModelParts> parts;
  Remembered<PassesKey, StagePasses> passes;
};

}  // namespace ns_dist
