#include "host_waits.h"

#include <algorithm>
#include <iterator>

#include "clocks/fragment_length.h"

namespace ns_dist {
namespace {

// Seconds that the GPU waits in a run of `fragment`, by row of costs.
std::vector<double> waits_of(const Host& host, const Fragment& fragment, const ProgramCosts& costs,
                             std::vector<double>& room) {
  const double launches = static_cast<double>(fragment.nodes.size()) * (host.launch_cost / units::s);
  std::vector<double> waits;
  for (const ProgramCosts::Row& row : costs.rows) {
    if (host.blocking_launches) {
      waits.push_back(launches);
      continue;
    }
    const auto duration = [&](std::uint32_t work) { return row.forecasts[work].latency / units::s; };
    waits.push_back(std::max(0.0, launches - fragment_length(fragment, duration, room)));
  }
  return waits;
}

}  // namespace

void add_host_waits(const Host& host, StepProgram& program, ProgramCosts& costs) {
  if (host.cuda_graphs || !(host.launch_cost > Seconds())) return;
  std::vector<double> room;
  for (Fragment& fragment : program.fragments) {
    const std::vector<double> waits = waits_of(host, fragment, costs, room);
    if (std::all_of(waits.begin(), waits.end(), [](double wait) { return wait <= 0; })) continue;
    const WorkId work{static_cast<std::uint32_t>(program.works.size())};
    program.works.push_back(
        {"host.launches", Category::kOther, Operator{UnknownOperator{"host.launches", {}, {}, {}}, DType::kBf16}});
    for (std::size_t r = 0; r < waits.size(); ++r) {
      Forecast wait;
      wait.latency = wait.low = wait.high = waits[r] * units::s;
      costs.rows[r].forecasts.push_back(wait);
      if (!costs.rows[r].demands.empty()) costs.rows[r].demands.emplace_back();
    }
    const auto first = static_cast<std::uint32_t>(fragment.dependencies.size());
    const std::vector<std::int32_t> after = fragment.exits;
    std::copy_if(after.begin(), after.end(), std::back_inserter(fragment.dependencies),
                 [](std::int32_t on) { return on >= 0; });
    fragment.nodes.push_back(
        {Stream::kCompute, work, first, static_cast<std::uint32_t>(fragment.dependencies.size()) - first});
  }
}

}  // namespace ns_dist
