// The compute model and the network model of one machine, made once and used for many scenarios.
//
//   NS_TRY(const Session session, Session::make(scenario));
//   NS_TRY(const Seconds step, step_time(scenario, session));
//
// A session remembers forecasts and the parts that plans share. Any number of threads may use it at once.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ns_dist/cost.h"
#include "ns_dist/forecast.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"

namespace ns_dist {

class CallOrders;

class Session {
 public:
  // The models that `scenario` asks for. Errors: those of make_compute_model and make_network_model.
  static Result<Session> make(const Scenario& scenario);
  // Whether `make(scenario)` gives the same models: its cluster, network settings, calibrations and exponent of the
  // clock are the same, and with ASTRA-Sim's formulas or oversubscribed links as many ranks. Scenarios that differ in
  // model, plan and training share a session. The caller's own models serve every scenario.
  bool serves(const Scenario& scenario) const;
  // The caller's own models, which must outlive the session. Their forecasts are used without change: the slowdown of
  // kernels in training (docs/models/parallelism.md, "Clock") is not applied to them.
  Session(const ComputeCost& compute, const NetworkCost& network);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const ComputeCost& compute() const { return *compute_; }
  // Collectives run beside products or between them, on SMs whose clock is that of products in `precision`.
  const NetworkCost& network(Precision precision) const {
    return precision == Precision::kFp32 ? *idle_network_ : *busy_network_;
  }
  // Whether the models are those of `make`, not the caller's own.
  bool made_its_models() const { return own_compute_ != nullptr; }
  PlanCache& plans() const { return plans_; }
  CallOrders& orders() const { return *orders_; }

 private:
  Session();
  struct Machine;  // what `make` read of its scenario
  std::unique_ptr<const Machine> machine_;
  std::unique_ptr<ComputeCost> own_compute_;
  std::unique_ptr<NetworkCost> own_idle_network_, own_busy_network_;
  const ComputeCost* compute_ = nullptr;
  const NetworkCost *idle_network_ = nullptr, *busy_network_ = nullptr;  // at the boost clock; at that of products
  mutable PlanCache plans_;
  std::unique_ptr<CallOrders> orders_;
};

// Sessions for scenarios of several machines, each made once. Any number of threads may ask at once.
class Sessions {
 public:
  // One that serves `scenario`. Errors: those of Session::make.
  Result<std::shared_ptr<const Session>> of(const Scenario& scenario);

 private:
  std::mutex lock_;
  std::vector<std::shared_ptr<const Session>> made_;
};

}  // namespace ns_dist
