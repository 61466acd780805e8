// The next of many events, one for each lane. Events can be moved and taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ns_dist {

class EventHeap {
 public:
  explicit EventHeap(std::size_t lanes = 0) { reset(lanes); }
  void reset(std::size_t lanes) {
    heap_.clear();
    position_.assign(lanes, kNone);
  }

  bool empty() const { return heap_.empty(); }
  double time() const { return heap_.front().time; }

  // The lane whose event is the earliest; of equal times the lowest.
  std::uint32_t pop() {
    const std::uint32_t lane = heap_.front().lane;
    erase(lane);
    return lane;
  }

  void set(std::uint32_t lane, double time) {
    std::uint32_t at = position_[lane];
    if (at == kNone) {
      at = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back({time, lane});
      position_[lane] = at;
      up(at);
      return;
    }
    const bool earlier = time < heap_[at].time;
    heap_[at].time = time;
    earlier ? up(at) : down(at);
  }

  void erase(std::uint32_t lane) {
    const std::uint32_t at = position_[lane];
    if (at == kNone) return;
    position_[lane] = kNone;
    const Event last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    const bool earlier = before(last, heap_[at]);
    put(at, last);
    earlier ? up(at) : down(at);
  }

  // Every event later by `shift`.
  void shift(double shift) {
    for (Event& event : heap_) event.time += shift;
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;
  struct Event {
    double time;
    std::uint32_t lane;
  };

  static bool before(const Event& a, const Event& b) {
    return a.time < b.time || (a.time == b.time && a.lane < b.lane);
  }
  void put(std::size_t at, const Event& event) {
    heap_[at] = event;
    position_[event.lane] = static_cast<std::uint32_t>(at);
  }
  void up(std::size_t at) {
    const Event event = heap_[at];
    for (; at > 0 && before(event, heap_[(at - 1) / 2]); at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
    put(at, event);
  }
  void down(std::size_t at) {
    const Event event = heap_[at];
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], event)) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, event);
  }

  std::vector<Event> heap_;
  std::vector<std::uint32_t> position_;  // by lane
};

}  // namespace ns_dist
