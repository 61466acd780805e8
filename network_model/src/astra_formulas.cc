#include "ns_dist/astra_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "algorithms.h"
#include "ns_dist/internal/number_from.h"
#include "topology.h"
#include "wording.h"

namespace ns_dist {
namespace {

using Int = std::int64_t;

constexpr double kGib = 1073741824.0;  // bytes of what ASTRA-Sim calls GB

// Nine years in ns. What is as long, or as many bytes, is refused; sums of a few such terms do not overflow.
constexpr Int kNineYears = kMostAstraBytes + 1;

Int truncated(double nanoseconds) {
  return nanoseconds < static_cast<double>(kNineYears) ? static_cast<Int>(nanoseconds) : kNineYears;
}
// At most kNineYears, of what is not negative.
Int times(Int a, Int b) { return b > 0 && a > kNineYears / b ? kNineYears : a * b; }
Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }

// `key`: of the system json, where another value of it would have a form.
tl::unexpected<Error> no_form(const std::string& what, const std::string& key = "", const std::string& expected = "") {
  return fail(
      {ErrorCode::kInvalidInput, "no closed form is known for " + what, key.empty() ? "" : "#/" + key, expected});
}

// Of the algorithms of a collective.
std::string key_of(CollectiveKind kind) {
  std::string key(name_of(kind));
  std::replace(key.begin(), key.end(), '_', '-');
  return key + "-implementation";
}

tl::unexpected<Error> too_long() {
  return fail({ErrorCode::kInvalidInput, "a collective or message that takes more than nine years", "",
               "fewer bytes, or links with more bandwidth"});
}
Result<Int> checked(Int nanoseconds) {
  if (nanoseconds >= kNineYears) return too_long();
  return nanoseconds;
}

// One dimension with everything that its formulas need.
struct Dimension {
  const AstraDimension* d;
  const AstraSystem* system;
  Int delay;             // endpoint delay, ns
  CollectiveKind whole;  // of whose phases this is one: it names the algorithm

  Int n() const { return d->npus; }
  double beta() const { return d->bandwidth_gib * kGib / 1e9; }  // B/ns
  Int serialization(Int m) const { return truncated(static_cast<double>(m) / beta()); }
  Int hops(Int distance) const {
    if (d->topology == AstraTopology::kSwitch) return 2;
    return d->topology == AstraTopology::kRing ? distance : 1;
  }

  // Unaware: latency of the hops and one serialization; aware: store and forward on every hop.
  Int message(Int m, Int distance = 1) const {
    const double bytes = static_cast<double>(m);
    if (!system->congestion_aware) {
      return truncated(static_cast<double>(hops(distance)) * d->latency_ns + bytes / beta());
    }
    return times(hops(distance), truncated(d->latency_ns + bytes / beta()));
  }
  // Three passes over local memory, two reads and a write.
  Int reduction(Int m) const {
    if (!(system->local_memory_gbs > 0)) return 0;
    return 3 * truncated(static_cast<double>(m) / system->local_memory_gbs);
  }

  // What one chunk of `c` bytes takes in this dimension by `algorithm`.
  Result<Int> chunk(CollectiveKind kind, const std::string& algorithm, Int c) const;
  Int ring(CollectiveKind kind, Int c) const;
  Result<Int> direct(CollectiveKind kind, Int c, Int window) const;
  Result<Int> halving_doubling(CollectiveKind kind, Int c) const;
  // Its two phases overlap.
  tl::unexpected<Error> no_direct_all_reduce() const {
    return no_form("a direct all-reduce on a ring of more than three", key_of(whole), "ring");
  }
};

// Steps of a ring: messages that follow each other, and how many of them are reduced.
struct RingSteps {
  Int steps = 0, reductions = 0;
};
RingSteps ring_steps(CollectiveKind kind, Int n) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return {2 * (n - 1), n - 1};
    case CollectiveKind::kReduceScatter:
      return {n - 1, n - 1};
    case CollectiveKind::kAllToAll:  // forwarded hop by hop along the logical ring
      return {n * (n - 1) / 2, 0};
    default:
      return {n - 1, 0};
  }
}

Int message_size(CollectiveKind kind, Int c, Int n) { return kind == CollectiveKind::kAllGather ? c : c / n; }

Int Dimension::ring(CollectiveKind kind, Int c) const {
  const Int m = message_size(kind, c, n());
  const RingSteps ring = ring_steps(kind, n());
  return times(ring.steps, message(m)) + times(ring.steps + 1, delay) + times(ring.reductions, reduction(m));
}

Result<Int> Dimension::direct(CollectiveKind kind, Int c, Int window) const {
  const Int m = message_size(kind, c, n()), e = delay;
  const bool ring = d->topology == AstraTopology::kRing;
  if (ring && system->congestion_aware) return no_form("direct exchange on a ring with congestion");
  if (ring && kind == CollectiveKind::kAllReduce && n() > 3) {
    return no_direct_all_reduce();
  }
  Int exchange = message(m, ring ? n() / 2 : 1);
  if (system->congestion_aware && d->topology == AstraTopology::kSwitch) {
    // The messages to all peers queue at the uplink.
    exchange = times(n() - 2, serialization(m)) + 2 * truncated(d->latency_ns + static_cast<double>(m) / beta());
  }
  if (window > 0 && window < n() - 1) {
    if (system->congestion_aware || kind != CollectiveKind::kAllReduce) {
      return no_form("direct exchange with a window", key_of(whole), "direct or ring");
    }
    const Int rounds = 2 * ceil_div(n() - 1, window);
    return times(rounds, exchange) + times(rounds + 1, e) + times(ceil_div(n() - 1, window), reduction(m));
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * exchange + 3 * e + reduction(m);
    case CollectiveKind::kReduceScatter:
      return exchange + 2 * e + reduction(m);
    default:
      return exchange + 2 * e;
  }
}

Result<Int> Dimension::halving_doubling(CollectiveKind kind, Int c) const {
  if (const std::string why = astra_refusal("halvingDoubling", kind, n(), c, false); !why.empty()) {
    return no_form(why, key_of(whole), "ring or direct");
  }
  if (d->topology != AstraTopology::kSwitch || system->congestion_aware) {
    return no_form("halvingDoubling other than on a switch without congestion", key_of(whole), "ring or direct");
  }
  Int time = delay, m = c;
  if (kind != CollectiveKind::kAllGather) {
    for (Int parts = 2; parts <= n(); parts *= 2) {
      m /= 2;
      time += message(m) + delay + (parts > 2 ? reduction(m) : 0);  // the first of each pair passes unreduced
      if (time >= kNineYears) return too_long();
    }
  }
  if (kind != CollectiveKind::kReduceScatter) {
    for (Int parts = 2; parts <= n(); parts *= 2) {
      time += message(m) + delay;
      if (time >= kNineYears) return too_long();
      m *= 2;
    }
  }
  return time;
}

constexpr std::string_view kDirect = "direct";

// The window of "direct<window>", 0 for "direct" itself; nothing for other texts.
std::optional<Int> window_of(const std::string& algorithm) {
  if (!algorithm.starts_with(kDirect)) return std::nullopt;
  if (algorithm == kDirect) return 0;
  const auto window = number_from<Int>(std::string_view(algorithm).substr(kDirect.size()));
  return window && *window >= 1 ? window : std::nullopt;
}

Result<Int> Dimension::chunk(CollectiveKind kind, const std::string& algorithm, Int c) const {
  if (algorithm == "ring") return ring(kind, c);
  if (algorithm == "halvingDoubling") return halving_doubling(kind, c);
  if (const auto window = window_of(algorithm)) return direct(kind, c, *window);
  return no_form(fmt::format("the algorithm \"{}\"", algorithm), key_of(whole),
                 "ring, direct, direct<window> or halvingDoubling");
}

bool runs(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
}

// A part of a collective that runs in one dimension.
struct Phase {
  std::size_t dimension = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Int size = 0;           // of the chunk that goes in
  bool backward = false;  // messages go to the rank before, where ranks start at different times
};

// One chunk through all dimensions that have an algorithm: reduce-scatter and all-to-all go up, all-gather down; what a
// phase leaves is what the next one gets. The all-gathers of an all-reduce go around their rings backward (its
// QueueLevelHandler::get_next_queue_id_last).
std::vector<Phase> phases_of(const std::vector<Dimension>& all, CollectiveKind kind, Int c, bool local_aware) {
  std::vector<std::size_t> dims;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].d->algorithm.of(kind).empty()) dims.push_back(i);
  }
  std::vector<Phase> phases;
  Int size = c;
  const auto up = [&](std::size_t last, CollectiveKind phase) {
    for (std::size_t i = 0; i < last; ++i) {
      phases.push_back({dims[i], phase, size});
      if (phase == CollectiveKind::kReduceScatter) size /= all[dims[i]].n();
    }
  };
  const auto down = [&](std::size_t first, bool backward) {
    for (std::size_t i = first; i-- > 0;) {
      phases.push_back({dims[i], CollectiveKind::kAllGather, size, backward});
      size = times(size, all[dims[i]].n());
    }
  };
  if (dims.empty()) return phases;
  if (kind == CollectiveKind::kAllGather) {
    down(dims.size(), false);
  } else if (kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll || !local_aware) {
    up(dims.size(), kind);
  } else {
    up(dims.size() - 1, CollectiveKind::kReduceScatter);
    phases.push_back({dims.back(), CollectiveKind::kAllReduce, size});
    down(dims.size() - 1, true);
  }
  return phases;
}

Result<std::vector<Dimension>> dimensions_of(const AstraSystem& system, CollectiveKind kind) {
  std::vector<Dimension> dims;
  for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
    const AstraDimension& d = system.dimensions[i];
    if (d.npus < 2 || !(d.bandwidth_gib > 0) || !(d.latency_ns >= 0) || !std::isfinite(d.latency_ns)) {
      return fail({ErrorCode::kInvalidInput, fmt::format("dimension {} of the network", i), "",
                   "at least 2 NPUs, a positive bandwidth, a latency of at least zero"});
    }
    dims.push_back({&d, &system, system.endpoint_delay_ns, kind});
  }
  if (dims.empty()) return fail({ErrorCode::kInvalidInput, "a network without dimensions", ""});
  return dims;
}

constexpr const char* kSplitsKey = "preferred-dataset-splits";

// How a buffer is cut: `rounds` times a chunk of `size` bytes, one after another.
struct Chunks {
  Int size = 0, rounds = 1, count = 1;
};

Result<Chunks> chunks_of(const AstraSystem& system, CollectiveKind kind, Int comm_size) {
  if (!runs(kind)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("ASTRA-Sim runs no {}", name_of(kind)), "",
                 "all_reduce, all_gather, reduce_scatter or all_to_all"});
  }
  if (comm_size > kMostAstraBytes || system.splits > kMostAstraBytes) return too_long();
  if (comm_size < 1 || system.splits < 1 || system.active_chunks < 1) {
    return fail({ErrorCode::kInvalidInput, "sizes, splits and active chunks below one", "", "positive numbers"});
  }
  const Int c = astra_chunk(system, kind, comm_size);
  if (c < 1) {
    return no_form("an all-gather of fewer bytes than splits (it never ends)", kSplitsKey,
                   fmt::format("at most {}", comm_size));
  }
  const Int count = c > comm_size / system.splits ? system.splits : ceil_div(comm_size, c);  // raised: all are
  return Chunks{c, ceil_div(count, system.active_chunks), count};
}

Error no_algorithm(CollectiveKind kind) {
  return {ErrorCode::kInvalidInput, fmt::format("the system has no algorithm for {}", name_of(kind)),
          "#/" + key_of(kind), "one for each dimension of the network"};
}

Result<void> check_chunks(const std::vector<Phase>& phases, const Chunks& chunks) {
  if (phases.size() < 2 || chunks.count < 2) return {};
  return no_form("several chunks on several dimensions", kSplitsKey, "1");
}

}  // namespace

Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size) {
  NS_TRY(const std::vector<Dimension> dims, dimensions_of(system, kind));
  NS_TRY(const Chunks chunks, chunks_of(system, kind, comm_size));
  const std::vector<Phase> phases = phases_of(dims, kind, chunks.size, system.local_bandwidth_aware);
  if (phases.empty()) return fail(no_algorithm(kind));
  NS_TRY_VOID(check_chunks(phases, chunks));
  if (system.congestion_aware && (dims.size() > 1 || (chunks.count > 1 && system.active_chunks > 1))) {
    return no_form("several dimensions or active chunks with congestion");
  }
  Int one = 0;
  for (const Phase& phase : phases) {
    const Dimension& dimension = dims[phase.dimension];
    NS_TRY(const Int time, dimension.chunk(phase.kind, dimension.d->algorithm.of(kind), phase.size));
    one += time;
    if (one >= kNineYears) return too_long();
  }
  return checked(times(chunks.rounds, one));
}

// ---- Groups, and ranks that start at different times ----

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

bool all_equal(std::span<const Int> values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

// Members that exchange a chunk with each other: what a message takes between any two of them.
struct Exchange {
  const Dimension* dimension = nullptr;  // whose reductions and delays hold
  Int members = 0;
  std::function<Int(Int from, Int to, Int bytes)> message;  // by place in the group
  bool fills_dimension = true;                              // its form holds where all members start at one time

  // Moves the members' times from the start of one chunk to its end.
  Result<void> run(CollectiveKind kind, const std::string& algorithm, Int c, std::span<Int> time) const {
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

 private:
  // Every member gets a message of each other one, and goes on `after` the last.
  void meet(Int m, Int after, std::span<Int> time) const {
    std::vector<Int> next(time.begin(), time.end());
    for (Int to = 0; to < members; ++to) {
      Int& latest = next[static_cast<std::size_t>(to)];
      for (Int from = 0; from < members; ++from) {
        if (from != to) latest = std::max(latest, time[static_cast<std::size_t>(from)] + message(from, to, m));
      }
    }
    for (std::size_t i = 0; i < time.size(); ++i) time[i] = next[i] + after;
  }
};

// Groups of fewer ranks than the network have this endpoint delay, whatever the system says.
constexpr Int kGroupDelay = 10;

// One phase of a collective of all NPUs: every line of the dimension exchanges for itself.
Result<void> run_phase(const AstraSystem& system, CollectiveKind kind, const Phase& phase, std::span<Int> times) {
  const Dimension dimension{&system.dimensions[phase.dimension], &system, system.endpoint_delay_ns, kind};
  const Int n = dimension.n();
  const Exchange exchange{&dimension, n, [&](Int from, Int to, Int bytes) {
                            const Int apart = std::abs(to - from);
                            return dimension.message(bytes, std::min(apart, n - apart));
                          }};
  Int below = 1;
  for (std::size_t i = 0; i < phase.dimension; ++i) below *= system.dimensions[i].npus;
  std::vector<Int> line(static_cast<std::size_t>(n));
  const auto npus = static_cast<Int>(times.size());
  for (Int first = 0; first < npus; ++first) {
    if (first / below % n != 0) continue;
    const auto time_of = [&](Int i) -> Int& {
      return times[static_cast<std::size_t>(first + (phase.backward ? n - 1 - i : i) * below)];
    };
    for (Int i = 0; i < n; ++i) line[static_cast<std::size_t>(i)] = time_of(i);
    NS_TRY_VOID(exchange.run(phase.kind, dimension.d->algorithm.of(kind), phase.size, line));
    if (*std::max_element(line.begin(), line.end()) >= kNineYears) return too_long();
    for (Int i = 0; i < n; ++i) time_of(i) = line[static_cast<std::size_t>(i)];
  }
  return {};
}

}  // namespace

Result<AstraNetwork> AstraNetwork::make(AstraSystem system) {
  NS_TRY_VOID(dimensions_of(system, CollectiveKind::kAllReduce));
  if (system.congestion_aware) return no_form("groups and messages of the congestion-aware backend");
  AstraNetwork network;
  network.system_ = std::move(system);
  return network;
}

// The lowest dimension in which the two differ, and how far they are apart on it.
std::pair<std::size_t, std::int64_t> AstraNetwork::charged(Rank from, Rank to) const {
  for (std::size_t i = 0; i < system_.dimensions.size(); ++i) {
    const Int n = system_.dimensions[i].npus;
    if (const Int apart = std::abs(to % n - from % n); apart != 0) return {i, std::min(apart, n - apart)};
    from /= n;
    to /= n;
  }
  return {0, 0};
}

Result<std::int64_t> AstraNetwork::message_ns(Rank from, Rank to, std::int64_t bytes) const {
  const Int npus = system_.npus();
  if (from < 0 || to < 0 || from >= npus || to >= npus || from == to || bytes < 0) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("a message of {} bytes from rank {} to rank {}", bytes, from, to), "",
                 fmt::format("two ranks from 0 to {}", npus - 1)});
  }
  const auto [dimension, distance] = charged(from, to);
  return checked(
      Dimension{&system_.dimensions[dimension], &system_, 0, CollectiveKind::kSendRecv}.message(bytes, distance));
}

Result<void> AstraNetwork::collective(CollectiveKind kind, std::int64_t comm_size, std::span<const Rank> members,
                                      std::span<std::int64_t> times) const {
  const Int npus = system_.npus(), n = static_cast<Int>(members.size());
  std::vector<Rank> sorted(members.begin(), members.end());
  std::sort(sorted.begin(), sorted.end());
  if (n < 2 || times.size() != members.size() || sorted.front() < 0 || sorted.back() >= npus ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a group of {} ranks", n), "",
                 fmt::format("at least two different ranks from 0 to {}", npus - 1)});
  }
  if (n == npus && all_equal(times)) {
    NS_TRY(const Int duration, astra_time_ns(system_, kind, comm_size));
    for (Int& t : times) t += duration;
    return {};
  }
  NS_TRY(const Chunks chunks, chunks_of(system_, kind, comm_size));
  NS_TRY(const std::vector<Dimension> dims, dimensions_of(system_, kind));
  if (n == npus) {
    const std::vector<Phase> phases = phases_of(dims, kind, chunks.size, system_.local_bandwidth_aware);
    if (phases.empty()) return fail(no_algorithm(kind));
    NS_TRY_VOID(check_chunks(phases, chunks));
    std::vector<Int> by_rank(times.size());  // the network's order, whatever that of the group
    for (std::size_t i = 0; i < times.size(); ++i) by_rank[static_cast<std::size_t>(members[i])] = times[i];
    for (Int round = 0; round < chunks.rounds; ++round) {
      for (const Phase& phase : phases) NS_TRY_VOID(run_phase(system_, kind, phase, by_rank));
    }
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = by_rank[static_cast<std::size_t>(members[i])];
    return {};
  }
  // One flat logical ring, in the order of the group. Where the system has an algorithm for several dimensions, it is
  // not used.
  Int listed = 0;
  for (const AstraDimension& d : system_.dimensions) listed += d.algorithm.of(kind).empty() ? 0 : 1;
  if (listed == 0) return fail(no_algorithm(kind));
  static const std::string kRing = "ring";
  const std::string& algorithm = listed > 1 ? kRing : system_.dimensions.front().algorithm.of(kind);
  AstraDimension flat = system_.dimensions[charged(members[0], members[1]).first];
  flat.npus = n;
  const Dimension dimension{&flat, &system_, kGroupDelay, kind};
  const Exchange exchange{&dimension, n,
                          [&](Int from, Int to, Int bytes) {
                            const auto [at, distance] =
                                charged(members[static_cast<std::size_t>(from)], members[static_cast<std::size_t>(to)]);
                            return dims[at].message(bytes, distance);
                          },
                          system_.dimensions.size() == 1 && flat.topology != AstraTopology::kRing};
  for (Int round = 0; round < chunks.rounds; ++round) {
    NS_TRY_VOID(exchange.run(kind, algorithm, chunks.size, times));
    if (*std::max_element(times.begin(), times.end()) >= kNineYears) return too_long();
  }
  return {};
}

Result<std::int64_t> AstraNetwork::longest_ns(CollectiveKind kind, std::int64_t comm_size,
                                              std::span<const Rank> members) const {
  if (kind == CollectiveKind::kSendRecv) return message_ns(members.front(), members.back(), comm_size);
  std::vector<Int> times(members.size(), 0);
  NS_TRY_VOID(collective(kind, comm_size, members, times));
  return *std::max_element(times.begin(), times.end());
}

namespace {

// In the order in which comm_groups.json lists them; of a message the sender first.
std::vector<Rank> members_of(const Collective& collective) {
  std::vector<Rank> members;
  for (Int i = 0; i < collective.group.size(); ++i) members.push_back(collective.group.at(i));
  return members;
}

}  // namespace

Result<Int> AstraNetwork::longest_ns(const Collective& collective, Int node) const {
  const Int size = astra_comm_size(collective);
  if (collective.ring.count > 1) {
    const RankGroup ring{collective.group.first, {collective.ring}};
    Int slowest = 0;
    for (Int i = 0; i < ring.size(); ++i) {
      NS_TRY(const Int one, message_ns(ring.at(i), ring.at((i + 1) % ring.size()), size));
      slowest = std::max(slowest, one);
    }
    return slowest;
  }
  Int sum = 0;
  for (const Collective& exchange : astra_exchanges(collective, node)) {
    const std::vector<Rank> members = members_of(exchange);
    NS_TRY(const Int one, longest_ns(exchange.kind, astra_comm_size(exchange), members));
    sum += one;
  }
  return sum;
}

namespace {

class AstraModel final : public NetworkCost {
 public:
  AstraModel(network::Topology topology, const Cluster& cluster, Int ranks)
      : topology_(std::move(topology)), cluster_(cluster), ranks_(ranks > 0 ? ranks : cluster.gpu_count()) {
    for (std::size_t i = 0; i < cluster.levels.size(); ++i)
      links_.push_back(network::link_of(cluster.used_level(i), Gpu()));
  }

  Result<Forecast> forecast(const Collective& collective) const override {
    NS_TRY(const Answer answer, this->answer(collective));
    return forecast_of(collective, answer);
  }

  Result<Explanation> explain(const Collective& collective) const override {
    NS_TRY(const Answer answer, this->answer(collective));
    Explanation result;
    result.subject = fmt::format("{} of {} between {} ranks, as ASTRA-Sim's unaware backend has it",
                                 name_of(collective.kind), to_text(collective.size), collective.group.size());
    for (const AstraDimension& d : answer.dimensions) {
      result.steps.push_back(
          {"dimension", fmt::format("{} NPUs", d.npus),
           fmt::format("{}, {:.9g} GiB/s, {:.9g} ns a hop", name_of(d.topology), d.bandwidth_gib, d.latency_ns)});
    }
    result.steps.push_back({"group", answer.flat ? "flat logical ring" : "dimension by dimension",
                            answer.flat ? "a group of fewer ranks than the network" : ""});
    result.forecast = forecast_of(collective, answer);
    return result;
  }

 private:
  struct Answer {
    Int nanoseconds = 0;
    double floor = 0;
    bool flat = false, direct = false;
    std::vector<AstraDimension> dimensions;  // that are charged
  };

  static Forecast forecast_of(const Collective& collective, const Answer& answer) {
    Forecast forecast;
    forecast.latency = static_cast<double>(answer.nanoseconds) * units::ns;
    forecast.floor = std::min(answer.floor * units::s, forecast.latency);
    forecast.low = forecast.high = forecast.latency;
    forecast.bound = forecast.floor > 0.5 * forecast.latency ? Bound::kBandwidth : Bound::kLatency;
    forecast.utilization = forecast.latency > Seconds() ? forecast.floor / forecast.latency : 1;
    const bool direct = collective.kind == CollectiveKind::kAllToAll && answer.direct;
    forecast.method =
        answer.flat ? (direct ? "astra-flat/direct" : "astra-flat/ring") : (direct ? "astra/direct" : "astra/ring");
    return forecast;
  }

  // The network of the plan; of an open cluster without a plan, as many whole units as hold the group.
  Result<AstraNetwork> network_for(const RankGroup& group) const {
    Int ranks = ranks_;
    if (ranks == 0) {
      Int unit = 1, last = group.first;
      for (std::size_t i = 0; i + 1 < cluster_.levels.size(); ++i) unit *= cluster_.levels[i].size;
      for (const Stride& stride : group.strides) last += (stride.count - 1) * stride.stride;
      ranks = std::max<Int>(2, ceil_div(last + 1, unit) * unit);
    }
    NS_TRY(AstraSystem system, to_astra(cluster_, ranks));
    return AstraNetwork::make(std::move(system));
  }

  Result<Answer> answer(const Collective& collective) const {
    const double bytes = collective.size / units::B;
    if (!(bytes >= 1) || !(bytes < 9e15)) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of {} bytes", network::with_article(collective.kind), bytes), "", "1 byte to 9 PB"});
    }
    if (collective.imbalance != 1) {
      return fail(
          {ErrorCode::kInvalidInput,
           fmt::format("{} with an imbalance of {}", network::with_article(collective.kind), collective.imbalance), "",
           "1: ASTRA-Sim's formulas are for even ones", "leave the imbalance out, or take network/model=nccl"});
    }
    if (collective.routing.experts > 0 &&
        (collective.kind != CollectiveKind::kAllToAll || !is_possible(collective.routing))) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of a routing that cannot be", network::with_article(collective.kind)), "",
                   "an all-to-all whose groups hold a token's experts"});
    }
    NS_TRY(const network::Placement placement, topology_.place(collective.group));
    constexpr Int kLargestGroup = Int{1} << 24;
    if (placement.ranks < 2 || placement.ranks > kLargestGroup) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of {} ranks", network::with_article(collective.kind), placement.ranks), "",
                   fmt::format("a group of 2 to {} ranks", kLargestGroup)});
    }
    NS_TRY(const AstraNetwork network, network_for(collective.group));
    Answer result;
    const Int node = cluster_.gpus_per_node();
    NS_TRY(result.nanoseconds, network.longest_ns(collective, node));
    for (const Collective& exchange : astra_exchanges(collective, node))
      NS_TRY_VOID(describe(exchange, network, &result));
    return result;
  }

  // Adds the dimensions that are charged, and the least time that their links allow.
  Result<void> describe(const Collective& collective, const AstraNetwork& network, Answer* result) const {
    NS_TRY(const network::Placement placement, topology_.place(collective.group));
    const std::vector<AstraDimension>& dimensions = network.system().dimensions;
    const std::vector<Rank> members = members_of(collective);
    if (collective.kind == CollectiveKind::kSendRecv) {
      result->dimensions = {dimensions[network.charged(members.front(), members.back()).first]};
    } else {
      result->flat = placement.ranks < network.system().npus();
      result->direct = !result->flat || dimensions.size() == 1;
      if (result->flat) {
        std::vector<std::size_t> used;
        for (std::size_t i = 0; i < members.size(); ++i) {
          const std::size_t at = network.charged(members[i], members[(i + 1) % members.size()]).first;
          if (std::find(used.begin(), used.end(), at) == used.end()) used.push_back(at);
        }
        std::sort(used.begin(), used.end());
        for (const std::size_t at : used) {
          result->dimensions.push_back(dimensions[at]);
          result->dimensions.back().npus = placement.ranks;
        }
      } else {
        result->dimensions = dimensions;
      }
    }
    const double bytes = collective.size / units::B;
    result->floor += network::bandwidth_bound({collective.kind, bytes, false, 1, &placement, links_.data()});
    return {};
  }

  network::Topology topology_;
  Cluster cluster_;
  Int ranks_ = 0;  // 0: of an open cluster, without a plan
  std::vector<network::Link> links_;
};

}  // namespace

Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster, std::int64_t ranks) {
  NS_TRY(network::Topology topology, network::check_cluster(cluster));
  return std::make_unique<AstraModel>(std::move(topology), cluster, ranks);
}

}  // namespace ns_dist
