// What runs beside what: flows (collectives and messages) share the ports of their stages, and take SMs and memory
// bandwidth from the kernels there. Every event queue uses this table, so that all compute the same bits: flows are
// taken in the order of their lanes, and only flows that are connected by a stage decide about each other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ns_dist/cost.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

// What slows a kernel down.
enum Feels : std::uint8_t { kFeelsNothing = 0, kFeelsSms = 1, kFeelsMemory = 2 };

// A work item as the event queues see it. Shares are rounded to 2^-40, so that their sums are exact.
struct FlowDemand {
  struct Port {
    std::uint32_t level = 0;
    double share = 0;
  };
  std::vector<Port> ports;
  double sms = 0, memory = 0;
  Feels feels = kFeelsNothing;
  bool flow = false;
};
FlowDemand flow_demand(const WorkItem& item, const Demand& demand);

// Load of a port from which on flows share it; the loads are sums of rounded shares.
inline constexpr double kFullPort = 1 + 1e-9;

// What flows that run at their full rate take from the kernels of a stage: shares of its SMs and memory bandwidth.
struct Company {
  double sms = 0, memory = 0;
  friend bool operator==(const Company&, const Company&) = default;
};

// Rates of kernels, by Feels.
struct KernelRates {
  double by[3] = {1, 1, 1};
};

class FlowTable {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  // Lanes are those of an ExecutionGraph with this many stages.
  void reset(std::size_t stages);

  void add(std::uint32_t lane, std::uint32_t from, std::uint32_t to, const FlowDemand* demand);
  void remove(std::uint32_t lane);
  double rate(std::uint32_t lane) const { return flows_[lane].rate; }
  const KernelRates& kernels(std::uint32_t stage) const { return stages_[stage].kernels; }
  // Every flow runs at its full rate.
  bool calm() const { return overloaded_ == 0 && slowed_ == 0; }
  // What the flows on lanes from `first` of each stage on, its own and messages, take from the kernels of `stage`.
  // Nothing where they and a flow that asks for `ports` (by level, none more than full) would have to share.
  std::optional<Company> company(std::uint32_t stage, std::uint32_t first, std::span<const double> ports) const;
  // Kernels of the stage run beside this, too.
  void add_company(std::uint32_t stage, const Company& company) {
    stages_[stage].company = company;
    touch(stage);
  }
  // Sets what a stage had at an earlier time; `add` must have been called for its flows.
  void restore(std::uint32_t lane, double rate) {
    set_rate(flows_[lane], rate);
    flows_[lane].started = 0;
  }
  void restore(std::uint32_t stage, const KernelRates& kernels) { stages_[stage].kernels = kernels; }

  // After all that starts and ends at one instant. Calls flow_changed(lane, old rate) for each flow that ran before and
  // runs at another rate now, then kernels_changed(stage, old rates).
  template <class FlowChanged, class KernelsChanged>
  void settle(FlowChanged flow_changed, KernelsChanged kernels_changed) {
    // Rates of flows mark more stages as changed. While all flows run alone, none of them changes.
    for (std::size_t i = 0; i < changed_.size() && (overloaded_ > 0 || slowed_ > 0); ++i) {
      if (stages_[changed_[i]].shared_at == epoch_) continue;
      share(changed_[i]);
      for (const std::uint32_t lane : component_) {
        Flow& flow = flows_[lane];
        if (flow.next_rate == flow.rate) continue;
        const double before = flow.rate;
        set_rate(flow, flow.next_rate);
        touch(flow.from);
        touch(flow.to);
        if (flow.started != epoch_) flow_changed(lane, before);
      }
    }
    for (const std::uint32_t s : changed_) {
      Stage& stage = stages_[s];
      stage.changed = false;
      const KernelRates before = stage.kernels;
      stage.kernels = kernel_rates(stage);
      if (before.by[kFeelsSms] != stage.kernels.by[kFeelsSms] ||
          before.by[kFeelsMemory] != stage.kernels.by[kFeelsMemory]) {
        kernels_changed(s, before);
      }
    }
    changed_.clear();
    ++epoch_;
  }

 private:
  struct Flow {
    std::uint32_t from = kNone, to = kNone;
    const FlowDemand* demand = nullptr;
    double rate = 1, next_rate = 1;
    std::uint64_t started = 0;  // the epoch
  };
  struct Stage {
    std::vector<std::uint32_t> lanes;  // of flows that run here, ascending
    std::vector<double> load;          // of its ports: of each level, out and in
    std::uint32_t overloaded = 0;      // ports
    KernelRates kernels;
    Company company;  // that is not in `lanes`
    std::uint64_t shared_at = 0;
    std::uint32_t reached = 0;  // its place in reached_
    bool changed = false;
  };

  void touch(std::uint32_t stage) {
    if (stages_[stage].changed) return;
    stages_[stage].changed = true;
    changed_.push_back(stage);
  }
  KernelRates kernel_rates(const Stage& stage) const;
  // Adds a flow's shares to the loads of its ports, or takes them away.
  void load(const Flow& flow, double sign);
  // Fills component_ with the flows that are connected to `stage`, and their next_rate: max-min fair rates.
  void share(std::uint32_t stage);
  void set_rate(Flow& flow, double rate) {
    slowed_ += (rate != 1 ? 1u : 0u) - (flow.rate != 1 ? 1u : 0u);
    flow.rate = rate;
  }

  std::vector<Stage> stages_;
  std::vector<Flow> flows_;  // by lane
  std::vector<std::uint32_t> changed_, component_, reached_;
  std::uint32_t overloaded_ = 0, slowed_ = 0;  // ports, flows
  std::uint64_t epoch_ = 1;
};

}  // namespace ns_dist
