#pragma once

#include <cstddef>
#include <thread>
#include <vector>

namespace ns_dist {

// Calls run(worker) on `threads` threads, this one among them; on this one alone where `threads` is 0.
template <class Run>
void on_threads(std::size_t threads, const Run& run) {
  std::vector<std::jthread> others;
  for (unsigned worker = 1; worker < threads; ++worker) others.emplace_back(run, worker);
  run(0U);
}

}  // namespace ns_dist
