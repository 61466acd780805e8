#include "ns_dist/session.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cached_network.h"
#include "clocks/call_order.h"
#include "ns_dist/cached_cost.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/names.h"
#include "ns_dist/network_model.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

namespace {

// A format that the GPU has no units for. The compute model would refuse the first kernel, which no user names.
Result<void> check_format(const Scenario& scenario) {
  const Gpu& gpu = scenario.cluster.gpu;
  const auto runs = [&gpu](Precision precision) {
    return gpu.matrix_peak(product_type(precision)) > FlopsPerSecond() &&
           gpu.matrix_peak(storage_type(precision)) > FlopsPerSecond();
  };
  const Precision asked = scenario.training.precision;
  if (runs(asked)) return {};
  std::vector<std::string_view> all;
  std::string hint;
  for (const std::string_view name : names_of<Precision>()) {
    if (runs(*enumerator_from_name<Precision>(name))) all.push_back(name);
  }
  for (const Precision usual : {Precision::kFp32, Precision::kFp16, Precision::kBf16}) {
    if (runs(usual)) hint = fmt::format("write training/dtype={}", enumerator_name(usual));
  }
  return fail({ErrorCode::kInvalidInput,
               fmt::format("{} has no rate for {}", gpu.id, enumerator_name(asked)),
               "training/dtype",
               fmt::format("one of {}", fmt::join(all, ", ")),
               hint,
               {}});
}

}  // namespace

Result<Session> Session::make(const Scenario& scenario) {
  NS_TRY_VOID(check_format(scenario));
  ComputeModelOptions kernels;
  if (scenario.kernel_calibration) {
    kernels.calibration = std::make_shared<const KernelCalibration>(*scenario.kernel_calibration);
  }
  Session session;
  NS_TRY(auto compute, make_compute_model(scenario.cluster.gpu, kernels));
  session.own_compute_ = make_cached_cost(std::move(compute));
  NetworkModelOptions collectives = network_options(scenario.network);
  NS_TRY(collectives.ranks, rank_count(scenario.plan));
  NS_TRY(auto network, make_network_model(scenario.cluster, collectives));
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
