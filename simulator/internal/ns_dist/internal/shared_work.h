// Work that the threads of this process and of a team share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ns_dist/internal/threads.h"
#include "ns_dist/result.h"
#include "ns_dist/team.h"

namespace ns_dist {

// Values as bytes for another process of the same program.
class Packer {
 public:
  template <class T>
  requires requires(const T& value, Packer& to) { value.pack(to); }
  void put(const T& value) { value.pack(*this); }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    for (const T& value : values) put(value);
  }
  template <class Key, class T>
  void put(const std::map<Key, T>& values) {
    put(values.size());
    for (const auto& [key, value] : values) {
      put(key);
      put(value);
    }
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  template <class T>
  requires requires(T& value, Unpacker& from) { value.unpack(from); }
  void get(T& value) { value.unpack(*this); }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    NS_EXPECTS(rest_.size() >= sizeof value);
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
  }
  void get(std::string& text) {
    const auto size = of<std::size_t>();
    NS_EXPECTS(rest_.size() >= size);
    text = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(of<std::size_t>());
    for (T& value : values) get(value);
  }
  template <class Key, class T>
  void get(std::map<Key, T>& values) {
    for (auto left = of<std::size_t>(); left > 0; --left) {
      Key key = of<Key>();
      get(values[std::move(key)]);
    }
  }
  template <class T>
  T of() {
    T value{};
    get(value);
    return value;
  }

 private:
  std::string_view rest_;
};

// By i below `count`: work(i), which any thread of any member does. `stop`: where it becomes true, the work ends early.
// `stopped`: on return, whether it did, here or in another member. Every result is there in every member; those of
// members that stopped may be T{}.
template <class T, class Work>
std::vector<T> shared_work(std::size_t count, unsigned threads, Team* team, const std::atomic<bool>* stop,
                           bool& stopped, const Work& work) {
  std::vector<T> results(count);
  const auto stops = [stop] { return stop != nullptr && stop->load(std::memory_order_relaxed); };
  const std::size_t wanted = std::max<std::size_t>(1, std::min<std::size_t>(threads, count));
  if (team == nullptr) {
    std::atomic<std::size_t> next{0};
    on_threads(wanted, [&](unsigned) {
      for (std::size_t i = next++; i < count; i = next++) results[i] = work(i);
    });
    stopped = stops();
    return results;
  }
  // Runs of numbers, long enough that few of them are asked for and short enough that all end at about the same time.
  const std::size_t run =
      std::clamp<std::size_t>(count / (32 * wanted * static_cast<std::size_t>(team->size())), 1, 64);
  std::vector<std::vector<std::size_t>> done(wanted);
  on_threads(wanted, [&](unsigned worker) {
    for (std::size_t first = team->next(run); first < count; first = team->next(run)) {
      for (std::size_t i = first; i < std::min(count, first + run); ++i) {
        results[i] = work(i);
        done[worker].push_back(i);
      }
    }
  });
  Packer mine;
  mine.put(stops());
  for (const std::vector<std::size_t>& each : done) {
    for (const std::size_t i : each) {
      mine.put(i);
      mine.put(results[i]);
    }
  }
  const std::vector<std::string> all = team->exchange(mine.bytes());
  stopped = false;
  for (std::size_t member = 0; member < all.size(); ++member) {
    Unpacker theirs(all[member]);
    stopped = theirs.of<bool>() || stopped;
    while (!theirs.empty()) {
      const auto i = theirs.of<std::size_t>();
      NS_EXPECTS(i < count);
      theirs.get(results[i]);
    }
  }
  return results;
}

}  // namespace ns_dist
