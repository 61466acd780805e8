// Spans of a run lie side by side and stay where they are, whatever is added behind them.
#include <gtest/gtest.h>

#include <vector>

#include "clocks/program_queue.h"

namespace ns_dist {
namespace {

TEST(NodeSpans, OfARunLieSideBySide) {
  NodeSpans spans;
  std::vector<std::uint32_t> firsts;
  const std::vector<std::uint32_t> sizes = {1, 40'000, 40'000, 200'000, 3, 65'536, 7};
  for (const std::uint32_t size : sizes) firsts.push_back(spans.add(size));
  for (std::size_t run = 0; run < sizes.size(); ++run) {
    for (std::uint32_t n = 0; n < sizes[run]; ++n) spans.at(firsts[run])[n].start = static_cast<double>(run);
  }
  for (std::size_t run = 0; run < sizes.size(); ++run) {
    for (std::uint32_t n = 0; n < sizes[run]; ++n) {
      ASSERT_EQ(spans.at(firsts[run])[n].start, static_cast<double>(run)) << n;
      ASSERT_EQ(spans.at(firsts[run])[n].end, 0) << n;
    }
  }
}

TEST(NodeSpans, ManyRunsTakeNoMoreThanOneBlock) {
  NodeSpans spans;
  const NodeSpan* first = spans.at(spans.add(10));
  for (int run = 1; run < 6000; ++run) EXPECT_EQ(spans.at(spans.add(10)), first + 10 * run);
}

}  // namespace
}  // namespace ns_dist
