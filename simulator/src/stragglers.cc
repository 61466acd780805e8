#include "stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ns_dist/internal/with_commas.h"

namespace ns_dist {

Result<void> check_stragglers(const Scenario& scenario) {
  const std::int64_t stages = scenario.plan.pp;
  const Stragglers& stragglers = scenario.stragglers;
  std::vector<Error> errors;
  if (stragglers.slow_stage >= stages) {
    errors.push_back({ErrorCode::kInfeasible, fmt::format("there is no pipeline stage {}", stragglers.slow_stage),
                      "stragglers/slow_rank", fmt::format("a stage from 0 to {}", stages - 1)});
  }
  const std::size_t speeds = stragglers.stage_speed.size();
  if (speeds != 0 && speeds != static_cast<std::size_t>(stages)) {
    errors.push_back({ErrorCode::kInfeasible,
                      fmt::format("{} for {}", counted(speeds, "speed"), counted(stages, "pipeline stage")),
                      "stragglers/stage_speed", "one number for each stage"});
  }
  const auto is_wrong = [](double factor) { return !std::isfinite(factor) || !(factor > 0); };
  if (std::any_of(stragglers.stage_speed.begin(), stragglers.stage_speed.end(), is_wrong)) {
    errors.push_back({ErrorCode::kInvalidInput, "a speed is no number above 0", "stragglers/stage_speed",
                      "1 for a stage as the GPU is forecast"});
  }
  if (is_wrong(stragglers.slow_factor)) {
    errors.push_back({ErrorCode::kInvalidInput, "the factor is no number above 0", "stragglers/slow_rank",
                      "times as long, as in 3:1.2"});
  }
  if (!(scenario.host.launch() >= Seconds()) || !std::isfinite(scenario.host.launch() / units::s)) {
    errors.push_back({ErrorCode::kInvalidInput, "the time is negative or no number", "host/launch_cost",
                      "the host's time for one launch"});
  }
  if (errors.empty()) return {};
  return fail(join(std::move(errors)));
}

}  // namespace ns_dist
