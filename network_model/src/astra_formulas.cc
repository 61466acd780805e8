#include "ns_dist/astra_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "algorithms.h"
#include "topology.h"

namespace ns_dist {
namespace {

using Int = std::int64_t;

constexpr double kGib = 1073741824.0;

Int truncated(double nanoseconds) { return static_cast<Int>(nanoseconds); }
Int ceil_div(Int a, Int b) { return (a + b - 1) / b; }

tl::unexpected<Error> no_form(const std::string& what) {
  return fail({ErrorCode::kInvalidInput, "no closed form is known for " + what, "", "", "", {}});
}

// One dimension with everything that its formulas need.
struct Dimension {
  const AstraDimension* d;
  const AstraSystem* system;
  Int delay;  // endpoint delay, ns

  Int n() const { return d->npus; }
  double beta() const { return d->bandwidth_gib * kGib / 1e9; }  // B/ns
  Int serialization(Int m) const { return truncated(static_cast<double>(m) / beta()); }
  Int hops(Int distance) const { return d->topology == AstraTopology::kSwitch ? 2 : distance; }

  // Unaware: latency of the hops and one serialization; aware: store and forward on every hop.
  Int message(Int m, Int distance = 1) const {
    const double bytes = static_cast<double>(m);
    if (!system->congestion_aware) {
      return truncated(static_cast<double>(hops(distance)) * d->latency_ns + bytes / beta());
    }
    return hops(distance) * truncated(d->latency_ns + bytes / beta());
  }
  // Three passes over local memory, two reads and a write.
  Int reduction(Int m) const {
    if (!(system->local_memory_gbs > 0)) return 0;
    return 3 * truncated(static_cast<double>(m) / system->local_memory_gbs);
  }

  // What one chunk of `c` bytes takes in this dimension.
  Result<Int> chunk(CollectiveKind kind, Int c) const;
  Int ring(CollectiveKind kind, Int c) const;
  Result<Int> direct(CollectiveKind kind, Int c, Int window) const;
  Result<Int> halving_doubling(CollectiveKind kind, Int c) const;
};

Int Dimension::ring(CollectiveKind kind, Int c) const {
  const Int m = c / n(), e = delay;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n() - 1) * message(m) + (2 * (n() - 1) + 1) * e + (n() - 1) * reduction(m);
    case CollectiveKind::kReduceScatter:
      return (n() - 1) * message(m) + n() * e + (n() - 1) * reduction(m);
    case CollectiveKind::kAllGather:
      return (n() - 1) * message(c) + n() * e;
    default: {  // all-to-all, forwarded hop by hop along the logical ring
      const Int steps = n() * (n() - 1) / 2;
      return steps * message(m) + (steps + 1) * e;
    }
  }
}

Result<Int> Dimension::direct(CollectiveKind kind, Int c, Int window) const {
  const Int m = kind == CollectiveKind::kAllGather ? c : c / n(), e = delay;
  const bool ring = d->topology == AstraTopology::kRing;
  if (ring && system->congestion_aware) return no_form("direct exchange on a ring with congestion");
  if (ring && kind == CollectiveKind::kAllReduce && n() > 3) {
    return no_form("a direct all-reduce on a ring of more than three");  // its two phases overlap
  }
  Int exchange = message(m, ring ? n() / 2 : 1);
  if (system->congestion_aware && d->topology == AstraTopology::kSwitch) {
    // The messages to all peers queue at the uplink.
    exchange = (n() - 2) * serialization(m) + 2 * truncated(d->latency_ns + static_cast<double>(m) / beta());
  }
  if (window > 0 && window < n() - 1) {
    if (system->congestion_aware || kind != CollectiveKind::kAllReduce) return no_form("direct exchange with a window");
    const Int rounds = 2 * ceil_div(n() - 1, window);
    return rounds * exchange + (rounds + 1) * e + ceil_div(n() - 1, window) * reduction(m);
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
  if ((n() & (n() - 1)) != 0) return no_form("halvingDoubling of a number of NPUs that is no power of two (it hangs)");
  if (d->topology != AstraTopology::kSwitch || system->congestion_aware || kind == CollectiveKind::kAllToAll) {
    return no_form("halvingDoubling other than on a switch without congestion");
  }
  Int time = delay, m = c;
  if (kind != CollectiveKind::kAllGather) {
    for (Int parts = 2; parts <= n(); parts *= 2) {
      m /= 2;
      time += message(m) + delay + reduction(m);
    }
  }
  if (kind != CollectiveKind::kReduceScatter) {
    for (Int parts = 2; parts <= n(); parts *= 2) {
      time += message(m) + delay;
      m *= 2;
    }
  }
  return time;
}

Result<Int> Dimension::chunk(CollectiveKind kind, Int c) const {
  if (d->algorithm == "ring") return ring(kind, c);
  if (d->algorithm == "halvingDoubling") return halving_doubling(kind, c);
  constexpr std::string_view kDirect = "direct";
  if (d->algorithm.compare(0, kDirect.size(), kDirect) == 0) {
    Int window = 0;
    const char* begin = d->algorithm.data() + kDirect.size();
    const char* end = d->algorithm.data() + d->algorithm.size();
    const auto [stop, error] = std::from_chars(begin, end, window);
    if (begin == end || (error == std::errc() && stop == end && window > 0)) return direct(kind, c, window);
  }
  return fail({ErrorCode::kInvalidInput,
               fmt::format("algorithm \"{}\"", d->algorithm),
               "",
               "ring, direct, direct<window> or halvingDoubling",
               "",
               {}});
}

bool runs(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
}

// One chunk through all dimensions: reduce-scatter and all-to-all go up, all-gather down; what a phase leaves is what
// the next one gets.
Result<Int> through_dimensions(const std::vector<Dimension>& dims, CollectiveKind kind, Int c, bool local_aware) {
  Int time = 0, size = c;
  const auto up = [&](std::size_t last, CollectiveKind phase) -> Result<Int> {
    Int sum = 0;
    for (std::size_t i = 0; i < last; ++i) {
      NS_TRY(const Int t, dims[i].chunk(phase, size));
      sum += t;
      if (phase == CollectiveKind::kReduceScatter) size /= dims[i].n();
    }
    return sum;
  };
  const auto down = [&](std::size_t first) -> Result<Int> {
    Int sum = 0;
    for (std::size_t i = first; i-- > 0;) {
      NS_TRY(const Int t, dims[i].chunk(CollectiveKind::kAllGather, size));
      sum += t;
      size *= dims[i].n();
    }
    return sum;
  };
  if (kind == CollectiveKind::kAllGather) return down(dims.size());
  if (kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll || !local_aware) {
    return up(dims.size(), kind);
  }
  NS_TRY(const Int scattered, up(dims.size() - 1, CollectiveKind::kReduceScatter));
  NS_TRY(const Int reduced, dims.back().chunk(CollectiveKind::kAllReduce, size));
  NS_TRY(const Int gathered, down(dims.size() - 1));
  time = scattered + reduced + gathered;
  return time;
}

Result<std::vector<Dimension>> dimensions_of(const AstraSystem& system) {
  std::vector<Dimension> dims;
  for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
    const AstraDimension& d = system.dimensions[i];
    if (d.npus < 2 || !(d.bandwidth_gib > 0) || !(d.latency_ns >= 0) || !std::isfinite(d.latency_ns)) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("dimension {} of the network", i),
                   "",
                   "at least 2 NPUs, a positive bandwidth, a latency of at least zero",
                   "",
                   {}});
    }
    dims.push_back({&d, &system, system.endpoint_delay_ns});
  }
  if (dims.empty()) return fail({ErrorCode::kInvalidInput, "a network without dimensions", "", "", "", {}});
  return dims;
}

}  // namespace

Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size) {
  NS_TRY(const std::vector<Dimension> dims, dimensions_of(system));
  if (!runs(kind)) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("ASTRA-Sim runs no {}", name_of(kind)),
                 "",
                 "all_reduce, all_gather, reduce_scatter or all_to_all",
                 "",
                 {}});
  }
  if (comm_size < 1 || system.splits < 1 || system.active_chunks < 1) {
    return fail(
        {ErrorCode::kInvalidInput, "sizes, splits and active chunks below one", "", "positive numbers", "", {}});
  }
  Int npus = 1;
  for (const Dimension& dimension : dims) npus *= dimension.n();
  Int size = comm_size, c = size / system.splits;
  if (kind != CollectiveKind::kAllGather && c < npus) {
    c = npus;
    size = system.splits * c;
  }
  if (c < 1) return no_form("an all-gather of fewer bytes than splits (it never ends)");
  const Int chunks = ceil_div(size, c);
  if (dims.size() > 1 && chunks > 1) return no_form("several chunks on several dimensions");
  if (system.congestion_aware && (dims.size() > 1 || (chunks > 1 && system.active_chunks > 1))) {
    return no_form("several dimensions or active chunks with congestion");
  }
  NS_TRY(const Int one, through_dimensions(dims, kind, c, system.local_bandwidth_aware));
  return ceil_div(chunks, system.active_chunks) * one;
}

namespace {

class AstraModel final : public NetworkCost {
 public:
  AstraModel(network::Topology topology, const Cluster& cluster)
      : topology_(std::move(topology)), levels_(cluster.levels) {
    system_.local_memory_gbs = astra_local_memory(cluster.gpu);
  }

  Result<Forecast> forecast(const Collective& collective) const override {
    NS_TRY(const Answer answer, this->answer(collective));
    Forecast forecast;
    forecast.latency = static_cast<double>(answer.nanoseconds) * units::ns;
    forecast.floor = std::min(answer.floor * units::s, forecast.latency);
    forecast.low = forecast.high = forecast.latency;
    forecast.bound = forecast.floor > 0.5 * forecast.latency ? Bound::kBandwidth : Bound::kLatency;
    forecast.utilization = forecast.latency > Seconds() ? forecast.floor / forecast.latency : 1;
    forecast.method = answer.flat ? "astra-flat/ring" : "astra/ring";
    return forecast;
  }

  Result<Explanation> explain(const Collective& collective) const override {
    NS_TRY(const Answer answer, this->answer(collective));
    NS_TRY(Forecast forecast, this->forecast(collective));
    Explanation result;
    result.subject = fmt::format("{} of {} between {} ranks, as ASTRA-Sim's unaware backend has it",
                                 name_of(collective.kind), to_text(collective.size), collective.group.size());
    for (const AstraDimension& d : answer.system.dimensions) {
      result.steps.push_back(
          {"dimension", fmt::format("{} NPUs", d.npus),
           fmt::format("{}, {:.9g} GiB/s, {:.9g} ns a hop", name_of(d.topology), d.bandwidth_gib, d.latency_ns)});
    }
    if (answer.system.local_memory_gbs > 0) {
      result.steps.push_back({"local memory", fmt::format("{:.9g} GB/s", answer.system.local_memory_gbs),
                              "two reads and a write for each reduction step"});
    }
    result.steps.push_back({"group", answer.flat ? "flat logical ring" : "dimension by dimension",
                            answer.flat ? "a group that is not all NPUs of its dimensions" : ""});
    result.forecast = forecast;
    return result;
  }

 private:
  struct Answer {
    Int nanoseconds = 0;
    double floor = 0;
    bool flat = false;
    AstraSystem system;
  };

  Result<Answer> answer(const Collective& collective) const {
    const double bytes = collective.size / units::B;
    if (!(bytes >= 1) || !(bytes < 9e15)) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} of {} bytes", name_of(collective.kind), bytes),
                   "",
                   "1 byte to 9 PB",
                   "",
                   {}});
    }
    if (collective.imbalance != 1) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} with an imbalance of {}", name_of(collective.kind), collective.imbalance),
                   "",
                   "1: ASTRA-Sim's formulas are for even ones",
                   "leave the imbalance out, or take --network-model nccl",
                   {}});
    }
    NS_TRY(const network::Placement placement, topology_.place(collective.group));
    if (placement.ranks < 2) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} of one rank", name_of(collective.kind)),
                   "",
                   "a group of at least two ranks",
                   "",
                   {}});
    }
    Answer result;
    result.system = system_;
    bool whole = true;  // fills every level from the innermost one up
    Int product = 1;
    for (std::size_t i = 0; i < placement.tier_count; ++i) {
      const network::Tier& tier = placement.tiers[i];
      const FabricLevel& level = levels_[tier.level];
      whole =
          whole && tier.level == i && (level.size == 0 || level.size == tier.parts) && tier.members == tier.max_members;
      product *= tier.parts;
      result.system.dimensions.push_back(astra_dimension(level, tier.parts));
    }
    whole = whole && product == placement.ranks;
    if (collective.kind == CollectiveKind::kSendRecv) {
      // Charged on the lowest dimension in which the two differ.
      const Dimension dimension{&result.system.dimensions.front(), &result.system, 0};
      result.nanoseconds = dimension.message(static_cast<Int>(bytes));
    } else {
      // The trace's all-gather counts a rank's own shard.
      Int size = static_cast<Int>(bytes);
      if (collective.kind == CollectiveKind::kAllGather) size = std::max<Int>(1, size / placement.ranks);
      if (!whole && placement.tier_count > 0) {
        // In rank order neighbors always differ in the innermost dimension that the group spans, and only that one is
        // charged.
        result.flat = true;
        AstraDimension ring = result.system.dimensions.front();
        ring.npus = placement.ranks;
        result.system.dimensions = {ring};
      }
      NS_TRY(result.nanoseconds, astra_time_ns(result.system, collective.kind, size));
    }
    std::vector<network::Link> links;
    for (const FabricLevel& level : levels_) links.push_back(network::link_of(level, Gpu()));
    result.floor = network::bandwidth_bound({collective.kind, bytes, false, 1, &placement, links.data()});
    return result;
  }

  network::Topology topology_;
  std::vector<FabricLevel> levels_;
  AstraSystem system_;  // without dimensions
};

}  // namespace

Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster) {
  NS_TRY(network::Topology topology, network::check_cluster(cluster));
  return std::make_unique<AstraModel>(std::move(topology), cluster);
}

}  // namespace ns_dist
