#include "ns_dist/internal/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

namespace ns_dist {
namespace {

TEST(Threads, EachWorkerRunsOnce) {
  for (const std::size_t threads : {0u, 1u, 5u}) {
    std::atomic<int> runs = 0;
    std::atomic<unsigned> workers = 0;  // a bit for each
    on_threads(threads, [&](unsigned worker) { ++runs, workers |= 1U << worker; });
    EXPECT_EQ(runs, threads == 0 ? 1 : static_cast<int>(threads));
    EXPECT_EQ(workers, threads == 5 ? 31u : 1u);
  }
}

// An exception of a worker, as where memory is exhausted, reaches the caller after all others have ended.
TEST(Threads, WhatAWorkerThrowsReachesTheCaller) {
  for (const unsigned thrower : {0u, 2u}) {
    std::atomic<int> ended = 0;
    EXPECT_THROW(on_threads(4,
                            [&](unsigned worker) {
                              if (worker == thrower) throw std::bad_alloc();
                              ++ended;
                            }),
                 std::bad_alloc);
    EXPECT_EQ(ended, 3);
  }
}

}  // namespace
}  // namespace ns_dist
