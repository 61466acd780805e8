#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "algorithms.h"
#include "ns_dist/astra_formulas.h"
#include "topology.h"
#include "wording.h"

namespace ns_dist {
namespace {

class AstraModel final : public NetworkCost {
 public:
  AstraModel(network::Topology topology, const Cluster& cluster, std::int64_t ranks)
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
    if (const Seconds floor = answer.floor * units::s; floor > result.forecast.latency) {
      result.steps.push_back({"links", duration_text(floor),
                              "what the links of the data sheet allow at least: ASTRA-Sim's rule takes less"});
    }
    return result;
  }

 private:
  struct Answer {
    std::int64_t nanoseconds = 0;
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
    std::int64_t ranks = ranks_;
    if (ranks == 0) {
      std::int64_t unit = 1, last = group.first;
      for (std::size_t i = 0; i + 1 < cluster_.levels.size(); ++i) unit *= cluster_.levels[i].size;
      for (const Stride& stride : group.strides) last += (stride.count - 1) * stride.stride;
      ranks = std::max<std::int64_t>(2, (last + unit) / unit * unit);
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
    constexpr std::int64_t kLargestGroup = std::int64_t{1} << 24;
    if (placement.ranks < 2 || placement.ranks > kLargestGroup) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of {} ranks", network::with_article(collective.kind), placement.ranks), "",
                   fmt::format("a group of 2 to {} ranks", kLargestGroup)});
    }
    NS_TRY(const AstraNetwork network, network_for(collective.group));
    Answer result;
    const std::int64_t node = cluster_.gpus_per_node();
    NS_TRY(result.nanoseconds, network.longest_ns(collective, node));
    for (const Collective& exchange : astra_exchanges(collective, node))
      NS_TRY_VOID(describe(exchange, network, &result));
    return result;
  }

  // Adds the dimensions that are charged, and the least time that their links allow.
  Result<void> describe(const Collective& collective, const AstraNetwork& network, Answer* result) const {
    NS_TRY(const network::Placement placement, topology_.place(collective.group));
    const std::vector<AstraDimension>& dimensions = network.system().dimensions;
    const RankGroup& group = collective.group;
    const std::int64_t members = group.size();
    if (collective.kind == CollectiveKind::kSendRecv) {
      result->dimensions = {dimensions[network.charged(group.at(0), group.at(members - 1)).first]};
    } else {
      result->flat = placement.ranks < network.system().npus();
      result->direct = !result->flat || dimensions.size() == 1;
      if (result->flat) {
        std::set<std::size_t> used;
        for (std::int64_t i = 0; i < members; ++i) {
          used.insert(network.charged(group.at(i), group.at((i + 1) % members)).first);
        }
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
  std::int64_t ranks_ = 0;  // 0: of an open cluster, without a plan
  std::vector<network::Link> links_;
};

}  // namespace

Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster, std::int64_t ranks) {
  NS_TRY(network::Topology topology, network::check_cluster(cluster));
  return std::make_unique<AstraModel>(std::move(topology), cluster, ranks);
}

}  // namespace ns_dist
