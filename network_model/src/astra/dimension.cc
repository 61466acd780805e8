#include "astra/dimension.h"

#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/internal/number_from.h"

namespace ns_dist::astra {
namespace {

constexpr double kGib = 1073741824.0;  // bytes of what ASTRA-Sim calls GB

Int truncated(double nanoseconds) {
  return nanoseconds < static_cast<double>(kNineYears) ? static_cast<Int>(nanoseconds) : kNineYears;
}

}  // namespace

tl::unexpected<Error> no_form(const std::string& what, const std::string& key, const std::string& expected) {
  return fail(
      {ErrorCode::kInvalidInput, "no closed form is known for " + what, key.empty() ? "" : "#/" + key, expected});
}

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

double Dimension::beta() const { return d->bandwidth_gib * kGib / 1e9; }

Int Dimension::hops(Int distance) const {
  if (d->topology == AstraTopology::kSwitch) return 2;
  return d->topology == AstraTopology::kRing ? distance : 1;
}

Int Dimension::message(Int m, Int distance) const {
  const double bytes = static_cast<double>(m);
  if (!system->congestion_aware) {
    return truncated(static_cast<double>(hops(distance)) * d->latency_ns + bytes / beta());
  }
  return times(hops(distance), truncated(d->latency_ns + bytes / beta()));
}

Int Dimension::reduction(Int m) const {
  if (!(system->local_memory_gbs > 0)) return 0;
  return 3 * truncated(static_cast<double>(m) / system->local_memory_gbs);
}

tl::unexpected<Error> Dimension::no_direct_all_reduce() const {
  return no_form("a direct all-reduce on a ring of more than three", key_of(whole), "ring");
}

Int Dimension::ring(CollectiveKind kind, Int c) const {
  const Int m = message_size(kind, c, n());
  const RingSteps ring = ring_steps(kind, n());
  return times(ring.steps, message(m)) + times(ring.steps + 1, delay) + times(ring.reductions, reduction(m));
}

Result<Int> Dimension::direct(CollectiveKind kind, Int c, Int window) const {
  const Int m = message_size(kind, c, n()), e = delay;
  const bool ring = d->topology == AstraTopology::kRing;
  if (ring && system->congestion_aware) return no_form("direct exchange on a ring with congestion");
  if (ring && kind == CollectiveKind::kAllReduce && n() > 3) return no_direct_all_reduce();
  Int exchange = message(m, ring ? n() / 2 : 1);
  if (system->congestion_aware && d->topology == AstraTopology::kSwitch) {
    // The messages to all peers queue at the uplink.
    const Int serialization = truncated(static_cast<double>(m) / beta());
    exchange = times(n() - 2, serialization) + 2 * truncated(d->latency_ns + static_cast<double>(m) / beta());
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

std::optional<Int> window_of(const std::string& algorithm) {
  constexpr std::string_view kDirect = "direct";
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

}  // namespace ns_dist::astra
