#include "ns_dist/internal/divisors.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

TEST(Divisors, AreAllInOrderUpToTheMost) {
  using Divisors = std::vector<std::int64_t>;
  EXPECT_EQ(divisors_of(12, 12), (Divisors{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(divisors_of(12, 5), (Divisors{1, 2, 3, 4}));
  EXPECT_EQ(divisors_of(36, 1000), (Divisors{1, 2, 3, 4, 6, 9, 12, 18, 36}));
  EXPECT_EQ(divisors_of(1, 1), Divisors{1});
  EXPECT_EQ(divisors_of(7, 0), Divisors{});
  EXPECT_EQ(divisors_of(1'000'000'007, 1'000'000'007), (Divisors{1, 1'000'000'007}));
  for (std::int64_t whole = 1; whole < 300; ++whole) {
    for (const std::int64_t most : {whole / 2, whole}) {
      Divisors all;
      for (std::int64_t each = 1; each <= most; ++each) {
        if (whole % each == 0) all.push_back(each);
      }
      EXPECT_EQ(divisors_of(whole, most), all) << whole;
    }
  }
}

}  // namespace
}  // namespace ns_dist
