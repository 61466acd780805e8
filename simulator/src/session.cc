#include "ns_dist/session.h"

#include <utility>

#include "cached_network.h"
#include "clocks/call_order.h"
#include "ns_dist/cached_cost.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/network_model.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {

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
  Cluster busy = scenario.cluster;
  // Collectives run beside products or between them, on SMs whose clock is that of products (NCCL's latencies grow as
  // it falls; network_model/src/links.cc).
  if (scenario.training.precision != Precision::kFp32) {
    busy.gpu.boost_clock /= training_slowdown(busy.gpu, scenario.constants.exponent);
  }
  NS_TRY(auto network, make_network_model(busy, collectives));
  session.own_network_ = make_cached_network(std::move(network));
  session.compute_ = session.own_compute_.get();
  session.network_ = session.own_network_.get();
  return session;
}

Session::Session() : orders_(std::make_unique<CallOrders>()) {}
Session::Session(const ComputeCost& compute, const NetworkCost& network) : Session() {
  compute_ = &compute;
  network_ = &network;
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
