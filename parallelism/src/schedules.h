// The functions that schedules.cc puts into its table, one file a schedule in schedules/.
#pragma once

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist::schedules {

// An error unless the shape has a single model chunk.
Result<void> one_chunk(std::string_view schedule, const ScheduleShape& shape);

Result<std::vector<SchedulePass>> gpipe_order(const ScheduleShape& shape, std::int64_t stage);
std::int64_t gpipe_in_flight(const ScheduleShape& shape, std::int64_t stage);
Result<std::vector<SchedulePass>> one_f_one_b_order(const ScheduleShape& shape, std::int64_t stage);
std::int64_t one_f_one_b_in_flight(const ScheduleShape& shape, std::int64_t stage);
Result<std::vector<SchedulePass>> interleaved_order(const ScheduleShape& shape, std::int64_t stage);
std::int64_t interleaved_in_flight(const ScheduleShape& shape, std::int64_t stage);

// (p - 1) / m: Narayanan et al. 2021, s.2.2.1.
double plain_bubble(const ScheduleShape& shape);
// (p - 1) / (v m): Narayanan et al. 2021, s.2.2.2.
double interleaved_bubble(const ScheduleShape& shape);

}  // namespace ns_dist::schedules
