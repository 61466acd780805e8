#include "ns_dist/session.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "clocks/call_order.h"
#include "ns_dist/cached_cost.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/network_model.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {

struct Session::Machine {
  Cluster cluster;
  NetworkSettings network;
  std::optional<KernelCalibration> kernel_calibration;
  double exponent = 0;  // TrainingConstants::exponent
  std::int64_t ranks = 1;
};

Result<Session> Session::make(const Scenario& scenario) {
  ComputeModelOptions kernels;
  if (scenario.kernel_calibration) {
    kernels.calibration = std::make_shared<const KernelCalibration>(*scenario.kernel_calibration);
  }
  Session session;
  NS_TRY(auto compute, make_compute_model(scenario.cluster.gpu, kernels));
  session.own_compute_ = make_cached_cost(std::move(compute));
  NetworkModelOptions collectives = network_options(scenario.network);
  NS_TRY(collectives.ranks, rank_count(scenario.plan));
  NS_TRY(auto idle, make_network_model(scenario.cluster, collectives));
  // NCCL's latencies grow as the clock falls (network_model/src/links.cc).
  Cluster busy = scenario.cluster;
  busy.gpu.boost_clock /= training_slowdown(busy.gpu, scenario.constants.exponent);
  NS_TRY(auto network, make_network_model(busy, collectives));
  session.own_idle_network_ = make_cached_cost(std::move(idle));
  session.own_busy_network_ = make_cached_cost(std::move(network));
  session.compute_ = session.own_compute_.get();
  session.idle_network_ = session.own_idle_network_.get();
  session.busy_network_ = session.own_busy_network_.get();
  session.machine_ = std::make_unique<const Machine>(Machine{
      scenario.cluster, scenario.network, scenario.kernel_calibration, scenario.constants.exponent, collectives.ranks});
  return session;
}

bool Session::serves(const Scenario& scenario) const {
  if (!machine_) return true;
  if (scenario.cluster != machine_->cluster || scenario.network != machine_->network ||
      scenario.kernel_calibration != machine_->kernel_calibration ||
      scenario.constants.exponent != machine_->exponent) {
    return false;
  }
  // How many GPUs share a level's links depends on the plan.
  const bool by_ranks = scenario.network.model == NetworkModelKind::kAstra ||
                        std::any_of(scenario.cluster.levels.begin(), scenario.cluster.levels.end(),
                                    [](const FabricLevel& level) { return level.oversubscription > 1; });
  const auto ranks = rank_count(scenario.plan);
  return !by_ranks || (ranks && *ranks == machine_->ranks);
}

Result<std::shared_ptr<const Session>> Sessions::of(const Scenario& scenario) {
  constexpr std::size_t kMost = 64;
  const std::scoped_lock guard(lock_);
  for (const auto& known : made_) {
    if (known->serves(scenario)) return known;
  }
  NS_TRY(Session made, Session::make(scenario));
  if (made_.size() >= kMost) made_.clear();
  return made_.emplace_back(std::make_shared<const Session>(std::move(made)));
}

Session::Session() : orders_(std::make_unique<CallOrders>()) {}
Session::Session(const ComputeCost& compute, const NetworkCost& network) : Session() {
  compute_ = &compute;
  idle_network_ = busy_network_ = &network;
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

NetworkModelOptions network_options(const NetworkSettings& settings) {
  NetworkModelOptions options;
  options.model = settings.model;
  options.algorithm = settings.algorithm;
  options.protocol = settings.protocol;
  options.strict = false;
  if (settings.calibration) {
    options.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*settings.calibration));
  }
  return options;
}

}  // namespace ns_dist
