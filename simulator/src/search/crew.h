// Who works on a search: the threads of this process and its team, until they are told to stop.
#pragma once

#include <cstddef>
#include <vector>

#include "ns_dist/internal/shared_work.h"
#include "ns_dist/search.h"

namespace ns_dist {

class Crew {
 public:
  explicit Crew(const SearchOptions& options) : options_(options) {}

  // Told to this process, which lets go of what it works on; and what every member of the team knows.
  bool told_to_stop() const {
    return options_.watch.stop != nullptr && options_.watch.stop->load(std::memory_order_relaxed);
  }
  bool stop() const { return options_.team != nullptr ? stopped_ : told_to_stop(); }

  // Every member learns whether one was told to stop, and left undone what each does for itself.
  void agree() {
    shared<int>(0, [](std::size_t) { return 0; });
  }

  // By i below `count`: work(i), as shared_work does it.
  template <class T, class Work>
  std::vector<T> shared(std::size_t count, const Work& work) {
    bool stopped = false;
    std::vector<T> results = shared_work<T>(count, options_.threads, options_.team, options_.watch.stop, stopped, work);
    stopped_ |= stopped;
    return results;
  }

 private:
  const SearchOptions& options_;
  bool stopped_ = false;  // some member of the team was told to stop
};

}  // namespace ns_dist
