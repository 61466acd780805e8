#include "ns_dist/network_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms.h"
#include "links.h"
#include "topology.h"

namespace ns_dist {
namespace {

using network::Algorithm;
using network::Call;
using network::Cost;
using network::Link;
using network::Placement;
using network::Protocol;
using network::Tier;

constexpr std::array<NetworkAlgorithm, network::kProtocolCount> kProtocolTable = {{
    {"ll", "8-byte stores of 4 bytes of data and a flag: least latency, half the bandwidth"},
    {"ll128", "128-byte stores with an 8-byte flag: low latency, 15/16 of the bandwidth; needs NVLink's store order"},
    {"simple", "whole slices and a semaphore: full bandwidth"},
}};

std::string names_of(std::span<const NetworkAlgorithm> table) {
  std::string names = "auto";
  for (const NetworkAlgorithm& entry : table) names += fmt::format(", {}", entry.name);
  return names;
}

class NetworkModel final : public NetworkCost {
 public:
  NetworkModel(network::Topology topology, std::vector<Link> links, std::optional<std::size_t> algorithm,
               std::optional<Protocol> protocol)
      : topology_(std::move(topology)), links_(std::move(links)), algorithm_(algorithm), protocol_(protocol) {}

  Result<Forecast> forecast(const Collective& collective) const override {
    Placement placement;
    NS_TRY(const Call call, prepare(collective, placement));
    NS_TRY(const Choice best, choose(call));
    return to_forecast(call, best);
  }

  Result<Explanation> explain(const Collective& collective) const override;

 private:
  struct Choice {
    const Algorithm* algorithm = nullptr;
    Protocol protocol = Protocol::kSimple;
    Cost cost;
  };

  Result<Call> prepare(const Collective& collective, Placement& placement) const {
    const double bytes = collective.size / units::B;
    const bool barrier = collective.kind == CollectiveKind::kBarrier;
    if (!std::isfinite(bytes) || bytes < 0 || (bytes == 0 && !barrier)) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} of {} bytes", name_of(collective.kind), bytes),
                   "",
                   "a positive, finite size",
                   "",
                   {}});
    }
    NS_TRY(placement, topology_.place(collective.group));
    if (placement.ranks < 2) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} of one rank", name_of(collective.kind)),
                   "",
                   "a group of at least two ranks",
                   "",
                   {}});
    }
    if (collective.kind == CollectiveKind::kSendRecv && placement.ranks != 2) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a send_recv between {} ranks", placement.ranks),
                   "",
                   "a group of two, the sender first",
                   "",
                   {}});
    }
    return Call{collective.kind, barrier ? 0 : bytes, &placement, links_.data()};
  }

  bool allowed(const Call& call, std::size_t algorithm, Protocol protocol) const {
    return (!algorithm_ || *algorithm_ == algorithm) && (!protocol_ || *protocol_ == protocol) &&
           network::algorithms()[algorithm].applies(call, protocol);
  }

  // The fastest allowed; the first of equals.
  Result<Choice> choose(const Call& call) const {
    const std::span<const Algorithm> table = network::algorithms();
    Choice best;
    for (std::size_t i = 0; i < table.size(); ++i) {
      for (const Protocol protocol : network::kProtocols) {
        if (!allowed(call, i, protocol)) continue;
        const Cost cost = table[i].cost(call, protocol);
        if (!best.algorithm || cost.time() < best.cost.time()) best = {&table[i], protocol, cost};
      }
    }
    if (!best.algorithm) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("no allowed algorithm does a {} on this group", name_of(call.kind)),
                   "--algorithm",
                   "",
                   "leave the algorithm and the protocol at \"auto\"",
                   {}});
    }
    return best;
  }

  Forecast to_forecast(const Call& call, const Choice& best) const {
    // Half of the width of the 90 % interval: small messages scatter more than long ones.
    constexpr double kLatencySpread = 0.40, kTransferSpread = 0.20;
    const double floor = network::bandwidth_bound(call);
    const double latency = std::max(best.cost.time(), floor);
    const double spread = kLatencySpread * best.cost.latency + kTransferSpread * best.cost.transfer;
    Forecast forecast;
    forecast.latency = latency * units::s;
    forecast.floor = floor * units::s;
    forecast.low = std::max(latency - spread, floor) * units::s;
    forecast.high = (latency + spread) * units::s;
    forecast.bound = best.cost.transfer > best.cost.latency ? Bound::kBandwidth : Bound::kLatency;
    forecast.utilization = latency > 0 ? floor / latency : 1;
    forecast.method = best.algorithm->methods[static_cast<std::size_t>(best.protocol)];
    return forecast;
  }

  network::Topology topology_;
  std::vector<Link> links_;
  std::optional<std::size_t> algorithm_;
  std::optional<Protocol> protocol_;
};

Result<Explanation> NetworkModel::explain(const Collective& collective) const {
  Placement placement;
  NS_TRY(const Call call, prepare(collective, placement));
  NS_TRY(const Choice best, choose(call));
  Explanation result;
  result.subject =
      fmt::format("{} of {} between {} ranks", name_of(collective.kind), to_text(collective.size), placement.ranks);
  const auto bandwidth = [](double bytes_per_second) { return to_text(bytes_per_second * units::B / units::s); };
  const auto duration = [](double seconds) { return to_text(seconds * units::s); };
  for (const Tier& tier : placement) {
    const Link& link = call.link(tier);
    result.steps.push_back(
        {fmt::format("level {}", tier.level),
         fmt::format("{} parts of {} ranks", tier.all_parts,
                     tier.members == tier.max_members ? fmt::to_string(tier.members)
                                                      : fmt::format("{}-{}", tier.members, tier.max_members)),
         fmt::format("{}: {} a GPU on the data sheet, {} reached, {} a hop", link.name, bandwidth(link.peak),
                     bandwidth(link.bandwidth), duration(of(link.ring_hop, best.protocol)))});
  }
  const std::span<const Algorithm> table = network::algorithms();
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (const Protocol protocol : network::kProtocols) {
      if (!allowed(call, i, protocol)) continue;
      const Cost cost = table[i].cost(call, protocol);
      const bool chosen = best.algorithm == &table[i] && best.protocol == protocol;
      result.steps.push_back({fmt::format("{}{}", chosen ? "chosen: " : "candidate: ",
                                          table[i].methods[static_cast<std::size_t>(protocol)]),
                              duration(cost.time()),
                              fmt::format("latency {} in {} steps, transfer {}", duration(cost.latency), cost.steps,
                                          duration(cost.transfer))});
    }
  }
  result.forecast = to_forecast(call, best);
  result.steps.push_back({"floor", to_text(result.forecast.floor), "bytes that must cross over data-sheet bandwidth"});
  return result;
}

}  // namespace

std::span<const NetworkAlgorithm> network_algorithms() {
  static const std::vector<NetworkAlgorithm> table = [] {
    std::vector<NetworkAlgorithm> entries;
    for (const Algorithm& algorithm : network::algorithms()) entries.push_back({algorithm.name, algorithm.description});
    return entries;
  }();
  return table;
}

std::span<const NetworkAlgorithm> network_protocols() { return kProtocolTable; }

Result<std::unique_ptr<NetworkCost>> make_network_model(const Cluster& cluster, const NetworkModelOptions& options) {
  NS_TRY(network::Topology topology, network::Topology::of(cluster));
  std::vector<Link> links;
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const FabricLevel& level = cluster.levels[i];
    const double peak = level.bandwidth_per_gpu() / (units::B / units::s);
    const double latency = level.fabric.latency / units::s;
    if (!std::isfinite(peak) || peak <= 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("level {} of cluster \"{}\" gives a GPU no bandwidth", i, cluster.id),
                   fmt::format("/levels/{}", i),
                   "positive bandwidth, nics_per_gpu and oversubscription",
                   "",
                   {}});
    }
    if (!std::isfinite(latency) || latency < 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("level {} of cluster \"{}\" has a latency of {} s", i, cluster.id, latency),
                   fmt::format("/levels/{}/fabric/latency", i),
                   "a latency of at least zero",
                   "",
                   {}});
    }
    links.push_back(network::link_of(level));
  }
  const auto find = [](std::span<const NetworkAlgorithm> table, const std::string& name,
                       const char* flag) -> Result<std::optional<std::size_t>> {
    if (name == "auto") return std::optional<std::size_t>();
    const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.name == name; });
    if (found == table.end()) {
      return fail({ErrorCode::kNotFound, fmt::format("unknown name \"{}\"", name), flag, names_of(table), "", {}});
    }
    return std::optional<std::size_t>(static_cast<std::size_t>(found - table.begin()));
  };
  NS_TRY(const std::optional<std::size_t> algorithm, find(network_algorithms(), options.algorithm, "--algorithm"));
  NS_TRY(const std::optional<std::size_t> protocol, find(network_protocols(), options.protocol, "--protocol"));
  std::optional<Protocol> chosen;
  if (protocol) chosen = network::kProtocols[*protocol];
  return std::make_unique<NetworkModel>(std::move(topology), std::move(links), algorithm, chosen);
}

}  // namespace ns_dist
