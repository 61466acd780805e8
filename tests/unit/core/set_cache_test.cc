#include "ns_dist/internal/set_cache.h"

#include <gtest/gtest.h>

#include <string>

namespace ns_dist {
namespace {

struct Asked {
  SetCache<int, std::string, 2> cache{1};
  int times = 0;

  std::string value(int key, std::uint64_t hash) {
    return *cache.find_or_make(key, hash, [&]() -> Result<std::string> {
      ++times;
      return std::to_string(key);
    });
  }
};

TEST(SetCache, AsksOnceForEachKey) {
  Asked asked;
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(asked.value(1, 10), "1");
    EXPECT_EQ(asked.value(2, 10), "2") << "a key of the same hash is another one";
    EXPECT_EQ(asked.value(0, 0), "0") << "a hash of 0 is no empty place";
  }
  EXPECT_EQ(asked.times, 3);
}

TEST(SetCache, ForgetsTheOldestOfABucket) {
  Asked asked;
  for (const int key : {1, 2, 3}) asked.value(key, 10);
  asked.value(2, 10), asked.value(3, 10);
  EXPECT_EQ(asked.times, 3);
  asked.value(1, 10);
  EXPECT_EQ(asked.times, 4);
}

TEST(SetCache, DoesNotKeepErrors) {
  const SetCache<int, int> cache(64);
  int times = 0;
  const auto refuse = [&]() -> Result<int> {
    ++times;
    return fail({ErrorCode::kInvalidInput, "no", ""});
  };
  EXPECT_FALSE(cache.find_or_make(1, 1, refuse));
  EXPECT_FALSE(cache.find_or_make(1, 1, refuse));
  EXPECT_EQ(times, 2);
  EXPECT_EQ(cache.find_or_make(1, 1, [] { return Result<int>(7); }).value(), 7);
  EXPECT_EQ(cache.find_or_make(1, 1, refuse).value(), 7);
}

}  // namespace
}  // namespace ns_dist
