#include "ns_dist/network_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms.h"
#include "calibration.h"
#include "estimate.h"
#include "links.h"
#include "ns_dist/astra_formulas.h"
#include "timing.h"
#include "topology.h"
#include "wording.h"

namespace ns_dist {
namespace {

using network::Algorithm;
using network::Call;
using network::Choice;
using network::Corrected;
using network::Cost;
using network::Estimate;
using network::Link;
using network::Placement;
using network::Protocol;
using network::Tier;

constexpr std::array<NetworkAlgorithm, network::kProtocolCount> kProtocolTable = {{
    {name_of(Protocol::kLl), "8-byte stores of 4 bytes of data and a flag: least latency, half the bandwidth"},
    {name_of(Protocol::kLl128),
     "128-byte stores with an 8-byte flag: low latency, 0.92 of a ring's bandwidth; needs NVLink's store order"},
    {name_of(Protocol::kSimple), "whole slices and a semaphore: full bandwidth"},
}};

std::string names_of(std::span<const NetworkAlgorithm> table) {
  std::string names = "auto";
  for (const NetworkAlgorithm& entry : table) names += fmt::format(", {}", entry.name);
  return names;
}

class NetworkModel final : public NetworkCost {
 public:
  NetworkModel(network::Topology topology, std::vector<Link> links, network::Calibration calibration,
               network::Allowed allowed, bool strict)
      : topology_(std::move(topology)),
        links_(std::move(links)),
        calibration_(std::move(calibration)),
        allowed_(allowed),
        strict_(strict) {}

  Result<Forecast> forecast(const Collective& collective) const override {
    Placement placement;
    NS_TRY(const Call call, prepare(collective, placement));
    const Answer best = answer(call);
    if (!best.choice.algorithm) return refuse(call);
    Forecast found = to_forecast(call, best);
    if (!all_pass_a_host(collective)) return found;
    NS_TRY(const Forecast step, ring_step(collective));
    return step.latency > found.latency ? step : found;
  }

  Result<Explanation> explain(const Collective& collective) const override;

 private:
  // Whether this message is one of a ring of more ranks, all of which send at once over PCIe, maybe through the host.
  bool all_pass_a_host(const Collective& collective) const {
    if (collective.kind != CollectiveKind::kSendRecv || collective.ring.count <= 2) return false;
    const auto ring = topology_.place(ring_of(collective));
    return ring && std::any_of(ring->begin(), ring->end(), [&](const Tier& tier) {
             return links_[tier.level].link_class == network::LinkClass::kPcie;
           });
  }
  static RankGroup ring_of(const Collective& message) { return RankGroup{0, {message.ring}}.of(message.group.first); }
  // One of the steps of an all-gather by the same ring.
  Result<Forecast> ring_step(const Collective& message) const {
    const auto ranks = static_cast<double>(message.ring.count);
    NS_TRY(Forecast step, forecast({CollectiveKind::kAllGather, ranks * message.size, ring_of(message)}));
    for (Seconds* time : {&step.latency, &step.low, &step.high, &step.floor}) *time /= ranks - 1;
    return step;
  }

  Result<Call> prepare(const Collective& collective, Placement& placement) const {
    const double bytes = collective.size / units::B;
    const bool barrier = collective.kind == CollectiveKind::kBarrier;
    if (!std::isfinite(bytes) || bytes < 0 || (bytes == 0 && !barrier)) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of {} bytes", network::with_article(collective.kind), bytes), "",
                   "a positive, finite size"});
    }
    NS_TRY(placement, network::place(topology_, collective));
    if (placement.ranks < 2) {
      return fail({ErrorCode::kInvalidInput, fmt::format("{} of one rank", network::with_article(collective.kind)), "",
                   "a group of at least two ranks"});
    }
    if (collective.kind == CollectiveKind::kSendRecv && placement.ranks != 2) {
      return fail({ErrorCode::kInvalidInput, fmt::format("a send_recv between {} ranks", placement.ranks), "",
                   "a group of two, the sender first"});
    }
    const double most = collective.kind == CollectiveKind::kAllToAll ? static_cast<double>(placement.ranks) : 1;
    if (!(collective.imbalance >= 1 && collective.imbalance <= most)) {
      return fail(
          {ErrorCode::kInvalidInput,
           fmt::format("{} with an imbalance of {}", network::with_article(collective.kind), collective.imbalance), "",
           most > 1 ? fmt::format("1 (even) to {:g}, the ranks (one receives everything)", most)
                    : std::string("1: only all_to_all is uneven")});
    }
    const bool routed = collective.routing.experts > 0;
    if (routed && (collective.kind != CollectiveKind::kAllToAll || !is_possible(collective.routing))) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} of a routing that cannot be", network::with_article(collective.kind)), "",
                   "an all_to_all, groups that divide the experts, and top groups that hold those of a token"});
    }
    return network::call_of(collective, placement, links_.data());
  }

  static tl::unexpected<Error> refuse(const Call& call) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("no allowed algorithm does {} on this group", network::with_article(call.kind)),
                 "network/algorithm", "", "leave the algorithm and the protocol at \"auto\""});
  }

  struct Answer : Estimate {
    Estimate one_node;  // of the same in the largest node alone; without an algorithm inside a node
    Estimate leaving;   // with what leaves the node by the ports by which its GPUs reach each other; none: without
    // The one that decides how long it takes, and with which certainty.
    const Estimate& slower() const { return one_node.time > time ? one_node : *this; }
  };

  Answer answer(const Call& call) const {
    Estimate best = network::estimate(call, allowed_, calibration_);
    if (!best.choice.algorithm && !strict_) {
      best = network::estimate(call, {std::nullopt, allowed_.protocol}, calibration_);
      if (!best.choice.algorithm) best = network::estimate(call, {}, calibration_);
    }
    if (!best.choice.algorithm) return {best, {}, {}};
    return {best, network::inside_nodes(call, false, calibration_),
            leaves_by_pcie(call) ? network::inside_nodes(call, true, calibration_) : Estimate{}};
  }

  // Whether GPUs reach other nodes by the PCIe ports by which they reach each other, in addition to what they send
  // there. (In the collectives that are left out, such as rings, a GPU sends its share either to a peer or to another
  // node.)
  static bool leaves_by_pcie(const Call& call) {
    if (network::pattern_of(call.kind) != network::Pattern::kPartEach) return false;
    return std::any_of(call.placement->begin(), call.placement->end(),
                       [&](const Tier& tier) { return call.link(tier).link_class == network::LinkClass::kPcie; });
  }

  // 90 % interval of what `estimate` takes, seconds, around `latency`.
  static std::pair<double, double> interval(const Estimate& estimate, double latency) {
    if (!estimate.corrected) {
      const double half = estimate.spread * estimate.time;
      return {latency - half, latency + half};
    }
    const double factor = std::exp(estimate.spread);
    const double low = latency / factor;
    if (!estimate.corrected->may_be_direct) return {low, latency * factor};
    return {std::min(low, estimate.choice.cost.time() * std::exp(-network::kDirectSpread)), latency * factor};
  }

  Forecast to_forecast(const Call& call, const Answer& answer) const {
    const Choice& best = answer.choice;
    const Estimate& decides = answer.slower();
    const Cost& cost = decides.choice.cost;
    const double floor = network::bandwidth_bound(call, best.algorithm->network_reduces);
    const double latency = std::max(decides.time, floor);
    Forecast forecast;
    forecast.latency = latency * units::s;
    forecast.floor = floor * units::s;
    const auto around = [&](const Estimate& part) { return interval(part, &part == &decides ? latency : part.time); };
    auto [low, high] = around(answer);
    if (answer.one_node.choice.algorithm) {
      // Both take their time, and each may be the longer one.
      const auto [node_low, node_high] = around(answer.one_node);
      low = std::max(low, node_low);
      high = std::max(high, node_high);
    }
    // Nobody measured whether what leaves such a node passes its host's memory (without GPUDirect RDMA).
    if (answer.leaving.choice.algorithm) high = std::max(high, around(answer.leaving).second);
    forecast.low = std::max(low, floor) * units::s;
    forecast.high = high * units::s;
    forecast.bound = cost.transfer > cost.latency ? Bound::kBandwidth : Bound::kLatency;
    forecast.utilization = latency > 0 ? floor / latency : 1;
    forecast.method = network::method_of(*best.algorithm, best.protocol);
    constexpr double kLargestMeasured = 1 << 30;  // bytes; a fit knows changes of protocol up to here
    // Where a node decides over several, they were measured only if both it and they were.
    const auto unmeasured = [](const Estimate& by) {
      return !by.corrected || by.far || by.corrected->source != Corrected::Source::kMeasured;
    };
    forecast.extrapolated =
        unmeasured(answer) || unmeasured(decides) || call.bytes > kLargestMeasured || call.imbalance > 1;
    return forecast;
  }

  network::Topology topology_;
  std::vector<Link> links_;
  network::Calibration calibration_;
  network::Allowed allowed_;
  bool strict_;
};

// What `explain` says of a correction.
std::string_view text_of(const Corrected& corrected, const Call& call) {
  if (corrected.users) {
    const bool is_measured = corrected.source == Corrected::Source::kMeasured && corrected.unmeasured(call) < 1e-6;
    return is_measured ? "corrected by your calibration, which measured this group"
                       : "corrected by your calibration, from other collectives, sizes, ranks or links";
  }
  switch (corrected.source) {
    case Corrected::Source::kMeasured:
      return corrected.may_be_direct
                 ? "measured on one server, whose transfers go through the host's memory; where they go directly, they "
                   "take the lower end of the interval; ns-dist calibrate --collectives tells it"
                 : "measured on this generation over NCCL's constants";
    case Corrected::Source::kOthers:
      return "measured on other groups or generations over NCCL's constants";
    case Corrected::Source::kUnknownRoute:
      return "between the direct route and that through the host's memory: nobody measured which; ns-dist calibrate "
             "--collectives tells it";
  }
  return "";
}

Result<Explanation> NetworkModel::explain(const Collective& collective) const {
  Placement placement;
  NS_TRY(const Call call, prepare(collective, placement));
  const Answer best = answer(call);
  if (!best.choice.algorithm) return refuse(call);
  Explanation result;
  result.subject =
      fmt::format("{} of {} between {} ranks", name_of(collective.kind), to_text(collective.size), placement.ranks);
  // More than four digits would suggest an accuracy that forecasts do not have.
  const auto rounded = [](double value) {
    if (!(value > 0) || !std::isfinite(value)) return value;
    const double step = std::pow(10.0, 3 - std::floor(std::log10(value)));
    return std::round(value * step) / step;
  };
  const auto bandwidth = [&](double bytes_per_second) {
    return to_text(rounded(bytes_per_second / 1e9) * units::GB / units::s);
  };
  const auto duration = [](double seconds) { return duration_text(seconds * units::s); };
  if (call.imbalance > 1) {
    result.steps.push_back({"imbalance", fmt::format("x {:g}", call.imbalance),
                            "bytes of the busiest rank's port over the mean; it decides"});
  }
  if (call.copies_in_nodes && call.nodes() > 1) {
    result.steps.push_back({"copies across nodes", fmt::format("x {:.4g}", call.copies_over_network),
                            fmt::format("one for each of {:.4g} nodes that a token goes to, not of {:.4g} ranks",
                                        parts_reached(collective.routing, call.nodes()),
                                        parts_reached(collective.routing, placement.ranks))});
  }
  for (const Tier& tier : placement) {
    const Link& link = call.link(tier);
    const std::string members = tier.members == tier.max_members ? fmt::to_string(tier.members)
                                                                 : fmt::format("{}-{}", tier.members, tier.max_members);
    result.steps.push_back(
        {fmt::format("level {}", tier.level), fmt::format("{} parts of {} ranks", tier.all_parts, members),
         fmt::format("{}{}: {} a GPU on the data sheet, {} reached, {} a hop", link.name,
                     tier.parts < link.mesh
                         ? fmt::format(" mesh, links to {} of {} peers", tier.parts - 1, link.mesh - 1)
                     : link.ring == 0   ? ""
                     : call.fills(tier) ? " ring of a torus"
                                        : " line in a torus",
                     bandwidth(call.peak_of_part(tier)),
                     bandwidth(call.part_bandwidth(tier) / static_cast<double>(tier.members)),
                     duration(of(link.ring_hop, best.choice.protocol)))});
  }
  const std::span<const Algorithm* const> table = network::algorithms();
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (const Protocol protocol : network::kProtocols) {
      if (!network::is_allowed(call, allowed_, i, protocol)) continue;
      const Cost cost = table[i]->cost(call, protocol);
      const bool chosen = best.choice.algorithm == table[i] && best.choice.protocol == protocol;
      result.steps.push_back(
          {fmt::format("{}{}", chosen ? "chosen: " : "candidate: ", network::method_of(*table[i], protocol)),
           duration(cost.time()),
           fmt::format("latency {} in {} steps, transfer {}", duration(cost.latency), cost.steps,
                       duration(cost.transfer))});
    }
  }
  result.forecast = to_forecast(call, best);
  if (const Corrected* corrected = best.corrected) {
    result.steps.push_back({"correction", fmt::format("x {:.3f}", best.time / best.choice.cost.time()),
                            std::string(text_of(*corrected, call))});
  }
  if (best.one_node.time > best.time) {
    result.steps.push_back({"one node alone", duration(best.one_node.time),
                            "what stays in a node, over its links; several nodes take at least as long"});
  }
  result.steps.push_back(
      {"floor", duration(result.forecast.floor / units::s), "bytes that must cross over data-sheet bandwidth"});
  return result;
}

}  // namespace

std::span<const NetworkAlgorithm> network_algorithms() {
  static const std::vector<NetworkAlgorithm> table = [] {
    std::vector<NetworkAlgorithm> entries;
    for (const Algorithm* algorithm : network::algorithms())
      entries.push_back({algorithm->name, algorithm->description, algorithm->automatic});
    return entries;
  }();
  return table;
}

std::span<const NetworkAlgorithm> network_protocols() { return kProtocolTable; }

Result<std::unique_ptr<NetworkCost>> make_network_model(const Cluster& cluster, const NetworkModelOptions& options) {
  if (options.model == NetworkModelKind::kAstra) {
    for (const auto& [value, field] :
         {std::pair(&options.algorithm, "network/algorithm"), std::pair(&options.protocol, "network/protocol")}) {
      if (*value == "auto") continue;
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("\"{}\" is NCCL's: ASTRA-Sim's formulas know no such choice", *value), field, "auto",
                   fmt::format("leave out {}, or network/model=astra", field)});
    }
    if (options.calibration && !options.calibration->curves.empty()) {
      return fail({ErrorCode::kInvalidInput, "curves of NCCL's collectives correct no formula of ASTRA-Sim",
                   "network/calibration", "none", "leave out network/calibration, or network/model=astra"});
    }
    return make_astra_model(cluster, options.ranks);
  }
  NS_TRY(network::Topology topology, network::check_cluster(cluster, options.ranks));
  std::vector<Link> links = network::links_of(cluster);
  const auto find = [](std::span<const NetworkAlgorithm> table, const std::string& name,
                       const char* field) -> Result<std::optional<std::size_t>> {
    if (name == "auto") return std::optional<std::size_t>();
    const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.name == name; });
    if (found == table.end()) {
      return fail({ErrorCode::kNotFound, fmt::format("unknown name \"{}\"", name), field, names_of(table)});
    }
    return std::optional<std::size_t>(static_cast<std::size_t>(found - table.begin()));
  };
  network::Allowed allowed;
  NS_TRY(allowed.algorithm, find(network_algorithms(), options.algorithm, "network/algorithm"));
  NS_TRY(const std::optional<std::size_t> protocol, find(network_protocols(), options.protocol, "network/protocol"));
  if (protocol) allowed.protocol = network::kProtocols[*protocol];
  network::Calibration calibration;
  if (options.calibrated) {
    calibration =
        network::Calibration(options.calibration ? *options.calibration : builtin_network_calibration(), cluster);
  }
  return std::make_unique<NetworkModel>(std::move(topology), std::move(links), std::move(calibration), allowed,
                                        options.strict);
}

}  // namespace ns_dist
