#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/with_commas.h"
#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {

// One file each in schedules/.
extern constinit const PipelineSchedule kGpipe, kOneFOneB, kInterleaved, kCombined1f1b, kBreadthFirst, kZbH1, kZbH2,
    kZbV, kVHalf, kVMin, kDualpipe, kDualpipeV;

std::span<const PipelineSchedule* const> pipeline_schedules() {
  static constexpr std::array kSchedules = {&kGpipe,        &kOneFOneB, &kInterleaved, &kCombined1f1b,
                                            &kBreadthFirst, &kZbH1,     &kZbH2,        &kZbV,
                                            &kVHalf,        &kVMin,     &kDualpipe,    &kDualpipeV};
  return kSchedules;
}

namespace {

template <class Is>
const PipelineSchedule* first_that(const Is& is) {
  const auto all = pipeline_schedules();
  const auto found = std::find_if(all.begin(), all.end(), is);
  return found == all.end() ? nullptr : *found;
}

const PipelineSchedule* named(std::string_view name) {
  return first_that([name](const PipelineSchedule* schedule) { return schedule->name == name; });
}

const PipelineSchedule& default_schedule() {
  static const PipelineSchedule* const kDefault = named(ParallelPlan().schedule);
  NS_EXPECTS(kDefault != nullptr);
  return *kDefault;
}

}  // namespace

Result<std::vector<PassList>> PipelineSchedule::orders(const ScheduleShape& shape) const {
  const auto refuse = [](std::string message, const char* where, std::string expected, std::string hint) {
    return fail({ErrorCode::kInfeasible, std::move(message), where, std::move(expected), std::move(hint)});
  };
  if (!has_chunks(shape.chunks)) {
    return refuse(fmt::format("{} runs {} a stage, not {}", name, counted(least_chunks, "model chunk"), shape.chunks),
                  "plan/vpp", fmt::format("{}", least_chunks), fmt::format("write plan/vpp={}", least_chunks));
  }
  if (pairs_stages && shape.stages % 2 != 0) {
    return refuse(fmt::format("{} pairs the stages, and {} is odd", name, shape.stages), "plan/pp",
                  "an even number of stages", fmt::format("plan/pp={}", shape.stages + 1));
  }
  if (pairs_stages && shape.microbatches % 2 != 0) {
    return refuse(
        fmt::format("{} sends half of the microbatches from each end, and {} is odd", name, shape.microbatches),
        "training/global_batch", "an even number of microbatches",
        fmt::format("training/global_batch that gives {} microbatches", shape.microbatches + 1));
  }
  return pass_lists(shape);
}

Result<const PipelineSchedule*> pipeline_schedule(std::string_view name) {
  if (const PipelineSchedule* schedule = named(name)) return schedule;
  std::vector<std::string> names;
  for (const PipelineSchedule* schedule : pipeline_schedules()) names.emplace_back(schedule->name);
  const std::string near = nearest_name(name, names);
  return fail({ErrorCode::kNotFound, fmt::format("unknown schedule \"{}\"", name), "plan/schedule",
               fmt::format("one of {}", fmt::join(names, ", ")), did_you_mean(near)});
}

const PipelineSchedule& traits_of(const ParallelPlan& plan) {
  const PipelineSchedule* schedule = named(plan.schedule);
  return schedule != nullptr ? *schedule : default_schedule();
}

const PipelineSchedule& schedule_for(std::int64_t chunks) {
  if (chunks == 1) return default_schedule();
  const PipelineSchedule* schedule =
      first_that([](const PipelineSchedule* each) { return each->most_chunks == 0 && each->overlaps_messages; });
  NS_EXPECTS(schedule != nullptr);
  return *schedule;
}

}  // namespace ns_dist
