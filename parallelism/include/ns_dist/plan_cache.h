// A cache of parts that several plans share: the kernels of a layer, the loops of a schedule.
//
//   PlanCache cache;
//   for (const ParallelPlan& plan : plans) plan_program(model, plan, training, cache);
//
// The answers are the same with and without it. Its size is bounded. Any number of threads may use it at once.
#pragma once

#include <memory>

namespace ns_dist {

class PlanCache {
 public:
  PlanCache();
  ~PlanCache();
  PlanCache(PlanCache&&) noexcept;
  PlanCache& operator=(PlanCache&&) noexcept;

  class Contents;  // of the planner
  Contents& contents() const { return *contents_; }

 private:
  std::unique_ptr<Contents> contents_;
};

}  // namespace ns_dist
