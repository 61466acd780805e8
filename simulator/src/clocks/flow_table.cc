#include "flow_table.h"

#include <cmath>

#include "ns_dist/fair_sharing.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

constexpr double kSlowest = 0.05;  // share of their rate that kernels keep, whatever runs beside them. Chosen

double rounded(double share) { return std::round(share * 0x1p40) * 0x1p-40; }

}  // namespace

FlowDemand flow_demand(const WorkItem& item, const Demand& demand) {
  FlowDemand result;
  result.flow = !std::holds_alternative<Operator>(item.work);
  if (item.host.any()) return result;
  if (!result.flow) {
    result.feels = demand.bound == Bound::kCompute  ? kFeelsSms
                   : demand.bound == Bound::kMemory ? kFeelsMemory
                                                    : kFeelsNothing;
    return result;
  }
  result.sms = rounded(demand.sms);
  result.memory = rounded(demand.memory);
  for (std::size_t level = 0; level < demand.ports.size(); ++level) {
    const double share = rounded(demand.ports[level]);
    if (share > 0) result.ports.push_back({static_cast<std::uint32_t>(level), share});
  }
  return result;
}

void FlowTable::reset(std::size_t stages) {
  stages_.resize(stages);
  for (Stage& stage : stages_) {
    stage.lanes.clear();
    stage.load.clear();
    stage.overloaded = 0;
    stage.kernels = {};
    stage.company = {};
    stage.changed = false;
  }
  flows_.assign(stages * kStreamCount, {});
  changed_.clear();
  overloaded_ = slowed_ = 0;
}

// Sums of shares are exact, so that a port is where it was when all that was added is gone.
void FlowTable::load(const Flow& flow, double sign) {
  const std::vector<FlowDemand::Port>& ports = flow.demand->ports;
  if (ports.empty()) return;
  for (const std::size_t into : {0u, 1u}) {
    Stage& stage = stages_[into == 0 ? flow.from : flow.to];
    if (const std::size_t ends = 2 * (ports.back().level + std::size_t{1}); stage.load.size() < ends) {
      stage.load.resize(ends);
    }
    for (const FlowDemand::Port& port : ports) {
      double& load = stage.load[port.level * std::size_t{2} + into];
      const bool before = load > kFullPort;
      load += sign * port.share;
      const bool after = load > kFullPort;
      if (before == after) continue;
      after ? (++stage.overloaded, ++overloaded_) : (--stage.overloaded, --overloaded_);
    }
  }
}

void FlowTable::add(std::uint32_t lane, std::uint32_t from, std::uint32_t to, const FlowDemand* demand) {
  flows_[lane] = {from, to, demand, 1, 1, epoch_};
  load(flows_[lane], 1);
  for (const std::uint32_t stage : {from, to}) {
    std::vector<std::uint32_t>& lanes = stages_[stage].lanes;
    lanes.insert(std::lower_bound(lanes.begin(), lanes.end(), lane), lane);
    touch(stage);
    if (from == to) break;
  }
}

void FlowTable::remove(std::uint32_t lane) {
  const Flow& flow = flows_[lane];
  load(flow, -1);
  set_rate(flows_[lane], 1);
  for (const std::uint32_t stage : {flow.from, flow.to}) {
    std::vector<std::uint32_t>& lanes = stages_[stage].lanes;
    lanes.erase(std::lower_bound(lanes.begin(), lanes.end(), lane));
    touch(stage);
    if (flow.from == flow.to) break;
  }
}

KernelRates FlowTable::kernel_rates(const Stage& stage) const {
  auto [sms, memory] = stage.company;
  for (const std::uint32_t lane : stage.lanes) {
    sms += flows_[lane].demand->sms;
    memory += flows_[lane].demand->memory * flows_[lane].rate;
  }
  return {{1, std::max(kSlowest, 1 - sms), std::max(kSlowest, 1 - memory)}};
}

std::optional<Company> FlowTable::company(std::uint32_t stage, std::uint32_t first,
                                          std::span<const double> ports) const {
  const Stage& here = stages_[stage];
  const auto counts = [first](std::uint32_t lane) { return lane % kStreamCount >= first; };
  const auto load_of = [&](std::size_t port) {
    double load = 0;
    for (const std::uint32_t lane : here.lanes) {
      const Flow& flow = flows_[lane];
      if (!counts(lane) || (port % 2 == 0 ? flow.from : flow.to) != stage) continue;
      for (const FlowDemand::Port& each : flow.demand->ports) load += each.level == port / 2 ? each.share : 0;
    }
    return load;
  };
  for (std::size_t port = 0; port < std::min(here.load.size(), 2 * ports.size()); ++port) {
    const double room = kFullPort - ports[port / 2];
    if (here.load[port] > room && load_of(port) > room) return std::nullopt;  // the first is of all lanes
  }
  Company company;
  for (const std::uint32_t lane : here.lanes) {
    if (!counts(lane)) continue;
    company.sms += flows_[lane].demand->sms;
    company.memory += flows_[lane].demand->memory;
  }
  return company;
}

void FlowTable::share(std::uint32_t first) {
  component_.clear();
  reached_.clear();
  reached_.push_back(first);
  stages_[first].shared_at = epoch_;
  stages_[first].reached = 0;
  std::size_t levels = 0;
  bool overloaded = false;
  for (std::size_t i = 0; i < reached_.size(); ++i) {
    const Stage& here = stages_[reached_[i]];
    overloaded = overloaded || here.overloaded > 0;
    levels = std::max(levels, (here.load.size() + 1) / 2);
    for (const std::uint32_t lane : here.lanes) {
      const Flow& flow = flows_[lane];
      if (flow.from == reached_[i]) component_.push_back(lane);  // a message is listed at both of its ends
      for (const std::uint32_t stage : {flow.from, flow.to}) {
        if (stages_[stage].shared_at == epoch_) continue;
        stages_[stage].shared_at = epoch_;
        stages_[stage].reached = static_cast<std::uint32_t>(reached_.size());
        reached_.push_back(stage);
      }
    }
  }
  for (const std::uint32_t lane : component_) flows_[lane].next_rate = 1;
  if (!overloaded) return;
  std::sort(component_.begin(), component_.end());

  const BytesPerSecond one = BytesPerSecond::from_base(1);
  std::vector<std::uint32_t> compact(reached_.size() * levels * 2, kNone);
  std::vector<BytesPerSecond> capacities;
  std::vector<SharedFlow> flows(component_.size());
  for (std::size_t i = 0; i < component_.size(); ++i) {
    const Flow& flow = flows_[component_[i]];
    flows[i].limit = one;
    for (const FlowDemand::Port& port : flow.demand->ports) {
      for (const bool into : {false, true}) {
        const Stage& stage = stages_[into ? flow.to : flow.from];
        const std::size_t at = port.level * std::size_t{2} + (into ? 1 : 0);
        if (stage.load[at] <= kFullPort) continue;
        std::uint32_t& used = compact[stage.reached * levels * 2 + at];
        if (used == kNone) {
          used = static_cast<std::uint32_t>(capacities.size());
          capacities.push_back(one);
        }
        flows[i].uses.push_back({used, port.share});
      }
    }
  }
  const auto fair = max_min_rates(capacities, flows);
  NS_EXPECTS(fair.has_value());
  for (std::size_t i = 0; i < component_.size(); ++i) {
    flows_[component_[i]].next_rate = std::min(1.0, (*fair)[i].in_base());
  }
}

}  // namespace ns_dist
