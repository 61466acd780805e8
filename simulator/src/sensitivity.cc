#include "ns_dist/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ns_dist/session.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

struct Part {
  std::string_view name;
  // Returns whether the machine has the part.
  bool (*improve)(Cluster&, double factor);
};

bool compute(Cluster& cluster, double factor) {
  for (RateTable* rates : {&cluster.gpu.tensor, &cluster.gpu.vector}) {
    for (const DType dtype : kAllDTypes) (*rates)[dtype] = factor * (*rates)[dtype];
  }
  cluster.gpu.base_clock = factor * cluster.gpu.base_clock;
  cluster.gpu.boost_clock = factor * cluster.gpu.boost_clock;
  return true;
}

bool board_power(Cluster& cluster, double factor) {
  cluster.gpu.board_power = factor * cluster.gpu.board_power;
  return cluster.gpu.board_power > Watts();
}

bool memory_bandwidth(Cluster& cluster, double factor) {
  cluster.gpu.memory_bandwidth = factor * cluster.gpu.memory_bandwidth;
  return true;
}

bool inside(Cluster& cluster, double factor) {
  if (cluster.levels.empty()) return false;
  cluster.levels.front().fabric.bandwidth = factor * cluster.levels.front().fabric.bandwidth;
  return true;
}

bool between(Cluster& cluster, double factor) {
  for (std::size_t i = 1; i < cluster.levels.size(); ++i) {
    cluster.levels[i].fabric.bandwidth = factor * cluster.levels[i].fabric.bandwidth;
  }
  return cluster.levels.size() > 1;
}

bool latency(Cluster& cluster, double factor) {
  for (FabricLevel& level : cluster.levels) level.fabric.latency = level.fabric.latency / factor;
  return !cluster.levels.empty();
}

constexpr Part kParts[] = {{"clock and peak rates of the GPU", compute},
                           {"board power of the GPU", board_power},
                           {"memory bandwidth of the GPU", memory_bandwidth},
                           {"bandwidth inside nodes", inside},
                           {"bandwidth between nodes", between},
                           {"shorter latency of all links", latency}};

}  // namespace

Result<std::vector<Sensitivity>> sensitivities(const Scenario& scenario, double share) {
  if (!(share > -1) || !std::isfinite(share)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a share of {}", share), "", "above -1", "", {}});
  }
  const auto step_of = [](const Scenario& changed) -> Result<Seconds> {
    NS_TRY(const Session session, Session::make(changed));
    return step_time(changed, session);
  };
  NS_TRY(const Seconds before, step_of(scenario));
  std::vector<Sensitivity> found;
  for (const Part& part : kParts) {
    Scenario changed = scenario;
    if (!part.improve(changed.cluster, 1 + share)) continue;
    NS_TRY(const Seconds step, step_of(changed));
    found.push_back({std::string(part.name), step, step / before - 1});
  }
  std::stable_sort(found.begin(), found.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::fabs(a.change) > std::fabs(b.change);
  });
  return found;
}

}  // namespace ns_dist
