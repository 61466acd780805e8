#include "schedules.h"

#include <fmt/format.h>

#include <array>

#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

using namespace schedules;

constexpr std::array<PipelineSchedule, 3> kSchedules = {{
    {"gpipe", "all forwards, then all backwards; holds every microbatch", gpipe_order, gpipe_in_flight, plain_bubble},
    {"1f1b", "forwards and backwards alternate; holds at most as many microbatches as stages", one_f_one_b_order,
     one_f_one_b_in_flight, plain_bubble},
    {"interleaved", "1f1b over several model chunks a stage; a bubble smaller by their number", interleaved_order,
     interleaved_in_flight, interleaved_bubble},
}};

}  // namespace

Result<void> schedules::one_chunk(std::string_view schedule, const ScheduleShape& shape) {
  if (shape.chunks == 1) return {};
  return fail({ErrorCode::kInfeasible,
               fmt::format("{} runs one model chunk a stage, not {}", schedule, shape.chunks),
               "--schedule",
               "vpp 1",
               "use the interleaved schedule for vpp above 1",
               {}});
}

std::span<const PipelineSchedule> pipeline_schedules() { return kSchedules; }

Result<const PipelineSchedule*> pipeline_schedule(std::string_view name) {
  std::vector<std::string> names;
  for (const PipelineSchedule& schedule : kSchedules) {
    if (schedule.name == name) return &schedule;
    names.emplace_back(schedule.name);
  }
  const std::string near = nearest_name(name, names);
  return fail({ErrorCode::kNotFound,
               fmt::format("unknown schedule \"{}\"", name),
               "--schedule",
               fmt::format("one of {}", fmt::join(names, ", ")),
               near.empty() ? "" : fmt::format("did you mean \"{}\"?", near),
               {}});
}

}  // namespace ns_dist
