#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "astra/exchange.h"
#include "astra/phases.h"

namespace ns_dist {
namespace astra {
namespace {

// One phase of a collective of all NPUs: every line of the dimension exchanges for itself.
Result<void> run_phase(const std::vector<Dimension>& dimensions, const Phase& phase, std::span<Int> times) {
  const Dimension& dimension = dimensions[phase.dimension];
  const Int n = dimension.n();
  const Exchange exchange{&dimension, n, [&](Int from, Int to, Int bytes) {
                            const Int apart = std::abs(to - from);
                            return dimension.message(bytes, std::min(apart, n - apart));
                          }};
  Int below = 1;
  for (std::size_t i = 0; i < phase.dimension; ++i) below *= dimensions[i].n();
  std::vector<Int> line(static_cast<std::size_t>(n));
  const auto npus = static_cast<Int>(times.size());
  for (Int first = 0; first < npus; ++first) {
    if (first / below % n != 0) continue;
    const auto time_of = [&](Int i) -> Int& {
      return times[static_cast<std::size_t>(first + (phase.backward ? n - 1 - i : i) * below)];
    };
    for (Int i = 0; i < n; ++i) line[static_cast<std::size_t>(i)] = time_of(i);
    NS_TRY_VOID(exchange.run(phase.kind, dimension.algorithm(), phase.size, line));
    if (*std::max_element(line.begin(), line.end()) >= kNineYears) return too_long();
    for (Int i = 0; i < n; ++i) time_of(i) = line[static_cast<std::size_t>(i)];
  }
  return {};
}

// A collective of all NPUs, which start at different times.
Result<void> run_on_all(const AstraSystem& system, CollectiveKind kind, Int comm_size, std::span<const Rank> members,
                        std::span<Int> times) {
  NS_TRY(const PhasedCollective whole, phased(system, kind, comm_size));
  std::vector<Int> by_rank(times.size());  // the network's order, whatever that of the group
  for (std::size_t i = 0; i < times.size(); ++i) by_rank[static_cast<std::size_t>(members[i])] = times[i];
  for (Int round = 0; round < whole.chunks.rounds; ++round) {
    for (const Phase& phase : whole.phases) NS_TRY_VOID(run_phase(whole.dimensions, phase, by_rank));
  }
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = by_rank[static_cast<std::size_t>(members[i])];
  return {};
}

// A collective of fewer: one flat logical ring, in the order of the group. Where the system has an algorithm for
// several dimensions, it is not used.
Result<void> run_in_group(const AstraNetwork& network, CollectiveKind kind, Int comm_size,
                          std::span<const Rank> members, std::span<Int> times) {
  constexpr Int kGroupDelay = 10;  // whatever the system says
  const AstraSystem& system = network.system();
  NS_TRY(const Chunks chunks, chunks_of(system, kind, comm_size));
  NS_TRY(const std::vector<Dimension> dims, dimensions_of(system, kind));
  Int listed = 0;
  for (const AstraDimension& d : system.dimensions) listed += d.algorithm.of(kind).empty() ? 0 : 1;
  if (listed == 0) return fail(no_algorithm(kind));
  static const std::string kRing = "ring";
  const std::string& algorithm = listed > 1 ? kRing : system.dimensions.front().algorithm.of(kind);
  AstraDimension flat = system.dimensions[network.charged(members[0], members[1]).first];
  flat.npus = static_cast<Int>(members.size());
  const Dimension dimension{&flat, &system, kGroupDelay, kind};
  const Exchange exchange{&dimension, flat.npus,
                          [&](Int from, Int to, Int bytes) {
                            const auto [at, distance] = network.charged(members[static_cast<std::size_t>(from)],
                                                                        members[static_cast<std::size_t>(to)]);
                            return dims[at].message(bytes, distance);
                          },
                          system.dimensions.size() == 1 && flat.topology != AstraTopology::kRing};
  for (Int round = 0; round < chunks.rounds; ++round) {
    NS_TRY_VOID(exchange.run(kind, algorithm, chunks.size, times));
    if (*std::max_element(times.begin(), times.end()) >= kNineYears) return too_long();
  }
  return {};
}

}  // namespace
}  // namespace astra

Result<AstraNetwork> AstraNetwork::make(AstraSystem system) {
  NS_TRY_VOID(astra::dimensions_of(system, CollectiveKind::kAllReduce));
  if (system.congestion_aware) return astra::no_form("groups and messages of the congestion-aware backend");
  AstraNetwork network;
  network.system_ = std::move(system);
  return network;
}

// The lowest dimension in which the two differ, and how far they are apart on it.
std::pair<std::size_t, std::int64_t> AstraNetwork::charged(Rank from, Rank to) const {
  for (std::size_t i = 0; i < system_.dimensions.size(); ++i) {
    const std::int64_t n = system_.dimensions[i].npus;
    if (const std::int64_t apart = std::abs(to % n - from % n); apart != 0) return {i, std::min(apart, n - apart)};
    from /= n;
    to /= n;
  }
  return {0, 0};
}

Result<std::int64_t> AstraNetwork::message_ns(Rank from, Rank to, std::int64_t bytes) const {
  const std::int64_t npus = system_.npus();
  if (from < 0 || to < 0 || from >= npus || to >= npus || from == to || bytes < 0) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("a message of {} bytes from rank {} to rank {}", bytes, from, to), "",
                 fmt::format("two ranks from 0 to {}", npus - 1)});
  }
  const auto [dimension, distance] = charged(from, to);
  return astra::checked(
      astra::Dimension{&system_.dimensions[dimension], &system_, 0, CollectiveKind::kSendRecv}.message(bytes,
                                                                                                       distance));
}

Result<void> AstraNetwork::collective(CollectiveKind kind, std::int64_t comm_size, std::span<const Rank> members,
                                      std::span<std::int64_t> times) const {
  const std::int64_t npus = system_.npus(), n = static_cast<std::int64_t>(members.size());
  std::vector<Rank> sorted(members.begin(), members.end());
  std::sort(sorted.begin(), sorted.end());
  if (n < 2 || times.size() != members.size() || sorted.front() < 0 || sorted.back() >= npus ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a group of {} ranks", n), "",
                 fmt::format("at least two different ranks from 0 to {}", npus - 1)});
  }
  if (n == npus && astra::all_equal(times)) {
    NS_TRY(const std::int64_t duration, astra_time_ns(system_, kind, comm_size));
    for (std::int64_t& t : times) t += duration;
    return {};
  }
  return n == npus ? astra::run_on_all(system_, kind, comm_size, members, times)
                   : astra::run_in_group(*this, kind, comm_size, members, times);
}

Result<std::int64_t> AstraNetwork::longest_ns(CollectiveKind kind, std::int64_t comm_size,
                                              std::span<const Rank> members) const {
  if (kind == CollectiveKind::kSendRecv) return message_ns(members.front(), members.back(), comm_size);
  std::vector<std::int64_t> times(members.size(), 0);
  NS_TRY_VOID(collective(kind, comm_size, members, times));
  return *std::max_element(times.begin(), times.end());
}

Result<std::int64_t> AstraNetwork::longest_ns(const Collective& collective, std::int64_t node) const {
  const std::int64_t size = astra_comm_size(collective);
  if (collective.ring.count > 1) {
    const RankGroup ring{collective.group.first, {collective.ring}};
    std::int64_t slowest = 0;
    for (std::int64_t i = 0; i < ring.size(); ++i) {
      NS_TRY(const std::int64_t one, message_ns(ring.at(i), ring.at((i + 1) % ring.size()), size));
      slowest = std::max(slowest, one);
    }
    return slowest;
  }
  std::int64_t sum = 0;
  for (const Collective& exchange : astra_exchanges(collective, node)) {
    std::vector<Rank> members;  // as comm_groups.json lists them; of a message the sender first
    for (std::int64_t i = 0; i < exchange.group.size(); ++i) members.push_back(exchange.group.at(i));
    NS_TRY(const std::int64_t one, longest_ns(exchange.kind, astra_comm_size(exchange), members));
    sum += one;
  }
  return sum;
}

}  // namespace ns_dist
