// Does every schedule obey the rules, for all shapes? Each pass once, forward before backward, no deadlock between
// stages, live activations within the stated bound, and with equal passes the stated bubble.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {
namespace {

struct Case {
  const PipelineSchedule* schedule;
  ScheduleShape shape;
  std::vector<std::vector<SchedulePass>> orders;
};

// A random shape that a random schedule runs.
Case any_case() {
  const auto schedules = pipeline_schedules();
  const PipelineSchedule& schedule = schedules[*rc::gen::inRange<std::size_t>(0, schedules.size())];
  Case result{&schedule, {}, {}};
  const bool chunked = schedule.order({2, 2, 2}, 0).has_value();
  result.shape.stages = *rc::gen::inRange<std::int64_t>(chunked ? 2 : 1, 9);
  result.shape.chunks = chunked ? *rc::gen::inRange<std::int64_t>(1, 5) : 1;
  result.shape.microbatches =
      chunked ? result.shape.stages * *rc::gen::inRange<std::int64_t>(1, 5) : *rc::gen::inRange<std::int64_t>(1, 33);
  for (std::int64_t stage = 0; stage < result.shape.stages; ++stage) {
    const auto order = schedule.order(result.shape, stage);
    RC_ASSERT(order.has_value());
    result.orders.push_back(*order);
  }
  return result;
}

RC_GTEST_PROP(Schedules, EachPassOnceAndForwardFirst, ()) {
  const Case c = any_case();
  for (const auto& order : c.orders) {
    std::set<std::tuple<int, int, int>> seen;
    for (const SchedulePass& pass : order) {
      RC_ASSERT(seen.insert({static_cast<int>(pass.kind), pass.microbatch, pass.chunk}).second);
      if (pass.kind == PassKind::kBackward) RC_ASSERT(seen.count({0, pass.microbatch, pass.chunk}) == 1);
    }
    RC_ASSERT(static_cast<std::int64_t>(order.size()) == 2 * c.shape.microbatches * c.shape.chunks);
  }
}

RC_GTEST_PROP(Schedules, LiveActivationsStayWithinTheBound, ()) {
  const Case c = any_case();
  for (std::int64_t stage = 0; stage < c.shape.stages; ++stage) {
    std::int64_t live = 0, most = 0;
    for (const SchedulePass& pass : c.orders[static_cast<std::size_t>(stage)]) {
      live += pass.kind == PassKind::kForward ? 1 : -1;
      most = std::max(most, live);
    }
    RC_ASSERT(most == c.schedule->in_flight(c.shape, stage));
  }
}

RC_GTEST_PROP(Schedules, StagesNeverWaitForEachOtherInACircleAndTheBubbleIsTheStatedOne, ()) {
  const Case c = any_case();
  const std::int64_t parts = c.shape.stages * c.shape.chunks;
  // Chunk passes of one time unit forward and two backward; a pass starts when its neighbour's is over.
  std::map<std::tuple<int, std::int64_t, int>, double> finished;  // kind, position in the model, microbatch
  std::vector<std::size_t> next(c.orders.size(), 0);
  std::vector<double> clock(c.orders.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t stage = 0; stage < c.orders.size(); ++stage) {
      while (next[stage] < c.orders[stage].size()) {
        const SchedulePass& pass = c.orders[stage][next[stage]];
        const std::int64_t position = pass.chunk * c.shape.stages + static_cast<std::int64_t>(stage);
        const bool forward = pass.kind == PassKind::kForward;
        double ready = 0;
        const std::int64_t before = position + (forward ? -1 : 1);
        if (before >= 0 && before < parts) {
          const auto found = finished.find({static_cast<int>(pass.kind), before, pass.microbatch});
          if (found == finished.end()) break;
          ready = found->second;
        }
        clock[stage] = std::max(clock[stage], ready) + (forward ? 1 : 2);
        finished[{static_cast<int>(pass.kind), position, pass.microbatch}] = clock[stage];
        ++next[stage];
        moved = true;
      }
    }
  }
  for (std::size_t stage = 0; stage < c.orders.size(); ++stage) RC_ASSERT(next[stage] == c.orders[stage].size());
  const double busy = 3.0 * static_cast<double>(c.shape.microbatches * c.shape.chunks);
  const double step = *std::max_element(clock.begin(), clock.end());
  RC_ASSERT(step >= busy * (1 + c.schedule->bubble(c.shape)) * (1 - 1e-12));
  // Exact where the pipeline is filled; with fewer microbatches than stages nothing can fill it.
  if (c.shape.microbatches >= c.shape.stages)
    RC_ASSERT(std::abs(step - busy * (1 + c.schedule->bubble(c.shape))) < 1e-9);
}

}  // namespace
}  // namespace ns_dist
