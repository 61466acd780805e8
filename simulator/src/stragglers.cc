#include "stragglers.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

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
                      fmt::format("{} speed{} for {} pipeline stage{}", speeds, speeds == 1 ? "" : "s", stages,
                                  stages == 1 ? "" : "s"),
                      "stragglers/stage_speed", "one number for each stage"});
  }
  if (errors.empty()) return {};
  return fail(join(std::move(errors)));
}

}  // namespace ns_dist
