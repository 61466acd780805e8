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

// About the last buckets * kWays values, as long as all of them together are not larger than kMostOfAll. A `Key`
// refers to what it was made from; Key::Stored owns it.
template <class Key, class Value, std::size_t buckets = 128>
class Remembered {
 public:
  // Calls of a schedule's loops: about 150 MB.
  static constexpr std::size_t kMostOfAll = 4'000'000;

  // Errors: those of `make`, which are not remembered.
  template <class Make>
  Result<std::shared_ptr<const Value>> find_or_make(const Key& key, Make make) {
    const std::uint64_t hash = key.hash();
    Bucket& bucket = buckets_[hash % buckets];
    {
      const std::scoped_lock guard(lock_);
      for (const Entry& entry : bucket.entries) {
        if (entry.value && entry.hash == hash && key == *entry.key) return entry.value;
      }
    }
    NS_TRY(Value made, make());
    auto value = std::make_shared<const Value>(std::move(made));
    const std::size_t size = value->size();
    if (size > kMostOfAll) return value;
    const std::scoped_lock guard(lock_);
    Entry& entry = bucket.entries[bucket.next++ % kWays];
    forget(entry);
    while (size_ + size > kMostOfAll) forget(oldest());
    entry = {hash, made_++, size, std::make_unique<const typename Key::Stored>(key.store()), value};
    size_ += size;
    return value;
  }

 private:
  static constexpr std::size_t kWays = 4;
  struct Entry {
    std::uint64_t hash = 0, number = 0;  // number: the oldest has the least
    std::size_t size = 0;
    std::unique_ptr<const typename Key::Stored> key;  // elsewhere: a cache of one plan makes a thousand entries
    std::shared_ptr<const Value> value;
  };
  struct Bucket {
    std::array<Entry, kWays> entries;
    std::size_t next = 0;
  };
  void forget(Entry& entry) {
    size_ -= entry.size;
    entry = {};
  }
  Entry& oldest() {
    Entry* found = nullptr;
    for (Bucket& bucket : buckets_) {
      for (Entry& entry : bucket.entries) {
        if (entry.size > 0 && (found == nullptr || entry.number < found->number)) found = &entry;
      }
    }
    return *found;  // there is one: size_ is above 0
  }

  std::mutex lock_;
  std::array<Bucket, buckets> buckets_;
  std::uint64_t made_ = 0;
  std::size_t size_ = 0;  // of all values
};

class PlanCache::Contents {
 public:
  Remembered<PartsKey, ModelParts> parts, sizes;
  Remembered<PassesKey, StagePasses, 512> passes;  // a search comes back to a shape after many others
};

}  // namespace ns_dist
