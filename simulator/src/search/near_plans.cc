#include "search/near_plans.h"

#include <tuple>
#include <utility>

#include "ns_dist/simulator.h"
#include "scenario_fields.h"

namespace ns_dist {

NearPlans::NearPlans(const SearchGroups& groups, const Session& session, const SearchOptions& options, Crew& crew)
    : groups_(groups),
      session_(session),
      crew_(crew),
      within_(options.within),
      most_(options.below ? *options.below / units::s : kForever),
      best_(most_) {}

bool NearPlans::before(const NearPlan& a, const NearPlan& b) {
  return std::tie(a.bound, a.kinds, a.group, a.leaf, a.layers) < std::tie(b.bound, b.kinds, b.group, b.leaf, b.layers);
}

Scenario NearPlans::scenario_of(const NearPlan& plan, const Scenario& base) const {
  Scenario scenario = groups_.scenario_of(plan.group, plan.leaf, base);
  if (plan.layers > 0) set_recomputation(scenario.plan, {.recompute = Recompute::kFull, .layers = plan.layers});
  return scenario;
}

std::vector<NearPlan*> NearPlans::pointers() {
  std::vector<NearPlan*> all;
  for (NearPlan& plan : plans_) all.push_back(&plan);
  return all;
}

void NearPlans::sort() { std::sort(plans_.begin(), plans_.end(), before); }

void NearPlans::add(const std::vector<NearPlan>& plans) {
  const std::size_t from = plans_.size();
  plans_.insert(plans_.end(), plans.begin(), plans.end());
  time_the_best(from);
  forget_slow();
}

void NearPlans::time(std::vector<NearPlan*> plans) {
  std::erase_if(plans, [](const NearPlan* plan) { return plan->step >= 0; });
  const std::vector<double> steps = crew_.shared<double>(plans.size(), [&](std::size_t i) {
    if (crew_.told_to_stop()) return -1.0;
    const Scenario scenario = scenario_of(*plans[i], groups_.base());
    const auto step = step_time(scenario, session_);
    return step ? groups_.scaled(scenario, *step / units::s) : kForever;
  });
  for (std::size_t i = 0; i < plans.size(); ++i) plans[i]->step = steps[i];
  for (const NearPlan* plan : plans) {
    if (plan->step < 0) continue;
    ++(plan->is_of_space() ? timed_ : timed_with_fewer_layers_);
    best_ = std::min(best_, plan->step);
  }
}

// Of the plans from `from` on, times those whose bound is below the best step, a few at a time.
void NearPlans::time_the_best(std::size_t from) {
  std::sort(plans_.begin() + static_cast<std::ptrdiff_t>(from), plans_.end(), before);
  std::size_t size = 4;
  for (std::size_t at = from; at < plans_.size() && plans_[at].bound <= best_ && !crew_.stop();) {
    std::vector<NearPlan*> batch;
    for (; at < plans_.size() && batch.size() < size && plans_[at].bound <= best_; ++at) batch.push_back(&plans_[at]);
    time(std::move(batch));
    size = std::min<std::size_t>(2 * size, 32);
  }
}

void NearPlans::forget_slow() {
  std::erase_if(plans_, [&](const NearPlan& plan) {
    const bool slow = plan.bound > limit() || plan.step > limit();
    if (slow && plan.step < 0 && plan.is_of_space()) ++forgotten_;
    return slow;
  });
}

const NearPlan* NearPlans::fastest(const std::vector<NearPlan*>& plans) {
  double best = limit();
  for (std::size_t at = 0; at < plans.size() && plans[at]->bound <= best;) {
    std::vector<NearPlan*> batch;
    for (; at < plans.size() && batch.size() < 16 && plans[at]->bound <= best; ++at) batch.push_back(plans[at]);
    time(batch);
    for (const NearPlan* plan : batch) {
      if (plan->step >= 0) best = std::min(best, plan->step);
    }
    if (crew_.stop()) break;
  }
  const NearPlan* found = nullptr;
  for (const NearPlan* plan : plans) {
    if (plan->step < 0 || plan->step > best) continue;
    const auto rank = [](const NearPlan& each) {
      return std::tie(each.step, each.kinds, each.memory, each.group, each.leaf, each.layers);
    };
    if (found == nullptr || rank(*plan) < rank(*found)) found = plan;
  }
  return found;
}

}  // namespace ns_dist
