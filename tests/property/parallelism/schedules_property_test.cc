// Does every schedule obey the rules, for all shapes? It runs or says why not, memory follows from its lists, and the
// lists do not grow with the number of microbatches.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {
namespace {

const PipelineSchedule& any_schedule() {
  const auto schedules = pipeline_schedules();
  return *schedules[*rc::gen::inRange<std::size_t>(0, schedules.size())];
}

ScheduleShape any_shape(const PipelineSchedule& schedule) {
  const std::int64_t most = schedule.most_chunks == 0 ? 5 : schedule.most_chunks;
  return {*rc::gen::inRange<std::int64_t>(1, 13), *rc::gen::inRange<std::int64_t>(1, 60),
          *rc::gen::inRange<std::int64_t>(schedule.least_chunks, most + 1)};
}

std::size_t length(const PassList& list) {
  return std::accumulate(list.begin(), list.end(), std::size_t{0},
                         [](std::size_t sum, const PassLoop& loop) { return sum + loop.passes.size(); });
}

struct Case {
  const PipelineSchedule* schedule;
  ScheduleShape shape;
  std::vector<PassList> orders;
};

// A random shape that a random schedule runs.
Case any_case() {
  const PipelineSchedule& schedule = any_schedule();
  const ScheduleShape shape = any_shape(schedule);
  auto orders = schedule.orders(shape);
  RC_PRE(orders.has_value());
  return {&schedule, shape, *std::move(orders)};
}

RC_GTEST_PROP(Schedules, EveryShapeRunsOrIsRefusedWithAReason, ()) {
  const PipelineSchedule& schedule = any_schedule();
  ScheduleShape shape = any_shape(schedule);
  shape.chunks = *rc::gen::inRange<std::int64_t>(1, 5);
  const auto orders = schedule.orders(shape);
  if (!orders) {
    const std::set<std::string> fields = {"plan/vpp", "plan/pp", "training/global_batch"};
    RC_ASSERT(fields.count(orders.error().where) == 1);
    RC_ASSERT(orders.error().hint.find(orders.error().where) != std::string::npos);
    return;
  }
  RC_ASSERT(static_cast<std::int64_t>(orders->size()) == shape.stages);
  const auto facts = check(schedule.seats(shape), *orders);
  if (!facts) RC_FAIL(to_text(facts.error()));
  const auto microbatches = static_cast<double>(shape.microbatches);
  const auto passes =
      static_cast<double>(schedule.seats(shape)[0].size()) * microbatches / static_cast<double>(shape.stages);
  RC_ASSERT(facts->makespan >= 3 * passes - 1e-9);
  RC_ASSERT(facts->bubble >= -1e-12);
}

RC_GTEST_PROP(Schedules, SplitsTheBackwardPassOnlyWhereItSaysSo, ()) {
  const Case c = any_case();
  for (const PassList& list : c.orders) {
    for (const SchedulePass& pass : flatten(list)) {
      const bool split = pass.kind == PassKind::kInputGradient || pass.kind == PassKind::kWeightGradient;
      RC_ASSERT(!split || c.schedule->splits_backward);
      RC_ASSERT(pass.chunk < c.shape.chunks && pass.microbatch < c.shape.microbatches);
    }
  }
}

// Whole bytes, so that sums in any order are exact.
std::vector<ChunkBytes> any_bytes(const ScheduleShape& shape) {
  const auto any = [](int below) { return static_cast<double>(*rc::gen::inRange(0, below)); };
  std::vector<ChunkBytes> chunks;
  for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
    const int forward = *rc::gen::inRange(0, 1000);
    chunks.push_back({static_cast<double>(forward), any(1000), any(forward + 1), any(1000), any(1000)});
  }
  return chunks;
}

// What is held behind each pass, and the most since the end of the pass before it, of every microbatch by itself.
struct Held {
  double behind = 0, most = 0;
};
std::vector<Held> held_in_turn(const std::vector<SchedulePass>& passes, const std::vector<ChunkBytes>& chunks) {
  std::map<std::pair<std::int32_t, std::int32_t>, double> kept;
  std::vector<Held> all;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const auto bytes_of = [&](const SchedulePass& pass) { return chunks[static_cast<std::size_t>(pass.chunk)]; };
    const auto kept_of = [&](const SchedulePass& pass) -> double& { return kept[{pass.microbatch, pass.chunk}]; };
    const auto sum = [&kept] {
      return std::accumulate(kept.begin(), kept.end(), 0.0,
                             [](double sum_of, const auto& one) { return sum_of + one.second; });
    };
    const SchedulePass& pass = passes[i];
    const bool gradient = pass.kind == PassKind::kBackward || pass.kind == PassKind::kInputGradient;
    Held held;
    if (i + 1 < passes.size() && passes[i + 1].beside_previous) kept_of(passes[i + 1]) -= bytes_of(passes[i + 1]).loss;
    if (gradient) {
      if (!pass.beside_previous) kept_of(pass) -= bytes_of(pass).loss;
      held.most = sum() + bytes_of(pass).working;
    }
    kept_of(pass) = pass.kind == PassKind::kForward         ? bytes_of(pass).after_forward
                    : pass.kind == PassKind::kInputGradient ? bytes_of(pass).after_input_gradient
                                                            : 0;
    held.behind = sum();
    held.most = std::max(held.most, held.behind + (gradient ? bytes_of(pass).logged : 0));
    all.push_back(held);
  }
  return all;
}

double highest_of(const std::vector<Held>& all) {
  double highest = 0;
  for (const Held& held : all) highest = std::max(highest, held.most);
  return highest;
}

RC_GTEST_PROP(Schedules, MostHeldIsThatOfEveryPassInTurn, ()) {
  const Case c = any_case();
  const std::vector<ChunkBytes> chunks = any_bytes(c.shape);
  for (const PassList& list : c.orders) {
    RC_ASSERT(most_held(list, chunks) == highest_of(held_in_turn(flatten(list), chunks)));
  }
}

// Each point is what the passes before it left, and none is higher than the highest point.
RC_GTEST_PROP(Schedules, HeldOverTimeIsThatOfEveryPassInTurn, ()) {
  const Case c = any_case();
  const std::vector<ChunkBytes> chunks = any_bytes(c.shape);
  for (const PassList& list : c.orders) {
    const std::vector<SchedulePass> passes = flatten(list);
    const std::vector<Held> all = held_in_turn(passes, chunks);
    std::size_t next = 0;
    double highest = 0;
    for (const HeldPoint& point : held_over_time(list, chunks)) {
      next = static_cast<std::size_t>(point.number);
      RC_ASSERT(point.pass == passes[next]);
      RC_ASSERT(point.bytes == all[next].behind);
      RC_ASSERT(point.most == all[next].behind || point.most == all[next].most);
      highest = std::max(highest, point.most);
    }
    RC_ASSERT(next + 1 == passes.size());
    RC_ASSERT(highest == highest_of(all));
    RC_ASSERT(all.back().behind == 0);
  }
}

// Passes of a chunk that are live at a point are what the chunk holds there of one byte a pass.
RC_GTEST_PROP(Schedules, LivePassesAreWhatOneByteAPassHolds, ()) {
  const Case c = any_case();
  const auto chunk_count = static_cast<std::size_t>(c.shape.chunks);
  for (const PassList& list : c.orders) {
    const auto chunk = *rc::gen::inRange<std::size_t>(0, chunk_count);
    std::vector<ChunkBytes> forward(chunk_count), gradient(chunk_count);
    forward[chunk].after_forward = gradient[chunk].after_input_gradient = 1;
    const std::vector<HeldPoint> before = held_over_time(list, forward), behind = held_over_time(list, gradient);
    const auto point = *rc::gen::inRange<std::size_t>(0, before.size());
    const LivePasses live = live_passes(list, chunk_count, point)[chunk];
    RC_ASSERT(static_cast<double>(live.after_forward) == before[point].bytes);
    RC_ASSERT(static_cast<double>(live.after_input_gradient) == behind[point].bytes);
  }
}

RC_GTEST_PROP(Schedules, MostHeldOfOneByteAPassIsMostLive, ()) {
  const Case c = any_case();
  const auto facts = check(c.schedule->seats(c.shape), c.orders);
  RC_ASSERT(facts.has_value());
  const std::vector<ChunkBytes> chunks(static_cast<std::size_t>(c.shape.chunks), ChunkBytes{1, 1});
  for (std::size_t stage = 0; stage < c.orders.size(); ++stage) {
    RC_ASSERT(most_held(c.orders[stage], chunks) == static_cast<double>(facts->most_live[stage]));
  }
}

RC_GTEST_PROP(Schedules, ListsDoNotGrowWithTheMicrobatches, ()) {
  const PipelineSchedule& schedule = any_schedule();
  ScheduleShape few = any_shape(schedule), many = few;
  few.microbatches = 12 * few.stages;
  many.microbatches = 12 * few.stages * 5000;
  const auto short_lists = schedule.orders(few), long_lists = schedule.orders(many);
  RC_PRE(short_lists.has_value() && long_lists.has_value());
  for (std::size_t stage = 0; stage < short_lists->size(); ++stage) {
    RC_ASSERT(length((*short_lists)[stage]) == length((*long_lists)[stage]));
  }
}

// Clocks that fold a step need one loop on each stage that holds almost all of it, at one pace.
RC_GTEST_PROP(Schedules, SteadyLoopsOfAllStagesAdvanceAlike, ()) {
  const PipelineSchedule& schedule = any_schedule();
  ScheduleShape shape = any_shape(schedule);
  shape.microbatches = 4000 * shape.stages;
  const auto orders = schedule.orders(shape);
  RC_PRE(orders.has_value());
  std::set<std::int32_t> paces;
  for (const PassList& list : *orders) {
    const auto longest = std::max_element(list.begin(), list.end(), [](const PassLoop& a, const PassLoop& b) {
      return static_cast<std::int64_t>(a.passes.size()) * a.repeats <
             static_cast<std::int64_t>(b.passes.size()) * b.repeats;
    });
    paces.insert(std::abs(longest->shift));
  }
  RC_ASSERT(paces.size() == 1);
}

}  // namespace
}  // namespace ns_dist
