// Pipeline schedules: in which order a stage runs its forward and backward passes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

enum class PassKind : std::uint8_t { kForward, kBackward };

// One pass of one microbatch through one model chunk of a stage.
struct SchedulePass {
  PassKind kind = PassKind::kForward;
  std::int32_t microbatch = 0;
  std::int32_t chunk = 0;
  friend bool operator==(const SchedulePass&, const SchedulePass&) = default;
};

struct ScheduleShape {
  std::int64_t stages = 1, microbatches = 1, chunks = 1;
};

struct PipelineSchedule {
  std::string_view name, description;
  // The passes of `stage`, in order. Errors: a shape that this schedule cannot run, with the nearest that it can.
  Result<std::vector<SchedulePass>> (*order)(const ScheduleShape& shape, std::int64_t stage);
  // Most microbatches (counted in chunks) whose activations `stage` holds at once.
  std::int64_t (*in_flight)(const ScheduleShape& shape, std::int64_t stage);
  // Idle share of a stage with equal passes and free communication, relative to the busy time.
  double (*bubble)(const ScheduleShape& shape);
};

// Every schedule, in the order in which `ns-dist list schedules` shows them.
std::span<const PipelineSchedule> pipeline_schedules();

Result<const PipelineSchedule*> pipeline_schedule(std::string_view name);

}  // namespace ns_dist
