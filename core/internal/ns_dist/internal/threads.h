#pragma once

#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace ns_dist {

// Calls run(worker) on at most `threads` threads, this one among them; on this one alone where `threads` is 0. Where
// the system has no more threads, those that there are do the work. What a run throws is thrown here once all have
// ended.
template <class Run>
void on_threads(std::size_t threads, const Run& run) {
  std::vector<std::exception_ptr> thrown(threads > 0 ? threads : 1);
  const auto guarded = [&](std::size_t worker) {
    try {
      run(static_cast<unsigned>(worker));
    } catch (...) {
      thrown[worker] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(thrown.size() - 1);
    try {
      while (others.size() + 1 < thrown.size()) others.emplace_back(guarded, others.size() + 1);
    } catch (const std::system_error&) {  // no more threads
    }
    guarded(0);
  }
  for (const std::exception_ptr& one : thrown) {
    if (one) std::rethrow_exception(one);
  }
}

}  // namespace ns_dist
