#include "host_waits.h"

#include <algorithm>
#include <iterator>

#include "clocks/fragment_length.h"

namespace ns_dist {
namespace {

// Launches of one program take this share of the launch cost on another host: PyTorch's Linear takes 13.5 us on a
// Xeon of a DGX H100 and 33 to 37 us on Grace (TransformerEngine issue 2053), a factor of 2.5 from end to end.
constexpr double kFastHost = 0.6, kSlowHost = 1.5;

// How long the GPU waits in a run of `fragment`, by row of costs.
std::vector<Forecast> waits_of(const Host& host, const Fragment& fragment, const ProgramCosts& costs,
                               std::vector<double>& room) {
  const Seconds launches = static_cast<double>(fragment.nodes.size()) * host.launch_cost;
  std::vector<Forecast> waits;
  for (const ProgramCosts::Row& row : costs.rows) {
    const auto duration = [&](std::uint32_t work) { return row.forecasts[work].latency / units::s; };
    const Seconds hidden = host.blocking_launches ? Seconds() : fragment_length(fragment, duration, room) * units::s;
    const auto wait_on = [&](double share) { return max(Seconds(), share * launches - hidden); };
    Forecast& wait = waits.emplace_back();
    wait.latency = wait_on(1);
    wait.low = wait_on(kFastHost);
    wait.high = wait_on(kSlowHost);
  }
  return waits;
}

}  // namespace

void add_host_waits(const Host& host, StepProgram& program, ProgramCosts& costs) {
  if (host.cuda_graphs || !(host.launch_cost > Seconds())) return;
  std::vector<double> room;
  for (Fragment& fragment : program.fragments) {
    const std::vector<Forecast> waits = waits_of(host, fragment, costs, room);
    if (std::all_of(waits.begin(), waits.end(), [](const Forecast& wait) { return !(wait.latency > Seconds()); }))
      continue;
    const WorkId work{static_cast<std::uint32_t>(program.works.size())};
    program.works.push_back(
        {"host.launches", Category::kOther, Operator{UnknownOperator{"host.launches", {}, {}, {}}, DType::kBf16}});
    for (std::size_t r = 0; r < waits.size(); ++r) {
      costs.rows[r].forecasts.push_back(waits[r]);
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
