// What a cache of plans holds, and what it lets go of.
#include "plan_cache.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

struct Number {
  std::uint64_t value = 0;
  using Stored = Number;
  const Stored& store() const { return *this; }
  std::uint64_t hash() const { return value; }
  friend bool operator==(const Number&, const Number&) = default;
};

struct Sized {
  std::size_t bytes = 0;
  std::size_t size() const { return bytes; }
};

using Cache = Remembered<Number, Sized>;

// Whether the value had to be made.
bool makes(Cache& cache, std::uint64_t key, std::size_t size) {
  bool made = false;
  const auto found = cache.find_or_make({key}, [&]() -> Result<Sized> {
    made = true;
    return Sized{size};
  });
  EXPECT_EQ((*found)->bytes, size);
  return made;
}

TEST(Remembered, LargeValuesAreRememberedWhileThereIsRoomForAll) {
  Cache cache;
  const std::size_t third = Cache::kMostOfAll / 3;
  for (const std::uint64_t key : {1u, 2u, 3u}) EXPECT_TRUE(makes(cache, key, third));
  for (const std::uint64_t key : {1u, 2u, 3u}) EXPECT_FALSE(makes(cache, key, third)) << key;
  EXPECT_TRUE(makes(cache, 4, third));
  EXPECT_FALSE(makes(cache, 2, third));
  EXPECT_FALSE(makes(cache, 3, third));
  EXPECT_TRUE(makes(cache, 1, third)) << "the oldest made room";
}

TEST(Remembered, WhatIsLargerThanAllRoomIsNot) {
  Cache cache;
  EXPECT_TRUE(makes(cache, 1, 10));
  EXPECT_TRUE(makes(cache, 2, Cache::kMostOfAll + 1));
  EXPECT_TRUE(makes(cache, 2, Cache::kMostOfAll + 1));
  EXPECT_FALSE(makes(cache, 1, 10));
}

// Values in one bucket replace each other; their room is free then.
TEST(Remembered, ReplacedValuesFreeTheirRoom) {
  Cache cache;
  EXPECT_TRUE(makes(cache, 1, Cache::kMostOfAll / 2));
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(makes(cache, 1024 * i, Cache::kMostOfAll / 10));
  EXPECT_FALSE(makes(cache, 1, Cache::kMostOfAll / 2));
}

}  // namespace
}  // namespace ns_dist
