#include "ns_dist/hash.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

// Buckets take the low bits: sizes that differ in a higher bit alone must differ there, too.
TEST(MixHash, FieldsAndTheirOrderReachTheLowBits) {
  constexpr std::uint64_t kLow = 0xffff;
  EXPECT_NE(mix_hash(mix_hash(0, 1), 2), mix_hash(mix_hash(0, 2), 1));
  for (unsigned bit = 0; bit < 40; ++bit) {
    EXPECT_NE(mix_hash(0, std::uint64_t{1} << bit) & kLow, mix_hash(0, 0) & kLow) << bit;
  }
}

// Published values of FNV-1a, 64 bits (Fowler, Noll and Vo): of nothing, and of "a".
TEST(HashText, IsFnv1a) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
}

}  // namespace
}  // namespace ns_dist
