// The compute model and the network model of one machine, made once and used for many scenarios.
//
//   NS_TRY(const Session session, Session::make(scenario));
//   NS_TRY(const Seconds step, step_time(scenario, session));
//
// A session remembers forecasts and the parts that plans share. Any number of threads may use it at once.
#pragma once

#include <memory>

#include "ns_dist/cost.h"
#include "ns_dist/forecast.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

class CallOrders;

class Session {
 public:
  // The models that `scenario` asks for: its GPU, cluster, network settings and calibrations. Scenarios that differ in
  // model, plan, training or number of nodes may share a session. Errors: those of make_compute_model and
  // make_network_model.
  static Result<Session> make(const Scenario& scenario);
  // The caller's own models, which must outlive the session. Their forecasts are used without change: the slowdown of
  // kernels in training (docs/models/parallelism.md, "Clock") is not applied to them.
  Session(const ComputeCost& compute, const NetworkCost& network);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const ComputeCost& compute() const { return *compute_; }
  const NetworkCost& network() const { return *network_; }
  bool has_own_models() const { return own_compute_ != nullptr; }  // those of `make`
  PlanCache& plans() const { return plans_; }
  CallOrders& orders() const { return *orders_; }

 private:
  Session();
  std::unique_ptr<ComputeCost> own_compute_;
  std::unique_ptr<NetworkCost> own_network_;
  const ComputeCost* compute_ = nullptr;
  const NetworkCost* network_ = nullptr;
  mutable PlanCache plans_;
  std::unique_ptr<CallOrders> orders_;
};

}  // namespace ns_dist
