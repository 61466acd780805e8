#include "ns_dist/fair_sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms.h"
#include "links.h"
#include "topology.h"

namespace ns_dist {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

tl::unexpected<Error> wrong(const std::string& message, const std::string& expected) {
  return fail({ErrorCode::kInvalidInput, message, "", expected});
}

// Progressive filling: the rate of each flow.
std::vector<double> filled(const std::vector<double>& capacities, std::span<const SharedFlow> flows) {
  std::vector<double> left = capacities, rates(flows.size(), 0);
  std::vector<double> demand(capacities.size(), 0);  // of all growing flows for one more byte/s each
  std::vector<std::size_t> growing(flows.size());
  std::iota(growing.begin(), growing.end(), std::size_t{0});
  for (const std::size_t f : growing) {
    for (const LinkUse& use : flows[f].uses) demand[use.link] += use.share;
  }
  while (!growing.empty()) {
    double step = kInfinity;
    for (std::size_t l = 0; l < left.size(); ++l) {
      if (demand[l] > 0) step = std::min(step, std::max(left[l], 0.0) / demand[l]);
    }
    for (const std::size_t f : growing) step = std::min(step, flows[f].limit.in_base() - rates[f]);
    for (const std::size_t f : growing) rates[f] += step;
    if (step == kInfinity) break;
    for (std::size_t l = 0; l < left.size(); ++l) left[l] -= step * demand[l];
    // What is full to rounding is full: at least one flow stops in every round.
    constexpr double kFull = 1e-12;
    std::vector<std::size_t> next;
    for (const std::size_t f : growing) {
      bool stopped = rates[f] >= flows[f].limit.in_base() * (1 - kFull);
      for (const LinkUse& use : flows[f].uses) {
        stopped = stopped || (use.share > 0 && left[use.link] <= kFull * capacities[use.link]);
      }
      if (!stopped) next.push_back(f);
    }
    std::fill(demand.begin(), demand.end(), 0.0);
    for (const std::size_t f : next) {
      for (const LinkUse& use : flows[f].uses) demand[use.link] += use.share;
    }
    if (next.size() == growing.size()) break;  // rounding kept every link just below full
    growing = std::move(next);
  }
  return rates;
}

Result<std::vector<double>> checked(std::span<const BytesPerSecond> capacities, std::span<const SharedFlow> flows) {
  std::vector<double> plain;
  for (const BytesPerSecond capacity : capacities) {
    if (!(capacity.in_base() > 0)) return wrong("a link without capacity", "a positive bandwidth");
    plain.push_back(capacity.in_base());
  }
  for (const SharedFlow& flow : flows) {
    if (!(flow.limit.in_base() > 0)) return wrong("a flow that may not flow", "a positive limit");
    for (const LinkUse& use : flow.uses) {
      if (use.link >= plain.size()) return wrong(fmt::format("link {} is not there", use.link), "an index of a link");
      if (!(use.share >= 0) || use.share == kInfinity) return wrong("a negative share of a link", "zero or more");
    }
  }
  return plain;
}

}  // namespace

Result<std::vector<BytesPerSecond>> max_min_rates(std::span<const BytesPerSecond> capacities,
                                                  std::span<const SharedFlow> flows) {
  NS_TRY(const std::vector<double> plain, checked(capacities, flows));
  std::vector<BytesPerSecond> result;
  for (const double rate : filled(plain, flows)) result.push_back(BytesPerSecond::from_base(rate));
  return result;
}

namespace {

// Bytes that one GPU (the root, of a gather or scatter) sends to units of each level that are not the same unit of the
// level below, by the algorithms' lower bounds: each byte at one level. Zero for levels that the group does not span.
std::vector<Bytes> level_loads(const network::Call& call, std::size_t levels) {
  std::vector<Bytes> loads(levels);
  const bool parts_each = network::pattern_of(call.kind) == network::Pattern::kPartEach;
  const network::Placement& placement = *call.placement;
  // With what goes further out: rings of a node's GPUs leave it through the port of one of them each.
  const auto leaving = [&](const network::Tier& tier) {
    const auto parts = static_cast<double>(tier.all_parts), members = static_cast<double>(tier.members);
    if (parts_each) return call.imbalance * call.exchanged(tier, members);
    return network::leaving_share(call.kind, parts, members, call.ranks()) / members;
  };
  for (std::size_t i = 0; i < placement.tier_count; ++i) {
    const network::Tier& tier = placement.tiers[i];
    double own = leaving(tier);
    if (i + 1 < placement.tier_count) {
      const network::Tier& outer = placement.tiers[i + 1];
      const bool counts_outer = !parts_each || (!call.goes_along(tier) && call.leads_into(tier, outer));
      if (counts_outer) own = std::max(0.0, own - leaving(outer));
    }
    loads[tier.level] = own * call.bytes * units::B;
  }
  return loads;
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

}  // namespace

Result<Footprint> footprint(const Cluster& cluster, const Collective& call, Seconds alone) {
  NS_TRY(const network::Topology topology, network::Topology::of(cluster));
  NS_TRY(const network::Placement placement, network::place(topology, call));
  const std::vector<network::Link> links = network::links_of(cluster);
  std::vector<Bytes> loads = level_loads(network::call_of(call, placement, links.data()), links.size());
  Footprint result;
  result.ports.resize(loads.size());
  if (!(alone > Seconds())) return result;
  Bytes sent, outward;
  for (std::size_t l = loads.size(); l-- > 0;) {
    sent += loads[l];
    const network::Link& link = links[l];
    if (link.network() && link.ring == 0) {  // a torus dimension carries its own alone
      outward += loads[l];
      loads[l] = outward;
    }
    result.ports[l] = std::min(1.0, loads[l] / alone / (link.bandwidth * units::B / units::s));
  }
  constexpr double kFewest = 2, kMost = 32;  // at least 2: NCCL doubles its rings (2.30, src/graph/connect.cc)
  for (const network::Tier& tier : placement) {
    const FabricLevel& level = cluster.levels[tier.level];
    const network::Link& link = links[tier.level];
    // Ports that PCIe cannot fill take no SMs.
    const double share = link.port_bandwidth / network::link_of(level, cluster.gpu).port_bandwidth;
    const double ports = std::min(level.nics_per_gpu, std::max(1.0, level.nics_per_gpu * share));
    double channels = 2 * static_cast<double>(tier.members) * ports;
    if (link.link_class == network::LinkClass::kPcie) {
      channels = kFewest;  // whatever bridges the GPU may have beside it
    } else if (!link.network()) {
      const double sheet = cluster.gpu.scale_up ? cluster.gpu.scale_up->bandwidth / (units::B / units::s) : 0;
      channels = std::ceil(2 * sheet * (link.bandwidth / link.peak) / network::channel_bandwidth(link.generation));
    }
    channels = std::clamp(channels, kFewest, kMost);
    result.channels = result.channels > 0 ? std::min(result.channels, channels) : channels;
  }
  result.memory_traffic = (reduces(call.kind) ? 3.0 : 2.0) * sent / alone;
  return result;
}

}  // namespace ns_dist
