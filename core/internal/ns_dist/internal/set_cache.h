#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

// Remembers about the last `entries` values by their keys (rounded up to a power of two), in buckets of `kWays`. Keys
// are told apart by comparison: those of one hash are merely slower. Any number of threads may ask at once.
template <class Key, class Value, std::size_t kWays = 4>
class SetCache {
 public:
  explicit SetCache(std::size_t entries) : buckets_(std::bit_ceil(std::max(entries / kWays, kLocks))) {}

  // The value of `key`, from `make`, a call that returns a Result<Value>, where it is not known. Errors are not
  // remembered. Nothing is locked while `make` runs: threads that ask for one key at once may each make its value.
  template <class Make>
  Result<Value> find_or_make(const Key& key, std::uint64_t hash, const Make& make) const {
    const std::size_t at = hash & (buckets_.size() - 1);
    Bucket& bucket = buckets_[at];
    std::mutex& lock = locks_[at % kLocks];
    {
      const std::scoped_lock guard(lock);
      for (std::size_t way = 0; way < kWays; ++way) {
        if (bucket.hash[way] == hash && bucket.entry[way] && bucket.entry[way]->key == key) {
          return bucket.entry[way]->value;
        }
      }
    }
    NS_TRY(const Value value, make());
    const std::scoped_lock guard(lock);
    const std::size_t way = bucket.next++ % kWays;
    bucket.hash[way] = hash, bucket.entry[way] = Entry{key, value};
    return value;
  }

 private:
  static constexpr std::size_t kLocks = 64;  // threads rarely meet at one lock
  struct Entry {
    Key key;
    Value value;
  };
  // Hashes stand together, so that a miss costs one line of memory.
  struct Bucket {
    std::array<std::uint64_t, kWays> hash{};
    std::size_t next = 0;
    std::array<std::optional<Entry>, kWays> entry;
  };

  mutable std::array<std::mutex, kLocks> locks_;
  mutable std::vector<Bucket> buckets_;
};

}  // namespace ns_dist
