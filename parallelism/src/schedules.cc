#include <fmt/format.h>

#include <array>

#include "ns_dist/catalog.h"
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

Result<const PipelineSchedule*> pipeline_schedule(std::string_view name) {
  std::vector<std::string> names;
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    if (schedule->name == name) return schedule;
    names.emplace_back(schedule->name);
  }
  const std::string near = nearest_name(name, names);
  return fail({ErrorCode::kNotFound,
               fmt::format("unknown schedule \"{}\"", name),
               "plan/schedule",
               fmt::format("one of {}", fmt::join(names, ", ")),
               did_you_mean(near),
               {}});
}

}  // namespace ns_dist
