#include "astra/exchange.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

namespace ns_dist::astra {
namespace {

// Latest start plus the messages on the way, over every way of `steps` steps around the ring that ends at each rank. In
// a step a message goes to the next rank, or a rank that has its message already goes on at once. A way that passes the
// start's rank again carries `steps` messages at most: those of as many whole laps as fit.
//
// hop[i]: the message from the i-th rank to the next one.
std::vector<Int> around_ring(std::span<const Int> start, std::span<const Int> hop, Int steps) {
  const auto n = static_cast<Int>(start.size());
  const Int laps = steps / n, rest = steps % n;
  std::vector<Int> way(static_cast<std::size_t>(2 * n) + 1, 0);  // messages from rank 0 to the i-th, two laps long
  for (Int i = 0; i < 2 * n; ++i)
    way[static_cast<std::size_t>(i) + 1] = way[static_cast<std::size_t>(i)] + hop[static_cast<std::size_t>(i % n)];
  const Int lap = way[static_cast<std::size_t>(n)];
  std::vector<Int> latest(start.size(), std::numeric_limits<Int>::min());
  // The largest start - way among the origins `least` to `most` ranks back: a sliding maximum.
  const auto slide = [&](Int least, Int most, Int whole_laps) {
    std::deque<Int> candidates;
    const auto value = [&](Int i) { return start[static_cast<std::size_t>(i % n)] - way[static_cast<std::size_t>(i)]; };
    Int next = 0;
    for (Int r = n; r < 2 * n; ++r) {
      for (next = std::max(next, r - most); next <= r - least; ++next) {
        while (!candidates.empty() && value(candidates.back()) <= value(next)) candidates.pop_back();
        candidates.push_back(next);
      }
      while (!candidates.empty() && candidates.front() < r - most) candidates.pop_front();
      if (candidates.empty()) continue;
      Int& best = latest[static_cast<std::size_t>(r - n)];
      best = std::max(best, value(candidates.front()) + way[static_cast<std::size_t>(r)] + whole_laps * lap);
    }
  };
  slide(0, rest, laps);
  if (laps > 0 && rest < n - 1) slide(rest + 1, n - 1, laps - 1);
  return latest;
}

}  // namespace

bool all_equal(std::span<const Int> values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

Result<void> Exchange::run(CollectiveKind kind, const std::string& algorithm, Int c, std::span<Int> time) const {
  const Int m = message_size(kind, c, members), e = dimension->delay, reduction = dimension->reduction(m);
  if (algorithm == "ring") {
    const RingSteps ring = ring_steps(kind, members);
    std::vector<Int> hop;
    for (Int i = 0; i < members; ++i) hop.push_back(message(i, (i + 1) % members, m));
    const Int fixed = times(ring.steps + 1, e) + times(ring.reductions, reduction);
    if (times(ring.steps, *std::max_element(hop.begin(), hop.end())) + fixed >= kNineYears) return too_long();
    if (all_equal(hop) && all_equal(time)) {
      for (Int& t : time) t += ring.steps * hop.front() + fixed;
      return {};
    }
    const std::vector<Int> latest = around_ring(time, hop, ring.steps);
    for (std::size_t i = 0; i < time.size(); ++i) time[i] = latest[i] + fixed;
    return {};
  }
  const bool reduces = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  if (window_of(algorithm) == 0 && !(fills_dimension && all_equal(time))) {
    if (kind == CollectiveKind::kAllReduce && dimension->d->topology == AstraTopology::kRing && members > 3) {
      return dimension->no_direct_all_reduce();
    }
    for (Int& t : time) t += e;
    meet(m, e + (reduces ? reduction : 0), time);
    if (kind == CollectiveKind::kAllReduce) meet(m, e, time);
    return {};
  }
  // Without a form of its own for ranks that start at different times: from the latest start.
  NS_TRY(const Int whole, dimension->chunk(kind, algorithm, c));
  const Int latest = *std::max_element(time.begin(), time.end());
  for (Int& t : time) t = latest + whole;
  return {};
}

void Exchange::meet(Int m, Int after, std::span<Int> time) const {
  std::vector<Int> next(time.begin(), time.end());
  for (Int to = 0; to < members; ++to) {
    Int& latest = next[static_cast<std::size_t>(to)];
    for (Int from = 0; from < members; ++from) {
      if (from != to) latest = std::max(latest, time[static_cast<std::size_t>(from)] + message(from, to, m));
    }
  }
  for (std::size_t i = 0; i < time.size(); ++i) time[i] = next[i] + after;
}

}  // namespace ns_dist::astra
