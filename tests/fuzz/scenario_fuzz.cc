// Reports for --from: any text is either refused with a place, or a scenario that is written and read back as it was,
// and whose step takes a finite time or is refused with a reason.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/simulator.h"

namespace {

// What takes no longer than other inputs.
bool is_small(const ns_dist::Scenario& scenario) {
  const auto ranks = ns_dist::rank_count(scenario.plan);
  return ranks && *ranks <= 4096 && scenario.model.layers <= 128 && scenario.training.global_batch <= 4096;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::size_t plan : {1U, 2U}) {
    const auto scenario = read_scenario(text, "input.json", plan);
    if (!scenario) {
      NS_EXPECTS(!scenario.error().message.empty() && scenario.error().where.starts_with("input.json"));
      continue;
    }
    const auto again = read_scenario(write_scenario(*scenario), "written.json");
    NS_EXPECTS(again.has_value());
    NS_EXPECTS(write_scenario(*again) == write_scenario(*scenario));
    if (!is_small(*scenario)) continue;
    const auto session = Session::make(*scenario);
    if (!session) continue;
    const auto step = step_time(*scenario, *session);
    NS_EXPECTS(step ? std::isfinite(*step / units::s) && *step > Seconds() : !step.error().message.empty());
  }
  return 0;
}
